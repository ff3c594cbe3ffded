//! Calls with a dataset: each goes to the store of its dataset.

use async_trait::async_trait;

use crate::by_dataset::ByDataset;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, Event, EventKey};
use tallystone_domain::rollup::{SliceStatus, TailLookup, TimeSlice, VerifiedBase};
use tallystone_ports::{
    AppendGuard, AppendOutcome, EventLog, FleetStore, LimitPublisher, LogCapabilities, NewEvent, ReadReplicas,
    ScanRange, SharedStores, SliceRow, StoreError, StoreErrorKind, TimeSlices, Touch, Touches, VerdictOutcome,
};

#[async_trait]
impl EventLog for ByDataset {
    /// The capabilities that all stores share.
    fn capabilities(&self) -> LogCapabilities {
        let all = self.all_stores().map(|stores| stores.log.capabilities());
        all.reduce(|one, other| LogCapabilities {
            reports_existing: one.reports_existing && other.reports_existing,
            unknown_outcomes: one.unknown_outcomes || other.unknown_outcomes,
            keeps_tail: one.keeps_tail && other.keeps_tail,
            exact_last_write: one.exact_last_write && other.exact_last_write,
        })
        .expect("the primary store is always one of them")
    }

    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>> {
        match self.stores_of_dataset(dataset).await {
            Ok(stores) => stores.log.append(dataset, events, held).await,
            Err(error) => {
                let why = error.source.map_or_else(|| error.op.to_owned(), |source| source.to_string());
                let refused = || StoreError::not_applied(error.kind, "append").with_source(why.clone());
                events.iter().map(|_| Err(refused())).collect()
            }
        }
    }

    async fn settle(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        self.stores_of_dataset(dataset).await?.log.settle(dataset, counter, key).await
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        self.stores_of_dataset(dataset).await?.log.find(dataset, counter, key).await
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        self.stores_of_dataset(dataset).await?.log.scan(dataset, counter, range).await
    }

    /// Returns `Unknown` for a dataset that no call has used before; the scan that follows finds its store.
    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup {
        self.cached_stores_of(dataset).map_or(TailLookup::Unknown, |stores| stores.log.tail(dataset, counter, after))
    }

    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        self.stores_of_dataset(dataset).await?.log.scan_slice(dataset, slice_start, beyond, limit).await
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
        self.stores_of_dataset(dataset).await?.touches.touched(dataset, shard, from, to, beyond, limit).await
    }

    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.stores_of_dataset(dataset).await?.touches.watermarks(dataset).await
    }

    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError> {
        self.stores_of_dataset(dataset).await?.touches.put_watermarks(dataset, moved).await
    }
}

#[async_trait]
impl TimeSlices for ByDataset {
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.stores_of_dataset(dataset).await?.slices.list(dataset).await
    }

    async fn list_cached(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.stores_of_dataset(dataset).await?.slices.list_cached(dataset).await
    }

    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
        self.stores_of_dataset(slice.dataset).await?.slices.create(slice).await
    }

    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError> {
        self.stores_of_dataset(dataset).await?.slices.set_status(dataset, start, status).await
    }
}

#[async_trait]
impl LimitPublisher for ByDataset {
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError> {
        self.stores_of_dataset(dataset).await?.progress.publish(dataset, closed).await
    }

    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        self.stores_of_dataset(dataset).await?.progress.limit(dataset).await
    }
}

impl ByDataset {
    /// Shared state between the servers of the primary store.
    fn primary_fleet(&self) -> Result<&dyn FleetStore, StoreError> {
        require_fleet(self.primary.fleet.as_ref())
    }

    async fn fleet(&self, dataset: DatasetId) -> Result<&dyn FleetStore, StoreError> {
        require_fleet(self.stores_of_dataset(dataset).await?.fleet.as_ref())
    }
}

/// All stores next to a shared primary store must be shared as well; mixing them is an error.
fn require_fleet(shared: Option<&SharedStores>) -> Result<&dyn FleetStore, StoreError> {
    shared.map(|shared| shared.counters.as_ref()).ok_or_else(|| {
        StoreError::not_applied(StoreErrorKind::Unavailable, "notify other servers")
            .with_source("the dataset is in the store of one process, but several processes share its catalog")
    })
}

/// Frontiers are stored in the primary store beside the members, because joining needs them.
#[async_trait]
impl FleetStore for ByDataset {
    async fn raise_frontier(&self, dataset: DatasetId, frontier: Timestamp) -> Result<(), StoreError> {
        self.primary_fleet()?.raise_frontier(dataset, frontier).await
    }

    async fn frontier(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        self.primary_fleet()?.frontier(dataset).await
    }

    async fn put_recheck_mark(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        event: Timestamp,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        self.fleet(dataset).await?.put_recheck_mark(dataset, counter, event, time).await
    }

    async fn bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        copies: ReadReplicas,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        self.fleet(dataset).await?.bucket(dataset, counter, start, copies).await
    }

    async fn rescan_late_events(&self, dataset: DatasetId) -> Result<(), StoreError> {
        self.fleet(dataset).await?.rescan_late_events(dataset).await
    }

    async fn sealed_to(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.fleet(dataset).await?.sealed_to(dataset).await
    }

    async fn put_sealed(&self, dataset: DatasetId, shard: u32, to: Timestamp) -> Result<(), StoreError> {
        self.fleet(dataset).await?.put_sealed(dataset, shard, to).await
    }

    async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<VerifiedBase>, StoreError> {
        self.fleet(dataset).await?.sealed(dataset, counter).await
    }

    async fn seal(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        expected: Option<&VerifiedBase>,
        sealed: &VerifiedBase,
    ) -> Result<bool, StoreError> {
        self.fleet(dataset).await?.seal(dataset, counter, expected, sealed).await
    }
}
