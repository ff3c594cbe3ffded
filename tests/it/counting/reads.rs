//! Honest reads: every count says as of when, and what is waiting.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::counter::Provenance;
use tallystone::domain::namespace::CounterType;
use tallystone::domain::rollup::{Exactness, ReadOptions};
use tallystone::engine::counting::{Add, Repair};

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec, token};

#[tokio::test]
async fn an_accurate_counter_answers_every_acknowledged_add() {
    let house = House::of_type(CounterType::Accurate).await;
    for n in 1..=20 {
        house.add("views", n, None).await.expect("an add that works");
        let reading = house.get("views").await;
        assert_eq!((reading.count, reading.exactness), (n * (n + 1) / 2, Exactness::UpToDate));
        house.pass(Duration::from_millis(700)).await;
    }
}

#[tokio::test]
async fn a_counter_that_was_never_written_reads_zero_as_of_the_limit() {
    let house = House::new().await;
    let reading = house.get("nobody").await;
    assert_eq!((reading.count, reading.behind, reading.last_write_time), (0, false, None));
    assert!(house.now().since(reading.as_of) <= 8 * SECOND, "as of {:?}, now {:?}", reading.as_of, house.now());
}

#[tokio::test]
async fn max_staleness_rolls_what_the_limit_allows() {
    let mut lazy = spec("shop");
    lazy.rollup.coalesce_ms = 600_000;
    let house = House::with(lazy).await;
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(30 * SECOND).await;
    let stale = house.get("views").await;
    assert_eq!((stale.count, stale.behind), (0, true));
    let options = ReadOptions { max_staleness: Some(10 * SECOND), ..ReadOptions::default() };
    let rolled = house.read("views", options).await;
    assert_eq!((rolled.count, rolled.behind), (5, false));
}

#[tokio::test]
async fn at_least_as_of_is_met_or_the_answer_says_that_it_is_behind() {
    let house = House::new().await;
    house.add("views", 5, None).await.expect("an add that works");
    let wanted = house.now();
    let options = ReadOptions { at_least_as_of: Some(wanted), ..ReadOptions::default() };
    assert!(house.read("views", options).await.behind, "what lies above the limit cannot be rolled");
    house.pass(7 * SECOND).await;
    let reading = house.read("views", options).await;
    assert!(reading.as_of >= wanted && !reading.behind);
    assert_eq!(reading.count, 5);
}

#[tokio::test]
async fn as_of_never_goes_back() {
    let house = House::new().await;
    let mut newest = house.get("views").await.as_of;
    for n in 0..40_i64 {
        if n % 3 == 0 {
            house
                .add("views", 1, Some(token(&format!("t{n}"), house.now() - SECOND)))
                .await
                .expect("an add that works");
        }
        house.pass(Duration::from_millis(400)).await;
        let reading = house.get("views").await;
        assert!(reading.as_of >= newest, "{:?} after {newest:?}", reading.as_of);
        newest = reading.as_of;
    }
}

#[tokio::test]
async fn a_counter_silent_for_longer_than_its_ttl_counts_from_zero_again() {
    let mut short = spec("shop");
    short.ttl = Some(60 * SECOND);
    let house = House::with(short).await;
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(30 * SECOND).await;
    assert_eq!(house.get("views").await.count, 5);
    house.pass(50 * SECOND).await;
    assert_eq!(house.get("views").await.count, 0, "silent for longer than the TTL");
    assert_eq!(house.fresh("views").await.count, 0);
    house.add("views", 2, None).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 2);
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 2);
}

#[tokio::test]
async fn a_tail_longer_than_the_bound_is_partial_until_it_can_be_rolled() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    SlowLog::before(&mut stores).forget_tail();
    let house = House::on(spec("shop"), clock, stores, None).await;
    for _ in 0..11 {
        let one = || Add { name: counter("views"), delta: 1, token: None, provenance: Provenance::default() };
        let items = (0..1_000).map(|_| Ok(one())).collect();
        let answers = house.drive(house.counting.batch_add(&house.shop, items)).await.expect("the namespace is there");
        assert!(answers.iter().all(Result::is_ok));
    }
    let reading = house.fresh("views").await;
    assert_eq!((reading.count, reading.exactness, reading.behind), (10_000, Exactness::Partial, true));
    house.clock.advance(8 * SECOND);
    house.rest().await;
    let reading = house.fresh("views").await;
    assert_eq!((reading.count, reading.exactness), (11_000, Exactness::UpToDate));
}

