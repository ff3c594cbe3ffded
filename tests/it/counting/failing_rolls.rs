//! Rolls that fail are tried again until they work, on every store: while they fail no checkpoint appears, and afterwards the
//! count is right although nothing was written meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tallystone::adapters::embedded::{self, Embedded, Options};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory::{self, FastTable};
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone::domain::rollup::{BucketRecord, RollupRow, StepSum};
use tallystone::ports::{RollWrite, RollupStore, StoreError, StoreErrorKind, Stores};
use tempfile::TempDir;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec};

/// Real time that the threads of a store may need on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rolls that have to fail before a test lets them work: the first one and two of its repeats.
const FAILURES: u64 = 3;

/// What the store refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Refused {
    Nothing,
    ReadsOfTheLog,
    ReadsOfCheckpoints,
    WritesOfCheckpoints,
}

/// A rollup store that refuses reads or writes for a while.
struct Refusing {
    inner: Arc<dyn RollupStore>,
    refused: AtomicU8,
}

impl Refusing {
    fn check(&self, refused: Refused) -> Result<(), StoreError> {
        if self.refused.load(Ordering::Relaxed) == refused as u8 {
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable, "rollups"));
        }
        Ok(())
    }
}

#[async_trait]
impl RollupStore for Refusing {
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError> {
        self.check(Refused::ReadsOfCheckpoints)?;
        self.inner.read(dataset, counter).await
    }

    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError> {
        self.check(Refused::WritesOfCheckpoints)?;
        self.inner.put(dataset, writes).await
    }

    async fn buckets(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        self.inner.buckets(dataset, counter, from, to).await
    }

    async fn series(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, StoreError> {
        self.inner.series(counter, step_seconds, from, to).await
    }

    async fn series_before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, StoreError> {
        self.inner.series_before(counter, step_seconds, before).await
    }

    async fn trim_series(&self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError> {
        self.inner.trim_series(step_seconds, before).await
    }

    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError> {
        self.inner.series_resolutions().await
    }

    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        self.inner.names(namespace, prefix, above, limit).await
    }

    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError> {
        self.inner.namespaces(above, limit).await
    }

    async fn forget_counters(&self, dataset: DatasetId, silent: Vec<(Counter, Timestamp)>) -> Result<(), StoreError> {
        self.inner.forget_counters(dataset, silent).await
    }

    async fn remove_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        self.inner.remove_namespace(namespace).await
    }
}

/// A house whose stores can be told to refuse.
struct Spoilt {
    house: House,
    log: Arc<SlowLog>,
    rollups: Arc<Refusing>,
    /// The store and its directory, where there is one. In this order: it is closed before its directory goes.
    _kept: Option<(Embedded, TempDir)>,
}

impl Spoilt {
    async fn on_memory() -> Self {
        let clock = ManualClock::at(START + 3_600 * SECOND);
        let stores = memory::stores_on(Arc::new(clock.clone()));
        Self::on(clock, stores, None).await
    }

    async fn on_embedded() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let store = embedded::open(Options { reserve_bytes: 0, ..Options::new(dir.path()) }).expect("the store opens");
        let clock = ManualClock::at(START + 3_600 * SECOND);
        let stores = store.stores(Arc::new(FastTable::new(Arc::new(clock.clone()), 1 << 20)));
        Self::on(clock, stores, Some((store, dir))).await
    }

    async fn on(clock: ManualClock, mut stores: Stores, kept: Option<(Embedded, TempDir)>) -> Self {
        let log = SlowLog::before(&mut stores);
        let rollups =
            Arc::new(Refusing { inner: Arc::clone(&stores.rollups), refused: AtomicU8::new(Refused::Nothing as u8) });
        stores.rollups = rollups.clone();
        let house = House::on(spec("shop"), clock, stores, None).await;
        Self { house, log, rollups, _kept: kept }
    }

    fn refuse(&self, refused: Refused) {
        if refused == Refused::ReadsOfTheLog {
            self.log.spoil();
        } else {
            self.log.mend();
        }
        self.rollups.refused.store(refused as u8, Ordering::Relaxed);
    }

    /// The count of the checkpoint. A read of the service would say more, but heals a counter that is behind.
    async fn checkpoint(&self, counter: &Counter) -> Option<i128> {
        let row = self.rollups.inner.read(DatasetId(1), counter).await.expect("nothing refuses here");
        row.checkpoint.map(|checkpoint| checkpoint.count)
    }

    /// Lets a second pass, and the store's own threads do what was asked of them.
    async fn pass_a_second(&self) {
        self.house.pass(SECOND).await;
        // A limit that was published long ago changes nothing; it is answered after what was sent before it.
        let published = self.house.stores.progress.publish(DatasetId(1), Timestamp::MIN).await;
        published.expect("nothing refuses here");
    }
}

async fn failed_rolls_heal(spoilt: Spoilt, refused: Refused) {
    let house = &spoilt.house;
    let namespace = house.engine.namespaces().get(&house.shop).expect("it is there");
    assert_eq!(namespace.dataset_id, DatasetId(1));
    let views = Counter::new(namespace.id, counter("views"));
    spoilt.refuse(refused);
    let failed = || house.engine.stats().rolls_failed.get();
    for delta in [1, 2, 4] {
        house.add("views", delta, None).await.expect("an add that works");
    }
    let began = Instant::now();
    while failed() < FAILURES {
        assert!(began.elapsed() < PATIENCE, "{refused:?}: {} rolls failed", failed());
        spoilt.pass_a_second().await;
        assert_eq!(spoilt.checkpoint(&views).await, None, "{refused:?}: nothing was rolled up");
    }
    spoilt.refuse(Refused::Nothing);
    let began = Instant::now();
    while spoilt.checkpoint(&views).await != Some(7) {
        assert!(began.elapsed() < PATIENCE, "{refused:?}: {:?}", spoilt.checkpoint(&views).await);
        spoilt.pass_a_second().await;
    }
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (7, false), "{refused:?}");
}

#[tokio::test]
async fn failed_rolls_heal_on_the_memory_store() {
    for refused in [Refused::ReadsOfTheLog, Refused::ReadsOfCheckpoints, Refused::WritesOfCheckpoints] {
        failed_rolls_heal(Spoilt::on_memory().await, refused).await;
    }
}

#[tokio::test]
async fn failed_rolls_heal_on_the_embedded_store() {
    for refused in [Refused::ReadsOfTheLog, Refused::ReadsOfCheckpoints, Refused::WritesOfCheckpoints] {
        failed_rolls_heal(Spoilt::on_embedded().await, refused).await;
    }
}
