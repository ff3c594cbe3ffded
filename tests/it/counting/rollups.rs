//! The rollup pipeline: convergence, overflow, restarts, live changes.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::counter::{Counter, Provenance};
use tallystone::domain::namespace::Cardinality;
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::Add;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec};

#[tokio::test]
async fn every_counter_converges_within_the_accept_limit_and_three_coalescing_times() {
    for cardinality in [Cardinality::Low, Cardinality::Medium, Cardinality::High] {
        let mut spec = spec("shop");
        spec.cardinality = cardinality;
        let house = House::with(spec).await;
        for n in 0..200 {
            house.add(&format!("c{}", n % 37), 1, None).await.expect("an add that works");
        }
        house.pass(5 * SECOND + 3 * SECOND).await;
        let mut sum = 0;
        for n in 0..37 {
            let reading = house.get(&format!("c{n}")).await;
            assert!(!reading.behind, "{cardinality:?} c{n}");
            sum += reading.count;
        }
        assert_eq!(sum, 200, "{cardinality:?}");
    }
}

#[tokio::test]
async fn a_set_without_room_costs_time_and_no_counts() {
    let mut tight = spec("shop");
    tight.rollup.num_queues = 1;
    tight.rollup.capacity_bytes = 4_096;
    let house = House::with(tight).await;
    for n in 0..300 {
        house.add(&format!("c{n}"), 1, None).await.expect("an add that works");
    }
    assert!(house.engine.stats().signals_lost.get() > 0, "the Set overflowed");
    house.pass(120 * SECOND).await;
    for n in 0..300 {
        let reading = house.get(&format!("c{n}")).await;
        assert_eq!((reading.count, reading.behind), (1, false), "c{n}");
    }
}

#[tokio::test]
async fn a_counter_written_without_a_pause_still_moves_on() {
    let house = House::new().await;
    for _ in 0..60 {
        house.add("hot", 1, None).await.expect("an add that works");
        house.pass(Duration::from_millis(250)).await;
    }
    let reading = house.get("hot").await;
    assert!(reading.count >= 20, "rolled up to {} of 60 while it was written", reading.count);
    assert!(house.now().since(reading.as_of) <= 9 * SECOND);
}

#[tokio::test]
async fn a_new_engine_on_the_same_stores_rolls_what_the_old_one_left() {
    let house = House::new().await;
    for n in 0..50 {
        house.add(&format!("c{n}"), 2, None).await.expect("an add that works");
    }
    // Nothing is drained, as at a kill.
    house.engine.abandon().await;
    let next = House::on(spec("shop"), house.clock.clone(), house.stores.clone(), None).await;
    next.pass(20 * SECOND).await;
    for n in 0..50 {
        let reading = next.get(&format!("c{n}")).await;
        assert_eq!((reading.count, reading.behind), (2, false), "c{n}");
    }
}

#[tokio::test]
async fn the_number_of_queues_changes_while_counters_wait() {
    let house = House::new().await;
    for round in 0..6_u32 {
        for n in 0..40 {
            house.add(&format!("c{n}"), 1, None).await.expect("an add that works");
        }
        let mut changed = spec("shop");
        changed.rollup.num_queues = 1 + round * 3;
        house.engine.namespaces().update(changed, None, Author::default()).await.expect("a valid change");
        house.pass(Duration::from_millis(300)).await;
    }
    house.pass(10 * SECOND).await;
    for n in 0..40 {
        let reading = house.get(&format!("c{n}")).await;
        assert_eq!((reading.count, reading.behind), (6, false), "c{n}");
    }
    assert_eq!(house.engine.rollup_sets(), (0, 0), "nothing waits and no bytes are leaked");
}

