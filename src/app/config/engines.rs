//! `[counters]`, `[queues]` and `[cache]`: the engine of each role.

use serde::Deserialize;

/// `[counters]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountersConfig {
    /// The engine of counters and of the catalog of namespaces.
    pub engine: CounterEngine,
    /// The Cassandra cluster, by its name in `[clusters]`; empty for other engines.
    pub cluster: String,
}

/// `[queues]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuesConfig {
    pub engine: QueueEngine,
    /// The cluster of Redis or Valkey, by its name in `[clusters]`; empty for other engines.
    pub cluster: String,
    /// The bytes of memory that messages may take on the embedded engine; 0 takes half of the memory.
    pub memory_bytes: u64,
}

/// `[cache]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// The cluster of the count cache of new namespaces that name none; empty: the cache of the counter engine.
    pub cluster: String,
}

/// The engine of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CounterEngine {
    /// The embedded store.
    Embedded,
    /// Memory only.
    Memory,
    /// A keyspace of a Cassandra or ScyllaDB cluster.
    Cassandra,
}

/// The engine of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueEngine {
    /// The embedded store.
    Embedded,
    /// Memory only.
    Memory,
    /// Redis or Valkey, which several servers may share.
    Redis,
    /// The server has no queues.
    None,
}
