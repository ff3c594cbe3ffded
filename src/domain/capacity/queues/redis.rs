//! Memory of queues on Redis or Valkey, of all primaries together.
//!
//! Measured on Redis 7.0.15 with `hash-max-listpack-value 512` and ids that are UUIDs: docs/benchmarks.md, figures of
//! queues on Redis. Outboxes, of at most 10,000 entries for each shard, are not in it.

use crate::capacity::queues::{QueueLoad, bytes_of, percent_of, rounded_up};

/// Bytes of a pending message without payload and metadata. With a payload of 100 bytes 336 were measured, and tables
/// of another fill take up to 40 more.
const PENDING_BYTES: u64 = 336 + 40 - 100;
/// Bytes of a finished message without metadata: 99 were measured, and tables of another fill may take more.
const FINISHED_BYTES: u64 = 110;
/// Bytes of an answer that outlives its message: 104 to 118 were measured, by the fill of the table.
const ANSWER_BYTES: u64 = 120;
/// Bytes of metadata besides their texts: 32 were measured with two short pairs, their texts included.
const METADATA_BYTES: u64 = 32;
/// The largest value of a hash in compact form, in bytes: `hash-max-listpack-value` as documented.
const COMPACT_BYTES: u64 = 512;
/// Bytes that are in one value with the metadata: id, times and the like.
const BESIDE_METADATA_BYTES: u64 = 112;
/// Bytes that a pending message takes more where its hash is not compact: 271 were measured with payloads of 513 bytes.
const PENDING_LOOSE_BYTES: u64 = 300;
/// The same for a finished message: 170 were measured with values of 513 bytes.
const FINISHED_LOOSE_BYTES: u64 = 180;
/// The allocator of Redis rounds a large size up by a quarter at most.
const ROUNDED_PERCENT: u64 = 125;
/// The percentage of `maxmemory` from which on operators are told. A plan stays below it.
pub const REDIS_TOLD_FROM_PERCENT: u64 = 85;
/// `maxmemory` is at most such a part of the memory of the machine, because a snapshot may need as much again.
const MACHINE_PARTS: u64 = 2;

/// The memory that queues need on Redis, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedisQueuePlan {
    /// Memory of finished messages.
    pub finished_bytes: u64,
    /// Memory of pending messages.
    pub pending_bytes: u64,
    /// Memory of answers that outlive their messages.
    pub answers_bytes: u64,
    /// Memory of all of them: `used_memory` of all primaries together.
    pub used_memory_bytes: u64,
    /// The `maxmemory` of all primaries together, of which at most 85 % is then used.
    pub maxmemory_bytes: u64,
    /// The memory of the machines of all primaries together, which has room for a snapshot.
    pub machine_bytes: u64,
}

impl RedisQueuePlan {
    pub(super) fn of(load: &QueueLoad, finished: u64, pending: u64, answers: u64) -> Self {
        let finished_bytes = bytes_of(finished, finished_each(load));
        let pending_bytes = bytes_of(pending, pending_each(load));
        let answers_bytes = bytes_of(answers, ANSWER_BYTES);
        let used_memory_bytes = finished_bytes.saturating_add(pending_bytes).saturating_add(answers_bytes);
        let full = (u128::from(used_memory_bytes) * 100).div_ceil(u128::from(REDIS_TOLD_FROM_PERCENT));
        let maxmemory_bytes = rounded_up(u64::try_from(full).unwrap_or(u64::MAX));
        Self {
            finished_bytes,
            pending_bytes,
            answers_bytes,
            used_memory_bytes,
            maxmemory_bytes,
            machine_bytes: maxmemory_bytes.saturating_mul(MACHINE_PARTS),
        }
    }
}

/// The bytes of a finished message. Its payload is gone.
fn finished_each(load: &QueueLoad) -> u64 {
    let loose = if has_large_metadata(load) { FINISHED_LOOSE_BYTES } else { 0 };
    metadata_bytes(load.metadata_bytes).saturating_add(FINISHED_BYTES + loose)
}

/// The bytes of a pending message.
fn pending_each(load: &QueueLoad) -> u64 {
    let has_large_payload = load.payload_bytes > COMPACT_BYTES;
    let loose = if has_large_payload || has_large_metadata(load) { PENDING_LOOSE_BYTES } else { 0 };
    let rounded = percent_of(load.payload_bytes, ROUNDED_PERCENT);
    let payload = if has_large_payload { rounded } else { load.payload_bytes };
    payload.saturating_add(metadata_bytes(load.metadata_bytes)).saturating_add(PENDING_BYTES + loose)
}

fn has_large_metadata(load: &QueueLoad) -> bool {
    load.metadata_bytes.saturating_add(BESIDE_METADATA_BYTES) > COMPACT_BYTES
}

fn metadata_bytes(bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { percent_of(bytes, ROUNDED_PERCENT).saturating_add(METADATA_BYTES) }
}
