//! Queues on Redis and Valkey.
//!
//! `client` reaches the servers: a single one, one behind Sentinels, or a cluster. It knows nothing of queues.

pub mod client;
pub mod limits;
