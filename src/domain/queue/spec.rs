//! A queue as the catalog keeps it: what its users set, and when.

use crate::domain::limits::{DESCRIPTION_BYTES_MAX, QUEUE_SHARDS_MAX};
use crate::domain::queue::command::Invalid;
use crate::domain::queue::name::{QueueId, QueueName};
use crate::domain::queue::settings::Settings;
use crate::domain::time::Timestamp;

/// What users set of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueSpec {
    /// Its name.
    pub name: QueueName,
    /// What it is for, at most 1,024 bytes.
    pub description: String,
    /// For a template, which is no queue itself: what the names of the queues that enqueues make of it begin with.
    pub template_for: Option<Box<str>>,
    /// How many shards it has: a power of two, 1 to 256; fixed from its creation.
    pub shards: u32,
    /// The settings of the whole queue; `shard_settings` has what each shard gets.
    pub settings: Settings,
    /// Why nothing comes in, if so.
    pub enqueue_blocked: Option<Box<str>>,
    /// Why nothing goes out, if so.
    pub dequeue_blocked: Option<Box<str>>,
}

impl QueueSpec {
    /// Checks every range.
    pub fn check(&self) -> Result<(), Invalid> {
        self.settings.check()?;
        let blocks = [&self.enqueue_blocked, &self.dequeue_blocked];
        let fits = (1..=QUEUE_SHARDS_MAX).contains(&self.shards)
            && self.shards.is_power_of_two()
            && self.description.len() <= DESCRIPTION_BYTES_MAX
            && blocks.into_iter().flatten().all(|reason| reason.len() <= DESCRIPTION_BYTES_MAX);
        if fits { Ok(()) } else { Err(Invalid::Settings) }
    }

    /// The settings of one shard: those of the queue, with quotas and the bytes of kept answers shared out evenly,
    /// rounded up.
    pub fn shard_settings(&self) -> Settings {
        let share = |whole: u64| whole.div_ceil(u64::from(self.shards));
        let mut settings = self.settings.clone();
        settings.quota_messages = share(settings.quota_messages);
        settings.quota_bytes = share(settings.quota_bytes);
        settings.dedupe_max_bytes = settings.dedupe_max_bytes.div_ceil(self.shards as usize);
        settings
    }
}

/// A queue of the catalog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its number.
    pub id: QueueId,
    /// What users set.
    pub spec: QueueSpec,
    /// The number of the last change, from 1.
    pub version: u64,
    /// When it was made.
    pub created: Timestamp,
    /// When it was changed last.
    pub updated: Timestamp,
}
