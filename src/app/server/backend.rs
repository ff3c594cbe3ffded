//! Opens the engines that the settings name for each role, and puts what they offer together.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::join_all;
use prometheus_client::collector::Collector;

use crate::config::{Config, CounterEngine, QueueEngine};
use crate::server::keyspace::{self, Keyspaces, OpenedKeyspaces};
use crate::server::memcached::{MemcachedClusters, open_memcached};
use crate::server::metrics::MetricCollector;
use crate::server::preset::Preset;
use crate::server::readiness::ServicesOfStore;
use crate::server::redis::open_redis;
use crate::server::resources;
use tallystone_adapters::Opened;
use tallystone_adapters::files::Exports;
use tallystone_adapters::memcached::Cluster;
use tallystone_adapters::memory::{self, FastTable};
use tallystone_adapters::rollup_rpc::{PeerTlsFiles, RollupRpc};
use tallystone_adapters::system::SystemEntropy;
use tallystone_cassandra::{OpenError, StartupDeadline};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::fleet::{FleetSecret, SECRET_BYTES};
use tallystone_embedded::Embedded;
use tallystone_ports::{
    Backups, CacheCluster, Clock, Entropy as _, ExportSink, FastCounts, HistoryStore, QueueStores, RollupSignal,
    StoreError, StoreErrorKind, StoreHandle, Stores,
};
use tallystone_redis::RedisStores;

/// How often the stores are asked whether they have failed.
const HEALTH_INTERVAL: Duration = Duration::from_millis(100);

/// The opened engines by role, and their handles.
pub struct Backend {
    /// The stores of counters.
    pub stores: Stores,
    /// The stores of queues, unless this server has none.
    pub queue_stores: Option<QueueStores>,
    /// The history of messages; none if it is off.
    pub history: Option<Arc<dyn HistoryStore>>,
    /// The export of slices, if the settings name a directory for it.
    pub export: Option<Arc<dyn ExportSink>>,
    /// Online backups, if an engine has them.
    pub backups: Option<Arc<dyn Backups>>,
    /// The memcached clusters that the settings list, by their names.
    pub memcached: MemcachedClusters,
    /// Every opened engine, and the services that stop while it is away.
    pub handles: Vec<(Arc<dyn StoreHandle>, ServicesOfStore)>,
    collectors: Vec<Box<dyn Collector>>,
    fleet: Option<FleetLink>,
    clock: Arc<dyn Clock>,
}

/// The way to the other servers of a shared store.
struct FleetLink {
    /// The keyspaces, as error texts name them.
    keyspaces: String,
    signals: Arc<RollupRpc>,
    secret: FleetSecret,
}

impl Backend {
    /// Opens the engine of each role. The embedded engine recovers everything that a kill left behind.
    pub async fn open(
        config: &Config,
        preset: Preset,
        clock: &Arc<dyn Clock>,
        startup_deadline: &Arc<StartupDeadline>,
    ) -> anyhow::Result<Self> {
        // First, because it is quick and leaves nothing to close when it fails.
        let memcached = open_memcached(config, clock).await?;
        let redis = open_redis(config, clock).await?;
        let fast = best_effort_counts(config, &memcached, clock);
        let directory = if config.uses_directory() {
            let directory = open_directory(config, clock).await?;
            // Its recovery takes nothing from the time of the keyspaces.
            startup_deadline.extend();
            Some(directory)
        } else {
            None
        };
        let keyspaces = match config.counters.engine {
            CounterEngine::Cassandra => Some(keyspace::open(config, preset, clock, startup_deadline).await?),
            CounterEngine::Embedded | CounterEngine::Memory => None,
        };
        let engines = OpenEngines {
            memory: config.uses_memory().then(|| memory::open(clock)),
            embedded: directory.as_ref().map(|directory| directory.opened(Arc::clone(&fast), clock)),
            keyspaces: keyspaces.as_ref().map(|keyspaces| keyspaces.opened(&fast, config.bridge.history_retention())),
            redis,
        };
        let (queue_stores, queue_handle) = engines.queues(config.queues.engine)?.unzip();
        let backups = engines.embedded.as_ref().and_then(|embedded| embedded.backups.clone());
        let OpenedKeyspaces { stores: counters, handles: counter_handles, history } =
            engines.counters(config.counters.engine)?;
        let caches = memcached.iter().filter_map(cache_cluster).collect();
        Ok(Self {
            stores: Stores { fast, caches: Arc::new(caches), ..counters },
            history: history.filter(|_| config.bridge.enabled),
            queue_stores,
            export: export_sink(config),
            backups,
            handles: with_services(counter_handles, queue_handle),
            collectors: collectors(&memcached, keyspaces.as_ref(), directory),
            fleet: keyspaces.as_ref().map(|keyspaces| FleetLink::new(keyspaces, clock, config.tls.peers())),
            memcached,
            clock: Arc::clone(clock),
        })
    }

