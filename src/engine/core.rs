//! The state that all use cases and loops share: ports, catalog, datasets, and the scope of each namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dashmap::DashMap;

use crate::domain::counter::{Counter, CounterName, DatasetId, NamespaceId, NamespaceName};
use crate::domain::fleet::ProtocolRules;
use crate::domain::limits::TOUCH_SHARDS;
use crate::domain::namespace::Namespace;
use crate::domain::rollup::{Checkpoint, FoldRules, RolledBy, SliceRule, TimeSlice};
use crate::domain::{Reason, Timestamp};
use crate::engine::counting::CountingError;
use crate::engine::counting::as_of_floor::AsOfFloor;
use crate::engine::counting::inline_rolls::InlineRolls;
use crate::engine::counting::rankings::TopTables;
use crate::engine::counting::watchers::CounterWatchers;
use crate::engine::dataset::datasets::{DatasetState, Datasets};
use crate::engine::fleet::{FleetMembership, MemberProfile, SignalRoute};
use crate::engine::loops::driver::Driver;
use crate::engine::namespaces::{NamespaceCatalog, NamespaceError};
use crate::engine::rolling::NamespaceRollupQueues;
use crate::engine::rolling::queue::SetBytes;
use crate::engine::stats::{NamespaceCounts, Stats};
use crate::ports::{
    CacheCluster, Clock, CountCache, CounterSignal, Entropy, ExportSink, FastCounts, RollupSignal, StoreError,
    StoreErrorKind, Stores,
};

/// The earliest time of any event.
const EPOCH: Timestamp = Timestamp::from_micros(0);

/// Shared by all use cases and loops.
pub struct EngineCore {
    /// The stores.
    pub stores: Stores,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random bytes for server-made tokens.
    pub entropy: Arc<dyn Entropy>,
    /// The export of slices, if there is one.
    pub export: Option<Arc<dyn ExportSink>>,
    /// The catalog.
    pub namespaces: NamespaceCatalog,
    /// The datasets.
    pub datasets: Datasets,
    /// The rollup queues by namespace.
    pub rollup_queues: DashMap<NamespaceId, Arc<NamespaceRollupQueues>>,
    /// The bytes of all rollup Sets.
    pub set_bytes: SetBytes,
    /// Inline rolls in flight.
    pub inline: InlineRolls,
    /// The greatest counters.
    pub rankings: TopTables,
    /// The watches of counters.
    pub watchers: CounterWatchers,
    /// Counts for the metrics.
    pub stats: Arc<Stats>,
    /// The highest `as_of` served of each counter, where another server could make a later read look older.
    pub as_of_floor: AsOfFloor,
    /// The fleet membership of this process, if several share the store.
    pub fleet: Option<Arc<FleetMembership>>,
    /// The sender of rollup signals to other servers, if there may be any.
    pub signals: Option<Arc<dyn RollupSignal>>,
    /// The delay after the end of a time bucket before it is sealed; none: never.
    pub seal_delay: Option<Duration>,
    /// The rules of the protocol. Only simulations leave one out.
    pub rules: ProtocolRules,
    /// Whether the last attempt to trim series failed.
    pub trim_failing: AtomicBool,
    /// The name of this process in the rows that it writes; may be empty.
    pub name: Arc<str>,
    /// The start of this process by its clock.
    pub started_at: Timestamp,
    /// Runs tasks that outlive their caller.
    driver: Driver,
    scopes: DashMap<NamespaceId, Arc<NamespaceScope>>,
}

/// The part of a process in a fleet.
pub struct FleetOptions {
    /// The rules of the protocol.
    pub rules: ProtocolRules,
    /// What the process publishes about itself.
    pub profile: MemberProfile,
    /// The sender of rollup signals to other members.
    pub signals: Option<Arc<dyn RollupSignal>>,
    /// The delay after the end of a time bucket before it is sealed; none: never.
    pub seal_delay: Option<Duration>,
}

