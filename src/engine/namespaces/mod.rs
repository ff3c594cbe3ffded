//! The catalog use cases: create, change, delete and describe namespaces.
//!
//! The catalog is in memory as one immutable snapshot. Reads take it without a lock in some ten nanoseconds, so every
//! request may read it. Changes go through `engine::catalog` and then replace the snapshot. `change` has the decision
//! of a change.

mod change;
mod clusters;
mod difference;
mod draft;
mod experiment_namespace;
mod queue_namespace;
mod snapshot;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use quick_cache::sync::Cache;
use tokio::sync::SemaphorePermit;
use tokio_util::task::TaskTracker;

use crate::caller_quota::CallerId;
use crate::catalog::{Etag, FIRST_VERSION, FollowedCatalog, Sharing, VersionedCatalog};
use crate::watermark::Watermark;
use tallystone_domain::access::QuotaRefusal;
use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::limits::{NAMESPACE_VERSIONS_CACHED, PAGE_ROWS_MAX};
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec, Storage};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{Clock, NamespaceChange, NamespaceStore, StoreError};

pub use clusters::{ClusterUse, Clusters, UnlistedClusters};
pub use difference::differences;
pub use draft::{DatasetDraft, NamespaceDefaults, NamespaceDraft, PartitionDraft, RollupDraft, StorageDraft};
pub use experiment_namespace::{experiment_namespace, experiment_step};
pub use queue_namespace::queue_namespace;
use snapshot::CatalogSnapshot;

/// The prefix of the names of the service's own namespaces.
pub const RESERVED_PREFIX: &str = "tallystone.";

/// The effect of an apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceApplyOutcome {
    Created,
    /// Settings changed.
    Updated,
    /// Nothing had to change.
    Unchanged,
}

#[derive(Clone, Debug)]
pub struct NamespaceApplyResult {
    /// The effect, real or planned.
    pub applied: NamespaceApplyOutcome,
    /// The namespace after the apply, real or planned.
    pub namespace: Arc<Namespace>,
    /// The differences, a line for each setting; empty for a creation.
    pub differences: Vec<String>,
}

/// Whether an apply is a dry run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DryRun {
    Yes,
    /// It takes effect.
    No,
}

/// A change of the history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceHistoryEntry {
    pub change: NamespaceChange,
    /// The creation time of its namespace.
    pub created: Option<Timestamp>,
}

/// The reason why a catalog call was refused.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// An argument is invalid, or the change is not allowed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// The key of the caller has made as many namespaces as it may.
    #[error(transparent)]
    Quota(#[from] QuotaRefusal),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl NamespaceError {
    /// The reason, from the closed list.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reject(reject) => reject.reason,
            Self::Quota(_) => Reason::RetryLater,
            Self::Store(error) => error.reason(),
        }
    }
}

/// Whether the name is one of the service's own, which users only read.
pub fn is_reserved(name: &NamespaceName) -> bool {
    name.as_str().starts_with(RESERVED_PREFIX)
}

/// The writer of a reserved namespace, with the verb, for messages.
pub fn reserved_writer(name: &NamespaceName) -> &'static str {
    if *name == queue_namespace() { "the queues write" } else { "the service maintains" }
}

/// The version of a namespace that a caller read.
pub type NamespaceEtag = Etag<NamespaceId>;

/// The catalog of namespaces. Cheap to clone.
#[derive(Clone)]
pub struct NamespaceCatalog {
    shared: Arc<NamespaceCatalogInner>,
    /// Whose namespaces those are that are made here.
    maker: CallerId,
}

struct NamespaceCatalogInner {
    store: Arc<dyn NamespaceStore>,
    catalog: VersionedCatalog<Namespace>,
    clock: Arc<dyn Clock>,
    defaults: NamespaceDefaults,
    snapshot: ArcSwap<CatalogSnapshot>,
    versions: Cache<(NamespaceId, u64), Arc<NamespaceSpec>>,
    /// The number of snapshots so far.
    generation: Watermark,
    /// Changes in flight, including those whose callers went away.
    tasks: TaskTracker,
}

impl NamespaceCatalog {
    /// Reads the catalog of a store.
    pub async fn open(store: Arc<dyn NamespaceStore>, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        Self::open_with(store, clock, NamespaceDefaults::default()).await
    }

    /// Reads the catalog of a store. New namespaces get missing settings from `defaults`.
    pub async fn open_with(
        store: Arc<dyn NamespaceStore>,
        clock: Arc<dyn Clock>,
        defaults: NamespaceDefaults,
    ) -> Result<Self, StoreError> {
        let snapshot = CatalogSnapshot::of(store.load().await?, &CatalogSnapshot::default());
        let shared = NamespaceCatalogInner {
            catalog: VersionedCatalog::new(Arc::clone(&store) as _),
            store,
            clock,
            defaults,
            snapshot: ArcSwap::from_pointee(snapshot),
            versions: Cache::new(NAMESPACE_VERSIONS_CACHED),
            generation: Watermark::new(0),
            tasks: TaskTracker::new(),
        };
        Ok(Self { shared: Arc::new(shared), maker: CallerId::nobody() })
    }

    /// The same catalog on behalf of a caller, whose the namespaces are that it creates.
    #[must_use]
    pub fn of_maker(&self, maker: CallerId) -> Self {
        Self { maker, ..self.clone() }
    }

    /// Checks whether this server can serve a namespace with these clusters.
    pub fn check_clusters(&self, storage: &Storage) -> Result<(), Reject> {
        self.shared.defaults.clusters.check(storage)
    }

