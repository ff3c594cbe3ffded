//! How far a dataset is closed.

use async_trait::async_trait;

use crate::domain::counter::DatasetId;
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// Frontier and limit of each dataset. On one process the frontier is the limit; in a fleet membership stands between.
///
/// Laws:
/// 1. `publish` answers a limit at or below what every live writer has closed, this one included.
/// 2. A limit is durable before anybody is told of it, and never goes back, not even over a crash.
/// 3. `limit` answers the last published limit, `Timestamp::MIN` before the first.
#[async_trait]
pub trait LimitPublisher: Send + Sync + 'static {
    /// Publishes what this writer has closed and answers the limit.
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError>;

    /// The last published limit.
    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError>;
}
