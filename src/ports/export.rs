//! The export of slices before they are dropped.

use async_trait::async_trait;

use crate::{SliceRow, StoreError};
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::time::Timestamp;

/// Takes the rows of whole slices.
///
/// Laws:
/// 1. `begin` discards the remains of an unfinished export of the same slice.
/// 2. After `finish` the export is durable and complete, and is never replaced. An export of the same name with other
///    rows, such as that of another store, gets a file of its own. One with the same rows is the same export.
///
/// A sink knows slices only by name, so it cannot say whether a slice of a store was exported. The store exports a
/// slice directly before it drops it, again if necessary.
#[async_trait]
pub trait ExportSink: Send + Sync + 'static {
    /// Begins an export.
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
