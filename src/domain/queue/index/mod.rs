//! The indexes of a shard: the next message to serve, and lookups of messages.

pub(super) mod ages;
pub mod dedupe_index;
pub(super) mod exclusive_index;
pub(super) mod exclusivity_values;
pub(super) mod id_index;
pub(super) mod lanes;
pub(super) mod memory_count;
pub(super) mod sequence_pages;
pub(super) mod shape_index;
pub mod shape_memory;
pub(super) mod shard_index;
pub mod stubs;