    /// The cluster name that stands for the store of this server.
    fn default_store(&self) -> NamespaceName {
        self.shared.defaults.cluster.clone()
    }

    /// Finds a live namespace by its name.
    pub fn find(&self, name: &NamespaceName) -> Option<Arc<Namespace>> {
        self.shared.snapshot.load().by_name(name).cloned()
    }

    /// Reads a live namespace by its name.
    pub fn get(&self, name: &NamespaceName) -> Result<Arc<Namespace>, NamespaceError> {
        self.find(name).ok_or_else(|| not_found(name).into())
    }

    /// Finds a live namespace by its id.
    pub fn by_id(&self, id: NamespaceId) -> Option<Arc<Namespace>> {
        self.shared.snapshot.load().by_id(id).cloned()
    }

    /// Whether this catalog ever used an id for a namespace, as far as it was read.
    pub fn was_assigned(&self, id: NamespaceId) -> bool {
        id.0 < self.shared.snapshot.load().next_namespace_id
    }

    /// Finds a dataset by its id. A dataset outlives its namespaces.
    pub fn dataset(&self, id: DatasetId) -> Option<Arc<Dataset>> {
        self.shared.snapshot.load().dataset(id).cloned()
    }

    /// Finds a dataset by its name.
    pub fn dataset_by_name(&self, name: &NamespaceName) -> Option<Arc<Dataset>> {
        self.shared.snapshot.load().dataset_by_name(name).cloned()
    }

    /// All live namespaces in the order of their names.
    pub fn all(&self) -> Arc<[Arc<Namespace>]> {
        Arc::clone(&self.shared.snapshot.load().ordered)
    }

    /// All datasets in the order of their ids.
    pub fn datasets(&self) -> Arc<[Arc<Dataset>]> {
        Arc::clone(&self.shared.snapshot.load().datasets)
    }

    /// Lists live namespaces in the order of names, above a name. Fewer than the limit only at the end.
    pub fn list(&self, above: Option<&NamespaceName>, limit: usize) -> Vec<Arc<Namespace>> {
        let all = self.all();
        let from = above.map_or(0, |above| all.partition_point(|one| one.spec.name <= *above));
        all[from..].iter().take(limit.min(PAGE_ROWS_MAX)).cloned().collect()
    }

    /// The settings of one version of a namespace, live or deleted. Reads the store at most once for each.
    pub async fn version_of(&self, id: NamespaceId, version: u64) -> Result<Option<Arc<NamespaceSpec>>, StoreError> {
        if let Some(spec) = self.version_in_memory(id, version) {
            return Ok(Some(spec));
        }
        let Some(spec) = self.shared.store.version_of(id, version).await? else { return Ok(None) };
        let spec = Arc::new(spec);
        self.shared.versions.insert((id, version), Arc::clone(&spec));
        Ok(Some(spec))
    }

    /// The settings of one version, if they are in memory.
    pub fn version_in_memory(&self, id: NamespaceId, version: u64) -> Option<Arc<NamespaceSpec>> {
        self.shared.versions.get(&(id, version))
    }

    /// The history of a name, newest first, older than the given change; each with the creation of its namespace. A
    /// name that never had one is refused.
    pub async fn history(
        &self,
        name: &NamespaceName,
        older_than: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceHistoryEntry>, NamespaceError> {
        let changes = self.shared.store.history(name, older_than, limit.min(PAGE_ROWS_MAX)).await?;
        if changes.is_empty() && older_than.is_none() {
            return Err(never_existed(name).into());
        }
        let mut created: HashMap<NamespaceId, Timestamp> = HashMap::new();
        for change in changes.iter().filter(|change| change.version == FIRST_VERSION) {
            created.insert(change.id, change.time);
        }
        if let Some(last) = changes.last().filter(|last| last.version > FIRST_VERSION) {
            let beyond = Some((last.id, FIRST_VERSION + 1));
            let first = self.shared.store.history(name, beyond, 1).await?;
            created.extend(first.first().map(|first| (first.id, first.time)));
        }
        let past =
            |change: NamespaceChange| NamespaceHistoryEntry { created: created.get(&change.id).copied(), change };
        Ok(changes.into_iter().map(past).collect())
    }

    /// Notifies of changes: the value grows with each new snapshot, local or foreign.
    pub fn changes(&self) -> &Watermark {
        &self.shared.generation
    }

    /// Reads the catalog again, for what other servers changed.
    pub async fn refresh(&self) -> Result<(), StoreError> {
        self.shared.catalog.refresh(&*self.shared).await
    }

    /// Keeps the catalog unchanged until the result is dropped: no change of this server commits meanwhile. None once
    /// the service drains.
    pub async fn pause_changes(&self) -> Option<SemaphorePermit<'_>> {
        self.shared.catalog.admit().await
    }

    /// Waits until every change that began has ended. Call it once, before the store closes.
    pub async fn drain(&self) {
        self.shared.catalog.close();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

#[async_trait]
impl FollowedCatalog for NamespaceCatalog {
    async fn follow(&self) -> Result<Sharing, StoreError> {
        self.shared.catalog.follow(&*self.shared).await
    }
}

fn not_found(name: &NamespaceName) -> Reject {
    Reject::new(
        Reason::NamespaceNotFound,
        format!("namespace {name} does not exist; create it first, for example with tallystone apply -f FILE"),
    )
}

/// The same for a call that needs an existing or deleted namespace.
fn never_existed(name: &NamespaceName) -> Reject {
    Reject::new(
        Reason::NamespaceNotFound,
        format!("namespace {name} does not exist; check its name, for example with tallystone ns ls"),
    )
}
