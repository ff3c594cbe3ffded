//! Opens the Redis or Valkey that the settings name for queues.

use std::sync::Arc;

use anyhow::Context;

use crate::config::{Config, QueueEngine, queue_cluster, redis_client_options};
use crate::server::keyspace::UnusableSetting;
use tallystone_adapters::system::SystemEntropy;
use tallystone_ports::Clock;
use tallystone_redis::limits::{REDIS_CLOCK_SLACK, REDIS_OUTBOX_ENTRIES_MAX};
use tallystone_redis::{AskedOfServers, OpenError, RedisQueueOptions, RedisStoreOptions, RedisStores};

/// How the queues are kept. The epoch is raised, and the durability read, before the first call.
const QUEUE_OPTIONS: RedisQueueOptions = RedisQueueOptions {
    epoch: 1,
    clock_slack: REDIS_CLOCK_SLACK,
    outbox_entries: REDIS_OUTBOX_ENTRIES_MAX,
    durability: None,
};

/// Redis cannot be used for queues.
#[derive(Debug, thiserror::Error)]
#[error("cluster {cluster} cannot be used for queues: {why}")]
pub struct RedisUnusable {
    cluster: String,
    /// The fault, and what to do.
    pub why: OpenError,
}

/// Opens the queues on Redis, if the settings want them there.
pub(super) async fn open_redis(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Option<RedisStores>> {
    if config.queues.engine != QueueEngine::Redis {
        return Ok(None);
    }
    let (name, cluster) = queue_cluster(config).context("queues.cluster names no Redis")?;
    let (deployment, login, tls, timeout) = redis_client_options(cluster).map_err(UnusableSetting)?;
    let asked = AskedOfServers { replicas: cluster.replicas, declared: cluster.durability.tier() };
    let options = RedisStoreOptions { deployment, login, tls, timeout, queues: QUEUE_OPTIONS, asked };
    let opened = tallystone_redis::open(options, Arc::clone(clock), Arc::new(SystemEntropy)).await;
    let opened = opened.map_err(|why| RedisUnusable { cluster: name.to_owned(), why })?;
    tracing::info!(kind = "redis", cluster = name, "the store of queues is open");
    Ok(Some(opened))
}
