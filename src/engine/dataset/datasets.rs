//! The running state of each dataset on this server: closed timestamp, published limit, watermarks and slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, Semaphore};

use crate::closed_timestamp::ClosedTimestampTracker;
use crate::dataset::pending::PendingRolls;
use crate::dataset::slices::SliceTable;
use crate::fleet::CounterFleet;
use crate::watermark::Watermark;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::limits::{BATCHED_ITEMS_AT_ONCE_MAX, LIMIT_PUBLISH_INTERVAL, MEMBER_LEASE, TOUCH_SHARDS};
use tallystone_domain::namespace::Dataset;
use tallystone_ports::{Clock, StoreError, StoreErrorKind, Stores};

/// The running state of one dataset.
pub struct DatasetState {
    /// Its settings.
    pub dataset: Arc<Dataset>,
    /// The closed timestamp and the holds of this writer.
    pub closing: Arc<ClosedTimestampTracker>,
    pub slices: SliceTable,
    /// Counters that wait for a roll, by touch shard.
    pub pending: PendingRolls,
    /// The permits for accepted items of batches and streams.
    pub batch_permits: Arc<Semaphore>,
    watermarks: Vec<AtomicI64>,
    limit: Watermark,
    published: Mutex<PublishedLimit>,
    publish: Notify,
    /// Whether the publishing loop is idle, because there are no writes, reads or waiters.
    publisher_idle: AtomicBool,
    /// The time up to which nothing was stale at the end of its last idle period.
    idle_until: AtomicI64,
    active: AtomicBool,
    /// The highest `as_of` served by rankings.
    ranked_to: AtomicI64,
    seal_lag_micros: AtomicU64,
}

impl DatasetState {
    async fn open(dataset: Arc<Dataset>, stores: &Stores, fleet: Option<&CounterFleet>) -> Result<Self, StoreError> {
        let id = dataset.id;
        let closing =
            Arc::new(ClosedTimestampTracker::new(dataset.settings.accept_limit, stores.progress.limit(id).await?));
        if let Some(fleet) = fleet {
            fleet.join(id, Arc::clone(&closing)).await?;
        }
        // The limit is read before the slices: all events at or below it are in the slices listed now.
        let limit = stores.progress.limit(id).await?;
        let slices = SliceTable::open(id, dataset.settings.slice_width(), stores.slices.as_ref()).await?;
        let stored = stores.touches.watermarks(id).await?;
        let watermarks = (0..TOUCH_SHARDS as usize)
            .map(|shard| stored.get(shard).copied().flatten().unwrap_or(Timestamp::MIN))
            .map(|watermark| AtomicI64::new(watermark.micros()))
            .collect();
        Ok(Self {
            closing,
            slices,
            pending: PendingRolls::default(),
            batch_permits: Arc::new(Semaphore::new(BATCHED_ITEMS_AT_ONCE_MAX)),
            watermarks,
            limit: Watermark::new(limit.micros()),
            published: Mutex::default(),
            publish: Notify::new(),
            publisher_idle: AtomicBool::new(false),
            idle_until: AtomicI64::new(i64::MIN),
            active: AtomicBool::new(true),
            ranked_to: AtomicI64::new(i64::MIN),
            seal_lag_micros: AtomicU64::new(0),
            dataset,
        })
    }

    pub fn id(&self) -> DatasetId {
        self.dataset.id
    }

    /// The published limit: no further acknowledged event can appear at or below it.
    pub fn limit(&self) -> Timestamp {
        Timestamp::from_micros(self.limit.get())
    }

    /// The watermark of a touch shard: every acknowledged event up to it is in the checkpoint of its counter.
    pub fn watermark(&self, shard: u32) -> Timestamp {
        Timestamp::from_micros(self.watermarks[shard as usize].load(Ordering::Acquire))
    }

    /// Notes that a watermark was stored.
    pub fn note_watermark(&self, shard: u32, watermark: Timestamp) {
        self.watermarks[shard as usize].fetch_max(watermark.micros(), Ordering::AcqRel);
    }

