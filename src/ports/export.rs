//! Where slices go before they are dropped.

use async_trait::async_trait;

use crate::domain::counter::NamespaceName;
use crate::domain::time::Timestamp;
use crate::ports::{SliceRow, StoreError};

/// Takes the rows of whole slices.
///
/// Laws:
/// 1. `begin` discards whatever an unfinished export of the same slice left behind.
/// 2. After `finish` the export is durable and complete, and nothing replaces it: an export of the same name with other
///    rows, as that of another store, stands beside it; one with the same rows is the same export.
///
/// A sink knows slices by their names only, so it never says whether a slice of a store was exported: the store exports it
/// right before it drops it, again if it must.
#[async_trait]
pub trait ExportSink: Send + Sync + 'static {
    /// Begins anew.
    async fn begin(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError>;

    /// Adds rows; the name of each row's namespace is given beside it.
    async fn write(
        &self,
        dataset: &NamespaceName,
        slice_start: Timestamp,
        rows: Vec<(String, SliceRow)>,
    ) -> Result<(), StoreError>;

    /// Completes the export.
    async fn finish(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError>;
}
