//! The rows of the time slices.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_domain::time::Timestamp;

/// The rows of the time slices of each dataset.
///
/// Laws:
/// 1. `create` inserts a row if none has that start, and returns the row that is in force from then on. Its frozen
///    versions never change.
/// 2. A status only moves forward: future, open, closed, dropped.
/// 3. After a move to `Dropped` was acknowledged, all events, touches and bucket records of the slice are deleted.
///    Dropping takes milliseconds, whatever their number. A dropped slice keeps its row.
#[async_trait]
pub trait TimeSlices: Send + Sync + 'static {
    /// All rows of a dataset, oldest first.
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError>;

    /// The rows that belong to the newest limit that this process has read, and perhaps newer ones, oldest first. Read
    /// from the store only if the store keeps none of them in memory.
    async fn list_cached(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.list(dataset).await
    }

    /// Inserts a row if absent.
    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError>;

    /// Moves the status forward.
    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError>;
}
