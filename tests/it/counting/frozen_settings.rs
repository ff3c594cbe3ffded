//! Settings that change while a namespace lives: each slice keeps those it was made with, and folds and reads go by them.

use std::time::Duration;

use tallystone::domain::Timestamp;
use tallystone::domain::counter::Counter;
use tallystone::domain::namespace::{NamespaceSpec, SeriesSettings};
use tallystone::domain::rollup::ReadOptions;
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::{Repair, SeriesQuery};

use super::{House, SECOND, counter, spec};

/// A house on slices of some seconds, at the beginning of one.
async fn house(seconds_per_slice: u32, change: impl Fn(&mut NamespaceSpec)) -> House {
    House::with(settings(seconds_per_slice, change)).await
}

fn settings(seconds_per_slice: u32, change: impl Fn(&mut NamespaceSpec)) -> NamespaceSpec {
    let mut spec = spec("shop");
    spec.dataset.seconds_per_slice = seconds_per_slice;
    spec.dataset.close_after = 600 * SECOND;
    spec.dataset.delete_after = 3_600 * SECOND;
    spec.partition.seconds_per_bucket = 10;
    change(&mut spec);
    spec
}

async fn update(house: &House, spec: NamespaceSpec) {
    house.engine.namespaces().update(spec, None, Author::default()).await.expect("a valid change");
}

/// Waits until so long after the beginning.
async fn until(house: &House, began: Timestamp, millis: u64) {
    let time = began + Duration::from_millis(millis);
    assert!(house.now() < time, "the clock has run ahead of the test");
    house.pass(time.since(house.now())).await;
}

/// The rolled-up count after every change so far was rolled up.
async fn rolled_up(house: &House, name: &str) -> i64 {
    house.pass(7 * SECOND).await;
    let reading = house.get(name).await;
    assert!(!reading.behind, "{reading:?}");
    reading.count
}

async fn recount_agrees(house: &House, name: &str) {
    let recount = house.counting.recount(&house.shop, counter(name), None, None, Repair::No).await.expect("a recount");
    assert!(recount.complete && recount.differences.is_empty(), "{recount:?}");
    assert_eq!(recount.before, recount.after);
}

#[tokio::test]
async fn a_changed_ttl_holds_only_in_slices_made_after_the_change() {
    let house = house(60, |spec| spec.ttl = Some(15 * SECOND)).await;
    let began = house.now();
    house.add("views", 5, None).await.expect("an add that works");
    update(&house, settings(60, |spec| spec.ttl = None)).await;
    // Two slices are made ahead, so three minutes keep the first settings.
    until(&house, began, 20_000).await;
    house.add("views", 1, None).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 1, "20 s of silence end a count in a slice with a TTL of 15 s");
    assert_eq!(rolled_up(&house, "views").await, 1);
    until(&house, began, 170_000).await;
    assert_eq!(house.get("views").await.count, 0, "the TTL of the third slice has passed");
    assert_eq!(house.fresh("views").await.count, 0);
    until(&house, began, 190_000).await;
    house.add("views", 2, None).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 3, "a silence that ends in a slice without a TTL restarts nothing");
    assert_eq!(rolled_up(&house, "views").await, 3);
    update(&house, settings(60, |spec| spec.ttl = Some(15 * SECOND))).await;
    until(&house, began, 230_000).await;
    assert_eq!(house.get("views").await.count, 3, "the slice of now has no TTL yet");
    until(&house, began, 430_000).await;
    assert_eq!(house.get("views").await.count, 0, "and now it has one");
    house.add("views", 7, None).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 7);
    assert_eq!(rolled_up(&house, "views").await, 7);
    recount_agrees(&house, "views").await;
}

#[tokio::test]
async fn buckets_have_the_width_that_their_slice_was_made_with() {
    let house = house(60, |spec| spec.partition.seconds_per_bucket = 30).await;
    let began = house.now();
    for (n, seconds) in [5, 25, 35, 155, 190, 195, 205, 215, 245].into_iter().enumerate() {
        until(&house, began, seconds * 1_000).await;
        house.add("views", 1 << n, None).await.expect("an add that works");
        if n == 1 {
            update(&house, settings(60, |spec| spec.partition.seconds_per_bucket = 10)).await;
        }
    }
    house.pass(60 * SECOND).await;
    let shop = house.engine.namespaces().get(&house.shop).expect("it is there");
    let views = Counter::new(shop.id, counter("views"));
    let records = house.stores.rollups.buckets(shop.dataset_id, &views, Timestamp::MIN, Timestamp::MAX).await;
    let found: Vec<_> = records
        .expect("records")
        .into_iter()
        .map(|record| (record.start.since(began).as_secs(), record.rows, record.sum))
        .collect();
    assert_eq!(
        found,
        [(0, 2, 0b11), (30, 1, 0b100), (150, 1, 0b1000), (190, 2, 0b11_0000), (200, 1, 1 << 6), (210, 1, 1 << 7)]
    );
    // The bucket of the last event is in the checkpoint, and stays there until something comes after it.
    recount_agrees(&house, "views").await;
}

#[tokio::test]
async fn an_unrolled_tail_over_slices_of_several_ttls_is_judged_slice_by_slice() {
    // No roll comes by itself.
    let slow = |ttl: Option<Duration>| {
        settings(10, move |spec| {
            spec.ttl = ttl;
            spec.rollup.coalesce_ms = 600_000;
        })
    };
    let house = House::with(slow(None)).await;
    let began = house.now();
    update(&house, slow(Some(10 * SECOND))).await;
    until(&house, began, 15_000).await;
    update(&house, slow(None)).await;
    // Slices 0, 10 and 20 have no TTL, 30 has one of ten seconds, those from 40 on have none.
    until(&house, began, 28_500).await;
    house.add("views", 5, None).await.expect("an add that works");
    until(&house, began, 39_500).await;
    house.add("views", 1, None).await.expect("an add that works");
    until(&house, began, 41_000).await;
    house.add("views", 2, None).await.expect("an add that works");
    let fresh = house.fresh("views").await;
    assert_eq!(
        (fresh.count, fresh.last_write_time > Some(fresh.as_of)),
        (3, true),
        "the tail restarts inside: {fresh:?}"
    );
    house.pass(8 * SECOND).await;
    let newest = fresh.last_write_time;
    let rolled = house.read("views", ReadOptions { at_least_as_of: newest, ..ReadOptions::default() }).await;
    assert_eq!((rolled.count, rolled.behind), (3, false));
    recount_agrees(&house, "views").await;
}

#[tokio::test]
async fn a_quiet_step_of_a_series_shows_what_its_own_slice_says() {
    let kept = |ttl: Option<Duration>| {
        settings(60, move |spec| {
            spec.ttl = ttl;
            spec.series = vec![SeriesSettings { step_seconds: 10, keep: 86_400 * SECOND }];
        })
    };
    let house = House::with(kept(None)).await;
    let began = house.now();
    house.add("views", 5, None).await.expect("an add that works");
    update(&house, kept(Some(30 * SECOND))).await;
    until(&house, began, 230_000).await;
    let question = SeriesQuery { from: began, to: began + 220 * SECOND, step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    let values: Vec<_> = answer.rows.iter().map(|row| row.value).collect();
    assert_eq!(values[..18], [5; 18], "three slices were made without a TTL");
    assert_eq!(values[18..], [0; 4], "the fourth was made with one");
}
