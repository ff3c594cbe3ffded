//! What is asked by dataset: each call is that of the store of its dataset.

use async_trait::async_trait;

use crate::adapters::by_dataset::ByDataset;
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, Event, EventKey};
use crate::domain::fleet::{Beat, MemberId};
use crate::domain::rollup::{Sealed, SliceStatus, TimeSlice};
use crate::ports::{
    Appended, Copies, EventLog, FleetStore, Held, LogCapabilities, NewEvent, Progress, ScanRange, Settled, SliceRow,
    StoreError, StoreErrorKind, Tail, TimeSlices, Touch, Touches,
};

#[async_trait]
impl EventLog for ByDataset {
    /// What all stores are able to do.
    fn capabilities(&self) -> LogCapabilities {
        let all = self.all().map(|stores| stores.log.capabilities());
        all.reduce(|one, other| LogCapabilities {
            sees_reuse: one.sees_reuse && other.sees_reuse,
            unknown_outcomes: one.unknown_outcomes || other.unknown_outcomes,
            keeps_tail: one.keeps_tail && other.keeps_tail,
            exact_last_write: one.exact_last_write && other.exact_last_write,
        })
        .expect("home is one of them")
    }

    async fn append(&self, dataset: DatasetId, events: Vec<NewEvent>, held: Held) -> Vec<Result<Appended, StoreError>> {
        match self.of(dataset).await {
            Ok(stores) => stores.log.append(dataset, events, held).await,
            Err(error) => {
                let why = error.source.map_or_else(|| error.op.to_owned(), |source| source.to_string());
                let refused = || StoreError::not_applied(error.kind, "append").because(why.clone());
                events.iter().map(|_| Err(refused())).collect()
            }
        }
    }

    async fn settle(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Settled, StoreError> {
        self.of(dataset).await?.log.settle(dataset, counter, key).await
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        self.of(dataset).await?.log.find(dataset, counter, key).await
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        self.of(dataset).await?.log.scan(dataset, counter, range).await
    }

    /// Unknown for a dataset that was never asked for: the scan that follows finds it.
    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> Tail {
        self.known(dataset).map_or(Tail::Unknown, |stores| stores.log.tail(dataset, counter, after))
    }

    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        self.of(dataset).await?.log.scan_slice(dataset, slice_start, beyond, limit).await
    }
}

#[async_trait]
impl Touches for ByDataset {
    async fn touched(
        &self,
        dataset: DatasetId,
        shard: u32,
        from: Timestamp,
        to: Timestamp,
        beyond: Option<&Touch>,
        limit: usize,
    ) -> Result<Vec<Touch>, StoreError> {
        self.of(dataset).await?.touches.touched(dataset, shard, from, to, beyond, limit).await
    }

    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.of(dataset).await?.touches.watermarks(dataset).await
    }

    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError> {
        self.of(dataset).await?.touches.put_watermarks(dataset, moved).await
    }
}

#[async_trait]
impl TimeSlices for ByDataset {
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.of(dataset).await?.slices.list(dataset).await
    }

    async fn known(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.of(dataset).await?.slices.known(dataset).await
    }

    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
        self.of(slice.dataset).await?.slices.create(slice).await
    }

    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError> {
        self.of(dataset).await?.slices.set_status(dataset, start, status).await
    }
}

#[async_trait]
impl Progress for ByDataset {
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError> {
        self.of(dataset).await?.progress.publish(dataset, closed).await
    }

    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        self.of(dataset).await?.progress.limit(dataset).await
    }
}

impl ByDataset {
    /// What the servers of the store at home tell each other.
    fn members_of_home(&self) -> Result<&dyn FleetStore, StoreError> {
        fleet_of(self.home.fleet.as_deref())
    }

    async fn fleet(&self, dataset: DatasetId) -> Result<&dyn FleetStore, StoreError> {
        fleet_of(self.of(dataset).await?.fleet.as_deref())
    }
}

/// Stores beside one that several servers share are shared as well; whoever mixes them is told.
fn fleet_of(fleet: Option<&dyn FleetStore>) -> Result<&dyn FleetStore, StoreError> {
    fleet.ok_or_else(|| {
        StoreError::not_applied(StoreErrorKind::Unavailable, "tell other servers")
            .because("the store of the dataset belongs to one process, and its catalog to several")
    })
}

/// Who is a member is kept at home, with the frontiers that joining needs: a server is one member, whatever stores it writes,
/// and one that is away keeps nobody from joining.
#[async_trait]
impl FleetStore for ByDataset {
    async fn beat(&self, member: MemberId, beat: &Beat) -> Result<(), StoreError> {
        self.members_of_home()?.beat(member, beat).await
    }

    async fn members(&self) -> Result<Vec<(MemberId, Beat)>, StoreError> {
        self.members_of_home()?.members().await
    }

    async fn remove(&self, member: MemberId) -> Result<(), StoreError> {
        self.members_of_home()?.remove(member).await
    }

    async fn raise_frontier(&self, dataset: DatasetId, frontier: Timestamp) -> Result<(), StoreError> {
        self.members_of_home()?.raise_frontier(dataset, frontier).await
    }

    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        self.members_of_home()?.frontier(dataset).await
    }

    async fn mark(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        event: Timestamp,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        self.fleet(dataset).await?.mark(dataset, counter, event, time).await
    }

    async fn bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        copies: Copies,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        self.fleet(dataset).await?.bucket(dataset, counter, start, copies).await
    }

    async fn look_again(&self, dataset: DatasetId) -> Result<(), StoreError> {
        self.fleet(dataset).await?.look_again(dataset).await
    }

    async fn sealed_to(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.fleet(dataset).await?.sealed_to(dataset).await
    }

    async fn put_sealed(&self, dataset: DatasetId, shard: u32, to: Timestamp) -> Result<(), StoreError> {
        self.fleet(dataset).await?.put_sealed(dataset, shard, to).await
    }

    async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<Sealed>, StoreError> {
        self.fleet(dataset).await?.sealed(dataset, counter).await
    }

    async fn seal(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        expected: Option<&Sealed>,
        sealed: &Sealed,
    ) -> Result<bool, StoreError> {
        self.fleet(dataset).await?.seal(dataset, counter, expected, sealed).await
    }
}
