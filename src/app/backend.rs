//! Opens the stores that the settings name.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use crate::adapters::embedded::{self, Embedded};
use crate::adapters::files::Exports;
use crate::adapters::memcached::{self, Cluster};
use crate::adapters::memory::{self, FastTable};
use crate::app::config::{Config, StorageKind};
use crate::ports::{Clock, ExportSink, FastCounts, Stores};

/// How often the store is asked whether it has failed.
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// The opened stores, and what has to be asked and closed beside them.
pub struct Backend {
    /// The stores.
    pub stores: Stores,
    /// Where slices are exported to, if anywhere.
    pub export: Option<Arc<dyn ExportSink>>,
    /// The memcached cluster that keeps best-effort counters, if one does.
    pub memcached: Option<Arc<Cluster>>,
    embedded: Option<Arc<Embedded>>,
    clock: Arc<dyn Clock>,
}

/// No server of a memcached cluster can be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "no memcached server of cluster {cluster} can be used: {servers}; start one, correct clusters.{cluster}.servers, or \
     keep best-effort counters in this process with an empty best_effort.cluster"
)]
pub struct Absent {
    cluster: String,
    servers: String,
}

/// Finds the memcached cluster that the settings name for best-effort counters.
pub async fn open_memcached(config: &Config, clock: Arc<dyn Clock>) -> Result<Option<Arc<Cluster>>, Absent> {
    let name = &config.best_effort.cluster;
    let Some(cluster) = config.clusters.get(name) else { return Ok(None) };
    let options = memcached::Options {
        replicas: cluster.servers.replicas().to_vec(),
        key_prefix: cluster.key_prefix.clone(),
        timeout: cluster.timeout(),
    };
    match Cluster::open(options, clock).await {
        Ok((opened, absent)) => {
            for (server, why) in absent {
                tracing::warn!(cluster = name, server, why, "a memcached server is absent; it is asked again by calls");
            }
            Ok(Some(Arc::new(opened)))
        }
        Err(absent) => {
            let servers: Vec<String> = absent.into_iter().map(|(server, why)| format!("{server}: {why}")).collect();
            Err(Absent { cluster: name.clone(), servers: servers.join(", ") })
        }
    }
}

impl Backend {
    /// Opens the stores; on `embedded` this recovers whatever a kill left behind.
    pub fn open(config: &Config, memcached: Option<Arc<Cluster>>, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let fast_bytes = usize::try_from(config.best_effort.capacity_bytes).unwrap_or(usize::MAX);
        let fast: Arc<dyn FastCounts> = match &memcached {
            Some(cluster) => Arc::clone(cluster) as Arc<dyn FastCounts>,
            None => Arc::new(FastTable::new(Arc::clone(&clock), fast_bytes)),
        };
        let export = export_sink(config);
        match config.storage.kind {
            StorageKind::Memory => {
                let mut stores = memory::stores_on(Arc::clone(&clock));
                stores.fast = fast;
                Ok(Self { stores, export, memcached, embedded: None, clock })
            }
            StorageKind::Embedded => {
                let storage = &config.storage;
                let options = embedded::Options {
                    reserve_bytes: storage.reserve_bytes,
                    row_bytes: storage.count_cache_bytes,
                    tail_bytes: storage.tail_bytes,
                    block_bytes: storage.cache_bytes,
                    ..embedded::Options::new(&storage.data_dir)
                };
                let embedded = Arc::new(
                    embedded::open(options)
                        .with_context(|| format!("cannot open the store in {}", storage.data_dir.display()))?,
                );
                Ok(Self { stores: embedded.stores(fast), export, memcached, embedded: Some(embedded), clock })
            }
        }
    }

    /// The embedded store, if it is the one.
    pub fn embedded(&self) -> Option<Arc<Embedded>> {
        self.embedded.clone()
    }

    /// Why the store takes nothing any more, if it has failed.
    pub fn fault(&self) -> Option<String> {
        self.embedded.as_ref().and_then(|embedded| embedded.failure())
    }

    /// Waits until the store has failed for good; the process then ends, because a restart repairs what it can.
    pub async fn failed(&self) -> String {
        loop {
            if let Some(fault) = self.fault() {
                return fault;
            }
            self.clock.sleep(HEALTH_INTERVAL).await;
        }
    }

    /// Closes the stores, after the last call.
    pub fn close(self) {
        if let Some(embedded) = self.embedded {
            embedded.close();
        }
    }
}

/// Where slices are exported to, if the settings name a directory.
fn export_sink(config: &Config) -> Option<Arc<dyn ExportSink>> {
    let directory = &config.storage.export_dir;
    if directory.as_os_str().is_empty() {
        return None;
    }
    Some(Arc::new(Exports::new(directory)))
}
