//! The closed timestamp and the published limit of each dataset.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::time::Timestamp;

/// The published limit of each dataset. In one process the limit follows its closed timestamp; in a fleet it follows
/// those of all members.
///
/// Laws:
/// 1. `publish` returns a limit at or below the closed timestamp of every live writer, this one included.
/// 2. A limit is durable before it is visible, and never goes back, even across a crash.
/// 3. `limit` returns the last published limit, `Timestamp::MIN` before the first.
#[async_trait]
pub trait LimitPublisher: Send + Sync + 'static {
    /// Publishes the closed timestamp of this writer. Returns the limit.
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError>;

    /// The last published limit.
    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError>;
}
