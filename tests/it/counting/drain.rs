//! A graceful stop: the last limit, then the last rolls, then the last watermarks, as far as the deadline allows.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Counter, Provenance};
use tallystone::domain::namespace::NamespaceSpec;
use tallystone::domain::rollup::Checkpoint;
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::Add;
use tallystone::engine::namespaces::NamespaceCatalog;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec, token};

/// No roll comes by itself.
fn slow() -> NamespaceSpec {
    let mut spec = spec("shop");
    spec.rollup.coalesce_ms = 600_000;
    spec
}

fn placed(house: &House, name: &str) -> Counter {
    let shop = house.engine.namespaces().get(&house.shop).expect("it is there");
    Counter::new(shop.id, counter(name))
}

async fn checkpoint(house: &House, name: &str) -> Option<Checkpoint> {
    let dataset = house.engine.namespaces().datasets()[0].id;
    house.stores.rollups.read(dataset, &placed(house, name)).await.expect("a row").checkpoint
}

async fn watermark(house: &House, name: &str) -> Timestamp {
    let dataset = house.engine.namespaces().datasets()[0].id;
    let watermarks = house.stores.touches.watermarks(dataset).await.expect("watermarks");
    watermarks[placed(house, name).touch_shard() as usize].unwrap_or(Timestamp::MIN)
}

/// Drains and says how long it took.
async fn drained_within(house: &House, deadline: Duration) -> Duration {
    let began = house.now();
    assert!(house.drive(house.engine.drain(deadline)).await, "in time");
    house.now().since(began)
}

#[tokio::test]
async fn after_a_drain_all_that_was_acknowledged_is_rolled_up_and_below_the_watermarks() {
    let house = House::with(slow()).await;
    for n in 0..40 {
        house.add(&format!("c{}", n % 20), 1 + n / 20, None).await.expect("an add that works");
    }
    let last = house.now();
    let took = drained_within(&house, 20 * SECOND).await;
    assert!(took <= 7 * SECOND, "the accept limit and a second are enough: {took:?}");
    for n in 0..20 {
        let name = format!("c{n}");
        let checkpoint = checkpoint(&house, &name).await.expect("a checkpoint");
        assert_eq!(checkpoint.count, 3, "{name}");
        assert!(checkpoint.as_of >= last && watermark(&house, &name).await >= last, "{name}: {checkpoint:?}");
    }
    assert_eq!(house.engine.waiting(), 0);
    let next = House::on(slow(), house.clock.clone(), house.stores.clone(), None).await;
    for n in 0..20 {
        let reading = next.get(&format!("c{n}")).await;
        assert_eq!((reading.count, reading.behind), (3, false), "c{n}");
    }
}

#[tokio::test]
async fn a_drain_without_the_time_for_all_rolls_as_far_as_the_limit_goes() {
    let patient = || {
        let mut patient = slow();
        patient.dataset.accept_limit = 60 * SECOND;
        patient
    };
    let house = House::with(patient()).await;
    let began = house.now();
    for name in ["old", "both"] {
        house.add(name, 1, Some(token("t1", began))).await.expect("an add that works");
    }
    house.pass(90 * SECOND).await;
    let newest = house.now();
    for name in ["both", "new"] {
        house.add(name, 2, Some(token("t2", newest))).await.expect("an add that works");
    }
    let took = drained_within(&house, 10 * SECOND).await;
    assert!(took <= 2 * SECOND, "nobody waits for what cannot be reached: {took:?}");
    assert_eq!(checkpoint(&house, "old").await.expect("a checkpoint").count, 1);
    assert_eq!(checkpoint(&house, "both").await.expect("a checkpoint").count, 1);
    assert_eq!(checkpoint(&house, "new").await, None);
    assert!(watermark(&house, "old").await >= began && watermark(&house, "both").await >= began);
    assert!(watermark(&house, "both").await < newest && watermark(&house, "new").await < newest);
    assert_eq!(house.engine.waiting(), 2, "two counters are left to the next start");
    let mut quick = patient();
    quick.rollup.coalesce_ms = 1_000;
    let catalog = NamespaceCatalog::open(house.stores.catalog.clone(), Arc::new(house.clock.clone())).await;
    let changed = catalog.expect("memory opens").update(quick.clone(), None, Author::default()).await;
    changed.expect("a valid change");
    let next = House::on(quick, house.clock.clone(), house.stores.clone(), None).await;
    next.pass(90 * SECOND).await;
    for (name, count) in [("old", 1), ("both", 3), ("new", 2)] {
        let reading = next.get(name).await;
        assert_eq!((reading.count, reading.behind), (count, false), "{name}");
    }
}

#[tokio::test]
async fn a_write_that_hangs_delays_a_drain_and_is_counted_by_the_next_start() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let house = House::on(slow(), clock, stores, None).await;
    house.add("done", 1, None).await.expect("an add that works");
    house.pass(SECOND).await;
    log.shut();
    let (counting, shop, time) = (house.counting.clone(), house.shop.clone(), house.now());
    let hanging = tokio::spawn(async move {
        let token = Some(token("t", time));
        let add = Add { name: counter("hangs"), delta: 7, token, provenance: Provenance::default() };
        counting.add(&shop, add).await
    });
    house.rest().await;
    let took = drained_within(&house, 20 * SECOND).await;
    assert!(took <= 7 * SECOND, "it keeps back the limit, and only those who wait for later times: {took:?}");
    assert_eq!(checkpoint(&house, "done").await.expect("a checkpoint").count, 1);
    log.open();
    house.drive(hanging).await.expect("no panic").expect("it is taken in the end");
    assert!(watermark(&house, "hangs").await < time, "no watermark passed it");
    let next = House::on(slow(), house.clock.clone(), house.stores.clone(), None).await;
    assert_eq!(next.fresh("hangs").await.count, 7);
    assert!(next.drive(next.engine.drain(20 * SECOND)).await);
    assert_eq!(checkpoint(&next, "hangs").await.expect("a checkpoint").count, 7);
}
