//! A queue in the catalog: its settings, version and times.

use std::fmt;

use crate::queue::name::{QueueId, QueueName};
use crate::queue::setup::settings::{Settings, ShardSettings};
use crate::time::Timestamp;

/// The durability of acknowledged changes, from weaker to stronger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Durability {
    /// They survive a kill of the server. A power cut may lose the last second, on Redis the last two.
    Fast,
    /// They survive a power cut: every response comes after an fsync.
    Safe,
    /// They survive the loss of a machine: another machine has them before the response.
    Replicated,
}

impl Durability {
    /// Every tier.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Safe, Self::Replicated];
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fast => "FAST",
            Self::Safe => "SAFE",
            Self::Replicated => "REPLICATED",
        })
    }
}

/// The settings of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueSpec {
    pub name: QueueName,
    /// The purpose of the queue, at most 1,024 bytes.
    pub description: String,
    /// For a template, which is not a queue itself: the name prefix of the queues that are made from it.
    pub template_for: Option<Box<str>>,
    /// The number of shards: a power of two, 1 to 256; fixed at creation.
    pub shards: u32,
    /// The required durability of its store; none accepts any store.
    pub required_durability: Option<Durability>,
    /// The settings of the whole queue; `shard_settings` has what each shard gets.
    pub settings: Settings,
    /// The reason of an enqueue block, if there is one.
    pub enqueue_blocked: Option<Box<str>>,
    /// The reason of a dequeue block, if there is one.
    pub dequeue_blocked: Option<Box<str>>,
}

impl QueueSpec {
    /// A simple queue of one shard, with every setting at its default.
    pub fn with_defaults(name: QueueName) -> Self {
        Self {
            name,
            description: String::new(),
            template_for: None,
            shards: 1,
            required_durability: None,
            settings: Settings::default(),
            enqueue_blocked: None,
            dequeue_blocked: None,
        }
    }

    /// The settings of one shard: those of the queue, with quotas and the bytes of dedupe records divided evenly,
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

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogQueue {
    pub id: QueueId,
    /// Its settings.
    pub spec: QueueSpec,
    /// The version of the last change, from 1.
    pub version: u64,
    /// The time of its creation.
    pub created: Timestamp,
    /// The time of its last change.
    pub updated: Timestamp,
    /// The principal that made it, whose quota it counts for; none where callers show no key, and before quotas were
    /// kept.
    pub made_by: Option<Box<str>>,
}

impl CatalogQueue {
    /// The settings and blocks of each of its shards at this version.
    pub fn shard_settings(&self) -> ShardSettings {
        ShardSettings {
            version: self.version,
            settings: self.spec.shard_settings(),
            enqueue_blocked: self.spec.enqueue_blocked.clone(),
            dequeue_blocked: self.spec.dequeue_blocked.clone(),
        }
    }
}
