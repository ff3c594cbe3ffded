//! The reasons of refused calls about experiments.

use crate::counting::CountingError;
use crate::namespaces::NamespaceError;
use tallystone_domain::{Reason, Reject};
use tallystone_ports::StoreError;

/// The reason of a refused call about experiments.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// An argument is invalid, or the change is not allowed.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// The store of experiments failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The counters cannot be read.
    #[error(transparent)]
    Counting(#[from] CountingError),
}

impl From<NamespaceError> for ExperimentError {
    fn from(error: NamespaceError) -> Self {
        match error {
            NamespaceError::Reject(reject) => reject.into(),
            // Only makers of namespaces get it.
            NamespaceError::Quota(refusal) => Reject::new(Reason::RetryLater, refusal.to_string()).into(),
            NamespaceError::Store(error) => error.into(),
        }
    }
}
