//! The relay: carries rows from the outboxes of shards into the history, in their order.
//!
//! Each round takes the shards that wait the longest. Several groups of shards are written at once, and one shard is in
//! one group, so it has one append in flight. Invariant: rows leave an outbox only after the append that has their
//! cursor. A round that is cut off repeats at worst what it wrote, and repeats change nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use hashbrown::HashMap;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::historian::HistorianContext;
use crate::historian::findings::raise;
use crate::historian::step::{AUDIT_EVERY, KeptShard, ShardStep};
use crate::report_right::ReportStanding;
use tallystone_domain::history::audit::Finding;
use tallystone_domain::limits::{
    HISTORY_BATCH_ROWS_MAX, RELAY_APPENDS_AT_ONCE_MAX, RELAY_READS_AT_ONCE_MAX, RELAY_SHARDS_KEPT_MAX,
    RELAY_SHARDS_OF_A_ROUND_MAX,
};
use tallystone_domain::queue::ShardId;
use tallystone_ports::{HistoryBatch, StoreError, StoreErrorKind};

/// Rows that come within this time are written together.
const GATHER_TIME: Duration = Duration::from_millis(100);
/// The interval between two lists of the outboxes.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// The same where other servers relay what they change. A list asks each shard then, so it is made when a server was
/// lost, and rarely otherwise.
const LIST_SHARED_EVERY: Duration = Duration::from_secs(300);
/// The pause after the first failure of the history; it doubles with each further one.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause, and the pause while the disk of the history is full.
const RETRY_PAUSE_LONGEST: Duration = Duration::from_secs(5);
/// The time between two warnings about the same trouble.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// The share of their capacity at which the outboxes raise an alarm: one in this many.
const ALARM_SHARE: u64 = 4;

/// The background loop of the relay.
pub struct Relay {
    context: Arc<HistorianContext>,
    /// The shards that were relayed lately.
    kept: HashMap<ShardId, KeptShard>,
    listed_at: Option<Duration>,
    /// How many servers of the queues were lost at the last list.
    lost_servers: u64,
    audited_at: Duration,
    failures: u32,
    warned_of_failure: Option<Duration>,
    warned_of_fill: Option<Duration>,
}

/// How a round ended.
enum RoundEnd {
    /// No shard waits.
    Idle,
    Written,
    /// More rows are there already.
    HasMore,
    Failed(StoreErrorKind),
}

/// The shards of one append after the other.
struct GroupEnd {
    kept: Vec<KeptShard>,
    has_more: bool,
    failure: Option<StoreError>,
}

impl Relay {
    pub fn new(context: Arc<HistorianContext>) -> Self {
        Self {
            context,
            kept: HashMap::new(),
            listed_at: None,
            lost_servers: 0,
            audited_at: Duration::ZERO,
            failures: 0,
            warned_of_failure: None,
            warned_of_fill: None,
        }
    }

    fn now(&self) -> Duration {
        self.context.engine.clock.elapsed()
    }

    /// Adds the shards that have rows and told nobody.
    async fn list(&mut self) {
        let now = self.now();
        let queues = &self.context.sources.queues;
        let every = if queues.is_shared() { LIST_SHARED_EVERY } else { LIST_EVERY };
        let lost = queues.lost_servers();
        if lost == self.lost_servers && self.listed_at.is_some_and(|at| now.saturating_sub(at) < every) {
            return;
        }
        self.warn_of_fill(now);
        match self.context.sources.outbox.outboxes().await {
            Ok(shards) => {
                (self.listed_at, self.lost_servers) = (Some(now), lost);
                self.context.waiting.mark_listed(shards);
            }
            Err(error) => tracing::debug!(%error, "cannot list the outboxes yet"),
        }
    }

    /// Adds the shards whose audit is due.
    fn mark_due_audits(&mut self) {
        let now = self.now();
        if now.saturating_sub(self.audited_at) < AUDIT_EVERY {
            return;
        }
        self.audited_at = now;
        let due = self.kept.iter().filter(|(_, kept)| kept.is_audit_due(now)).map(|(shard, _)| *shard);
        let due = due.filter(|shard| self.context.sources.queues.catalog.keeps_history(shard.queue));
        due.take(RELAY_SHARDS_OF_A_ROUND_MAX).for_each(|shard| self.context.waiting.mark(shard));
    }

    fn warn_of_fill(&mut self, now: Duration) {
        let usage = self.context.sources.outbox.outbox_usage();
        if usage.bytes < usage.capacity / ALARM_SHARE || !is_due(&mut self.warned_of_fill, now) {
            return;
        }
        tracing::warn!(
            bytes = usage.bytes,
            capacity = usage.capacity,
            "rows of queues wait for the history and fill their outboxes; at 60 % the oldest rows of the largest give way \
             and the history gets a gap: see whether the store of the history answers and has room"
        );
    }

