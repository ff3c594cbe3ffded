//! Opens the stores that the settings name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;

use crate::adapters::cassandra::{Cassandra, OpenError, StartupDeadline, no_queues};
use crate::adapters::embedded::{self, Embedded};
use crate::adapters::files::Exports;
use crate::adapters::memcached::{self, Cluster};
use crate::adapters::memory::{self, FastTable};
use crate::adapters::rollup_rpc::RollupRpc;
use crate::adapters::system::SystemEntropy;
use crate::app::config::{ClusterConfig, ClusterKind, Config, StorageKind};
use crate::app::server::keyspace::Keyspaces;
use crate::app::server::readiness::{ProbedStore, ServicesOfStore};
use crate::domain::counter::NamespaceName;
use crate::domain::fleet::{FleetSecret, SECRET_BYTES};
use crate::ports::{
    Backups, CacheCluster, Clock, CountCache, Entropy as _, ExportSink, FastCounts, QueueStores, RollupSignal,
    StoreError, StoreErrorKind, Stores,
};

/// How often the store is asked whether it has failed.
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// The opened stores, and what has to be asked and closed beside them.
pub struct Backend {
    /// The stores.
    pub stores: Stores,
    /// The stores of queues.
    pub queue_stores: QueueStores,
    /// Where slices are exported to, if anywhere.
    pub export: Option<Arc<dyn ExportSink>>,
    /// The memcached clusters that the settings list, by their names.
    pub memcached: MemcachedClusters,
    embedded: Option<Arc<Embedded>>,
    shared: Option<SharedStore>,
    clock: Arc<dyn Clock>,
}

/// A store that several servers share, and the way to those others.
struct SharedStore {
    keyspaces: Keyspaces,
    signals: Arc<RollupRpc>,
    secret: FleetSecret,
}

/// Opened memcached clusters by their names.
pub type MemcachedClusters = BTreeMap<String, Arc<Cluster>>;

/// No server of a memcached cluster can be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "no memcached server of cluster {cluster} can be used: {servers}; start one, correct clusters.{cluster}.servers, or \
     take [clusters.{cluster}] and what names it out of the settings"
)]
pub struct MemcachedUnreachable {
    cluster: String,
    servers: String,
}

/// Finds the memcached clusters that the settings list.
pub async fn open_memcached(
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
                tracing::warn!(cluster = name, server, why, "a memcached server is absent; it is asked again by calls");
            }
            Ok(Arc::new(opened))
        }
        Err(absent) => {
            let servers: Vec<String> = absent.into_iter().map(|(server, why)| format!("{server}: {why}")).collect();
            Err(MemcachedUnreachable { cluster: name.to_owned(), servers: servers.join(", ") })
        }
    }
}

