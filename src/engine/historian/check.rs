//! Checks of queues on request, as operations with findings.
//!
//! Every check compares the counts of each shard at one position, and waits until the history has passed it. A full
//! check also compares every message with its rows, and the counters with the shards. A queue that is deleted meanwhile
//! is left.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::caller_quota::CallerId;
use crate::historian::findings::raise;
use crate::historian::{Historian, HistorianContext};
use crate::queues::{
    CheckRequest, CheckScope, CheckedQueue, FindingsPage, Operation, QueueError, QueueFinding, RunningCheck,
};
use tallystone_domain::history::audit::levels::{check_levels, check_values};
use tallystone_domain::history::audit::{Finding, FindingKind};
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_ports::{ShardReport, StoreError, StoreErrorKind};

/// How long a check waits for the history to reach a position.
const RELAY_PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks at the cursor.
const RELAY_PAUSE: Duration = Duration::from_millis(100);
/// The queues that a check works on at once.
const QUEUES_AT_ONCE: usize = 8;

/// One check at work.
pub(super) struct CheckRun {
    pub context: Arc<HistorianContext>,
    pub running: RunningCheck,
}

impl Historian {
    /// Begins a check of one queue or of all, or finds the one that the token names. It continues after this call.
    pub fn check(&self, caller: CallerId, asked: CheckRequest) -> Result<Operation, QueueError> {
        let queues = &self.context.sources.queues;
        let checked = queues.catalog.checked_queues(asked.queue.as_ref())?;
        let shards: u64 = checked.iter().map(|queue| u64::from(queue.shards)).sum();
        let messages = checked.iter().filter(|queue| queue.keeps_history).map(|queue| queue.messages);
        let parts = if asked.full { shards + messages.sum::<u64>() } else { shards };
        let queue = asked.queue.as_ref().and(checked.first()).map(|queue| (queue.id, queue.name.clone()));
        let (full, context) = (asked.full, Arc::clone(&self.context));
        let run = |running| async move { CheckRun { context, running }.run(checked, full).await };
        queues.operations.begin_check(caller, asked, CheckScope { queue, parts }, run)
    }

    /// Reads the findings of a check from an index on, at most `limit`.
    pub fn findings(&self, operation: &str, from: usize, limit: usize) -> Result<FindingsPage, QueueError> {
        self.context.sources.queues.operations.findings(operation, from, limit)
    }
}

impl CheckRun {
    async fn run(&self, queues: Vec<CheckedQueue>, full: bool) -> Result<bool, QueueError> {
        let work = stream::iter(queues).map(|queue| async move {
            match self.check_queue(&queue, full).await {
                Err(QueueError::Store(error)) if error.kind == StoreErrorKind::Conflict => Ok(()), // deleted meanwhile
                checked => checked,
            }
        });
        work.buffer_unordered(QUEUES_AT_ONCE).try_collect::<()>().await?;
        Ok(!self.running.is_cancelled())
    }

    async fn check_queue(&self, queue: &CheckedQueue, full: bool) -> Result<(), QueueError> {
        for number in 0..queue.shards {
            if self.running.is_cancelled() {
                return Ok(());
            }
            let shard = ShardId { queue: queue.id, number };
            let report = self.context.sources.outbox.report(shard, None).await?;
            self.found_all(queue, check_levels(shard, &report.totals, &report.counts));
            self.found_all(queue, check_values(shard, &report.totals, &report.counts, &report.values));
            let is_relayed = queue.keeps_history && self.check_relay(queue, shard, &report).await?;
            self.running.advance(1);
            if full && is_relayed {
                self.check_versions(queue, shard).await?;
            }
        }
        if full {
            self.check_counters(queue).await?;
        }
        Ok(())
    }

    /// Waits until the history has passed the position of a report; whether it has.
    pub async fn check_relay(
        &self,
        queue: &CheckedQueue,
        shard: ShardId,
        report: &ShardReport,
    ) -> Result<bool, QueueError> {
        let position = report.position;
        let reached = self.wait_for_relay(shard, position).await?;
        if reached >= position || self.running.is_cancelled() {
            return Ok(reached >= position);
        }
        let text = format!(
            "the history has come to position {} of the shard; {} s ago the shard was at {}",
            reached.position,
            RELAY_PATIENCE.as_secs(),
            position.position,
        );
        self.found(queue, Finding::of_shard(FindingKind::Relay, shard, (position.position, reached.position), text));
        Ok(false)
    }

    /// Waits until the history has passed a position, within `RELAY_PATIENCE`; returns where it is.
    pub async fn wait_for_relay(&self, shard: ShardId, position: RowPosition) -> Result<RowPosition, StoreError> {
        let clock = &self.context.engine.clock;
        let until = clock.elapsed() + RELAY_PATIENCE;
        loop {
            let cursor = self.context.sources.history.cursor(shard).await?;
            let reached = cursor.map(|cursor| cursor.position).unwrap_or_default();
            // A shard without rows has nothing to relay.
            let is_there =
                reached >= position || position.position == 0 || self.is_last_row(shard, reached, position).await?;
            if is_there || self.running.is_cancelled() || clock.elapsed() >= until {
                return Ok(if is_there { reached.max(position) } else { reached });
            }
            // Positions that are missing in the outbox wake nobody.
            self.context.waiting.mark(shard);
            clock.sleep(RELAY_PAUSE).await;
        }
    }

    /// Whether a shard has made no row since one of an earlier epoch. Its epoch rises with a restart of its store,
    /// without a row, and the numbers of rows go on.
    async fn is_last_row(
        &self,
        shard: ShardId,
        reached: RowPosition,
        position: RowPosition,
    ) -> Result<bool, StoreError> {
        if reached.position < position.position {
            return Ok(false);
        }
        Ok(self.context.sources.outbox.outbox(shard, reached, 1).await?.rows.is_empty())
    }

    /// Keeps, logs and counts a finding.
    pub fn found(&self, queue: &CheckedQueue, finding: Finding) {
        raise(&self.context.engine.stats, &queue.name, &finding);
        self.running.keep(QueueFinding { queue: queue.name.clone(), finding });
    }

    pub fn found_all(&self, queue: &CheckedQueue, findings: Vec<Finding>) {
        findings.into_iter().for_each(|finding| self.found(queue, finding));
    }
}
