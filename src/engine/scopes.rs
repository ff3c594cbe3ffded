//! The scope of each namespace: its settings with the dataset, slices, rollup queues and caches that a call needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;

use crate::context::EngineContext;
use crate::dataset::datasets::{DatasetState, Datasets};
use crate::fleet::CounterFleet;
use crate::namespaces::{NamespaceCatalog, queue_namespace};
use crate::queue_report_frontier::least_reported;
use crate::rollup_queues::{NamespaceRollupQueues, RollupQueues};
use crate::stats::NamespaceCounts;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::limits::TOUCH_SHARDS;
use tallystone_domain::namespace::Namespace;
use tallystone_domain::rollup::{FoldRules, SliceRule, TimeSlice};
use tallystone_ports::{CacheCluster, CountCache, FastCounts, StoreError, StoreErrorKind, Stores};

/// The earliest time of any event.
const EPOCH: Timestamp = Timestamp::from_micros(0);

/// The namespaces of a server with their datasets and rollup queues, opened when first used.
pub struct NamespaceScopes {
    /// Time, random bytes, tasks and counts.
    pub context: Arc<EngineContext>,
    pub stores: Stores,
    pub namespaces: NamespaceCatalog,
    /// The fleet membership of this process, if several share the store.
    pub fleet: Option<Arc<CounterFleet>>,
    /// The opened datasets.
    pub datasets: Datasets,
    pub rollup_queues: RollupQueues,
    scopes: DashMap<NamespaceId, Arc<NamespaceScope>>,
}

/// A namespace with all parts that a call needs. It is replaced when settings or slices change.
pub struct NamespaceScope {
    pub namespace: Arc<Namespace>,
    pub dataset: Arc<DatasetState>,
    /// The fold rules over all known slices.
    pub rules: FoldRules,
    pub rollup_queues: Arc<NamespaceRollupQueues>,
    pub cache: Arc<dyn CountCache>,
    /// Whether other servers fill the cache or write the store. A later read may then find an older `as_of` than this
    /// server has served: an old cached copy, or a row below the limit that was not acknowledged at that time.
    pub needs_as_of_floor: bool,
    /// Whether its counters are those that queues keep about themselves.
    pub is_of_queues: bool,
    /// Its best-effort counters.
    pub best_effort_counts: Arc<dyn FastCounts>,
    /// Metrics of its counters.
    pub counts: Arc<NamespaceCounts>,
    /// The reason why calls are refused: the namespace names clusters that this server does not know. Its rolls
    /// continue, because other namespaces of the dataset depend on them.
    pub cluster_fault: Option<String>,
    rows: Arc<Vec<TimeSlice>>,
}

impl NamespaceScopes {
    /// No namespace is opened yet.
    pub fn new(
        context: Arc<EngineContext>,
        stores: Stores,
        namespaces: NamespaceCatalog,
        fleet: Option<Arc<CounterFleet>>,
    ) -> Self {
        let rollup_queues = RollupQueues::new(Arc::clone(&context.stats));
        Self {
            context,
            stores,
            namespaces,
            fleet,
            datasets: Datasets::default(),
            rollup_queues,
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

    /// The time up to which all mutations of all queues are in the log of their counters; none while it is not known.
    /// To be read before the counters for which it is stated.
    pub fn queues_reported_to(&self) -> Option<Timestamp> {
        let own = self.context.queues_reported_to();
        match &self.fleet {
            None => least_reported([own]),
            Some(fleet) => least_reported(fleet.membership.queues_reported_by_others()?.into_iter().chain([own])),
        }
    }

    /// Sends a rollup signal to the roller of the counter, in this process or in another one. It never waits, and may
    /// be lost.
    pub fn signal(&self, scope: &NamespaceScope, counter: &Counter, oldest: Timestamp, newest: Timestamp) {
        let is_sent = self.fleet.as_ref().is_some_and(|fleet| fleet.membership.send_signal(counter, oldest, newest));
        if !is_sent {
            scope.enqueue(counter, oldest, newest);
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

    /// The scope of a namespace of the catalog. Cost: one hash lookup, unless something changed.
    pub async fn scope_of(&self, namespace: Arc<Namespace>) -> Result<Arc<NamespaceScope>, StoreError> {
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
        let is_of_queues = namespace.spec.name == queue_namespace();
        let counts = self.context.stats.by_namespace.of(namespace.spec.name.as_str());
        Ok(NamespaceScope {
            namespace,
            dataset,
            rules,
            rollup_queues: queues,
            cache,
            needs_as_of_floor: remembers_told,
            is_of_queues,
            best_effort_counts: fast,
            counts,
            cluster_fault: kept_elsewhere,
            rows,
        })
    }

    /// The rollup queues of a namespace. They are ended if the namespace was deleted in the meantime.
    fn queues_of(&self, namespace: &Namespace, dataset: &Arc<DatasetState>) -> Arc<NamespaceRollupQueues> {
        let queues = self.rollup_queues.of(namespace, dataset);
        // Checked after the queues are in the map: a concurrent deletion either finds the queues or is found here.
        if self.namespaces.by_id(namespace.id).is_none() {
            queues.close_and_drop();
            self.rollup_queues.remove(namespace.id);
        }
        queues
    }

    pub async fn dataset(&self, id: DatasetId) -> Result<Arc<DatasetState>, StoreError> {
        let dataset = self
            .namespaces
            .dataset(id)
            .ok_or_else(|| StoreError::not_applied(StoreErrorKind::Unavailable, "look up dataset"))?;
        self.datasets.open(&dataset, &self.stores, self.fleet.as_deref()).await
    }

    /// Makes the slice rows of the present.
    pub async fn begin_slices(&self, dataset: &Arc<DatasetState>) -> Result<(), StoreError> {
        self.ensure_slices(dataset, self.context.now()).await
    }

    /// Makes the slice rows around a time, from the oldest event that may still be admitted, and two slices ahead.
    ///
    /// The work outlives the caller: rows that are begun are finished, even if the call times out.
    pub async fn ensure_slices(&self, dataset: &Arc<DatasetState>, time: Timestamp) -> Result<(), StoreError> {
        let now = self.context.now();
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
        self.context.driver.start_once(async move {
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
        let on_new_epoch = namespace.spec.on_new_epoch.unwrap_or_default();
        Ok(FoldRules::new(slices, steps).with_epochs(on_new_epoch))
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
    /// acknowledged later. While the limit lies before the first slice, a server with a slow clock may still send an
    /// event for an earlier slice.
    pub fn least_as_of(&self, limit: Timestamp) -> Timestamp {
        let first = self.first_time();
        if first <= limit { first } else { EPOCH }
    }

    /// Puts a counter into the rollup queues of this process, whoever owns its shard.
    pub fn enqueue(&self, counter: &Counter, oldest: Timestamp, newest: Timestamp) {
        let capacity_bytes = usize::try_from(self.namespace.spec.rollup.capacity_bytes).unwrap_or(usize::MAX);
        self.rollup_queues.enqueue(counter, oldest, newest, capacity_bytes);
    }
}