/// A namespace with all parts that a call needs. It is replaced when settings or slices change.
pub struct NamespaceScope {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    /// Its dataset.
    pub dataset: Arc<DatasetState>,
    /// The fold rules over all known slices.
    pub rules: FoldRules,
    /// Its rollup queues.
    pub rollup_queues: Arc<NamespaceRollupQueues>,
    /// Its count cache.
    pub cache: Arc<dyn CountCache>,
    /// Whether other servers fill the cache or write the store. A later read may then find an older `as_of` than this
    /// server has served: an old cached copy, or a row below the limit that was not acknowledged at that time.
    pub needs_as_of_floor: bool,
    /// Its best-effort counters.
    pub best_effort_counts: Arc<dyn FastCounts>,
    /// Metrics of its counters.
    pub counts: Arc<NamespaceCounts>,
    /// Why calls are refused: the namespace names clusters that this server does not know. Its rolls continue, because
    /// other namespaces of the dataset depend on them.
    cluster_fault: Option<String>,
    rows: Arc<Vec<TimeSlice>>,
}

impl EngineCore {
    /// Combines the shared parts.
    pub fn new(
        stores: Stores,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        export: Option<Arc<dyn ExportSink>>,
        namespaces: NamespaceCatalog,
        driver: Driver,
        of_fleet: FleetOptions,
    ) -> Self {
        let FleetOptions { rules, profile, signals, seal_delay } = of_fleet;
        let stats: Arc<Stats> = Arc::default();
        let (name, began) = (Arc::from(profile.name.as_str()), clock.now());
        let fleet = stores.fleet.as_ref().map(|shared| {
            let (clock, entropy) = (Arc::clone(&clock), Arc::clone(&entropy));
            Arc::new(FleetMembership::new(shared.clone(), clock, entropy, Arc::clone(&stats), (rules, profile)))
        });
        Self {
            stores,
            clock,
            entropy,
            export,
            namespaces,
            datasets: Datasets::default(),
            rollup_queues: DashMap::new(),
            set_bytes: SetBytes::default(),
            inline: InlineRolls::default(),
            rankings: TopTables::default(),
            watchers: CounterWatchers::default(),
            stats,
            as_of_floor: AsOfFloor::default(),
            fleet,
            signals,
            seal_delay,
            rules,
            trim_failing: AtomicBool::new(false),
            name,
            started_at: began,
            driver,
            scopes: DashMap::new(),
        }
    }

    /// The time up to which every counter of a dataset is rolled up; at most the limit.
    pub fn rolled_up_to(&self, dataset: &DatasetState, limit: Timestamp) -> Timestamp {
        let of_shard = |shard: u32| match self.fleet {
            // Watermarks tell what other members have rolled up.
            Some(_) => dataset.watermark(shard),
            None => dataset.pending.rolled_up_to(shard, limit),
        };
        (0..TOUCH_SHARDS).map(of_shard).min().unwrap_or(limit)
    }

    /// A checkpoint marked with the time and the writer. In a store of one process only the time is noted, which makes
    /// every row smaller.
    pub fn with_roller(&self, checkpoint: Checkpoint) -> Checkpoint {
        let server = self.fleet.as_ref().filter(|_| !self.name.is_empty()).map(|_| Arc::clone(&self.name));
        Checkpoint { rolled: Some(RolledBy { at: self.now(), server }), ..checkpoint }
    }

    /// Wall time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The scope of a namespace by name. Cost: two hash lookups, unless something changed.
    pub async fn scope(&self, name: &NamespaceName) -> Result<Arc<NamespaceScope>, CountingError> {
        let namespace = self.namespaces.get(name).map_err(|error| not_found(error, name))?;
        let scope = self.scope_of(namespace).await?;
        match &scope.cluster_fault {
            None => Ok(scope),
            Some(what) => Err(CountingError::UnknownCluster { name: name.to_string(), what: what.clone() }),
        }
    }

    /// The scope of a namespace by id; none if it was deleted.
    pub async fn scope_by_id(&self, id: NamespaceId) -> Result<Option<Arc<NamespaceScope>>, StoreError> {
        match self.namespaces.by_id(id) {
            Some(namespace) => self.scope_of(namespace).await.map(Some),
            None => {
                self.scopes.remove(&id);
                Ok(None)
            }
        }
    }

