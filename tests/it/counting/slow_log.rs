//! An event log whose appends wait at a gate, which keeps no tail, or cannot be read: what calls in flight, large stores
//! and bad disks look like.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, DatasetId, Event, EventKey};
use tallystone::domain::rollup::TailLookup;
use tallystone::ports::{
    AppendGuard, AppendOutcome, EventLog, LogCapabilities, NewEvent, ScanRange, SliceRow, StoreError, StoreErrorKind,
    Stores, VerdictOutcome,
};
use tokio::sync::Semaphore;

/// The log. Appends pass while the gate is open.
pub struct SlowLog {
    inner: Arc<dyn EventLog>,
    gate: Arc<Semaphore>,
    tail: AtomicBool,
    lingers: AtomicBool,
    unreadable: AtomicBool,
    under_way: AtomicUsize,
    most_at_once: AtomicUsize,
    scans: AtomicUsize,
    waiting: Arc<AtomicUsize>,
}

impl SlowLog {
    /// Puts an open gate before the log of some stores.
    pub fn before(stores: &mut Stores) -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let log = Arc::new(Self {
            inner: Arc::clone(&stores.log),
            gate,
            tail: AtomicBool::new(true),
            lingers: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            scans: AtomicUsize::new(0),
            waiting: Arc::default(),
        });
        stores.log = log.clone();
        log
    }

    /// Lets no append pass until `open`.
    pub fn shut(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Lets every append pass.
    pub fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS);
    }

    /// From now on it knows no tail.
    pub fn forget_tail(&self) {
        self.tail.store(false, Ordering::Relaxed);
    }

    /// From now on scans fail.
    pub fn spoil(&self) {
        self.unreadable.store(true, Ordering::Relaxed);
    }

    /// From now on scans work again.
    pub fn mend(&self) {
        self.unreadable.store(false, Ordering::Relaxed);
    }

    /// From now on scans and verdicts take a while, so that those of one call meet.
    pub fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// The most scans and verdicts that were under way at once since then.
    pub fn most_at_once(&self) -> usize {
        self.most_at_once.load(Ordering::Relaxed)
    }

    /// The scans that were begun.
    pub fn scans(&self) -> usize {
        self.scans.load(Ordering::Relaxed)
    }

    /// The appends that are at the gate.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    async fn take_a_while(&self) {
        if !self.lingers.load(Ordering::Relaxed) {
            return;
        }
        let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_at_once.fetch_max(under_way, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl EventLog for SlowLog {
    fn capabilities(&self) -> LogCapabilities {
        self.inner.capabilities()
    }

    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>> {
        let (inner, gate) = (Arc::clone(&self.inner), Arc::clone(&self.gate));
        // On a task of its own, because a caller that goes away leaves the write running.
        let waiting = Arc::clone(&self.waiting);
        let write = tokio::spawn(async move {
            waiting.fetch_add(1, Ordering::Relaxed);
            let _passed = gate.acquire().await.expect("the gate is never closed for good");
            waiting.fetch_sub(1, Ordering::Relaxed);
            inner.append(dataset, events, held).await
        });
        write.await.expect("the log does not panic")
    }

    async fn settle(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        self.take_a_while().await;
        self.inner.settle(dataset, counter, key).await
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        self.inner.find(dataset, counter, key).await
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        self.scans.fetch_add(1, Ordering::Relaxed);
        self.take_a_while().await;
        if self.unreadable.load(Ordering::Relaxed) {
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable, "scan"));
        }
        self.inner.scan(dataset, counter, range).await
    }

    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup {
        if self.tail.load(Ordering::Relaxed) { self.inner.tail(dataset, counter, after) } else { TailLookup::Unknown }
    }

    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        self.inner.scan_slice(dataset, slice_start, beyond, limit).await
    }
}