    /// Carries what waits, at most `RELAY_SHARDS_OF_A_ROUND_MAX` shards.
    async fn round(&mut self) -> RoundEnd {
        let shards = self.context.waiting.take(RELAY_SHARDS_OF_A_ROUND_MAX);
        if shards.is_empty() {
            return RoundEnd::Idle;
        }
        let size = shards.len().div_ceil(RELAY_APPENDS_AT_ONCE_MAX);
        let kept_of = |shard: &ShardId| (*shard, self.kept.get(shard).cloned());
        let groups: Vec<Vec<_>> = shards.chunks(size).map(|group| group.iter().map(kept_of).collect()).collect();
        let context = &self.context;
        let ends = stream::iter(groups).map(|group| relay_group(context, group));
        let ends: Vec<GroupEnd> = ends.buffer_unordered(RELAY_APPENDS_AT_ONCE_MAX).collect().await;
        // Shards of a group that failed wait on.
        shards.iter().for_each(|shard| self.context.waiting.put_back(*shard));
        self.settle(ends)
    }

    fn settle(&mut self, ends: Vec<GroupEnd>) -> RoundEnd {
        let mut has_more = false;
        let mut failure = None;
        for end in ends {
            has_more |= end.has_more;
            failure = end.failure.or(failure);
            for kept in end.kept {
                let shard = kept.run.shard;
                if self.context.sources.queues.catalog.is_served(shard.queue) {
                    self.kept.insert(shard, kept);
                } else {
                    // Nothing is enqueued there any more.
                    self.kept.remove(&shard);
                }
            }
        }
        if self.kept.len() > RELAY_SHARDS_KEPT_MAX {
            // The cursors are read again.
            self.kept.clear();
        }
        match failure {
            Some(error) => {
                self.note_failure(&error);
                RoundEnd::Failed(error.kind)
            }
            None => {
                self.failures = 0;
                if has_more { RoundEnd::HasMore } else { RoundEnd::Written }
            }
        }
    }

    /// Forgets what it knew: another queue store has the history now.
    fn rest(&mut self) {
        self.context.waiting.forget();
        (self.listed_at, self.failures) = (None, 0);
        self.kept.clear();
    }

    fn note_failure(&mut self, error: &StoreError) {
        self.failures = self.failures.saturating_add(1);
        self.context.engine.stats.history_failures.increment();
        let now = self.now();
        if is_due(&mut self.warned_of_failure, now) {
            tracing::warn!(%error, cause = error.source.as_deref(), "cannot write the history of queues; it is retried");
        }
    }

    fn pause(&self, kind: StoreErrorKind) -> Duration {
        if kind == StoreErrorKind::Full {
            return RETRY_PAUSE_LONGEST;
        }
        let doublings = self.failures.saturating_sub(1).min(8);
        (RETRY_PAUSE * (1 << doublings)).min(RETRY_PAUSE_LONGEST)
    }
}

/// Whether it is time for another warning.
fn is_due(warned: &mut Option<Duration>, now: Duration) -> bool {
    let is_due = warned.is_none_or(|at| now.saturating_sub(at) >= WARN_EVERY);
    if is_due {
        *warned = Some(now);
    }
    is_due
}

/// Carries the rows of some shards, with one append after the other.
async fn relay_group(context: &HistorianContext, shards: Vec<(ShardId, Option<KeptShard>)>) -> GroupEnd {
    let mut end = GroupEnd { kept: Vec::new(), has_more: false, failure: None };
    let mut ready: Vec<ShardStep> = Vec::new();
    let mut shards = shards.into_iter().peekable();
    while shards.peek().is_some() {
        let reads = shards.by_ref().take(RELAY_READS_AT_ONCE_MAX / RELAY_APPENDS_AT_ONCE_MAX);
        let steps = join_all(reads.map(|(shard, kept)| context.sources.step(shard, kept))).await;
        for step in steps {
            match step {
                Ok(step) => ready.push(step),
                Err(error) => end.failure = Some(error),
            }
        }
        let rows: usize = ready.iter().map(rows_of).sum();
        if rows >= HISTORY_BATCH_ROWS_MAX || shards.peek().is_none() {
            match write(context, std::mem::take(&mut ready)).await {
                Ok((kept, has_more)) => {
                    end.kept.extend(kept);
                    end.has_more |= has_more;
                }
                Err(error) => return GroupEnd { failure: Some(error), ..end },
            }
        }
    }
    end
}

fn rows_of(step: &ShardStep) -> usize {
    step.batches.iter().map(|batch| batch.rows.len()).sum()
}