    async fn scope_of(&self, namespace: Arc<Namespace>) -> Result<Arc<NamespaceScope>, StoreError> {
        let known = self.scopes.get(&namespace.id).map(|scope| Arc::clone(&scope));
        if let Some(scope) = known.filter(|scope| scope.is_current(&namespace)) {
            return Ok(scope);
        }
        let scope = Arc::new(self.make_scope(namespace).await?);
        self.scopes.insert(scope.namespace.id, Arc::clone(&scope));
        Ok(scope)
    }

    async fn make_scope(&self, namespace: Arc<Namespace>) -> Result<NamespaceScope, StoreError> {
        let storage = &namespace.spec.storage;
        let kept_elsewhere = self.namespaces.check_clusters(storage).err().map(|reject| reject.message);
        let named = self.stores.caches.get(&storage.cache_cluster).cloned();
        let dataset = self.dataset(namespace.dataset_id).await?;
        if dataset.slices.rows().is_empty() {
            self.begin_slices(&dataset).await?;
        }
        let rows = dataset.slices.rows();
        let rules = self.rules(&namespace, &rows).await?;
        let queues = self.queues_of(&namespace, &dataset);
        let remembers_told = named.is_some() || self.fleet.is_some();
        let CacheCluster { cache, fast } = named.unwrap_or_else(|| CacheCluster {
            cache: Arc::clone(&self.stores.cache),
            fast: Arc::clone(&self.stores.fast),
        });
        let counts = self.stats.by_namespace.of(namespace.spec.name.as_str());
        Ok(NamespaceScope {
            namespace,
            dataset,
            rules,
            rollup_queues: queues,
            cache,
            needs_as_of_floor: remembers_told,
            best_effort_counts: fast,
            counts,
            cluster_fault: kept_elsewhere,
            rows,
        })
    }

    /// The rollup queues of a namespace. They are ended if the namespace was deleted in the meantime.
    fn queues_of(&self, namespace: &Namespace, dataset: &Arc<DatasetState>) -> Arc<NamespaceRollupQueues> {
        let (id, num_queues) = (namespace.id, namespace.spec.rollup.num_queues);
        let make = || Arc::new(NamespaceRollupQueues::new(id, Arc::clone(dataset), num_queues));
        let queues = Arc::clone(&self.rollup_queues.entry(id).or_insert_with(make));
        // Checked after the queues are in the map: a concurrent deletion either finds the queues or is found here.
        if self.namespaces.by_id(id).is_none() {
            queues.end(&self.set_bytes);
            self.rollup_queues.remove(&id);
        }
        queues
    }

    /// The state of a dataset.
    pub async fn dataset(&self, id: DatasetId) -> Result<Arc<DatasetState>, StoreError> {
        let dataset = self
            .namespaces
            .dataset(id)
            .ok_or_else(|| StoreError::not_applied(StoreErrorKind::Unavailable, "look up dataset"))?;
        self.datasets.open(&dataset, &self.stores, self.fleet.as_deref()).await
    }

    /// Makes the slice rows of the present.
    pub async fn begin_slices(&self, dataset: &Arc<DatasetState>) -> Result<(), StoreError> {
        self.ensure_slices(dataset, self.now()).await
    }

    /// Makes the slice rows around a time, from the oldest event that may still be admitted, and two slices ahead.
    ///
    /// The work outlives the caller: rows that are begun are finished, even if the call times out.
    pub async fn ensure_slices(&self, dataset: &Arc<DatasetState>, time: Timestamp) -> Result<(), StoreError> {
        let now = self.now();
        // Only tombstones are written below the closed timestamp, so a gap below it may become one slice.
        let from = time.min(dataset.closing.closed(now));
        let Some(missing) = dataset.slices.missing(from, time).await else { return Ok(()) };
        let versions: BTreeMap<NamespaceId, u64> = self
            .namespaces
            .all()
            .iter()
            .filter(|namespace| namespace.dataset_id == dataset.id())
            .map(|namespace| (namespace.id, namespace.version))
            .collect();
        let (dataset, store) = (Arc::clone(dataset), Arc::clone(&self.stores.slices));
        let (done, made) = tokio::sync::oneshot::channel();
        self.driver.start_once(async move {
            // The caller may be gone; the rows are known all the same.
            let _ = done.send(dataset.slices.make(missing, &versions, now, store.as_ref()).await);
        });
        made.await.unwrap_or_else(|_dropped| {
            let error = StoreError::not_applied(StoreErrorKind::Unavailable, "make slices");
            Err(error.with_source("the server stops"))
        })
    }

