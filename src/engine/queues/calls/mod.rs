//! The calls of the shards of a queue: commands and their repeats, sweeps, totals, and queue time.

pub(in crate::queues) mod clock;
pub(in crate::queues) mod lease_batch;
pub(in crate::queues) mod replayed_dequeues;
pub(in crate::queues) mod shard_commands;
pub(in crate::queues) mod shard_reads;
pub(in crate::queues) mod sweeper;
