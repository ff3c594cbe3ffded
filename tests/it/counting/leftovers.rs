//! What nobody keeps any longer leaves the stores: rows of deleted namespaces, series of resolutions given up.

use std::sync::Arc;

use tallystone::adapters::embedded::{self, Options};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory::FastTable;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Change, Counter, Event, EventId, EventKey, NamespaceId, Provenance};
use tallystone::domain::namespace::{NamespaceSpec, SeriesSettings};
use tallystone::engine::catalog::Author;
use tallystone::engine::namespaces::NamespaceCatalog;
use tallystone::ports::NewEvent;

use super::{House, SECOND, START, counter, spec};

fn keeping(name: &str, steps: &[u32]) -> NamespaceSpec {
    let mut spec = spec(name);
    let series = |step_seconds: &u32| SeriesSettings { step_seconds: *step_seconds, keep: 86_400 * SECOND };
    spec.series = steps.iter().map(series).collect();
    spec
}

async fn stored_steps(house: &House, counter: &Counter, step_seconds: u32) -> usize {
    let rollups = &house.stores.rollups;
    rollups.series(counter, step_seconds, Timestamp::MIN, Timestamp::MAX).await.expect("a series").len()
}

async fn kept_namespaces(house: &House) -> Vec<NamespaceId> {
    house.stores.rollups.namespaces(None, 100).await.expect("namespaces")
}

#[tokio::test]
async fn steps_of_a_resolution_that_nobody_keeps_any_longer_are_trimmed() {
    let house = House::with(keeping("shop", &[10, 60])).await;
    let namespaces = house.engine.namespaces();
    namespaces.create(keeping("other", &[60]), Author::default()).await.expect("a valid namespace");
    let views = Counter::new(namespaces.get(&house.shop).expect("it is there").id, counter("views"));
    for _ in 0..10 {
        house.add("views", 1, None).await.expect("an add that works");
        house.pass(15 * SECOND).await;
    }
    assert!(stored_steps(&house, &views, 10).await > 5 && stored_steps(&house, &views, 60).await > 0);
    namespaces.update(keeping("shop", &[]), None, Author::default()).await.expect("a valid change");
    house.pass(11 * SECOND).await;
    assert_eq!(stored_steps(&house, &views, 10).await, 0, "nobody keeps it");
    assert!(stored_steps(&house, &views, 60).await > 0, "another namespace keeps that resolution");
    namespaces.update(keeping("shop", &[10]), None, Author::default()).await.expect("a valid change");
    for _ in 0..3 {
        house.add("views", 1, None).await.expect("an add that works");
        house.pass(15 * SECOND).await;
    }
    assert!(stored_steps(&house, &views, 10).await > 0, "kept again, it is filled again");
}

#[tokio::test]
async fn a_namespace_whose_deletion_was_cut_off_by_a_crash_leaves_nothing() {
    let house = House::new().await;
    let doomed = house.engine.namespaces().get(&house.shop).expect("it is there").id;
    house.engine.namespaces().create(spec("kept"), Author::default()).await.expect("a valid namespace");
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(10 * SECOND).await;
    house.engine.abandon().await;
    // The deletion is in the catalog, and the process ends before it has forgotten anything.
    let catalog = NamespaceCatalog::open(house.stores.catalog.clone(), Arc::new(house.clock.clone()));
    let catalog = catalog.await.expect("memory opens");
    catalog.delete(&house.shop, None, Author::default()).await.expect("deleted");
    assert_eq!(kept_namespaces(&house).await, [doomed]);
    let next = House::on(spec("next"), house.clock.clone(), house.stores.clone(), None).await;
    assert_eq!(kept_namespaces(&next).await, [], "the start cleans up");
    next.add("views", 1, None).await.expect("an add that works");
    next.pass(25 * SECOND).await;
    assert_eq!(kept_namespaces(&next).await.len(), 1, "what lives is left alone");
    assert_eq!(next.get("views").await.count, 1);
}

#[tokio::test]
async fn what_a_write_under_way_leaves_of_a_deleted_namespace_is_removed_later() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = embedded::open(Options { reserve_bytes: 0, ..Options::new(dir.path()) }).expect("the store opens");
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let stores = store.stores(Arc::new(FastTable::new(Arc::new(clock.clone()), 1 << 20)));
    let house = House::on(spec("shop"), clock, stores, None).await;
    let shop = house.engine.namespaces().get(&house.shop).expect("it is there");
    house.add("views", 5, None).await.expect("an add that works");
    house.engine.namespaces().delete(&house.shop, None, Author::default()).await.expect("deleted");
    until_nothing_is_kept(&house).await;
    let key = EventKey { time: house.now(), id: EventId::text("under way") };
    let event = Event { key, change: Change::Clear, provenance: Provenance::default() };
    let new = NewEvent { counter: Counter::new(shop.id, counter("views")), event };
    let mut answers = house.stores.log.append(shop.dataset_id, vec![new], Box::new(())).await;
    answers.remove(0).expect("its slice is there");
    assert_eq!(kept_namespaces(&house).await, [shop.id]);
    until_nothing_is_kept(&house).await;
}

async fn until_nothing_is_kept(house: &House) {
    for _ in 0..60 {
        if kept_namespaces(house).await.is_empty() {
            return;
        }
        house.pass(SECOND).await;
    }
    panic!("something is left after a minute: {:?}", kept_namespaces(house).await);
}
