//! Starts the loops of datasets and rollup queues when the catalog changes.

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, NextActivation};
use crate::loops::{LimitLoop, RetentionLoop, SealLoop, ShardLoop, WatermarkLoop};
use crate::rolling::Roller;
use crate::rolling::{QueueSlot, RollupQueueLoop};
use crate::scopes::{NamespaceScope, NamespaceScopes};
use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::limits::{DATASETS_OPENED_AT_ONCE_MAX, TOUCH_SHARDS};
use tallystone_ports::{ExportSink, StoreError, StoreErrorKind};

/// The delay before failed catalog changes are retried.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A callback that reports progress of a startup.
pub type StartupProgress = Arc<dyn Fn() + Send + Sync>;

/// The loop that opens datasets and starts their loops.
pub struct Supervisor {
    scopes: Arc<NamespaceScopes>,
    roller: Arc<Roller>,
    /// The export of slices, if there is one.
    export: Option<Arc<dyn ExportSink>>,
    /// Whether the last attempt to trim series failed.
    trim_failing: Arc<AtomicBool>,
    /// The last processed generation of the catalog.
    seen_generation: i64,
    datasets: HashSet<DatasetId>,
    /// Called for each dataset and namespace that was opened.
    progress: StartupProgress,
}

/// The datasets and namespaces in one cluster.
#[derive(Default)]
struct ClusterDatasets {
    /// The datasets that are not opened yet.
    datasets: Vec<DatasetId>,
    namespaces: Vec<(NamespaceId, DatasetId)>,
}

impl Supervisor {
    /// Creates the supervisor. It starts loops through the driver.
    pub fn new(roller: Arc<Roller>, export: Option<Arc<dyn ExportSink>>, progress: StartupProgress) -> Self {
        let scopes = Arc::clone(&roller.scopes);
        let seen_generation = scopes.namespaces.changes().get();
        Self {
            scopes,
            roller,
            export,
            trim_failing: Arc::default(),
            seen_generation,
            datasets: HashSet::new(),
            progress,
        }
    }

    /// Opens every dataset and starts the missing loops. Idempotent. Clusters are processed concurrently, so a slow
    /// cluster does not delay the others. A dataset that cannot be opened does not block the others. Returns the first
    /// failure.
    pub async fn apply_catalog(&mut self) -> Result<(), StoreError> {
        let results = join_all(self.by_cluster().into_values().map(|cluster| self.open_cluster(cluster))).await;
        let mut failed = Ok(());
        for (opened, result) in results {
            self.datasets.extend(opened);
            failed = failed.and(result);
        }
        self.remove_deleted().await;
        failed
    }

    fn by_cluster(&self) -> BTreeMap<Option<NamespaceName>, ClusterDatasets> {
        let namespaces = &self.scopes.namespaces;
        let mut clusters: BTreeMap<_, ClusterDatasets> = BTreeMap::new();
        for dataset in namespaces.datasets().iter().filter(|dataset| !self.datasets.contains(&dataset.id)) {
            clusters.entry(dataset.cluster.clone()).or_default().datasets.push(dataset.id);
        }
        for namespace in namespaces.all().iter() {
            let cluster = namespaces.dataset(namespace.dataset_id).and_then(|dataset| dataset.cluster.clone());
            clusters.entry(cluster).or_default().namespaces.push((namespace.id, namespace.dataset_id));
        }
        clusters
    }

