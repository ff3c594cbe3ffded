//! The catalog of namespaces and datasets.

use async_trait::async_trait;

use crate::{Catalog, CatalogChange, CatalogEntry, CatalogRecord, StoreError};
use tallystone_domain::counter::{NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec};

/// The present content of the catalog of namespaces.
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

/// One change of a namespace.
pub type NamespaceChange = CatalogChange<Namespace>;

/// A change of a namespace to commit. Its companion is the dataset, if the change creates it.
pub type NamespaceRecord = CatalogRecord<Namespace>;

impl CatalogEntry for Namespace {
    const WORD: &'static str = "namespace";
    type Id = NamespaceId;
    type Name = NamespaceName;
    type Spec = NamespaceSpec;
    type State = CatalogState;
    type Companion = Option<Dataset>;
    type Deletion = ();
    /// Older than this (namespace, version); none for the newest.
    type HistoryStart = Option<(NamespaceId, u64)>;

    fn id(&self) -> NamespaceId {
        self.id
    }

    fn name(&self) -> &NamespaceName {
        &self.spec.name
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn spec(&self) -> &NamespaceSpec {
        &self.spec
    }
}

impl NamespaceRecord {
    /// Fails with the reason if the record conflicts with a catalog. The catalog is given by the live namespace of the
    /// name, the greatest ids ever used of a namespace and of a dataset, and all datasets.
    pub fn check_all<'a>(
        &self,
        live: Option<&Namespace>,
        (last_namespace, last_dataset): (u64, u32),
        datasets: impl IntoIterator<Item = &'a Dataset>,
    ) -> Result<(), String> {
        self.check(live, |id| id.0 <= last_namespace)?;
        let Some(dataset) = &self.companion else { return Ok(()) };
        if dataset.id.0 <= last_dataset {
            return Err(format!("dataset number {} was used before", dataset.id.0));
        }
        match datasets.into_iter().any(|held| held.name == dataset.name) {
            true => Err(format!("dataset {} exists", dataset.name)),
            false => Ok(()),
        }
    }
}

/// The catalog of namespaces.
///
/// Laws, beyond those of `Catalog`:
/// 1. Ids of namespaces and datasets only grow. A commit that creates with an id below the next one is a `Conflict`.
/// 2. Every version of a namespace stays readable by `version_of`, even after its deletion.
#[async_trait]
pub trait NamespaceStore: Catalog<Namespace> {
    /// Reads the settings of one version.
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError>;
}
