//! The catalog: namespaces, datasets and the history of their changes.

use async_trait::async_trait;

use crate::domain::counter::{NamespaceId, NamespaceName};
use crate::domain::namespace::{Dataset, Namespace, NamespaceSpec};
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// The present content of the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CatalogState {
    /// All datasets.
    pub datasets: Vec<Dataset>,
    /// All live namespaces.
    pub namespaces: Vec<Namespace>,
    /// The id of the next namespace.
    pub next_namespace_id: u64,
    /// The id of the next dataset.
    pub next_dataset_id: u32,
}

/// One change of a namespace, as its history keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceChange {
    /// The namespace.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: NamespaceName,
    /// The version that the change made.
    pub version: u64,
    /// The time of the change.
    pub time: Timestamp,
    /// The author.
    pub actor: String,
    /// The reason that the author gave.
    pub reason: String,
    /// The differences, a line for each setting.
    pub differences: Vec<String>,
    /// The settings after the change; none when it deleted the namespace.
    pub spec: Option<NamespaceSpec>,
}

/// A change to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceRecord {
    /// The version that the namespace must have. `None`: the name must not exist.
    pub expected_version: Option<u64>,
    /// The namespace after the change; none deletes it.
    pub namespace: Option<Namespace>,
    /// The dataset, if the change creates it.
    pub new_dataset: Option<Dataset>,
    /// The entry of the history.
    pub change: NamespaceChange,
}

impl NamespaceRecord {
    /// The reason why the record conflicts with a catalog, if it does. The catalog is given by the live namespace of the
    /// name, the greatest ids ever used of a namespace and of a dataset, and all datasets.
    pub fn check<'a>(
        &self,
        live: Option<&Namespace>,
        (last_namespace, last_dataset): (u64, u32),
        datasets: impl IntoIterator<Item = &'a Dataset>,
    ) -> Result<(), String> {
        let name = &self.change.name;
        if live.map(|live| live.version) != self.expected_version {
            let is = live.map_or("absent".to_owned(), |live| format!("at version {}", live.version));
            return Err(format!("namespace {name} is {is}"));
        }
        match live {
            Some(live) if live.id != self.change.namespace => {
                return Err(format!("namespace {name} has the number {}", live.id.0));
            }
            None if self.change.namespace.0 <= last_namespace => {
                return Err(format!("namespace number {} was used before", self.change.namespace.0));
            }
            Some(_) | None => {}
        }
        if let Some(dataset) = &self.new_dataset {
            if dataset.id.0 <= last_dataset {
                return Err(format!("dataset number {} was used before", dataset.id.0));
            }
            if datasets.into_iter().any(|held| held.name == dataset.name) {
                return Err(format!("dataset {} exists", dataset.name));
            }
        }
        Ok(())
    }
}

/// The catalog.
///
/// Laws:
/// 1. `commit` applies all of a record or nothing, durably, and only if the expectation holds; otherwise `Conflict`.
/// 2. Ids of namespaces and datasets are never reused, not even after a deletion. A commit that creates with an id below the
///    next one is a `Conflict`.
/// 3. Every version of a namespace stays readable by `version_of`, even after its deletion.
/// 4. `history` returns the changes of all namespaces that ever had the name, newest first.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Reads the present content.
    async fn load(&self) -> Result<CatalogState, StoreError>;

    /// The revision: it changes with every commit of any server. It is constant where one process owns the store.
    async fn revision(&self) -> Result<i64, StoreError> {
        Ok(0)
    }

    /// Commits a change.
    async fn commit(&self, record: NamespaceRecord) -> Result<(), StoreError>;

    /// Reads the settings of one version.
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError>;

    /// Reads the history of a name, beyond (older than) the given (namespace, version).
    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError>;
}