    /// Processes one cluster. Returns the opened datasets and the first failure. Skips the namespaces of a dataset that
    /// cannot be opened, because each would fail in the same way; the next activation retries them.
    async fn open_cluster(&self, cluster: ClusterDatasets) -> (Vec<DatasetId>, Result<(), StoreError>) {
        let (mut opened, mut closed, mut failed) = (Vec::new(), HashSet::new(), Ok(()));
        let opening = cluster.datasets.into_iter().map(|id| async move { (id, self.open_dataset(id).await) });
        let mut opening = pin!(stream::iter(opening).buffer_unordered(DATASETS_OPENED_AT_ONCE_MAX));
        while let Some((id, result)) = opening.next().await {
            match result {
                Ok(()) => {
                    (self.progress)();
                    opened.push(id);
                }
                Err(error) => {
                    closed.insert(id);
                    failed = failed.and(Err(error));
                }
            }
        }
        let open = cluster.namespaces.into_iter().filter(|(_, dataset)| !closed.contains(dataset));
        let scoping = open.map(|(id, _)| self.scopes.scope_by_id(id));
        let mut scoping = pin!(stream::iter(scoping).buffer_unordered(DATASETS_OPENED_AT_ONCE_MAX));
        while let Some(result) = scoping.next().await {
            match result {
                Ok(Some(scope)) => {
                    (self.progress)();
                    self.start_queue_loops(&scope);
                }
                Ok(None) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        (opened, failed)
    }

    /// Closes the queues of deleted namespaces and removes their counter data. `DeletedNamespacesLoop` retries removals
    /// that fail.
    async fn remove_deleted(&self) {
        let live: HashSet<_> = self.scopes.namespaces.all().iter().map(|namespace| namespace.id).collect();
        let all = self.scopes.rollup_queues.all().into_iter();
        let deleted: Vec<_> = all.filter(|queues| !live.contains(&queues.namespace())).collect();
        let removals = deleted.into_iter().map(|queues| async move {
            let id = queues.namespace();
            queues.close_and_drop();
            if let Err(error) = self.scopes.stores.rollups.remove_namespace(id).await {
                tracing::warn!(%error, namespace = id.0, "cannot remove the data of a deleted namespace yet; it is \
                    removed later");
            }
            self.roller.served.rankings.forget(id);
            self.roller.served.watchers.wake_all(id);
            self.scopes.rollup_queues.remove(id);
        });
        stream::iter(removals).buffer_unordered(DATASETS_OPENED_AT_ONCE_MAX).collect::<()>().await;
    }

    async fn open_dataset(&self, id: DatasetId) -> Result<(), StoreError> {
        let dataset = self.scopes.dataset(id).await?;
        self.begin_slices(&dataset).await?;
        for shard in 0..TOUCH_SHARDS {
            dataset.pending.record_lost_signal(shard, dataset.watermark(shard).just_after());
        }
        let driver = &self.scopes.context.driver;
        driver.start(LimitLoop::new(Arc::clone(&self.scopes), Arc::clone(&dataset)));
        match &self.scopes.fleet {
            None => driver.start(WatermarkLoop::new(Arc::clone(&self.scopes), Arc::clone(&dataset))),
            Some(fleet) => {
                let shared = || (Arc::clone(&self.roller), Arc::clone(fleet), Arc::clone(&dataset));
                let (roller, member, dataset) = shared();
                driver.start(ShardLoop::new(roller, member, dataset));
                if let Some(delay) = fleet.seal_delay {
                    let (roller, member, dataset) = shared();
                    driver.start(SealLoop::new(roller, member, dataset, delay));
                }
            }
        }
        let (export, trim_failing) = (self.export.clone(), Arc::clone(&self.trim_failing));
        driver.start(RetentionLoop::new(Arc::clone(&self.scopes), dataset, export, trim_failing));
        Ok(())
    }

    /// Makes the slices between the last stored slice and the current time, which are missing after a downtime. A full
    /// store makes none. It refuses events too, and its counts can be read all the same: the retention loop makes them
    /// later.
    async fn begin_slices(&self, dataset: &Arc<DatasetState>) -> Result<(), StoreError> {
        match self.scopes.begin_slices(dataset).await {
            Err(error) if error.kind == StoreErrorKind::Full && !dataset.slices.rows().is_empty() => {
                tracing::warn!(%error, dataset = %dataset.dataset.name, "slices are not made while the store is full");
                Ok(())
            }
            made => made,
        }
    }

    fn start_queue_loops(&self, scope: &NamespaceScope) {
        let num_queues = scope.namespace.spec.rollup.num_queues.max(1) as usize;
        if scope.rollup_queues.queues().len() != num_queues {
            scope.rollup_queues.resize(scope.namespace.spec.rollup.num_queues);
        }
        scope.rollup_queues.set_version(scope.namespace.version);
        let queues = scope.rollup_queues.queues();
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        for (index, queue) in (0..count).zip(queues.iter()).filter(|(_, queue)| queue.claim()) {
            let slot = QueueSlot { index, count };
            let queue = RollupQueueLoop::new(Arc::clone(&self.roller), scope, Arc::clone(queue), slot);
            self.scopes.context.driver.start(queue);
        }
    }
}

#[async_trait]
impl BackgroundLoop for Supervisor {
    fn name(&self) -> &'static str {
        "supervisor"
    }

    async fn woken(&self) {
        self.scopes.namespaces.changes().reach(self.seen_generation + 1).await;
    }

    async fn activate(&mut self) -> NextActivation {
        self.seen_generation = self.scopes.namespaces.changes().get();
        match self.apply_catalog().await {
            Ok(()) => NextActivation::Woken,
            Err(error) => {
                tracing::warn!(error = %error, "cannot follow the catalog yet");
                NextActivation::After(RETRY_PAUSE)
            }
        }
    }
}
