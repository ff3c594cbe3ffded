//! The rows of the time slices.

use async_trait::async_trait;

use crate::domain::counter::DatasetId;
use crate::domain::rollup::{SliceStatus, TimeSlice};
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// The rows of the time slices of each dataset.
///
/// Laws:
/// 1. `create` inserts a row if there is none of that start and answers the row that holds from then on; frozen versions
///    never change afterwards.
/// 2. A status only moves forward: future, open, closed, dropped.
/// 3. Once `KeyspaceDeletion` is answered, all events, touches and bucket records of the slice are gone; dropping costs
///    milliseconds, however many there were. A dropped slice keeps its row.
#[async_trait]
pub trait TimeSlices: Send + Sync + 'static {
    /// All rows of a dataset, oldest first.
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError>;

    /// All rows that the newest limit which `LimitPublisher` has answered to this process speaks of, and perhaps newer ones, oldest
    /// first; read from the store only where that keeps none of them in memory.
    async fn list_cached(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.list(dataset).await
    }

    /// Inserts a row if absent.
    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError>;

    /// Moves the status forward.
    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError>;
}
