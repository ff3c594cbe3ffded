//! Folds of many events: others have their turn after every 1,000 of them, and a fold whose caller went away ends there.
//!
//! Everything runs on one thread and on stores that answer at once, so nothing but the fold itself gives others a turn.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::limits::{FOLD_EVENTS_AT_ONCE_MAX, RECOUNTS_AT_ONCE_MAX, TAIL_EVENTS_MAX};
use tallystone::domain::namespace::CounterType;
use tallystone::domain::rollup::{CountReading, Exactness, Freshness, ReadOptions};
use tallystone::engine::counting::{CountingError, Recount, Repair};

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec};

const EVENTS: usize = 5 * FOLD_EVENTS_AT_ONCE_MAX + 1;

pub(super) async fn house_with_events(counter_type: CounterType, events: usize) -> (House, Arc<SlowLog>) {
    let clock = ManualClock::at(START + Duration::from_secs(3_600));
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let mut spec = spec("shop");
    spec.counter_type = counter_type;
    let house = House::on(spec, clock, stores, None).await;
    for _ in 0..events {
        house.add("views", 1, None).await.expect("an add");
    }
    (house, log)
}

type Recounting<'a> = Pin<Box<dyn Future<Output = Result<Recount, CountingError>> + 'a>>;

fn recount(house: &House) -> Recounting<'_> {
    Box::pin(house.counting.recount(&house.shop, counter("views"), None, None, Repair::No))
}

/// Polls a call to its end; answers how often it gave others a turn before.
pub(super) async fn turns_of<T>(call: impl Future<Output = T>) -> (T, usize) {
    let mut call = pin!(call);
    let mut turns = 0;
    loop {
        if let std::task::Poll::Ready(answer) = futures_util::poll!(call.as_mut()) {
            return (answer, turns);
        }
        turns += 1;
        assert!(turns < 10_000, "the call does not end");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_recount_gives_others_a_turn_after_every_thousand_events() {
    let (house, _log) = house_with_events(CounterType::Eventual, EVENTS).await;
    house.pass(SECOND * 20).await;
    let (recounted, turns) = turns_of(recount(&house)).await;
    let recounted = recounted.expect("a recount");
    assert_eq!((recounted.after, recounted.events_read), (EVENTS as i128, EVENTS as u64));
    assert!(turns >= EVENTS / FOLD_EVENTS_AT_ONCE_MAX, "{turns} turns in {EVENTS} events");
}

#[tokio::test]
async fn a_recount_that_nobody_waits_for_any_more_reads_nothing_more() {
    let (house, log) = house_with_events(CounterType::Eventual, EVENTS).await;
    house.pass(SECOND * 20).await;
    let before = log.scans();
    let mut call = recount(&house);
    while log.scans() < before + 2 {
        assert!(futures_util::poll!(call.as_mut()).is_pending(), "it is not done after 2,000 events");
        tokio::task::yield_now().await;
    }
    let read = log.scans();
    drop(call);
    house.rest().await;
    assert_eq!(log.scans(), read);
}

#[tokio::test]
async fn many_recounts_at_once_share_few_turns_and_all_end() {
    let (house, log) = house_with_events(CounterType::Eventual, EVENTS).await;
    house.pass(SECOND * 20).await;
    let mut calls: Vec<Recounting<'_>> = (0..4 * RECOUNTS_AT_ONCE_MAX).map(|_| recount(&house)).collect();
    let mut rounds = 0;
    while !calls.is_empty() {
        let before = log.scans();
        let mut left = Vec::new();
        for mut call in calls {
            match futures_util::poll!(call.as_mut()) {
                std::task::Poll::Ready(recounted) => assert_eq!(recounted.expect("a recount").after, EVENTS as i128),
                std::task::Poll::Pending => left.push(call),
            }
        }
        // One that ends makes room for another in the same round.
        let scans = log.scans() - before;
        assert!(scans <= 2 * RECOUNTS_AT_ONCE_MAX, "{scans} pages before others had a turn");
        calls = left;
        rounds += 1;
        assert!(rounds < 10_000, "they do not end");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_read_that_adds_up_the_tail_event_by_event_gives_others_a_turn_too() {
    let (house, log) = house_with_events(CounterType::Accurate, EVENTS).await;
    log.forget_tail();
    let options = ReadOptions { freshness: Freshness::UpToDate, ..ReadOptions::default() };
    let (reading, turns) = turns_of(house.counting.get(&house.shop, counter("views"), options)).await;
    let CountReading { count, exactness, .. } = reading.expect("a read");
    assert_eq!((count, exactness), (EVENTS as i64, Exactness::UpToDate));
    assert!(turns >= EVENTS / FOLD_EVENTS_AT_ONCE_MAX, "{turns} turns in {EVENTS} events");
    const { assert!(EVENTS <= TAIL_EVENTS_MAX, "a longer tail is rolled up first") };
}