#[tokio::test]
async fn silence_is_judged_where_the_count_is_exact_and_not_beyond() {
    let mut lazy = spec("shop");
    lazy.ttl = Some(60 * SECOND);
    lazy.rollup.coalesce_ms = 600_000;
    let house = House::with(lazy).await;
    let rolled = ReadOptions { max_staleness: Some(6 * SECOND), ..ReadOptions::default() };
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(10 * SECOND).await;
    assert_eq!(house.read("views", rolled).await.count, 5);
    house.pass(40 * SECOND).await;
    let added = house.now();
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(50 * SECOND).await;
    let reading = house.get("views").await;
    assert!(reading.as_of < added, "the second add is not rolled up");
    assert_eq!((reading.count, reading.behind), (5, true), "as of then, it was not silent for long");
    assert_eq!(house.fresh("views").await.count, 7);
    assert_eq!(house.read("views", rolled).await.count, 7);
    house.pass(70 * SECOND).await;
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (0, false));
    assert!(reading.as_of > added + 60 * SECOND, "it says as of when it counts nothing");
    assert_eq!(house.fresh("views").await.count, 0);
}

#[tokio::test]
async fn a_read_rolls_at_most_once_for_each_limit() {
    let mut lazy = spec("shop");
    lazy.rollup.coalesce_ms = 600_000;
    let house = House::with(lazy).await;
    house.pass(10 * SECOND).await;
    house.add("views", 5, None).await.expect("an add that works");
    let options = ReadOptions { max_staleness: Some(Duration::ZERO), ..ReadOptions::default() };
    for _ in 0..5 {
        assert!(house.read("views", options).await.behind, "its time is not closed yet");
    }
    assert_eq!(house.engine.stats().inline_rolls.get(), 0, "there is nothing to roll yet");
}

#[tokio::test]
async fn no_event_appears_at_or_below_the_first_as_of_that_a_dataset_tells() {
    let clock = ManualClock::at(START + SECOND);
    let stores = memory::stores_on(Arc::new(clock.clone()));
    let house = House::on(spec("shop"), clock, stores, None).await;
    let told = house.get("views").await.as_of;
    let early = token("early", START - SECOND);
    assert!(house.add("views", 1, Some(early.clone())).await.is_ok(), "inside the accept limit, in the slice before");
    assert!(early.key.time > told, "{told:?} was told");
}

#[tokio::test]
async fn a_recount_holds_up_to_where_the_count_does() {
    let house = House::new().await;
    house.add("views", 5, None).await.expect("an add that works");
    for name in ["views", "never"] {
        let read = house.get(name).await;
        let recount =
            house.counting.recount(&house.shop, counter(name), None, None, Repair::No).await.expect("a recount");
        assert_eq!((recount.before, recount.after, recount.as_of), (0, 0, read.as_of), "{name}, before the first roll");
        assert!(house.now().since(recount.as_of) < 10 * SECOND, "{name}: {:?}", recount.as_of);
    }
    house.pass(20 * SECOND).await;
    let read = house.get("views").await;
    let recount =
        house.counting.recount(&house.shop, counter("views"), None, None, Repair::No).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.as_of), (5, 5, read.as_of), "long after the last roll");
}

#[tokio::test]
async fn a_counter_that_was_never_written_is_told_apart_from_one_that_is_0() {
    for counter_type in [CounterType::Eventual, CounterType::Accurate] {
        let house = House::of_type(counter_type).await;
        house.add("back", 5, None).await.expect("an add");
        house.add("back", -5, None).await.expect("an add");
        house.clear("cleared", None).await.expect("a clear");
        house.add("nothing", 0, None).await.expect("an add of nothing, which is not kept");
        for _ in 0..2 {
            for (name, never_written) in [("back", false), ("cleared", false), ("nothing", true), ("missing", true)] {
                let (stale, fresh) = (house.get(name).await, house.fresh(name).await);
                let told = [stale, fresh].map(|reading| (reading.count, reading.never_written()));
                assert_eq!(told, [(0, never_written); 2], "{name} of {counter_type:?}");
            }
            // Rolled up and once more.
            house.pass(SECOND * 20).await;
        }
    }
    let fast = House::of_type(CounterType::BestEffort).await;
    assert!(!fast.get("missing").await.never_written(), "a best-effort namespace cannot tell");
}
