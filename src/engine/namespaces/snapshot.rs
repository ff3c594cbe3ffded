//! The catalog as one immutable value in memory: readers take it without a lock, a change replaces it.

use std::sync::Arc;

use hashbrown::HashMap;

use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Dataset, Namespace};
use tallystone_ports::CatalogState;

/// The live namespaces and all datasets, indexed.
#[derive(Debug, Default)]
pub(super) struct CatalogSnapshot {
    /// In the order of names.
    pub ordered: Arc<[Arc<Namespace>]>,
    /// In the order of ids.
    pub datasets: Arc<[Arc<Dataset>]>,
    pub next_namespace_id: u64,
    pub next_dataset_id: u32,
    by_name: HashMap<NamespaceName, Arc<Namespace>>,
    by_id: HashMap<NamespaceId, Arc<Namespace>>,
}

impl CatalogSnapshot {
    /// Indexes a state. Entries that did not change since `before` keep their allocation.
    pub fn of(state: CatalogState, before: &Self) -> Self {
        Self::index(
            state.namespaces.into_iter().map(|namespace| before.share(namespace)).collect(),
            state.datasets.into_iter().map(|dataset| before.share_dataset(dataset)).collect(),
            (state.next_namespace_id, state.next_dataset_id),
        )
    }

    /// The snapshot after a namespace was created or changed.
    pub fn with(&self, namespace: Arc<Namespace>, new_dataset: Option<Arc<Dataset>>) -> Self {
        let next_namespace_id = self.next_namespace_id.max(namespace.id.0.saturating_add(1));
        let next_dataset_id = new_dataset.as_ref().map_or(0, |dataset| dataset.id.0.saturating_add(1));
        let kept = self.ordered.iter().filter(|one| one.spec.name != namespace.spec.name).cloned();
        Self::index(
            kept.chain([Arc::clone(&namespace)]).collect(),
            self.datasets.iter().cloned().chain(new_dataset).collect(),
            (next_namespace_id, self.next_dataset_id.max(next_dataset_id)),
        )
    }

    /// The snapshot after a namespace was deleted.
    pub fn without(&self, name: &NamespaceName) -> Self {
        let kept = self.ordered.iter().filter(|one| one.spec.name != *name);
        let next_ids = (self.next_namespace_id, self.next_dataset_id);
        Self::index(kept.cloned().collect(), self.datasets.to_vec(), next_ids)
    }

    fn index(mut ordered: Vec<Arc<Namespace>>, mut datasets: Vec<Arc<Dataset>>, next_ids: (u64, u32)) -> Self {
        ordered.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        datasets.sort_by_key(|dataset| dataset.id);
        Self {
            by_name: ordered.iter().map(|one| (one.spec.name.clone(), Arc::clone(one))).collect(),
            by_id: ordered.iter().map(|one| (one.id, Arc::clone(one))).collect(),
            ordered: ordered.into(),
            datasets: datasets.into(),
            next_namespace_id: next_ids.0,
            next_dataset_id: next_ids.1,
        }
    }

    pub fn by_name(&self, name: &NamespaceName) -> Option<&Arc<Namespace>> {
        self.by_name.get(name)
    }

    pub fn by_id(&self, id: NamespaceId) -> Option<&Arc<Namespace>> {
        self.by_id.get(&id)
    }

    pub fn dataset(&self, id: DatasetId) -> Option<&Arc<Dataset>> {
        let at = self.datasets.binary_search_by_key(&id, |dataset| dataset.id).ok()?;
        self.datasets.get(at)
    }

    pub fn dataset_by_name(&self, name: &NamespaceName) -> Option<&Arc<Dataset>> {
        self.datasets.iter().find(|dataset| dataset.name == *name)
    }

    /// Whether both hold the same namespaces and datasets.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.ordered == other.ordered && self.datasets == other.datasets
    }

    fn share(&self, namespace: Namespace) -> Arc<Namespace> {
        match self.by_id(namespace.id) {
            Some(known) if **known == namespace => Arc::clone(known),
            Some(_) | None => Arc::new(namespace),
        }
    }

    fn share_dataset(&self, dataset: Dataset) -> Arc<Dataset> {
        match self.dataset(dataset.id) {
            Some(known) if **known == dataset => Arc::clone(known),
            Some(_) | None => Arc::new(dataset),
        }
    }
}