    /// The way to the rollers of other servers, where the store is shared.
    pub fn signals(&self) -> Option<Arc<dyn RollupSignal>> {
        self.fleet.as_ref().map(|fleet| Arc::clone(&fleet.signals) as Arc<dyn RollupSignal>)
    }

    /// The secret that this process sends with its signals, where the store is shared.
    pub fn secret(&self) -> Option<FleetSecret> {
        self.fleet.as_ref().map(|fleet| fleet.secret)
    }

    /// Whether other servers may share the store of counters.
    pub fn is_shared(&self) -> bool {
        self.fleet.is_some()
    }

    /// The metrics of the engines; empty the second time.
    pub fn take_collectors(&mut self) -> Vec<Box<dyn Collector>> {
        std::mem::take(&mut self.collectors)
    }

    /// Runs the last step of a startup. On a shared store it ends with the startup deadline; a store of this process
    /// answers, however long it takes after a kill.
    pub async fn finish_startup<T>(
        &self,
        startup_deadline: &StartupDeadline,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let Some(fleet) = &self.fleet else { return step.await };
        let why = match startup_deadline.run(step).await {
            Some(Err(error)) if is_unavailable(&error) => format!("{error:#}"),
            Some(ended) => return ended,
            None => "no answer in time".to_owned(),
        };
        Err(OpenError::Silent { keyspaces: fleet.keyspaces.clone(), why }.into())
    }

    /// The reason why a store has failed for good, if one has.
    pub fn fault(&self) -> Option<String> {
        self.handles.iter().find_map(|(handle, _)| handle.failure())
    }

    /// Waits until a store has failed for good. The process then ends, because a restart repairs what it can.
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
        join_all(self.handles.iter().map(|(handle, _)| handle.close())).await;
        // The last writes that end now may still signal the rollers.
        if let Some(fleet) = self.fleet {
            fleet.signals.close().await;
        }
    }
}

impl FleetLink {
    fn new(keyspaces: &Keyspaces, clock: &Arc<dyn Clock>, tls: PeerTlsFiles) -> Self {
        let mut secret = FleetSecret([0; SECRET_BYTES]);
        SystemEntropy.fill(&mut secret.0);
        let signals = Arc::new(RollupRpc::start(Arc::clone(clock), secret, tls));
        Self { keyspaces: keyspaces.names(), signals, secret }
    }
}

/// The engines that are open, to choose from for each role.
struct OpenEngines {
    memory: Option<Opened>,
    embedded: Option<Opened>,
    keyspaces: Option<OpenedKeyspaces>,
    redis: Option<RedisStores>,
}

impl OpenEngines {
    /// The counters of an engine with their history, and the handles of its stores: that with the catalog first.
    fn counters(self, engine: CounterEngine) -> anyhow::Result<OpenedKeyspaces> {
        let one = match engine {
            CounterEngine::Memory => self.memory,
            CounterEngine::Embedded => self.embedded,
            CounterEngine::Cassandra => return self.keyspaces.context("no keyspace is open"),
        };
        let opened = one.context("the engine of counters is not open")?;
        let stores = opened.counters.context("the engine of [counters] has no counters")?;
        Ok(OpenedKeyspaces { stores, handles: vec![opened.handle], history: opened.history })
    }

    fn queues(&self, engine: QueueEngine) -> anyhow::Result<Option<(QueueStores, Arc<dyn StoreHandle>)>> {
        let one = match engine {
            QueueEngine::None => return Ok(None),
            QueueEngine::Redis => {
                let redis = self.redis.as_ref().context("Redis is not open")?;
                return Ok(Some((redis.queues.clone(), Arc::clone(&redis.handle))));
            }
            QueueEngine::Memory => self.memory.as_ref(),
            QueueEngine::Embedded => self.embedded.as_ref(),
        };
        let opened = one.context("the engine of queues is not open")?;
        let queues = opened.queues.clone().context("the engine of [queues] has no queues")?;
        Ok(Some((queues, Arc::clone(&opened.handle))))
    }
}

