//! The commands of a shard: their checks and changes.

pub(super) mod dequeue;
pub(super) mod enqueue;
pub mod explain;
pub(super) mod lease_commands;
pub(super) mod message_admin;
pub(super) mod session_calls;
pub(super) mod shard_admin;