impl Backend {
    /// Opens the stores of this process; on `embedded` this recovers whatever a kill left behind.
    pub fn open(config: &Config, memcached: MemcachedClusters, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let (fast, caches) = fast_counts_and_caches(config, &memcached, &clock);
        let export = export_sink(config);
        match config.storage.kind {
            StorageKind::Memory => {
                let queue_stores = memory::queue_stores(Arc::clone(&clock));
                let mut stores = memory::stores_on(Arc::clone(&clock));
                (stores.fast, stores.caches) = (fast, caches);
                Ok(Self { stores, queue_stores, export, memcached, embedded: None, shared: None, clock })
            }
            StorageKind::Cassandra => unreachable!("a keyspace is opened by itself"),
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
                let stores = Stores { caches, ..embedded.stores(fast) };
                let queue_stores = embedded.queue_stores(Arc::clone(&clock));
                Ok(Self { stores, queue_stores, export, memcached, embedded: Some(embedded), shared: None, clock })
            }
        }
    }

    /// The stores of opened keyspaces.
    pub fn of_keyspaces(
        config: &Config,
        keyspaces: Keyspaces,
        memcached: MemcachedClusters,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (fast, caches) = fast_counts_and_caches(config, &memcached, &clock);
        let stores = Stores { caches, ..keyspaces.stores(&fast) };
        let (queue_stores, export) = (no_queues(), export_sink(config));
        let mut secret = FleetSecret([0; SECRET_BYTES]);
        SystemEntropy.fill(&mut secret.0);
        let signals = Arc::new(RollupRpc::start(Arc::clone(&clock), secret));
        let shared = Some(SharedStore { keyspaces, signals, secret });
        Self { stores, queue_stores, export, memcached, embedded: None, shared, clock }
    }

    /// The way to the rollers of other servers, where the store is shared.
    pub fn signals(&self) -> Option<Arc<dyn RollupSignal>> {
        self.shared.as_ref().map(|shared| Arc::clone(&shared.signals) as Arc<dyn RollupSignal>)
    }

    /// What this process shows the others with its signals, where the store is shared.
    pub fn secret(&self) -> Option<FleetSecret> {
        self.shared.as_ref().map(|shared| shared.secret)
    }

    /// The embedded store, if it is the one.
    pub fn embedded(&self) -> Option<Arc<Embedded>> {
        self.embedded.clone()
    }

    /// The way to back the store up, if it is the embedded one.
    pub fn backups(&self) -> Option<Arc<dyn Backups>> {
        self.embedded.as_ref().map(|embedded| embedded.backups(Arc::clone(&self.clock)))
    }

    /// The opened keyspaces.
    pub fn keyspaces(&self) -> Vec<Arc<Cassandra>> {
        self.shared.as_ref().map_or_else(Vec::new, |shared| shared.keyspaces.all().cloned().collect())
    }

    /// Whom to ask whether the stores answer, and what is not served while one is away. A keyspace beside that of the catalog
    /// takes only its datasets with it; on keyspaces there are no queues, and that is answered without asking one.
    pub fn readiness_probes(&self) -> Vec<(ProbedStore, ServicesOfStore)> {
        if let Some(embedded) = self.embedded() {
            return vec![(ProbedStore::Embedded(embedded), ServicesOfStore { counters: true, queues: true })];
        }
        let keyspaces = self.keyspaces().into_iter().enumerate();
        let mut asked: Vec<_> = keyspaces
            .map(|(at, keyspace)| {
                (ProbedStore::Keyspace(keyspace), ServicesOfStore { counters: at == 0, queues: false })
            })
            .collect();
        if asked.is_empty() {
            asked.push((ProbedStore::Memory, ServicesOfStore { counters: true, queues: true }));
        }
        asked
    }

    /// The last step of a start on keyspaces, within what is left of it.
    pub async fn finish_startup<T>(
        &self,
        patience: &StartupDeadline,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let why = match patience.run(step).await {
            Some(Err(error)) if is_unavailable(&error) => format!("{error:#}"),
            Some(ended) => return ended,
            None => "no answer in time".to_owned(),
        };
        let keyspaces = self.shared.as_ref().map_or_else(String::new, |shared| shared.keyspaces.names());
        Err(OpenError::Silent { keyspaces, why }.into())
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
    pub async fn close(self) {
        if let Some(embedded) = self.embedded {
            embedded.close();
        }
        if let Some(SharedStore { keyspaces, signals, .. }) = self.shared {
            // The last writes that end now may still have something to say to the rollers.
            join_all(keyspaces.all().map(|keyspace| keyspace.close())).await;
            signals.close().await;
        }
    }
}

/// Whether a store did not answer, as against an answer that nobody likes.
fn is_unavailable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.kind == StoreErrorKind::Unavailable)
}

/// What keeps best-effort counters, memcached servers or this process, and the caches that namespaces may name.
fn fast_counts_and_caches(
    config: &Config,
    memcached: &MemcachedClusters,
    clock: &Arc<dyn Clock>,
) -> (Arc<dyn FastCounts>, Arc<BTreeMap<NamespaceName, CacheCluster>>) {
    let fast_bytes = usize::try_from(config.best_effort.capacity_bytes).unwrap_or(usize::MAX);
    let fast: Arc<dyn FastCounts> = match memcached.get(&config.best_effort.cluster) {
        Some(cluster) => Arc::clone(cluster) as Arc<dyn FastCounts>,
        None => Arc::new(FastTable::new(Arc::clone(clock), fast_bytes)),
    };
    (fast, Arc::new(memcached.iter().filter_map(cache_cluster).collect()))
}

/// A memcached cluster as namespaces name it. The settings were checked: every name of a cluster is one of the catalog's.
fn cache_cluster((name, cluster): (&String, &Arc<Cluster>)) -> Option<(NamespaceName, CacheCluster)> {
    let name = NamespaceName::new(name).ok()?;
    let (cache, fast) = (Arc::clone(cluster) as Arc<dyn CountCache>, Arc::clone(cluster) as Arc<dyn FastCounts>);
    Some((name, CacheCluster { cache, fast }))
}

/// Where slices are exported to, if the settings name a directory.
fn export_sink(config: &Config) -> Option<Arc<dyn ExportSink>> {
    let directory = &config.storage.export_dir;
    if directory.as_os_str().is_empty() {
        return None;
    }
    Some(Arc::new(Exports::new(directory)))
}