#[tokio::test]
async fn a_shorter_coalescing_time_holds_for_counters_that_wait_already() {
    let mut slow = spec("shop");
    slow.rollup.coalesce_ms = 600_000;
    let house = House::with(slow.clone()).await;
    house.add("views", 1, None).await.expect("an add that works");
    house.pass(20 * SECOND).await;
    assert!(house.get("views").await.behind, "the Set still fills");
    house.engine.namespaces().update(spec("shop"), None, Author::default()).await.expect("a valid change");
    house.pass(SECOND).await;
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (1, false));
    house.engine.namespaces().update(slow.clone(), None, Author::default()).await.expect("a valid change");
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(20 * SECOND).await;
    assert_eq!(house.get("views").await.count, 1, "the longer one holds as well");
    slow.rollup.coalesce_ms = 1_000;
    slow.rollup.num_queues = 16;
    house.engine.namespaces().update(slow, None, Author::default()).await.expect("a valid change");
    house.pass(2 * SECOND).await;
    assert_eq!(house.get("views").await.count, 3, "queues that are replaced hand over at once");
}

#[tokio::test]
async fn a_drain_ends_every_loop() {
    let house = House::new().await;
    house.add("views", 1, None).await.expect("an add that works");
    assert!(house.drive(house.engine.drain(Duration::from_secs(5))).await);
}

#[tokio::test]
async fn more_counters_in_one_shard_than_a_set_holds_are_rolled_in_turn() {
    let mut tight = spec("shop");
    tight.rollup.num_queues = 1;
    tight.rollup.capacity_bytes = 4_096;
    let house = House::with(tight).await;
    let namespace = house.engine.namespaces().get(&house.shop).expect("it is there").id;
    let in_shard = |name: &String| Counter::new(namespace, counter(name)).touch_shard() == 5;
    let names: Vec<String> = (0..).map(|n| format!("c{n}")).filter(in_shard).take(150).collect();
    for name in &names {
        house.add(name, 1, None).await.expect("an add that works");
    }
    assert!(house.engine.stats().signals_lost.get() > 0, "the Set overflowed");
    house.pass(60 * SECOND).await;
    for name in &names {
        let reading = house.get(name).await;
        assert_eq!((reading.count, reading.behind), (1, false), "{name}");
    }
}

#[tokio::test]
async fn nothing_is_stale_where_nobody_writes_or_reads_and_a_write_that_hangs_makes_it_so() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let house = House::on(spec("shop"), clock, stores, None).await;
    let staleness = || house.engine.datasets()[0].staleness;
    assert!(staleness() <= 7 * SECOND, "a new dataset: {:?}", staleness());
    house.add("views", 1, None).await.expect("an add that works");
    house.pass(600 * SECOND).await;
    assert_eq!(staleness(), 5 * SECOND, "the limit rests");
    log.shut();
    let (counting, shop) = (house.counting.clone(), house.shop.clone());
    let add = Add { name: counter("views"), delta: 1, token: None, provenance: Provenance::default() };
    let hanging = tokio::spawn(async move { counting.add(&shop, add).await });
    house.rest().await;
    house.pass(60 * SECOND).await;
    assert!(staleness() >= 60 * SECOND, "{:?}", staleness());
    log.open();
    house.drive(hanging).await.expect("no panic").expect("an add that works");
    house.pass(600 * SECOND).await;
    assert_eq!(staleness(), 5 * SECOND);
}

#[tokio::test]
async fn the_closed_lag_is_the_accept_limit_while_idle_and_grows_with_a_write_that_hangs() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let house = House::on(spec("shop"), clock, stores, None).await;
    let lag = || house.engine.datasets()[0].closed_lag;
    house.add("views", 1, None).await.expect("an add that works");
    house.pass(600 * SECOND).await;
    assert_eq!(lag(), 5 * SECOND);
    log.shut();
    let (counting, shop) = (house.counting.clone(), house.shop.clone());
    let add = Add { name: counter("views"), delta: 1, token: None, provenance: Provenance::default() };
    let hanging = tokio::spawn(async move { counting.add(&shop, add).await });
    house.rest().await;
    house.pass(60 * SECOND).await;
    assert!(lag() >= 60 * SECOND, "{:?}", lag());
    log.open();
    house.drive(hanging).await.expect("no panic").expect("an add that works");
    assert_eq!(lag(), 5 * SECOND);
}
