//! The experiments that are kept: read from memory, changed through `engine::catalog`. `change` has the decision of a
//! change.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio_util::task::TaskTracker;

use super::error::ExperimentError;
use crate::catalog::{CatalogView, Etag, FollowedCatalog, Sharing, VersionedCatalog};
use crate::context::EngineContext;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_domain::{Reason, Reject};
use tallystone_experiments::{CatalogExperiment, ExperimentId, ExperimentWord};
use tallystone_ports::{Catalog, ExperimentChange, StoreError};

/// The version of an experiment that a caller read.
pub type ExperimentEtag = Etag<ExperimentId>;

/// The experiments by name.
pub(super) type ExperimentsByName = BTreeMap<ExperimentWord, Arc<CatalogExperiment>>;

/// The experiments that are kept. Cheap to clone.
#[derive(Clone)]
pub struct ExperimentCatalog {
    pub(super) held: Arc<HeldExperiments>,
}

/// The experiments in memory, with their store.
pub(super) struct HeldExperiments {
    pub context: Arc<EngineContext>,
    pub catalog: VersionedCatalog<CatalogExperiment>,
    pub by_name: ArcSwap<ExperimentsByName>,
    /// Changes in flight, including those whose callers went away.
    pub tasks: TaskTracker,
    store: Arc<dyn Catalog<CatalogExperiment>>,
}

impl ExperimentCatalog {
    /// Reads the experiments of a store.
    pub async fn open(
        store: Arc<dyn Catalog<CatalogExperiment>>,
        context: Arc<EngineContext>,
    ) -> Result<Self, StoreError> {
        let by_name = indexed(store.load().await?);
        let held = HeldExperiments {
            context,
            catalog: VersionedCatalog::new(Arc::clone(&store)),
            by_name: ArcSwap::from_pointee(by_name),
            tasks: TaskTracker::new(),
            store,
        };
        Ok(Self { held: Arc::new(held) })
    }

    /// Reads an experiment by its name.
    pub fn get(&self, name: &ExperimentWord) -> Result<Arc<CatalogExperiment>, Reject> {
        self.held.by_name.load().get(name).cloned().ok_or_else(|| not_found(name))
    }

    /// Lists experiments whose names begin with a text, in the order of names, above a name. Fewer than the limit only
    /// at the end.
    pub fn list(&self, prefix: &str, above: Option<&ExperimentWord>, limit: usize) -> Vec<Arc<CatalogExperiment>> {
        let from = above.map_or(Bound::Unbounded, Bound::Excluded);
        let by_name = self.held.by_name.load();
        let above = by_name.range::<ExperimentWord, _>((from, Bound::Unbounded));
        let begins = |(name, _): &(&ExperimentWord, &Arc<CatalogExperiment>)| name.as_str().starts_with(prefix);
        above.filter(begins).take(limit.min(PAGE_ROWS_MAX)).map(|(_, experiment)| Arc::clone(experiment)).collect()
    }

    /// The experiments that go on, in the order of names.
    pub(super) fn running(&self) -> Vec<Arc<CatalogExperiment>> {
        let by_name = self.held.by_name.load();
        by_name.values().filter(|experiment| experiment.settings.stopped.is_none()).cloned().collect()
    }

    /// Reads the changes of a name, newest first, after those that are skipped. A name that never had one is refused.
    pub async fn history(
        &self,
        name: &ExperimentWord,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<ExperimentChange>, ExperimentError> {
        let changes = self.held.store.history(name, skip, limit.min(PAGE_ROWS_MAX)).await?;
        if changes.is_empty() && skip == 0 {
            return Err(not_found(name).into());
        }
        Ok(changes)
    }

    /// Waits until every change that began has ended. Call it once, before the store closes.
    pub async fn drain(&self) {
        self.held.catalog.close();
        self.held.tasks.close();
        self.held.tasks.wait().await;
    }
}

#[async_trait]
impl FollowedCatalog for ExperimentCatalog {
    async fn follow(&self) -> Result<Sharing, StoreError> {
        self.held.catalog.follow(&*self.held).await
    }
}

impl CatalogView<CatalogExperiment> for HeldExperiments {
    fn take_in(&self, experiments: Vec<CatalogExperiment>) {
        self.by_name.store(Arc::new(indexed(experiments)));
    }
}

fn indexed(experiments: Vec<CatalogExperiment>) -> ExperimentsByName {
    experiments.into_iter().map(|one| (one.settings.spec.name.clone(), Arc::new(one))).collect()
}

/// The refusal of an experiment that is not kept, or that the caller may not see.
pub fn not_found(name: &ExperimentWord) -> Reject {
    Reject::new(Reason::ExperimentNotFound, format!("experiment {name} does not exist"))
}
