//! Stores with a gate before the log and a trap in the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, DatasetId, Event, EventKey};
use tallystone::domain::rollup::{CachedCount, TailLookup};
use tallystone::ports::{
    AppendGuard, AppendOutcome, CacheLease, CountCache, EventLog, LogCapabilities, NewEvent, ScanRange, SliceRow,
    StoreError, Stores, VerdictOutcome,
};
use tokio::sync::watch;

/// Reading a counter of this name panics.
pub const TRAP: &str = "trap";

/// While it is closed, appends wait. Clones share it.
#[derive(Clone)]
pub struct Gate {
    open: watch::Sender<bool>,
    waiting: Arc<AtomicUsize>,
    arrived: watch::Sender<usize>,
}

impl Gate {
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until so many appends have come to the gate.
    pub async fn until_arrived(&self, appends: usize) {
        self.arrived.subscribe().wait_for(|arrived| *arrived >= appends).await.expect("the gate lives");
    }

    /// How many appends wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.open.subscribe().wait_for(|open| *open).await.expect("the gate lives");
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Puts the gate and the trap before stores.
pub fn gated(stores: Stores) -> (Stores, Gate) {
    let gate = Gate { open: watch::Sender::new(true), waiting: Arc::default(), arrived: watch::Sender::new(0) };
    let log = Arc::new(GatedLog { inner: stores.log.clone(), gate: gate.clone() });
    let cache = Arc::new(TrappedCache { inner: stores.cache.clone() });
    (Stores { log, cache, ..stores }, gate)
}

struct GatedLog {
    inner: Arc<dyn EventLog>,
    gate: Gate,
}

#[async_trait]
impl EventLog for GatedLog {
    fn capabilities(&self) -> LogCapabilities {
        self.inner.capabilities()
    }

    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>> {
        // A log goes on with a write whose caller went away.
        let (inner, gate) = (Arc::clone(&self.inner), self.gate.clone());
        let write = tokio::spawn(async move {
            gate.pass().await;
            inner.append(dataset, events, held).await
        });
        write.await.expect("an append does not panic")
    }

    async fn settle(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        self.inner.settle(dataset, counter, key).await
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        self.inner.find(dataset, counter, key).await
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        self.inner.scan(dataset, counter, range).await
    }

    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup {
        self.inner.tail(dataset, counter, after)
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

struct TrappedCache {
    inner: Arc<dyn CountCache>,
}

#[async_trait]
impl CountCache for TrappedCache {
    async fn get(&self, counter: &Counter) -> Option<CachedCount> {
        assert!(counter.name().as_str() != TRAP, "somebody read the trap");
        self.inner.get(counter).await
    }

    async fn lease(&self, counter: &Counter) -> CacheLease {
        self.inner.lease(counter).await
    }

    async fn fill(&self, counter: &Counter, value: CachedCount, lease: CacheLease) {
        self.inner.fill(counter, value, lease).await;
    }

    async fn delete(&self, counter: &Counter) -> bool {
        self.inner.delete(counter).await
    }
}
