//! Where slices go before they are dropped.

use async_trait::async_trait;

use crate::domain::counter::NamespaceName;
use crate::domain::time::Timestamp;
use crate::ports::{SliceRow, StoreError};

/// Takes the rows of whole slices.
///
/// Laws:
/// 1. `begin` discards whatever an unfinished export of the same slice left behind.
/// 2. After `finish` the export is durable and complete; `is_finished` says so from then on.
#[async_trait]
pub trait ExportSink: Send + Sync + 'static {
    /// Whether the export of a slice is done.
    async fn is_finished(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<bool, StoreError>;

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
