//! One step of one shard towards the history: reads what is new in its outbox and makes batches of it.
//!
//! A step changes nothing, so it may be dropped at any point and made again. Rows leave the outbox only after the
//! append of their batch. A hole is believed only after the cursor was read again: another relay may have taken the
//! rows.

use std::sync::Arc;
use std::time::Duration;

use crate::historian::findings::{LastingFindings, new_findings};
use crate::queues::Queues;
use tallystone_domain::history::HistoryCursor;
use tallystone_domain::history::audit::Finding;
use tallystone_domain::history::audit::levels::check_levels;
use tallystone_domain::history::audit::rows::{AuditRegister, CountedRows};
use tallystone_domain::history::run::{PageEnd, ShardRun, TakenRows};
use tallystone_domain::limits::{
    HISTORY_BATCH_ROWS_MAX, OUTBOX_PAGE_ROWS_MAX, RELAY_COMPARED_PAGES_MAX, RELAY_OVERTAKEN_MAX,
};
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_ports::{
    Clock, HistoryBatch, HistoryStore, OutboxPage, RegisterCodec, ShardOutbox, StoreError, StoreErrorKind,
};

/// The time between two audits of a shard.
pub const AUDIT_EVERY: Duration = Duration::from_secs(10);

/// The sources from which steps read.
pub struct StepSources {
    pub queues: Queues,
    pub outbox: Arc<dyn ShardOutbox>,
    pub history: Arc<dyn HistoryStore>,
    pub registers: Arc<dyn RegisterCodec>,
    pub clock: Arc<dyn Clock>,
}

/// A shard as the relay remembers it between two steps.
#[derive(Clone, Debug)]
pub struct KeptShard {
    pub run: ShardRun,
    /// The position up to which the outbox was emptied; none if that is not known.
    pub forgotten: Option<RowPosition>,
    audited_at: Option<Duration>,
    lasting: LastingFindings,
}

impl KeptShard {
    /// Whether rows wait for a comparison whose time has come.
    pub fn is_audit_due(&self, now: Duration) -> bool {
        self.run.register.has_unaudited() && self.is_audit_time(now)
    }

    fn is_audit_time(&self, now: Duration) -> bool {
        self.audited_at.is_none_or(|at| now.saturating_sub(at) >= AUDIT_EVERY)
    }
}

/// A step that is ready to be written.
#[derive(Debug)]
pub struct ShardStep {
    /// The shard after the step.
    pub kept: KeptShard,
    /// The batches to write, in order.
    pub batches: Vec<HistoryBatch>,
    pub findings: Vec<Finding>,
    /// Whether the outbox may have more rows.
    pub has_more: bool,
    /// The age of the oldest row of the step.
    pub age: Duration,
}

impl StepSources {
    /// Makes the next step of a shard. `kept` is what the step before left; none to read the cursor first.
    pub async fn step(&self, shard: ShardId, kept: Option<KeptShard>) -> Result<ShardStep, StoreError> {
        let mut kept = match kept {
            Some(kept) => kept,
            None => self.load(shard).await?,
        };
        let keeps_history =
            self.queues.catalog.is_served(shard.queue) && self.queues.catalog.keeps_history(shard.queue);
        let mut findings = self.audit(&mut kept).await?;
        for _ in 0..RELAY_OVERTAKEN_MAX {
            let page = self.outbox.outbox(shard, kept.run.read_after(), OUTBOX_PAGE_ROWS_MAX).await?;
            if kept.run.given_up.is_none() && kept.run.is_beyond(page.through) {
                self.go_back(&mut kept.run, page.through).await?;
                continue;
            }
            let age = page.rows.first().map_or(Duration::ZERO, |row| page.at.since(row.transition.at));
            let (run, taken, has_more) = self.take(kept.run.clone(), page, keeps_history);
            let has_gaps = taken.iter().any(|(taken, _)| !taken.gaps.is_empty());
            if has_gaps && let Some(ahead) = self.cursor_beyond(&kept.run).await? {
                kept.run = ahead;
                continue;
            }
            let mut batches = Vec::new();
            for (taken, cursor) in taken {
                findings.extend(taken.findings);
                batches.extend(cursor.map(|cursor| HistoryBatch { shard, rows: taken.rows, gaps: taken.gaps, cursor }));
            }
            return Ok(ShardStep { kept: KeptShard { run, ..kept }, batches, findings, has_more, age });
        }
        let overtaken = StoreError::not_applied(StoreErrorKind::Busy, "relay the rows of a shard");
        Err(overtaken.with_source("other relays write its history at the same time"))
    }

    /// Takes the rows of a page in parts of one batch each. A part that changes nothing has no cursor.
    fn take(
        &self,
        mut run: ShardRun,
        page: OutboxPage,
        keeps_history: bool,
    ) -> (ShardRun, Vec<(TakenRows, Option<HistoryCursor>)>, bool) {
        let has_more = page.rows.len() >= OUTBOX_PAGE_ROWS_MAX;
        // A queue without history has no rows by intention, and a deleted one has no position.
        let end = if has_more || !keeps_history { PageEnd::Open } else { PageEnd::Missing(page.through, page.at) };
        let mut rows = page.rows;
        let mut taken = Vec::new();
        loop {
            // Mostly there is nothing to split off, and no row is copied.
            let rest = (rows.len() > HISTORY_BATCH_ROWS_MAX).then(|| rows.split_off(HISTORY_BATCH_ROWS_MAX));
            let end = if rest.is_some() { PageEnd::Open } else { end };
            let before = run.cursor;
            let part = run.take(rows, end);
            let changes = run.cursor != before || !part.gaps.is_empty();
            let cursor =
                changes.then(|| HistoryCursor { position: run.cursor, register: self.registers.encode(&run.register) });
            taken.push((part, cursor));
            match rest {
                Some(rest) => rows = rest,
                None => return (run, taken, has_more),
            }
        }
    }

