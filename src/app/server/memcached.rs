//! Opens the memcached clusters that the settings list.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::config::{ClusterConfig, ClusterKind, Config};
use tallystone_adapters::memcached::{self, Cluster};
use tallystone_ports::Clock;

/// Opened memcached clusters by their names.
pub type MemcachedClusters = BTreeMap<String, Arc<Cluster>>;

/// No server of a memcached cluster can be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "no memcached server of cluster {cluster} is usable: {servers}; start one, correct clusters.{cluster}.servers, or \
     remove [clusters.{cluster}] and its uses from the settings"
)]
pub struct MemcachedUnreachable {
    cluster: String,
    servers: String,
}

/// Opens the memcached clusters that the settings list.
pub(super) async fn open_memcached(
    config: &Config,
    clock: &Arc<dyn Clock>,
) -> Result<MemcachedClusters, MemcachedUnreachable> {
    let listed = config.clusters.iter().filter(|(_, cluster)| cluster.kind == ClusterKind::Memcached);
    let opening = listed
        .map(|(name, cluster)| async { Ok((name.clone(), open_cluster(name, cluster, Arc::clone(clock)).await?)) });
    join_all(opening).await.into_iter().collect()
}

async fn open_cluster(
    name: &str,
    cluster: &ClusterConfig,
    clock: Arc<dyn Clock>,
) -> Result<Arc<Cluster>, MemcachedUnreachable> {
    let options = memcached::Options {
        replicas: cluster.servers.replicas().to_vec(),
        key_prefix: cluster.key_prefix.clone(),
        timeout: cluster.timeout(),
        dedupe_seconds: cluster.dedupe_seconds,
    };
    match Cluster::open(options, clock).await {
        Ok((opened, absent)) => {
            for (server, why) in absent {
                tracing::warn!(
                    cluster = name,
                    server,
                    why,
                    "a memcached server does not answer; later calls try it \
                    again"
                );
            }
            Ok(Arc::new(opened))
        }
        Err(absent) => {
            let servers: Vec<String> = absent.into_iter().map(|(server, why)| format!("{server}: {why}")).collect();
            Err(MemcachedUnreachable { cluster: name.to_owned(), servers: servers.join(", ") })
        }
    }
}