/// The services that stop while each store is away. An attached keyspace takes only its datasets with it.
fn with_services(
    counters: Vec<Arc<dyn StoreHandle>>,
    queues: Option<Arc<dyn StoreHandle>>,
) -> Vec<(Arc<dyn StoreHandle>, ServicesOfStore)> {
    let of_counters = counters.into_iter().enumerate();
    let of_counters = of_counters.map(|(at, handle)| (handle, ServicesOfStore { counters: at == 0, queues: false }));
    let mut handles: Vec<_> = of_counters.collect();
    let Some(queues) = queues else { return handles };
    match handles.iter_mut().find(|(handle, _)| Arc::ptr_eq(handle, &queues)) {
        Some((_, services)) => services.queues = true,
        None => handles.push((queues, ServicesOfStore { counters: false, queues: true })),
    }
    handles
}

/// The metrics of the engines. Those of memcached and Cassandra are on the page of every server, with zeros where there
/// is none, so that dashboards find them.
fn collectors(
    memcached: &MemcachedClusters,
    keyspaces: Option<&Keyspaces>,
    directory: Option<Arc<Embedded>>,
) -> Vec<Box<dyn Collector>> {
    let keyspaces: Vec<_> = keyspaces.map_or_else(Vec::new, |keyspaces| keyspaces.all().cloned().collect());
    let mut all = vec![MetricCollector::of(memcached.clone()), MetricCollector::of(keyspaces)];
    all.extend(directory.map(MetricCollector::of));
    all
}

/// Opens the embedded directory off the runtime, because recovery may read a lot.
async fn open_directory(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Arc<Embedded>> {
    let (storage, history_bytes) = (config.storage.clone(), config.bridge.history_max_bytes);
    let queue_memory_bytes = resources::queue_memory_bytes(config);
    let memory = resources::memory_bytes();
    let began = clock.elapsed();
    let opening = move || {
        let options = tallystone_embedded::Options {
            reserve_bytes: storage.reserve_bytes,
            row_bytes: storage.count_cache_bytes,
            tail_bytes: storage.tail_bytes,
            block_bytes: storage.cache_bytes,
            history_bytes,
            queue_memory_bytes,
            ..tallystone_embedded::Options::new(&storage.data_dir)
        };
        let options = match memory {
            Some(memory) => options.within_memory(memory),
            None => options,
        };
        tallystone_embedded::refuse_small_volume(&options)
            .and_then(|()| tallystone_embedded::open(options))
            .with_context(|| format!("cannot open the store in {}", storage.data_dir.display()))
    };
    let opened = tokio::task::spawn_blocking(opening).await.context("opening the store panicked")??;
    let took_ms = u64::try_from(clock.elapsed().saturating_sub(began).as_millis()).unwrap_or(u64::MAX);
    tracing::info!(kind = "embedded", took_ms, "the store is open");
    Ok(Arc::new(opened))
}

/// Whether a store did not answer, as opposed to an answer with an error.
fn is_unavailable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<StoreError>().is_some_and(|error| error.kind == StoreErrorKind::Unavailable)
}

/// The store of best-effort counters: memcached servers, or this process.
fn best_effort_counts(config: &Config, memcached: &MemcachedClusters, clock: &Arc<dyn Clock>) -> Arc<dyn FastCounts> {
    let fast_bytes = usize::try_from(config.best_effort.capacity_bytes).unwrap_or(usize::MAX);
    match memcached.get(&config.best_effort.cluster) {
        Some(cluster) => Arc::clone(cluster) as Arc<dyn FastCounts>,
        None => Arc::new(FastTable::new(Arc::clone(clock), fast_bytes)),
    }
}

/// A memcached cluster as namespaces name it. The settings were checked: every name of a cluster is one of the
/// catalog's.
fn cache_cluster((name, cluster): (&String, &Arc<Cluster>)) -> Option<(NamespaceName, CacheCluster)> {
    Some((NamespaceName::new(name).ok()?, cluster.opened(name).cache?))
}

/// The export of slices, if the settings name a directory for it.
fn export_sink(config: &Config) -> Option<Arc<dyn ExportSink>> {
    let directory = &config.storage.export_dir;
    if directory.as_os_str().is_empty() {
        return None;
    }
    Some(Arc::new(Exports::new(directory)))
}
