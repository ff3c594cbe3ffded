//! Capacity planning of queues: from a load to memory and disk on the embedded engine, and memory on Redis.
//!
//! Pure arithmetic. Sizes of messages are measured or sums of the parts that a store keeps, always rounded up, so a
//! plan is rather too large than too small. Filter shapes, exclusivity values and counts by value are not in it. No
//! result overflows: beyond 64 bits it is the largest number.

mod embedded;
mod redis;

use std::time::Duration;

pub use crate::capacity::queues::embedded::{EmbeddedQueuePlan, HISTORY_BYTES, HISTORY_RETENTION};
pub use crate::capacity::queues::redis::{REDIS_TOLD_FROM_PERCENT, RedisQueuePlan};
use crate::limits::{DEDUPE_BUCKET, DEDUPE_RECORD_BYTES};
use crate::queue::setup::settings::Settings;

/// How long messages arrive that wait at one time, unless the load says how many wait.
const PENDING_FOR: Duration = Duration::from_secs(60);
/// Finished messages at one time above which a plan advises a shorter retention. They are 2.2 GiB of memory on the
/// embedded engine, and 3.1 GiB on Redis.
const FINISHED_ADVISED: u64 = 30_000_000;
/// Settings of memory are rounded up to a multiple of this.
const MEMORY_STEP: u64 = 64 << 20;
/// The same from a gibibyte on: quarters of it.
const MEMORY_STEP_LARGE: u64 = 256 << 20;

/// A load of all queues together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLoad {
    /// Messages that are enqueued, worked off and finished in a thousand seconds, so that a rate may be a fraction.
    pub lives_per_1000_seconds: u64,
    /// How long finished messages are kept.
    pub retention: Duration,
    /// How long answers to enqueues are kept for repeats. A queue does not allow more than its retention.
    pub dedupe_window: Duration,
    /// Bytes of the payload of a message.
    pub payload_bytes: u64,
    /// Bytes of the keys and values of the metadata of a message.
    pub metadata_bytes: u64,
    /// Messages that wait at one time, at most; `None`: as many as arrive in a minute.
    pub pending: Option<u64>,
}

/// The resources that a load of queues needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuePlan {
    /// Finished messages at one time.
    pub finished: u64,
    /// Messages that wait at one time, at most.
    pub pending: u64,
    /// Answers to enqueues that outlive their messages, at one time, at most.
    pub answers: u64,
    /// On the embedded engine.
    pub embedded: EmbeddedQueuePlan,
    /// On Redis or Valkey.
    pub redis: RedisQueuePlan,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

impl QueueLoad {
    /// Computes a plan for the load.
    pub fn plan(&self) -> QueuePlan {
        let (finished, pending, answers) = (self.arriving_in(self.retention), self.pending(), self.answers());
        QueuePlan {
            finished,
            pending,
            answers,
            embedded: EmbeddedQueuePlan::of(self, finished, pending, answers),
            redis: RedisQueuePlan::of(self, finished, pending, answers),
            warnings: self.warnings(finished, pending),
        }
    }

    fn pending(&self) -> u64 {
        self.pending.unwrap_or_else(|| self.arriving_in(PENDING_FOR))
    }

    /// An answer leaves with the last one of its ten minutes of token time, so it may be ten minutes older than the
    /// window. Until its retention is over, the message is the record of its answer.
    fn answers(&self) -> u64 {
        self.arriving_in(self.dedupe_window.saturating_add(DEDUPE_BUCKET).saturating_sub(self.retention))
    }

    /// The messages that arrive in so much time, rounded up.
    fn arriving_in(&self, time: Duration) -> u64 {
        const PARTS: u128 = 1_000 * 1_000_000;
        let parts = u128::from(self.lives_per_1000_seconds).saturating_mul(time.as_micros());
        u64::try_from(parts.div_ceil(PARTS)).unwrap_or(u64::MAX)
    }

    fn warnings(&self, finished: u64, pending: u64) -> Vec<String> {
        let mut warnings = Vec::new();
        if finished > FINISHED_ADVISED {
            warnings.push(format!(
                "{finished} finished messages are kept at one time; a shorter retention of the queue takes less memory"
            ));
        }
        let (messages, own) = (finished.saturating_add(pending), Settings::default());
        // Messages that still exist count for dedupe_max_bytes too.
        let answered = self.arriving_in(self.dedupe_window.saturating_add(DEDUPE_BUCKET));
        let needed = [
            ("quota_messages", messages, own.quota_messages),
            ("quota_bytes", messages.saturating_mul(self.payload_bytes), own.quota_bytes),
            ("dedupe_max_bytes", answered.saturating_mul(DEDUPE_RECORD_BYTES as u64), own.dedupe_max_bytes as u64),
        ];
        warnings.extend(needed.into_iter().filter(|(_, needed, default)| needed > default).map(
            |(setting, needed, default)| {
                format!("a queue with all of this load needs {setting} = {needed}; the default is {default}")
            },
        ));
        warnings
    }
}

/// Multiplies a number of messages by the bytes of one.
fn bytes_of(messages: u64, bytes_each: u64) -> u64 {
    messages.saturating_mul(bytes_each)
}

/// Rounds a size of memory up, so that it is short as a setting. A size near the largest number stays.
fn rounded_up(bytes: u64) -> u64 {
    let step = if bytes > 1 << 30 { MEMORY_STEP_LARGE } else { MEMORY_STEP };
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

/// Returns a percentage of a size, rounded up.
fn percent_of(bytes: u64, percent: u64) -> u64 {
    let share = (u128::from(bytes) * u128::from(percent)).div_ceil(100);
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
