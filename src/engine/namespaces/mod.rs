//! The catalog use cases: create, change, delete and describe namespaces.

use std::sync::Arc;

use crate::domain::counter::NamespaceName;
use crate::domain::namespace::{Namespace, NamespaceSpec};
use crate::domain::{Reason, Reject};
use crate::engine::counting::reason_of_store;
use crate::ports::{NamespaceChange, StoreError};

/// Who changes a namespace, and why.
#[derive(Clone, Debug, Default)]
pub struct Author {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
}

/// What an apply did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// A namespace was created.
    Created,
    /// Settings changed.
    Updated,
    /// Nothing had to change.
    Unchanged,
}

/// The answer to an apply.
#[derive(Clone, Debug)]
pub struct ApplyAnswer {
    /// What was done, or would be.
    pub applied: Applied,
    /// The namespace as it is, or would be.
    pub namespace: Arc<Namespace>,
    /// What changed, one line a setting.
    pub differences: Vec<String>,
}

/// Why a catalog call was refused.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// An argument is invalid, or the change is not allowed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// The store failed.
    #[error("{0}")]
    Store(#[from] StoreError),
}

impl NamespaceError {
    /// The reason, from the closed list.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reject(reject) => reject.reason,
            Self::Store(error) => reason_of_store(error),
        }
    }
}

/// The catalog of namespaces. Cheap to clone.
#[derive(Clone)]
pub struct Namespaces {}

#[allow(unused_variables)]
impl Namespaces {
    /// Creates a namespace; one that exists with the same settings is answered.
    pub async fn create(&self, spec: NamespaceSpec, author: Author) -> Result<Arc<Namespace>, NamespaceError> {
        todo!()
    }

    /// Replaces the settings; `expected` is the version that the caller read.
    pub async fn update(
        &self,
        spec: NamespaceSpec,
        expected: Option<u64>,
        author: Author,
    ) -> Result<Arc<Namespace>, NamespaceError> {
        todo!()
    }

    /// Creates or updates, or says what it would do.
    pub async fn apply(
        &self,
        spec: NamespaceSpec,
        dry_run: DryRun,
        author: Author,
    ) -> Result<ApplyAnswer, NamespaceError> {
        todo!()
    }

    /// Reads a namespace.
    pub fn get(&self, name: &NamespaceName) -> Result<Arc<Namespace>, NamespaceError> {
        todo!()
    }

    /// Lists namespaces in the order of names, above a name.
    pub fn list(&self, above: Option<&NamespaceName>, limit: usize) -> Vec<Arc<Namespace>> {
        todo!()
    }

    /// Deletes a namespace; `expected` is the version that the caller read.
    pub async fn delete(
        &self,
        name: &NamespaceName,
        expected: Option<u64>,
        author: Author,
    ) -> Result<(), NamespaceError> {
        todo!()
    }

    /// The history of a name, newest first, older than the given change.
    pub async fn history(
        &self,
        name: &NamespaceName,
        older_than: Option<(u64, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, NamespaceError> {
        todo!()
    }
}

/// Whether an apply only says what it would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DryRun {
    /// It says.
    Yes,
    /// It does.
    No,
}
