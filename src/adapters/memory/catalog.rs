//! The catalog in ordered maps.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::counter::{DatasetId, NamespaceId, NamespaceName};
use crate::domain::namespace::{Dataset, Namespace, NamespaceSpec};
use crate::ports::{self, CatalogState, NamespaceChange, NamespaceRecord, StoreError, StoreErrorKind};

/// A catalog that lives as long as the process.
#[derive(Default)]
pub struct Catalog {
    state: Mutex<MemoryCatalogState>,
}

#[derive(Default)]
struct MemoryCatalogState {
    datasets: BTreeMap<DatasetId, Dataset>,
    namespaces: BTreeMap<NamespaceName, Namespace>,
    /// Highest ids assigned so far.
    last_namespace: u64,
    last_dataset: u32,
    changes: BTreeMap<(NamespaceId, u64), NamespaceChange>,
}

#[async_trait]
impl ports::Catalog for Catalog {
    async fn load(&self) -> Result<CatalogState, StoreError> {
        let state = self.state.lock();
        let mut namespaces: Vec<Namespace> = state.namespaces.values().cloned().collect();
        namespaces.sort_by_key(|namespace| namespace.id);
        Ok(CatalogState {
            datasets: state.datasets.values().cloned().collect(),
            namespaces,
            next_namespace_id: state.last_namespace + 1,
            next_dataset_id: state.last_dataset + 1,
        })
    }

    async fn commit(&self, record: NamespaceRecord) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        state
            .check(&record)
            .map_err(|why| StoreError::not_applied(StoreErrorKind::Conflict, "commit").with_source(why))?;
        if let Some(dataset) = record.new_dataset {
            state.last_dataset = state.last_dataset.max(dataset.id.0);
            state.datasets.insert(dataset.id, dataset);
        }
        state.last_namespace = state.last_namespace.max(record.change.namespace.0);
        match record.namespace {
            Some(namespace) => state.namespaces.insert(record.change.name.clone(), namespace),
            None => state.namespaces.remove(&record.change.name),
        };
        state.changes.insert((record.change.namespace, record.change.version), record.change);
        Ok(())
    }

    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError> {
        let state = self.state.lock();
        Ok(state.changes.get(&(namespace, version)).and_then(|change| change.spec.clone()))
    }

    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        let state = self.state.lock();
        let newest_first = state.changes.iter().rev();
        let older =
            newest_first.filter(|(at, change)| change.name == *name && beyond.is_none_or(|beyond| **at < beyond));
        Ok(older.take(limit).map(|(_, change)| change.clone()).collect())
    }
}

impl MemoryCatalogState {
    /// Returns an error text if a record cannot be committed.
    fn check(&self, record: &NamespaceRecord) -> Result<(), String> {
        let live = self.namespaces.get(&record.change.name);
        record.check(live, (self.last_namespace, self.last_dataset), self.datasets.values())
    }
}
