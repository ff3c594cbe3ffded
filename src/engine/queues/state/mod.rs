//! The state of queues at this server: the queues that are served, their shards, waiting workers, and sessions.

pub(in crate::queues) mod context;
pub(in crate::queues) mod depth;
pub(in crate::queues) mod directory;
pub(in crate::queues) mod owners;
pub(in crate::queues) mod replay_sessions;
pub(in crate::queues) mod served_queue;
pub(in crate::queues) mod session_registry;
pub(in crate::queues) mod shard_activity;
pub(in crate::queues) mod shard_calls;
pub(in crate::queues) mod shard_offers;
pub(in crate::queues) mod sweep_alarms;
pub(in crate::queues) mod waiters;
