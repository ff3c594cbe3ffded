//! The bound of the memory of queues: what it refuses, and what leaves while memory is short.

use std::time::Duration;

use super::Committer;
use crate::queues::memory_bound::refusal_text;
use tallystone_domain::queue::clock::StepTime;
use tallystone_domain::queue::{Command as QueueCommand, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{StoreError, StoreErrorKind};

/// How often answers that are too old are looked for while memory is short.
const DROP_EVERY: Duration = Duration::from_secs(1);
/// The same after a look that found none: it may have gone through millions that are younger.
const REST_WITHOUT_ANY: Duration = Duration::from_secs(10);

impl Committer {
    /// Shows readers what the shards take now.
    pub(super) fn publish_memory(&self) {
        self.core.queues.memory.publish(self.queues.table.memory());
    }

    /// Shows readers and listeners what shards take now that changed without a command: the next one may come late.
    pub(super) fn publish_changed_without_command(&mut self, shards: Vec<ShardId>, at: Timestamp) {
        for shard in &shards {
            self.queues.table.refresh_view(*shard, at);
        }
        self.publish_memory();
        self.queues.listeners.notify(&self.queues.table, shards.into_iter());
    }

    /// Refuses commands that bring messages into memory while the memory of queues is full: new messages, and those
    /// that are redriven. A repeat brings none, and a command that the queue itself refuses has a better reason.
    pub(super) fn check_memory(&self, shard: ShardId, command: &QueueCommand, at: StepTime) -> Result<(), StoreError> {
        let memory = self.core.queues.memory.of(self.queues.table.memory());
        if !memory.is_full() {
            return Ok(());
        }
        let is_refused = match command {
            QueueCommand::Enqueue(message) => {
                let kept = self.queues.table.shards.get(&shard);
                kept.is_some_and(|kept| kept.shard.would_add(message, at))
            }
            QueueCommand::RedriveAll(bulk) => !bulk.dry_run,
            QueueCommand::Redrive { .. } => true,
            _ => false, // everything else goes on
        };
        if !is_refused {
            return Ok(());
        }
        Err(StoreError::not_applied(StoreErrorKind::Full, "apply to queue").with_advice(refusal_text(&memory)))
    }

    /// While memory is short, drops the answers in memory that are older than the window of their queue, and keeps none
    /// of messages that leave. Enqueues drop whole buckets only, and may all be refused. Looks at all shards, at most
    /// once a second.
    pub(super) fn drop_outlived_answers(&mut self) {
        let memory = self.core.queues.memory.of(self.queues.table.memory());
        let Some(moment) = self.queues.moment else { return };
        let now = moment.step.token_age_clock;
        if !memory.is_short() || now < self.queues.answers_dropped_next {
            return;
        }
        let shards = self.queues.table.shards.iter_mut();
        let dropped = shards.filter_map(|(shard, kept)| kept.shard.drop_outlived_answers(now).then_some(*shard));
        let dropped: Vec<ShardId> = dropped.collect();
        self.queues.answers_dropped_next = now + if dropped.is_empty() { REST_WITHOUT_ANY } else { DROP_EVERY };
        if dropped.is_empty() {
            return;
        }
        self.publish_changed_without_command(dropped, moment.step.now);
    }
}
