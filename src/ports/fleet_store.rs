//! The state of counters that servers of one store share through it, apart from their membership.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::{Counter, DatasetId, Event};
use tallystone_domain::rollup::VerifiedBase;
use tallystone_domain::time::Timestamp;

/// The replicas from which a row is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadReplicas {
    /// A quorum, which overlaps every acknowledged write.
    Quorum,
    /// All replicas: finds even a row that only one replica has.
    All,
}

/// The frontier of each dataset, marks for rechecks, and repairs of counters.
///
/// Laws:
/// 1. A frontier never goes back. Every `frontier` that begins after a raise returns at least the raised value.
/// 2. `Touches::touched` returns an acknowledged mark in the step of its time.
/// 3. `seal` is a compare-and-set: it changes the sealed value only if it equals the expected one, and returns whether
///    the new value is now stored. `RollupStore::read` returns the sealed value until a checkpoint with its number of
///    repairs is put.
/// 4. The sealed time of a shard never goes back. Every `sealed_to` that begins after a put returns at least its value.
#[async_trait]
pub trait FleetStore: Send + Sync + 'static {
    /// Raises the frontier of a dataset; a lower one changes nothing.
    async fn raise_frontier(&self, dataset: DatasetId, frontier: Timestamp) -> Result<(), StoreError>;

    /// The frontier of a dataset; `Timestamp::MIN` before the first.
    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError>;

    /// Marks the time bucket of a counter that contains `event` for a recheck. The mark is in the step of `time`.
    async fn put_recheck_mark(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        event: Timestamp,
        time: Timestamp,
    ) -> Result<(), StoreError>;

    /// Reads the events of a whole time bucket, in the order of their keys. None if its slice was dropped. Cost:
    /// O(events). With all copies it fails while any replica is away.
    async fn bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        copies: ReadReplicas,
    ) -> Result<Option<Vec<Event>>, StoreError>;

    /// Lets the next scans of the log rescan its time buckets, for events that came late.
    async fn rescan_late_events(&self, dataset: DatasetId) -> Result<(), StoreError>;

    /// The time up to which each touch shard is sealed, in their order; `None` for a shard without sealed buckets.
    async fn sealed_to(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError>;

    /// Stores the time up to which a touch shard is sealed. A lower time changes nothing.
    async fn put_sealed(&self, dataset: DatasetId, shard: u32, to: Timestamp) -> Result<(), StoreError>;

    /// Reads the sealed value of a counter.
    async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<VerifiedBase>, StoreError>;

    /// Replaces the sealed value of a counter, if it still equals the expected one.
    async fn seal(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        expected: Option<&VerifiedBase>,
        sealed: &VerifiedBase,
    ) -> Result<bool, StoreError>;
}
