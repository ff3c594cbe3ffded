//! What several servers that share a store tell each other through it.

use async_trait::async_trait;

use crate::domain::counter::{Counter, DatasetId, Event};
use crate::domain::fleet::{Heartbeat, MemberId};
use crate::domain::rollup::VerifiedBase;
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// Which copies of a row are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadReplicas {
    /// As many as are surely among those that acknowledged it.
    Quorum,
    /// All of them: also a row that only one replica got.
    All,
}

/// The members of a fleet, how far each dataset's joiners have to stay away, and repairs of counters.
///
/// Laws:
/// 1. A heartbeat that was acknowledged is seen by every `members` that begins later, until one with a greater number is,
///    or the member is removed. Of two heartbeats the greater number stays, whatever the order of arrival.
/// 2. A member that was removed is not listed again, whatever of its heartbeats arrives later.
/// 3. A frontier never goes back, and one that was raised is seen by every `frontier` that begins later.
/// 4. A mark that was acknowledged is answered by `Touches::touched` in the step of its time.
/// 5. `seal` changes what is sealed only if it is what was expected, and answers whether it is now what was asked for.
///    `RollupStore::read` answers the sealed value until a checkpoint with its number of repairs is put.
/// 6. How far a shard is sealed never goes back, and is seen by every `sealed_to` that begins after it was put.
#[async_trait]
pub trait FleetStore: Send + Sync + 'static {
    /// Writes the heartbeat of a member.
    async fn beat(&self, member: MemberId, beat: &Heartbeat) -> Result<(), StoreError>;

    /// Reads the newest heartbeat of every member. Cost: O(members).
    async fn members(&self) -> Result<Vec<(MemberId, Heartbeat)>, StoreError>;

    /// Removes a member for ever.
    async fn remove(&self, member: MemberId) -> Result<(), StoreError>;

    /// Raises the frontier of a dataset; a lower one changes nothing.
    async fn raise_frontier(&self, dataset: DatasetId, frontier: Timestamp) -> Result<(), StoreError>;

    /// The frontier of a dataset; `Timestamp::MIN` before the first.
    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError>;

    /// Leaves a mark that the time bucket of a counter which holds `event` has to be looked at again. The mark stands in
    /// the step of `time`.
    async fn put_recheck_mark(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        event: Timestamp,
        time: Timestamp,
    ) -> Result<(), StoreError>;

    /// Reads the events of a whole time bucket, in the order of their keys. None if its slice was dropped. Cost: O(events).
    /// With all copies it fails while any replica is away.
    async fn bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        copies: ReadReplicas,
    ) -> Result<Option<Vec<Event>>, StoreError>;

    /// Has the next scans of the log look again where it holds events, for those that came late.
    async fn rescan_late_events(&self, dataset: DatasetId) -> Result<(), StoreError>;

    /// How far each touch shard is sealed, in their order; `None` for a shard of which nothing is.
    async fn sealed_to(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError>;

    /// Puts how far a touch shard is sealed; a lower time changes nothing.
    async fn put_sealed(&self, dataset: DatasetId, shard: u32, to: Timestamp) -> Result<(), StoreError>;

    /// Reads what is sealed of a counter.
    async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<VerifiedBase>, StoreError>;

    /// Seals a counter anew, if what is sealed is still what is expected.
    async fn seal(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        expected: Option<&VerifiedBase>,
        sealed: &VerifiedBase,
    ) -> Result<bool, StoreError>;
}
