//! Counters of LOW cardinality circulate: a roller that knows them rolls their writes even if every signal of them is lost
//! and the touch index does not answer. Others wait for one of the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, DatasetId};
use tallystone::domain::namespace::Cardinality;
use tallystone::domain::rollup::CachedCount;
use tallystone::ports::{CacheLease, CountCache, RollupStore, StoreError, StoreErrorKind, Stores, Touch, Touches};

use super::{House, SECOND, START, spec};

/// More than fit into a Set of 4,096 bytes.
const COUNTERS: usize = 60;

/// A touch index that can be made to answer nothing.
struct MuteTouches {
    inner: Arc<dyn Touches>,
    mute: AtomicBool,
}

#[async_trait]
impl Touches for MuteTouches {
    async fn touched(
        &self,
        dataset: DatasetId,
        shard: u32,
        from: Timestamp,
        to: Timestamp,
        beyond: Option<&Touch>,
        limit: usize,
    ) -> Result<Vec<Touch>, StoreError> {
        if self.mute.load(Ordering::Relaxed) {
            return Err(StoreError::not_applied(StoreErrorKind::Unavailable, "touched"));
        }
        self.inner.touched(dataset, shard, from, to, beyond, limit).await
    }

    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        self.inner.watermarks(dataset).await
    }

    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError> {
        self.inner.put_watermarks(dataset, moved).await
    }
}

/// A cache that answers what the rollup store holds at this moment, as that of the embedded store does.
struct Following(Arc<dyn RollupStore>);

#[async_trait]
impl CountCache for Following {
    async fn get(&self, counter: &Counter) -> Option<CachedCount> {
        let row = self.0.read(DatasetId(1), counter).await.ok()?;
        Some(CachedCount { checked_at: None, ..row.to_cached(Timestamp::MIN) })
    }

    async fn lease(&self, _: &Counter) -> CacheLease {
        CacheLease::default()
    }

    async fn fill(&self, _: &Counter, _: CachedCount, _: CacheLease) {}

    async fn delete(&self, _: &Counter) -> bool {
        true
    }
}

fn name(n: usize) -> String {
    format!("c{n}")
}

/// A house with one tight queue that knows all counters, each with a count of 1, and whose touch index falls silent then.
async fn house(cardinality: Cardinality) -> House {
    let mut tight = spec("shop");
    tight.cardinality = cardinality;
    tight.rollup.num_queues = 1;
    tight.rollup.capacity_bytes = 4_096;
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores: Stores = memory::stores_on(Arc::new(clock.clone()));
    let touches = Arc::new(MuteTouches { inner: Arc::clone(&stores.touches), mute: AtomicBool::new(false) });
    stores.touches = touches.clone();
    stores.cache = Arc::new(Following(Arc::clone(&stores.rollups)));
    let house = House::on(tight, clock, stores, None).await;
    assert_eq!(house.engine.namespaces().get(&house.shop).expect("it is there").dataset_id, DatasetId(1));
    add_to_all(&house).await;
    house.pass(60 * SECOND).await;
    assert_eq!(house.engine.rollup_sets(), (0, 0), "all are rolled up");
    touches.mute.store(true, Ordering::Relaxed);
    house
}

async fn add_to_all(house: &House) {
    for n in 0..COUNTERS {
        house.add(&name(n), 1, None).await.expect("an add that works");
    }
}

/// How many of the counters show both adds. Each is read once, because a read heals a counter that is behind.
async fn caught_up(house: &House) -> usize {
    let mut caught_up = 0;
    for n in 0..COUNTERS {
        let reading = house.get(&name(n)).await;
        assert_eq!(reading.behind, reading.count == 1, "{}: {reading:?}", name(n));
        caught_up += usize::from(reading.count == 2);
    }
    caught_up
}

#[tokio::test]
async fn low_counters_converge_without_their_signals_and_without_the_touch_index() {
    let house = house(Cardinality::Low).await;
    let lost = house.engine.stats().signals_lost.get();
    add_to_all(&house).await;
    assert!(house.engine.stats().signals_lost.get() > lost, "the Set overflowed");
    house.pass(60 * SECOND).await;
    assert_eq!(caught_up(&house).await, COUNTERS);
}

#[tokio::test]
async fn counters_that_do_not_circulate_wait_for_the_touch_index() {
    for cardinality in [Cardinality::Medium, Cardinality::High] {
        let house = house(cardinality).await;
        let lost = house.engine.stats().signals_lost.get();
        add_to_all(&house).await;
        let lost = house.engine.stats().signals_lost.get() - lost;
        house.pass(60 * SECOND).await;
        assert_eq!(caught_up(&house).await as u64 + lost, COUNTERS as u64, "{cardinality:?}");
        assert!(lost > 0, "{cardinality:?}: the Set overflowed");
    }
}

#[tokio::test]
async fn counters_that_circulate_cost_the_store_nothing_while_nothing_is_new() {
    let house = house(Cardinality::Low).await;
    let stats = house.engine.stats();
    let rolls = || (stats.rolls_written.get(), stats.rolls_empty.get(), stats.batches.get());
    let before = rolls();
    house.pass(60 * SECOND).await;
    assert_eq!(rolls(), before);
}
