//! Calls with many items: worked some at once, within one budget, answered in the order of the items.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::counter::{CounterName, Provenance};
use tallystone::domain::limits::{CALL_READS_AT_ONCE_MAX, CALL_VERDICTS_AT_ONCE_MAX, INLINE_ROLL_BUDGET};
use tallystone::domain::rollup::{Freshness, ReadOptions};
use tallystone::domain::{Reason, Reject};
use tallystone::engine::counting::{Add, CountingError, Written};
use tallystone::ports::Clock;

use super::faulty_progress::{Fault, FaultyProgress};
use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, spec, token};

const MANY: usize = 100;
/// How far the clock moves while a call waits, beyond what it waits for.
const GRAIN: Duration = Duration::from_millis(5);

struct Slow {
    house: House,
    log: Arc<SlowLog>,
    progress: Arc<FaultyProgress>,
}

/// Counters `c00`, `c01`, … that hold 0, 1, …, none of them rolled up, and a publication of limits that can hang.
async fn many_counters() -> Slow {
    let mut lazy = spec("shop");
    lazy.rollup.coalesce_ms = 600_000;
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let progress = FaultyProgress::before(&mut stores);
    let house = House::on(lazy, clock, stores, None).await;
    for n in 0..MANY {
        house.add(&name(n), n as i64 + 1, None).await.expect("an add that works");
    }
    Slow { house, log, progress }
}

fn name(n: usize) -> String {
    format!("c{n:02}")
}

impl Slow {
    /// What a call answers, and how long it waited.
    async fn timed<T>(&self, call: impl Future<Output = T>) -> (T, Duration) {
        let began = self.house.clock.elapsed();
        let answer = self.house.drive(call).await;
        (answer, self.house.clock.elapsed() - began)
    }

    async fn add_all(&self, items: Vec<Result<Add, Reject>>) -> (Vec<Result<Written, CountingError>>, Duration) {
        let (answers, waited) = self.timed(self.house.counting.batch_add(&self.house.shop, items)).await;
        (answers.expect("the namespace is there"), waited)
    }
}

#[tokio::test]
async fn a_batch_of_reads_waits_for_one_budget_and_answers_in_order() {
    let slow = many_counters().await;
    slow.progress.set(Fault::Hangs);
    slow.house.pass(10 * SECOND).await;
    let mut names: Vec<Result<CounterName, Reject>> = (0..MANY).rev().map(|n| Ok(counter(&name(n)))).collect();
    names.insert(40, Err(Reject::new(Reason::InvalidCounterName, "no name")));
    let options = ReadOptions {
        at_least_as_of: Some(slow.house.now() - 6 * SECOND),
        freshness: Freshness::UpToDate,
        ..ReadOptions::default()
    };
    let call = slow.house.counting.batch_get(&slow.house.shop, names, options);
    let (answers, waited) = slow.timed(call).await;
    assert!(waited <= INLINE_ROLL_BUDGET + GRAIN, "{waited:?} for {MANY} counters");
    let mut answers = answers.expect("the namespace is there");
    assert_eq!(answers.remove(40).expect_err("no name").reason(), Reason::InvalidCounterName);
    let readings: Vec<_> = answers.into_iter().map(|answer| answer.expect("a reading")).collect();
    let counts: Vec<_> = readings.iter().map(|reading| reading.count).collect();
    assert_eq!(counts, (1..=MANY as i64).rev().collect::<Vec<_>>());
    assert!(readings.iter().all(|reading| reading.behind), "what was asked for was not reached, and they say so");
}

#[tokio::test]
async fn a_list_waits_for_one_budget_and_keeps_its_order() {
    let slow = many_counters().await;
    slow.progress.set(Fault::Hangs);
    slow.house.pass(10 * SECOND).await;
    let (page, waited) = slow.timed(slow.house.counting.list(&slow.house.shop, "", None, MANY)).await;
    assert!(waited <= INLINE_ROLL_BUDGET + GRAIN, "{waited:?} for {MANY} counters");
    let listed: Vec<_> = page.expect("a page").into_iter().map(|one| one.name.as_str().to_owned()).collect();
    assert_eq!(listed, (0..MANY).map(name).collect::<Vec<_>>());
}

#[tokio::test]
async fn counters_that_are_behind_are_rolled_inside_the_budget_of_their_batch() {
    let slow = many_counters().await;
    slow.house.pass(10 * SECOND).await;
    let names = (0..MANY).map(|n| Ok(counter(&name(n)))).collect();
    let options = ReadOptions { max_staleness: Some(Duration::ZERO), ..ReadOptions::default() };
    let (answers, waited) = slow.timed(slow.house.counting.batch_get(&slow.house.shop, names, options)).await;
    assert!(waited <= INLINE_ROLL_BUDGET + GRAIN, "{waited:?} for {MANY} counters");
    for (n, answer) in answers.expect("the namespace is there").into_iter().enumerate() {
        let reading = answer.expect("a reading");
        assert_eq!((reading.count, reading.behind), (n as i64 + 1, false), "{}", name(n));
    }
    let rolled = slow.house.engine.stats().inline_rolls.get();
    assert_eq!(rolled, MANY as u64, "each was rolled once");
}

#[tokio::test]
async fn late_items_of_a_batch_are_settled_within_one_budget() {
    let slow = many_counters().await;
    slow.progress.set(Fault::Hangs);
    slow.house.pass(10 * SECOND).await;
    let late = slow.house.now() - 6 * SECOND;
    let add = |n: usize, text: String, time| {
        Ok(Add {
            name: counter(&name(n)),
            delta: 1,
            token: Some(token(&text, time)),
            provenance: Provenance::default(),
        })
    };
    let batch = |now| -> Vec<Result<Add, Reject>> {
        (0..MANY).flat_map(|n| [add(n, format!("late-{n}"), late), add(n, format!("now-{n}"), now)]).collect()
    };
    let (answers, waited) = slow.add_all(batch(slow.house.now())).await;
    assert!(waited <= INLINE_ROLL_BUDGET + GRAIN, "{waited:?} for {MANY} verdicts");
    for pair in answers.chunks(2) {
        assert_eq!(pair[0].as_ref().expect_err("not settled yet").reason(), Reason::Pending);
        assert!(pair[1].is_ok(), "{:?}", pair[1]);
    }
    slow.progress.set(Fault::None);
    slow.log.linger();
    let (answers, _) = slow.add_all(batch(slow.house.now())).await;
    for pair in answers.chunks(2) {
        assert_eq!(pair[0].as_ref().expect_err("a void is there").reason(), Reason::NotApplied);
        assert!(pair[1].is_ok(), "{:?}", pair[1]);
    }
    assert_eq!(slow.log.most_at_once(), CALL_VERDICTS_AT_ONCE_MAX, "some at once, and no more");
}

#[tokio::test]
async fn a_batch_reads_so_many_counters_at_once_and_no_more() {
    let slow = many_counters().await;
    slow.log.forget_tail();
    slow.log.linger();
    let names = (0..MANY).map(|n| Ok(counter(&name(n)))).collect();
    let options = ReadOptions { freshness: Freshness::UpToDate, ..ReadOptions::default() };
    let (answers, _) = slow.timed(slow.house.counting.batch_get(&slow.house.shop, names, options)).await;
    assert!(answers.expect("the namespace is there").iter().all(Result::is_ok));
    assert_eq!(slow.log.most_at_once(), CALL_READS_AT_ONCE_MAX);
}
