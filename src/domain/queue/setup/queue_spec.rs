//! A queue as the catalog keeps it: what its users set, and when.

use std::fmt;
use std::time::Duration;

use crate::domain::limits::{LEASE_MAX, METADATA_BYTES_MAX, PAYLOAD_BYTES_MAX};
use crate::domain::queue::name::{QueueId, QueueName};
use crate::domain::queue::setup::settings::{MessageRetryPolicy, Retention, Settings};
use crate::domain::time::Timestamp;

/// What whatever was answered about a queue survives, from less to more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Durability {
    /// A kill of the server; a power cut may take the last second.
    Fast,
    /// A power cut too: every answer comes after an fsync.
    Safe,
    /// The loss of a machine too: another one has it before the answer.
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
    /// The least that its store has to offer; none takes any store.
    pub required_durability: Option<Durability>,
    /// The settings of the whole queue; `shard_settings` has what each shard gets.
    pub settings: Settings,
    /// Why nothing comes in, if so.
    pub enqueue_blocked: Option<Box<str>>,
    /// Why nothing goes out, if so.
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
pub struct CatalogQueue {
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
