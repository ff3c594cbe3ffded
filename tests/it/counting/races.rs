//! Calls in flight while something else changes: deletions, settings, slices, other calls.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::counter::Provenance;
use tallystone::domain::namespace::NamespaceSpec;
use tallystone::domain::rollup::SliceStatus;
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::{Add, CountingError, Written};
use tokio::task::JoinHandle;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec};

async fn slow(spec: NamespaceSpec) -> (House, Arc<SlowLog>) {
    let clock = ManualClock::at(START + Duration::from_secs(3_600));
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    (House::on(spec, clock, stores, None).await, log)
}

/// An add that its caller waits for on a task of its own.
fn add_in_flight(house: &House, name: &str) -> JoinHandle<Result<Written, CountingError>> {
    let (counting, shop) = (house.counting.clone(), house.shop.clone());
    let add = Add { name: counter(name), delta: 1, token: None, provenance: Provenance::default() };
    tokio::spawn(async move { counting.add(&shop, add).await })
}

#[tokio::test]
async fn an_add_in_flight_outlives_the_deletion_of_its_namespace_and_keeps_nobody_waiting() {
    let mut short = spec("shop");
    short.dataset.seconds_per_slice = 60;
    short.dataset.close_after = 90 * SECOND;
    short.dataset.delete_after = 120 * SECOND;
    short.partition.seconds_per_bucket = 60;
    let other = NamespaceSpec { name: spec("other").name, ..short.clone() };
    let (house, log) = slow(short).await;
    house.engine.namespaces().create(other.clone(), Author::default()).await.expect("a valid namespace");
    log.shut();
    let call = add_in_flight(&house, "views");
    house.rest().await;
    house.engine.namespaces().delete(&house.shop, None, Author::default()).await.expect("it is there");
    house.pass(2 * SECOND).await;
    log.open();
    call.await.expect("the server goes on").expect("it was admitted before the deletion");
    house.pass(300 * SECOND).await;
    assert_eq!(house.engine.rollup_sets(), (0, 0));
    let dataset = house.engine.namespaces().datasets()[0].id;
    let rows = house.stores.slices.list(dataset).await.expect("rows");
    assert_eq!(rows[0].status, SliceStatus::Dropped, "what nobody rolls keeps no slice back");
    house.drive(house.counting.get(&other.name, counter("views"), Default::default())).await.expect("others go on");
}
