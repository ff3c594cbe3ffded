//! A count cache that other servers fill too: whatever it holds, the `as_of` of a counter never goes back on one server, a
//! count is never wrong for its `as_of`, and a namespace uses the cluster that it names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::counter::{Counter, NamespaceName};
use tallystone::domain::namespace::{CounterType, NamespaceSpec};
use tallystone::domain::rollup::{CachedCount, Exactness};
use tallystone::ports::{CacheCluster, CacheLease, CountCache, Stores};

use super::{House, SECOND, START, spec};

/// Holds the oldest value that it was ever given, as another server could put it there again and again.
#[derive(Default)]
struct OldCache {
    oldest: Mutex<BTreeMap<Counter, CachedCount>>,
    reads: Mutex<u64>,
}

#[async_trait]
impl CountCache for OldCache {
    async fn get(&self, counter: &Counter) -> Option<CachedCount> {
        *self.reads.lock() += 1;
        self.oldest.lock().get(counter).cloned()
    }

    async fn lease(&self, _counter: &Counter) -> CacheLease {
        CacheLease::default()
    }

    async fn fill(&self, counter: &Counter, value: CachedCount, _lease: CacheLease) {
        self.oldest.lock().entry(counter.clone()).or_insert(value);
    }

    async fn delete(&self, counter: &Counter) -> bool {
        self.oldest.lock().remove(counter);
        true
    }
}

fn name(text: &str) -> NamespaceName {
    NamespaceName::new(text).expect("a valid name")
}

fn near(counter_type: CounterType) -> NamespaceSpec {
    let mut spec = spec("shop");
    spec.counter_type = counter_type;
    spec.storage.cache_cluster = name("near");
    spec
}

async fn house(spec: NamespaceSpec) -> (House, Arc<OldCache>, Stores) {
    let clock = ManualClock::at(START + Duration::from_secs(3_600));
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let old = Arc::new(OldCache::default());
    let far = memory::stores_on(Arc::new(clock.clone()));
    let cluster = CacheCluster { cache: old.clone(), fast: far.fast.clone() };
    stores.caches = Arc::new(BTreeMap::from([(name("near"), cluster)]));
    (House::on(spec, clock, stores, None).await, old, far)
}

#[tokio::test]
async fn as_of_never_goes_back_with_a_cache_that_does() {
    let (house, old, _) = house(near(CounterType::Eventual)).await;
    let (mut newest, mut newest_count) = (house.get("views").await.as_of, 0);
    for n in 0..40_i64 {
        if n % 3 == 0 {
            house.add("views", 1, None).await.expect("an add that works");
        }
        house.pass(Duration::from_millis(400)).await;
        let reading = house.get("views").await;
        assert!(reading.as_of >= newest, "{:?} after {newest:?}", reading.as_of);
        assert!(reading.count >= newest_count, "{} after {newest_count}", reading.count);
        (newest, newest_count) = (reading.as_of, reading.count);
    }
    assert!(newest_count >= 3, "the counts move: {newest_count}");
    assert!(*old.reads.lock() > 0, "the cache is asked");
}

#[tokio::test]
async fn an_accurate_count_is_right_on_top_of_an_old_value_and_a_clear_shows_at_once() {
    let (house, _, _) = house(near(CounterType::Accurate)).await;
    let mut count = 0;
    for n in 0..30_i64 {
        house.add("views", n, None).await.expect("an add that works");
        count += n;
        if n == 17 {
            house.clear("views", None).await.expect("a clear that works");
            count = 0;
        }
        let reading = house.get("views").await;
        assert_eq!((reading.count, reading.exactness), (count, Exactness::UpToDate), "after {n}");
        house.pass(Duration::from_millis(700)).await;
    }
}

#[tokio::test]
async fn best_effort_counters_are_kept_in_the_cluster_that_their_namespace_names() {
    let (house, _, far) = house(near(CounterType::BestEffort)).await;
    house.add("views", 5, None).await.expect("an add that works");
    assert_eq!(house.get("views").await.count, 5);
    let namespace = house.engine.namespaces().get(&house.shop).expect("it is there");
    let names = |stores: &Stores| {
        let fast = stores.fast.clone();
        async move { fast.names(namespace.id, "", None, 10).await.expect("names").len() }
    };
    assert_eq!(names(&far).await, 1, "in the cluster");
    house.pass(SECOND).await;
}