    async fn rules(&self, namespace: &Namespace, rows: &[TimeSlice]) -> Result<FoldRules, StoreError> {
        let mut slices: Vec<SliceRule> = Vec::with_capacity(rows.len());
        for row in rows {
            let version = row.versions.get(&namespace.id).copied().unwrap_or(1);
            let (bucket, ttl) = if version == namespace.version {
                (namespace.spec.partition.seconds_per_bucket, namespace.spec.ttl)
            } else {
                let spec = self.namespaces.version_of(namespace.id, version).await?;
                let spec =
                    spec.ok_or_else(|| StoreError::not_applied(StoreErrorKind::Corrupt, "read frozen settings"))?;
                (spec.partition.seconds_per_bucket, spec.ttl)
            };
            let bucket = Duration::from_secs(u64::from(bucket));
            slices.push(SliceRule { start: row.start, end: row.end, bucket, ttl });
        }
        if let Some(first) = slices.first_mut() {
            // Nothing was written before the first row, so its rule holds for all earlier times.
            first.start = Timestamp::MIN;
        }
        let steps = namespace.spec.series.iter().map(|series| series.step_seconds).collect();
        Ok(FoldRules::new(slices, steps))
    }
}

impl NamespaceScope {
    fn is_current(&self, namespace: &Arc<Namespace>) -> bool {
        Arc::ptr_eq(&self.namespace, namespace) && Arc::ptr_eq(&self.rows, &self.dataset.slices.rows())
    }

    /// Places a name in this namespace.
    pub fn counter(&self, name: CounterName) -> Counter {
        Counter::new(self.namespace.id, name)
    }

    /// The TTL that holds at a time.
    pub fn ttl_at(&self, time: Timestamp) -> Option<Duration> {
        self.rules.at(time).ttl
    }

    /// The end of what this scope's slices cover.
    pub fn covered_to(&self) -> Timestamp {
        self.rows.last().map_or(Timestamp::MIN, |row| row.end)
    }

    /// A time before which the dataset has no event.
    pub fn first_time(&self) -> Timestamp {
        self.rows.first().map_or(EPOCH, |row| row.start.just_before())
    }

    /// The lowest `as_of` that a read may state, given a limit that was read before. No event at or below it will be
    /// acknowledged later. While the limit lies before the first slice, a server with a slow clock may still send an event
    /// for an earlier slice.
    pub fn least_as_of(&self, limit: Timestamp) -> Timestamp {
        let first = self.first_time();
        if first <= limit { first } else { EPOCH }
    }

    /// Sends a rollup signal of this namespace to whoever rolls the counter up, in this process or in another one. It never
    /// waits, and may be lost.
    pub fn signal(&self, core: &EngineCore, counter: &Counter, oldest: Timestamp, newest: Timestamp) {
        let route = core.fleet.as_ref().map_or(SignalRoute::Here, |fleet| fleet.route(counter.touch_shard()));
        match (route, &core.signals) {
            (SignalRoute::Here, _) => self.offer(core, counter, oldest, newest),
            (SignalRoute::There(roller), Some(signals)) => {
                signals.send(&roller, CounterSignal { counter: counter.clone(), oldest, newest });
            }
            (SignalRoute::There(_), None) | (SignalRoute::Nowhere, _) => core.stats.signals_unsent.increment(),
        }
    }

    /// Puts a counter into the rollup queues of this process, whoever owns its shard.
    pub fn offer(&self, core: &EngineCore, counter: &Counter, oldest: Timestamp, newest: Timestamp) {
        let capacity_bytes = usize::try_from(self.namespace.spec.rollup.capacity_bytes).unwrap_or(usize::MAX);
        self.rollup_queues.offer(core, counter, oldest, newest, capacity_bytes);
    }
}

fn not_found(error: NamespaceError, name: &NamespaceName) -> CountingError {
    match error {
        NamespaceError::Reject(reject) if reject.reason == Reason::NamespaceNotFound => {
            CountingError::NamespaceNotFound { name: name.to_string() }
        }
        NamespaceError::Reject(reject) => CountingError::Reject(reject),
        NamespaceError::Store(error) => CountingError::Store(error),
    }
}