    /// Begins with the cursor of the history.
    async fn load(&self, shard: ShardId) -> Result<KeptShard, StoreError> {
        let run = self.stored_run(shard).await?;
        let (forgotten, audited_at, lasting) = (None, None, LastingFindings::new());
        let mut kept = KeptShard { run, forgotten, audited_at, lasting };
        let RowPosition { epoch, position } = kept.run.cursor;
        let Some(before) = position.checked_sub(1).map(|position| RowPosition { epoch, position }) else {
            return Ok(kept);
        };
        // Of a shard that went back and passed the cursor again, the row at the cursor is another one.
        let page = self.outbox.outbox(shard, before, 1).await?;
        if let Some(row) = page.rows.first()
            && row.position() == kept.run.cursor
            && !self.is_in_history(shard, row).await?
        {
            self.go_back(&mut kept.run, before).await?;
        }
        Ok(kept)
    }

    async fn stored_run(&self, shard: ShardId) -> Result<ShardRun, StoreError> {
        let Some(HistoryCursor { position, register }) = self.history.cursor(shard).await? else {
            return Ok(ShardRun::from(shard, RowPosition::default(), AuditRegister::default()));
        };
        Ok(ShardRun::from(shard, position, self.registers.decode(&register).unwrap_or_default()))
    }

    /// The run from the stored cursor, if that lies beyond the one of a run.
    async fn cursor_beyond(&self, run: &ShardRun) -> Result<Option<ShardRun>, StoreError> {
        let stored = self.stored_run(run.shard).await?;
        Ok(Some(stored).filter(|stored| stored.cursor > run.cursor))
    }

    async fn go_back(&self, run: &mut ShardRun, newest: RowPosition) -> Result<(), StoreError> {
        let after = self.last_common(run).await?.unwrap_or(newest);
        tracing::warn!(
            queue = %run.shard.queue,
            shard = run.shard.number,
            after = after.position,
            history = run.cursor.position,
            "the shard went back: an older copy of its store is in use; its rows are a gap in the history up to there"
        );
        run.go_back(after);
        Ok(())
    }

    /// The place before the first row of the outbox that differs from the row of its name in the history; none if no
    /// row up to the cursor differs. Cost: a read for each page, and for the page that differs some more.
    async fn last_common(&self, run: &ShardRun) -> Result<Option<RowPosition>, StoreError> {
        let epoch = run.cursor.epoch;
        let mut after = RowPosition { epoch, position: 0 };
        for _ in 0..RELAY_COMPARED_PAGES_MAX {
            let mut rows = self.outbox.outbox(run.shard, after, OUTBOX_PAGE_ROWS_MAX).await?.rows;
            rows.retain(|row| row.position() <= run.cursor);
            let Some(last) = rows.last() else { return Ok(None) };
            if self.is_in_history(run.shard, last).await? {
                after = last.position();
                continue;
            }
            let (mut low, mut high) = (0, rows.len() - 1);
            while low < high {
                let middle = usize::midpoint(low, high);
                if self.is_in_history(run.shard, &rows[middle]).await? {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            return Ok(Some(RowPosition { epoch, position: rows[low].position().position - 1 }));
        }
        Ok(None)
    }

    /// Whether the history has this very row. True where it may have left by age.
    async fn is_in_history(&self, shard: ShardId, row: &HistoryRow) -> Result<bool, StoreError> {
        let RowPosition { epoch, position } = row.position();
        let before = RowPosition { epoch, position: position - 1 };
        let found = self.history.trace(shard.queue, row.transition.key, Some(before), 1).await?;
        if found.first() == Some(row) {
            return Ok(true);
        }
        Ok(self.history.starts_at().await?.is_some_and(|starts_at| row.transition.at < starts_at))
    }

    /// Checks the counts of a shard, and sets them for comparison with the rows. Does nothing most of the time.
    async fn audit(&self, kept: &mut KeptShard) -> Result<Vec<Finding>, StoreError> {
        let (shard, now) = (kept.run.shard, self.clock.elapsed());
        if !kept.is_audit_time(now) || !self.queues.catalog.is_served(shard.queue) {
            return Ok(Vec::new());
        }
        // No values: there may be many, and a check has them.
        let report = match self.outbox.report(shard, Some(u64::MAX)).await {
            Err(error) if error.kind == StoreErrorKind::Conflict => return Ok(Vec::new()), // it is being deleted
            report => report?,
        };
        kept.audited_at = Some(now);
        let levels = check_levels(shard, &report.totals, &report.counts);
        let mut findings = new_findings(&mut kept.lasting, levels);
        findings.extend(kept.run.expect(CountedRows { position: report.position, rows: report.counts.rows }));
        Ok(findings)
    }
}
