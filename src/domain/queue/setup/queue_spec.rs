//! A queue in the catalog: its settings, version and times.

use std::fmt;
use std::time::Duration;

use crate::domain::limits::{LEASE_MAX, METADATA_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::domain::queue::name::{QueueId, QueueName};
use crate::domain::queue::setup::settings::{MessageRetryPolicy, Retention, Settings};
use crate::domain::time::Timestamp;

/// The durability of acknowledged changes, from weaker to stronger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Durability {
    /// They survive a kill of the server. A power cut may lose the last second.
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
    /// Its name.
    pub name: QueueName,
    /// What it is for, at most 1,024 bytes.
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
        let hour = Duration::from_secs(3_600);
        let settings = Settings {
            default_lease: Duration::from_secs(30),
            max_run_time: LEASE_MAX,
            default_invisibility: Duration::ZERO,
            default_attempts: 3,
            retry: MessageRetryPolicy {
                initial: Duration::from_secs(1),
                factor_percent: 200,
                max: Duration::from_secs(300),
                jitter_percent: 20,
            },
            default_ttl: None,
            retention: Retention { completed: hour, canceled: hour, errored: 14 * 24 * hour },
            dedupe_window: hour,
            dedupe_max_bytes: 4 << 30,
            quota_messages: 100_000_000,
            quota_bytes: 64 << 30,
            payload_max_bytes: PAYLOAD_BYTES_MAX,
            metadata_max_bytes: METADATA_BYTES_MAX,
            classes: Vec::new(),
            exclusivity: None,
            shapes: Vec::new(),
        };
        Self {
            name,
            description: String::new(),
            template_for: None,
            shards: 1,
            required_durability: None,
            settings,
            enqueue_blocked: None,
            dequeue_blocked: None,
        }
    }

    /// The settings of one shard: those of the queue, with quotas and the bytes of dedupe records divided evenly, rounded
    /// up.
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
pub struct CatalogQueue {
    /// Its id.
    pub id: QueueId,
    /// Its settings.
    pub spec: QueueSpec,
    /// The version of the last change, from 1.
    pub version: u64,
    /// The time of its creation.
    pub created: Timestamp,
    /// The time of its last change.
    pub updated: Timestamp,
}
