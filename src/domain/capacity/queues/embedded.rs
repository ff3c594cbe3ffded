//! Memory and disk of queues on the embedded engine.
//!
//! Sizes of messages hold for ids that are UUIDs. Another id takes its text more of a pending message.

use std::time::Duration;

use crate::capacity::queues::{QueueLoad, bytes_of, percent_of, rounded_up};
use crate::limits::METADATA_PAIRS_MAX;

/// Bytes of memory of a finished message: a row of 40, 19 in the index of ids, and its share of the pages, with room
/// for the allocator.
pub(super) const FINISHED_BYTES: u64 = 80;
/// Bytes of memory of a pending message without metadata. 268 and 293 were measured with 10 and 3 million of them
/// (docs/benchmarks.md, figures of queues).
pub(super) const PENDING_BYTES: u64 = 320;
/// Bytes of memory of an answer that outlives its message: an entry of an ordered map that is two thirds full. 122 were
/// measured as the resident size of a process.
pub(super) const ANSWER_BYTES: u64 = 128;
/// Bytes of memory of a metadata pair without its texts: two pointers with lengths, and what the allocator rounds up.
const PAIR_BYTES: u64 = 64;
/// The setting has room for what was planned and a quarter more.
const MEMORY_ROOM_PERCENT: u64 = 125;
/// By default `queues.memory_bytes` is such a part of the memory of the machine.
const MACHINE_PARTS: u64 = 2;
/// Bytes of memory of a machine beside its queues, at least. In a control group of 512 MiB under 9,000 lives a second
/// the rest of the process took 228 MiB (docs/benchmarks.md, figures of queues), and 160 MiB stay free for files.
const BESIDE_QUEUES_BYTES: u64 = 400 << 20;

/// Bytes on disk of the head of a finished message, with its row in a page and without metadata. A pending message of
/// 100 bytes took 324, body included (docs/benchmarks.md, figures of queues). A finished one has its settlement and
/// more times besides, which is estimated.
const HEAD_DISK_BYTES: u64 = 300;
/// Bytes on disk of a body without its payload: the key and the overhead of a row.
const BODY_DISK_BYTES: u64 = 50;
/// Bytes on disk of a kept answer: its key, its value and the overhead of a row, estimated from their fields.
const ANSWER_DISK_BYTES: u64 = 128;
/// A merge writes new files before it removes the old ones, so a row may be on disk so many times.
const MERGE_COPIES: u64 = 2;
/// Rows of the history of a life: enqueue, lease and completion.
const HISTORY_ROWS: u64 = 3;
/// Bytes on disk of a row of the history (measured: docs/benchmarks.md, figures of the bridge).
const HISTORY_ROW_BYTES: u64 = 156;
/// The default of `bridge.history_retention_days`.
pub const HISTORY_RETENTION: Duration = Duration::from_secs(7 * 86_400);
/// The default of `bridge.history_max_bytes`.
pub const HISTORY_BYTES: u64 = 16 << 30;
/// The size of all outboxes together. Before it is reached, the oldest changes yield.
const OUTBOX_BYTES: u64 = 1 << 30;
/// The plan has room for the changes of so long a time that wait for the history.
const OUTBOX_FOR: Duration = Duration::from_secs(3_600);

/// The memory and disk that queues need on the embedded engine, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmbeddedQueuePlan {
    /// Memory of finished messages.
    pub finished_bytes: u64,
    /// Memory of pending messages.
    pub pending_bytes: u64,
    /// Memory of answers that outlive their messages.
    pub answers_bytes: u64,
    /// Memory of all of them.
    pub memory_bytes: u64,
    /// The value of `queues.memory_bytes` that has room for a quarter more.
    pub memory_setting_bytes: u64,
    /// The memory of a machine on which that is the default, or which has room for the rest of the process if that is
    /// more.
    pub machine_bytes: u64,
    /// Disk space of heads.
    pub heads_disk_bytes: u64,
    /// Disk space of bodies.
    pub bodies_disk_bytes: u64,
    /// Disk space of answers that outlive their messages.
    pub answers_disk_bytes: u64,
    /// Disk space of an hour of changes that wait for the history, within the bound of the outboxes.
    pub outbox_disk_bytes: u64,
    /// Disk space of the history, with its default retention and within its default bound.
    pub history_disk_bytes: u64,
    /// How far back the history reaches: its default retention, or less where its default bound comes first.
    pub history_reach: Duration,
    /// Disk space of all of them.
    pub disk_bytes: u64,
}

impl EmbeddedQueuePlan {
    pub(super) fn of(load: &QueueLoad, finished: u64, pending: u64, answers: u64) -> Self {
        let finished_bytes = bytes_of(finished, FINISHED_BYTES);
        let pending_bytes = bytes_of(pending, PENDING_BYTES.saturating_add(metadata_bytes(load.metadata_bytes)));
        let answers_bytes = bytes_of(answers, ANSWER_BYTES);
        let memory_bytes = finished_bytes.saturating_add(pending_bytes).saturating_add(answers_bytes);
        let memory_setting_bytes = rounded_up(percent_of(memory_bytes, MEMORY_ROOM_PERCENT));
        let messages = finished.saturating_add(pending);
        let on_disk = |count: u64, each: u64| bytes_of(count, each).saturating_mul(MERGE_COPIES);
        let heads_disk_bytes = on_disk(messages, HEAD_DISK_BYTES.saturating_add(load.metadata_bytes));
        let bodies_disk_bytes = on_disk(messages, BODY_DISK_BYTES.saturating_add(load.payload_bytes));
        let answers_disk_bytes = on_disk(answers, ANSWER_DISK_BYTES);
        let changes = |time: Duration| bytes_of(load.arriving_in(time), HISTORY_ROWS * HISTORY_ROW_BYTES);
        let outbox_disk_bytes = changes(OUTBOX_FOR).min(OUTBOX_BYTES);
        let history_disk_bytes = changes(HISTORY_RETENTION).min(HISTORY_BYTES);
        let others = [bodies_disk_bytes, answers_disk_bytes, outbox_disk_bytes, history_disk_bytes];
        Self {
            finished_bytes,
            pending_bytes,
            answers_bytes,
            memory_bytes,
            memory_setting_bytes,
            machine_bytes: machine_bytes(memory_setting_bytes),
            heads_disk_bytes,
            bodies_disk_bytes,
            answers_disk_bytes,
            outbox_disk_bytes,
            history_disk_bytes,
            history_reach: history_reach(load),
            disk_bytes: others.into_iter().fold(heads_disk_bytes, u64::saturating_add),
        }
    }
}

/// The memory of a machine for this value of `queues.memory_bytes`; nothing if there are no queues.
fn machine_bytes(setting: u64) -> u64 {
    if setting == 0 {
        return 0;
    }
    setting.saturating_mul(MACHINE_PARTS).max(setting.saturating_add(BESIDE_QUEUES_BYTES))
}

/// How far back the history of a load reaches.
fn history_reach(load: &QueueLoad) -> Duration {
    let bytes = load.lives_per_1000_seconds.saturating_mul(HISTORY_ROWS * HISTORY_ROW_BYTES);
    let seconds = HISTORY_BYTES.saturating_mul(1_000).checked_div(bytes);
    seconds.map_or(HISTORY_RETENTION, |seconds| HISTORY_RETENTION.min(Duration::from_secs(seconds)))
}

/// The memory of metadata of so many bytes, as if a message had the most pairs.
fn metadata_bytes(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { bytes.saturating_add(METADATA_PAIRS_MAX as u64 * PAIR_BYTES) }
}