    /// Sets the lag of the sealing of this server's shards.
    pub fn note_seal_lag(&self, lag: Duration) {
        self.seal_lag_micros.store(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The lag of the sealing of this server's shards.
    pub fn seal_lag(&self) -> Duration {
        Duration::from_micros(self.seal_lag_micros.load(Ordering::Relaxed))
    }

    /// Publishes the closed timestamp as the limit, if it lies above it. Only one loop calls this. In a fleet the limit
    /// covers all members; one member publishes it and the others read it.
    pub async fn publish_limit(
        &self,
        clock: &dyn Clock,
        stores: &Stores,
        fleet: Option<&CounterFleet>,
    ) -> Result<Timestamp, StoreError> {
        let closed = Timestamp::from_millis(self.closing.closed(clock.now()).millis());
        match fleet {
            None if closed <= self.limit() => Ok(self.limit()),
            None => Ok(self.raise_limit(stores.progress.publish(self.id(), closed).await?)),
            Some(fleet) => self.publish_fleet_limit(clock, stores, fleet, closed).await,
        }
    }

    /// Publishes the limit of the fleet, if this member is responsible for the dataset. It also does so if the
    /// responsible member has not published for a lease, because it cannot reach the cluster of the dataset.
    async fn publish_fleet_limit(
        &self,
        clock: &dyn Clock,
        stores: &Stores,
        fleet: &CounterFleet,
        closed: Timestamp,
    ) -> Result<Timestamp, StoreError> {
        let id = self.id();
        let members = fleet.membership.read_members().await?;
        let owns = fleet.membership.owns_dataset(id);
        if !owns {
            let limit = self.stored_limit(stores).await?;
            if !self.published.lock().is_stalled(limit, clock.elapsed()) {
                return Ok(limit);
            }
        }
        let limit = match fleet.run_publish_round(id, &members, closed, self.limit()).await? {
            Some(limit) => {
                self.published.lock().note_own_limit(limit);
                stores.progress.publish(id, limit).await?
            }
            None => stores.progress.limit(id).await?,
        };
        self.adopt_limit(limit, stores).await
    }

    /// Reads the present limit, whichever member published it.
    pub async fn stored_limit(&self, stores: &Stores) -> Result<Timestamp, StoreError> {
        let limit = stores.progress.limit(self.id()).await?;
        self.adopt_limit(limit, stores).await
    }

    /// Adopts a limit that another member may have published.
    async fn adopt_limit(&self, limit: Timestamp, stores: &Stores) -> Result<Timestamp, StoreError> {
        if limit > self.limit() {
            // Events acknowledged up to it may lie in slices that other members have made.
            self.slices.follow(stores.slices.as_ref()).await?;
        }
        Ok(self.raise_limit(limit))
    }

    /// Raises the limit and wakes its waiters.
    fn raise_limit(&self, limit: Timestamp) -> Timestamp {
        self.limit.raise(limit.micros());
        self.limit()
    }

    /// Notes that the publishing loop is idle: no caller needs a newer limit.
    pub fn begin_idle(&self) {
        self.publisher_idle.store(true, Ordering::Release);
    }

    /// Notes that the publishing loop works again. The age of the limit from the idle period does not count as
    /// staleness, and neither does the missing limit of a new dataset.
    pub fn end_idle(&self, now: Timestamp) {
        let begins = self.limit() == Timestamp::MIN && self.idle_until.load(Ordering::Acquire) == i64::MIN;
        if begins || self.publisher_idle.load(Ordering::Acquire) {
            self.idle_until.fetch_max(self.closing.closed(now).micros(), Ordering::AcqRel);
            self.publisher_idle.store(false, Ordering::Release);
        }
    }

    /// The staleness of the dataset for readers on this server, even if the loops that move the limit have failed.
    pub fn staleness(&self, now: Timestamp) -> Duration {
        if self.publisher_idle.load(Ordering::Acquire) {
            return now.since(self.closing.closed(now));
        }
        let rested_to = Timestamp::from_micros(self.idle_until.load(Ordering::Acquire));
        now.since(self.limit().max(rested_to))
    }

    /// Asks the publishing loop for a newer limit.
    pub fn request_limit(&self) {
        self.active.store(true, Ordering::Release);
        self.publish.notify_one();
    }

    /// Waits for a request of a newer limit.
    pub async fn limit_requested(&self) {
        self.publish.notified().await;
    }

    /// Whether there was activity since the last call. Only then are watermarks worth writing.
    pub fn take_active(&self) -> bool {
        self.active.swap(false, Ordering::AcqRel)
    }

    /// The `as_of` of a ranking: never lower than that of an earlier one. A counter rolled up to a time stays so, even
    /// if it is rolled again from an earlier time.
    pub fn raise_ranked_to(&self, to: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.ranked_to.fetch_max(to.micros(), Ordering::AcqRel)).max(to)
    }

    /// Marks activity for the next `take_active`.
    pub fn stay_active(&self) {
        self.active.store(true, Ordering::Release);
    }

    /// The limit, after requesting a newer one and waiting within a budget if it is older than one could be.
    pub async fn fresh_limit(&self, clock: &dyn Clock, budget: Duration) -> Timestamp {
        let due = clock.now() - self.dataset.settings.accept_limit - LIMIT_PUBLISH_INTERVAL;
        // Waiting helps only if no hold keeps the limit back.
        let closable = Timestamp::from_millis(self.closing.closed(clock.now()).millis());
        if self.limit() >= due || closable <= self.limit() {
            return self.limit();
        }
        self.limit_at_least(due.min(closable), clock, budget).await
    }

    /// The limit, after waiting within a budget until it reaches a time.
    pub async fn limit_at_least(&self, time: Timestamp, clock: &dyn Clock, budget: Duration) -> Timestamp {
        self.request_limit();
        tokio::select! {
            biased;
            () = self.limit.reach(time.micros()) => {}
            () = clock.sleep(budget) => {}
        }
        self.limit()
    }
}

/// The limits of other members, as this member knows them.
#[derive(Default)]
struct PublishedLimit {
    /// The newest limit that was read or published by this member.
    limit: Option<Timestamp>,
    /// The time of the last read of a limit that another member published, by the running time of the process.
    foreign_read_at: Duration,
}

impl PublishedLimit {
    /// Adopts a limit that was read. Returns whether no other member has published one for a lease.
    fn is_stalled(&mut self, limit: Timestamp, now: Duration) -> bool {
        if self.limit.is_none_or(|known| limit > known) {
            *self = Self { limit: Some(limit), foreign_read_at: now };
        }
        now.saturating_sub(self.foreign_read_at) >= MEMBER_LEASE
    }