/// Writes steps, then empties the outboxes. Returns the shards after it, and whether one has more rows.
async fn write(context: &HistorianContext, mut steps: Vec<ShardStep>) -> Result<(Vec<KeptShard>, bool), StoreError> {
    for step in &steps {
        context.waiting.set_age(step.kept.run.shard, step.age);
    }
    let batches = steps.iter_mut().flat_map(|step| std::mem::take(&mut step.batches)).collect();
    for append in appends_of(batches) {
        let stats = &context.engine.stats;
        let (batches, rows) = (append.len() as u64, append.iter().map(|batch| batch.rows.len() as u64).sum());
        let gaps: Vec<(ShardId, _)> =
            append.iter().flat_map(|one| one.gaps.iter().map(|gap| (one.shard, *gap))).collect();
        context.sources.history.append(append).await?;
        stats.history_batches.add(batches);
        stats.history_rows_relayed.add(rows);
        stats.history_gaps.add(gaps.len() as u64);
        for (shard, gap) in gaps {
            let (from, to) = (gap.from_position, gap.to_position);
            tracing::warn!(queue = %shard.queue, shard = shard.number, from, to, "the history of a shard has a gap");
        }
    }
    let mut has_more = false;
    let emptied = steps.into_iter().map(|step| {
        has_more |= step.has_more;
        empty_outbox(context, step)
    });
    Ok((join_all(emptied.collect::<Vec<_>>()).await, has_more))
}

/// Splits batches into appends of at most `HISTORY_BATCH_ROWS_MAX` rows, in their order.
fn appends_of(batches: Vec<HistoryBatch>) -> Vec<Vec<HistoryBatch>> {
    let mut appends: Vec<Vec<HistoryBatch>> = Vec::new();
    let mut rows = 0;
    for batch in batches {
        rows += batch.rows.len();
        match appends.last_mut() {
            Some(last) if rows <= HISTORY_BATCH_ROWS_MAX => last.push(batch),
            Some(_) | None => {
                rows = batch.rows.len();
                appends.push(vec![batch]);
            }
        }
    }
    appends
}

/// Removes what is written from the outbox of a shard. What stays after a failure is removed with the next step.
async fn empty_outbox(context: &HistorianContext, step: ShardStep) -> KeptShard {
    let ShardStep { mut kept, findings, has_more, .. } = step;
    let shard = kept.run.shard;
    raise_all(context, &findings);
    let done = kept.run.done_through();
    if done > kept.forgotten.unwrap_or_default() {
        match context.sources.outbox.forget_outbox(shard, done).await {
            Ok(()) => kept.forgotten = Some(done),
            Err(error) => tracing::debug!(%error, "cannot empty an outbox yet"),
        }
    }
    if has_more || kept.forgotten.unwrap_or_default() < done {
        context.waiting.put_back(shard);
    } else {
        context.waiting.settle(shard);
    }
    kept
}

fn raise_all(context: &HistorianContext, findings: &[Finding]) {
    for finding in findings {
        // The queue may be deleted by now, and what is found about a deleted one helps nobody.
        if let Some(queue) = context.sources.queues.catalog.name_of(finding.shard.queue) {
            raise(&context.engine.stats, &queue, finding);
        }
    }
}

#[async_trait]
impl BackgroundLoop for Relay {
    fn name(&self) -> &'static str {
        "history relay"
    }

    async fn woken(&self) {
        match self.context.right.standing() {
            ReportStanding::Unsure => self.context.right.sure().await,
            ReportStanding::Reports | ReportStanding::Waits | ReportStanding::Apart => {
                self.context.waiting.woken().await;
            }
        }
    }

    async fn activate(&mut self) -> NextActivation {
        match self.context.right.standing() {
            ReportStanding::Reports => {}
            ReportStanding::Unsure => return NextActivation::AfterOrWoken(LIST_EVERY),
            ReportStanding::Waits | ReportStanding::Apart => {
                self.rest();
                return NextActivation::After(LIST_EVERY);
            }
        }
        self.list().await;
        self.mark_due_audits();
        match self.round().await {
            RoundEnd::Idle => NextActivation::AfterOrWoken(LIST_EVERY),
            RoundEnd::Written => NextActivation::After(GATHER_TIME),
            RoundEnd::HasMore => NextActivation::Again,
            RoundEnd::Failed(kind) => NextActivation::After(self.pause(kind)),
        }
    }

    /// Carries what is there. The outboxes keep the rest for the next start.
    async fn finish(&mut self, until: Duration) {
        if !self.context.right.holds() {
            return;
        }
        let clock = Arc::clone(&self.context.engine.clock);
        let left = until.saturating_sub(clock.elapsed());
        self.listed_at = None;
        let last_rounds = async {
            self.list().await;
            // Rows come no more, so each round leaves fewer.
            while let RoundEnd::Written | RoundEnd::HasMore = self.round().await {}
        };
        tokio::select! {
            biased;
            () = last_rounds => {}
            () = clock.sleep(left) => {}
        }
        let shards = self.context.waiting.len();
        if shards > 0 {
            tracing::info!(shards, "the history lacks rows that are still in outboxes; the next start relays them");
        }
    }
}

const _: () =
    assert!(RELAY_READS_AT_ONCE_MAX >= RELAY_APPENDS_AT_ONCE_MAX, "each group reads at least one outbox at once");
