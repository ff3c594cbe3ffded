//! Starts the loops that datasets and rollup queues need, as they appear and change.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::counter::DatasetId;
use crate::domain::limits::TOUCH_SHARDS;
use crate::engine::core::{Core, Scope};
use crate::engine::loops::driver::{Activity, Driver, Next};
use crate::engine::loops::{LimitLoop, RetentionLoop, SealLoop, ShardLoop, WatermarkLoop};
use crate::engine::rolling::QueueLoop;
use crate::ports::StoreError;

/// A catalog that cannot be followed is tried again after this long.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The supervisor.
pub struct Supervisor {
    core: Arc<Core>,
    driver: Driver,
    /// The changes of the catalog that were followed.
    seen: i64,
    datasets: HashSet<DatasetId>,
}

impl Supervisor {
    /// Makes the supervisor; loops are started through the driver.
    pub fn new(core: Arc<Core>, driver: Driver) -> Self {
        let seen = core.namespaces.changes().get();
        Self { core, driver, seen, datasets: HashSet::new() }
    }

    /// Opens every dataset and starts what is missing. Idempotent. Datasets may be in stores of their own, so one that cannot
    /// be opened keeps no other waiting; the first failure is answered.
    pub async fn follow(&mut self) -> Result<(), StoreError> {
        let mut failed = Ok(());
        for dataset in self.core.namespaces.datasets().iter() {
            if !self.datasets.contains(&dataset.id) {
                match self.open_dataset(dataset.id).await {
                    Ok(()) => drop(self.datasets.insert(dataset.id)),
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
        }
        for namespace in self.core.namespaces.all().iter() {
            match self.core.scope_by_id(namespace.id).await {
                Ok(Some(scope)) => self.follow_queues(&scope),
                Ok(None) => {}
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed.and(self.forget_deleted().await)
    }

    /// Ends the queues of namespaces that were deleted and removes what was kept of their counters.
    async fn forget_deleted(&self) -> Result<(), StoreError> {
        let live: HashSet<_> = self.core.namespaces.all().iter().map(|namespace| namespace.id).collect();
        let all = self.core.queues.iter().map(|queues| Arc::clone(queues.value()));
        let deleted: Vec<_> = all.filter(|queues| !live.contains(&queues.namespace())).collect();
        for queues in deleted {
            let id = queues.namespace();
            queues.end(&self.core.set_bytes);
            self.core.stores.rollups.forget(id).await?;
            self.core.top.forget(id);
            self.core.watchers.wake_all(id);
            self.core.queues.remove(&id);
        }
        Ok(())
    }

    async fn open_dataset(&self, id: DatasetId) -> Result<(), StoreError> {
        let dataset = self.core.dataset(id).await?;
        // After a standstill the slices between the last known one and the present are made up for.
        self.core.begin_slices(&dataset).await?;
        for shard in 0..TOUCH_SHARDS {
            dataset.pending.lost(shard, dataset.watermark(shard).just_after());
        }
        self.driver.start(LimitLoop::new(Arc::clone(&self.core), Arc::clone(&dataset)));
        match &self.core.fleet {
            None => self.driver.start(WatermarkLoop::new(Arc::clone(&self.core), Arc::clone(&dataset))),
            Some(fleet) => {
                let parts = || (Arc::clone(&self.core), Arc::clone(fleet), Arc::clone(&dataset));
                let (core, fleet, dataset) = parts();
                self.driver.start(ShardLoop::new(core, fleet, dataset));
                if let Some(delay) = self.core.seal_delay {
                    let (core, fleet, dataset) = parts();
                    self.driver.start(SealLoop::new(core, fleet, dataset, delay));
                }
            }
        }
        self.driver.start(RetentionLoop::new(Arc::clone(&self.core), dataset));
        Ok(())
    }

    fn follow_queues(&self, scope: &Scope) {
        let wanted = scope.namespace.spec.rollup.num_queues.max(1) as usize;
        if scope.queues.queues().len() != wanted {
            scope.queues.resize(scope.namespace.spec.rollup.num_queues);
        }
        scope.queues.note_version(scope.namespace.version);
        let queues = scope.queues.queues();
        let places = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        for (place, queue) in (0..places).zip(queues.iter()).filter(|(_, queue)| queue.claim()) {
            self.driver.start(QueueLoop::new(Arc::clone(&self.core), scope, Arc::clone(queue), (place, places)));
        }
    }
}

#[async_trait]
impl Activity for Supervisor {
    fn name(&self) -> &'static str {
        "supervisor"
    }

    async fn woken(&self) {
        self.core.namespaces.changes().reach(self.seen + 1).await;
    }

    async fn activate(&mut self) -> Next {
        self.seen = self.core.namespaces.changes().get();
        match self.follow().await {
            Ok(()) => Next::Woken,
            Err(error) => {
                tracing::warn!(error = %error, "the catalog cannot be followed yet");
                Next::After(RETRY_PAUSE)
            }
        }
    }
}