    /// Notes a limit that this member publishes. It says nothing about other members.
    fn note_own_limit(&mut self, limit: Timestamp) {
        self.limit = self.limit.max(Some(limit));
    }
}

/// The datasets of a server, opened when first used.
#[derive(Default)]
pub struct Datasets {
    states: DashMap<DatasetId, Arc<OnceCell<Arc<DatasetState>>>>,
}

impl Datasets {
    /// The state of a dataset, opened if necessary.
    pub async fn open(
        &self,
        dataset: &Arc<Dataset>,
        stores: &Stores,
        fleet: Option<&CounterFleet>,
    ) -> Result<Arc<DatasetState>, StoreError> {
        let cell = Arc::clone(&self.states.entry(dataset.id).or_default());
        let state = cell
            .get_or_try_init(|| async { DatasetState::open(Arc::clone(dataset), stores, fleet).await.map(Arc::new) })
            .await?;
        Ok(Arc::clone(state))
    }

    /// The state of a dataset that was opened.
    pub fn get(&self, id: DatasetId) -> Result<Arc<DatasetState>, StoreError> {
        self.states
            .get(&id)
            .and_then(|cell| cell.get().cloned())
            .ok_or_else(|| StoreError::not_applied(StoreErrorKind::Unavailable, "open dataset"))
    }

    /// All opened datasets.
    pub fn all(&self) -> Vec<Arc<DatasetState>> {
        self.states.iter().filter_map(|entry| entry.value().get().cloned()).collect()
    }
}
