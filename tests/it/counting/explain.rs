//! ExplainCounter: the parts add up to the count, at every moment of a counter's way, and a long tail stops nobody.

use std::time::Duration;

use tallystone::domain::counter::{Change, ReportSource};
use tallystone::domain::limits::{FOLD_EVENTS_AT_ONCE_MAX, RECOUNTS_AT_ONCE_MAX};
use tallystone::domain::namespace::{CounterType, OnNewEpoch, Temporality};
use tallystone::engine::counting::{CountParts, CountRestart, CounterExplanation, Report, RollerLocation, RowStage};

use super::long_folds::{house_with_events, turns_of};
use super::{House, SECOND, counter, spec};

async fn explain(house: &House, name: &str) -> CounterExplanation {
    let call = house.counting.explain(&house.shop, counter(name), 10);
    house.drive(call).await.expect("an explanation")
}

/// The parts of a counter, which add up to its count.
async fn parts(house: &House, name: &str) -> CountParts {
    let parts = explain(house, name).await.parts.expect("a durable counter has parts");
    assert_eq!(parts.rolled_up.counts + parts.tail.counts, parts.count, "{parts:?}");
    let fresh = house.fresh(name).await;
    assert_eq!(parts.count, i128::from(fresh.count), "it is what an up-to-date read says: {parts:?}");
    parts
}

#[tokio::test]
async fn the_parts_of_a_count_add_up_before_and_after_it_is_rolled_up() {
    let house = House::new().await;
    for delta in [3, -1] {
        house.add("views", delta, None).await.expect("an add");
    }
    let new = parts(&house, "views").await;
    assert!(new.rolled_up.checkpoint.is_none() && new.rolled_up.rolled.is_none(), "{new:?}");
    assert_eq!((new.tail.rows, new.tail.adds, new.tail.sum, new.tail.counts), (2, 2, 2, 2));
    assert_eq!((new.waiting.rows_above_limit, new.waiting.rows_ready, new.waiting.touched_steps), (2, 0, 1));
    let signalled = new.waiting.signalled.expect("the adds signalled the rollup");
    assert_eq!((Some(signalled.oldest), Some(signalled.newest)), (new.tail.first, new.tail.last));
    assert_eq!(new.waiting.roller, RollerLocation::Here);
    assert!(new.rows.iter().all(|row| row.stage == RowStage::AboveLimit), "{new:?}");

    let before_roll = house.now();
    house.pass(SECOND * 20).await;
    house.add("views", 5, None).await.expect("an add");
    let rolled = parts(&house, "views").await;
    let checkpoint = rolled.rolled_up.checkpoint.as_ref().expect("it was rolled up");
    assert_eq!((checkpoint.count, rolled.rolled_up.counts, rolled.tail.counts, rolled.count), (2, 2, 5, 7));
    let roller = rolled.rolled_up.rolled.clone().expect("its roll was noted");
    assert!(roller.is_this && roller.at > before_roll && roller.at <= house.now(), "{roller:?}");
    let stages: Vec<RowStage> = rolled.rows.iter().map(|row| row.stage).collect();
    assert_eq!(stages, [RowStage::AboveLimit, RowStage::RolledUp, RowStage::RolledUp]);
    let deltas: Vec<Change> = rolled.rows.iter().map(|row| row.event.change).collect();
    assert_eq!(deltas, [Change::Add(5), Change::Add(-1), Change::Add(3)], "the newest row comes first");

    house.pass(SECOND * 20).await;
    let done = parts(&house, "views").await;
    assert_eq!((done.tail.rows, done.rolled_up.counts, done.count), (0, 7, 7));
    assert_eq!((done.waiting.signalled, done.waiting.touched_steps), (None, 0), "nothing waits");
}

#[tokio::test]
async fn a_clear_that_is_not_rolled_up_leaves_nothing_of_the_checkpoint() {
    let house = House::new().await;
    house.add("views", 40, None).await.expect("an add");
    house.pass(SECOND * 20).await;
    house.add("views", 1, None).await.expect("an add");
    house.pass(Duration::from_millis(10)).await;
    let cleared = house.clear("views", None).await.expect("a clear");
    house.pass(Duration::from_millis(10)).await;
    house.add("views", 2, None).await.expect("an add");
    let explained = parts(&house, "views").await;
    assert_eq!(explained.restart, CountRestart::Clear(cleared.token.key.time));
    assert_eq!((explained.rolled_up.counts, explained.tail.counts), (0, 2));
    assert_eq!((explained.tail.adds, explained.tail.sum, explained.tail.clears), (2, 3, 1));
    house.pass(SECOND * 20).await;
    let rolled = parts(&house, "views").await;
    assert_eq!((rolled.restart, rolled.rolled_up.counts), (CountRestart::None, 2));
    let clear = rolled.rolled_up.checkpoint.and_then(|checkpoint| checkpoint.clear);
    assert_eq!(clear, Some(cleared.token.key));
}

#[tokio::test]
async fn a_silence_longer_than_the_ttl_is_told_while_it_lasts_and_when_it_has_ended() {
    let mut spec = spec("shop");
    spec.ttl = Some(SECOND * 60);
    let house = House::with(spec).await;
    let first = house.add("views", 40, None).await.expect("an add").token.key.time;
    house.pass(SECOND * 20).await;
    assert_eq!(parts(&house, "views").await.restart, CountRestart::None);
    house.pass(SECOND * 60).await;
    let silent = parts(&house, "views").await;
    assert_eq!((silent.restart, silent.count, silent.rolled_up.counts), (CountRestart::Silent(first), 0, 0));
    let second = house.add("views", 2, None).await.expect("an add").token.key.time;
    let ended = parts(&house, "views").await;
    assert_eq!((ended.restart, ended.count, ended.tail.counts), (CountRestart::Silence(second), 2, 2));
}

#[tokio::test]
async fn a_cumulative_count_is_explained_by_the_totals_of_its_sources() {
    let mut spec = spec("shop");
    spec.temporality = Temporality::Cumulative;
    spec.on_new_epoch = Some(OnNewEpoch::Add);
    let house = House::with(spec).await;
    let report = async |source: &str, serial: u64, total: i64| {
        let report = Report { source: ReportSource::new(source).expect("a valid source"), epoch: 1, serial };
        let call = house.counting.report_totals(&house.shop, report, vec![Ok((counter("depth"), total))]);
        house.drive(call).await.expect("a report");
    };
    report("a", 1, 10).await;
    report("b", 1, 5).await;
    house.pass(SECOND * 20).await;
    report("a", 2, 12).await;
    let explained = parts(&house, "depth").await;
    assert_eq!((explained.rolled_up.counts, explained.tail.counts, explained.tail.totals), (15, 2, 1));
    let sources = explained.rolled_up.checkpoint.expect("it was rolled up").sources;
    let totals: Vec<(&str, i64)> = sources.iter().map(|(source, total)| (&**source, total.newest.total)).collect();
    assert_eq!(totals, [("a", 10), ("b", 5)]);
    assert!(explained.rows_left_out_at_least, "no record counts totals, so nobody knows how many there are");
}

#[tokio::test]
async fn what_is_not_shown_of_the_log_is_counted_over_tail_open_bucket_and_finished_ones() {
    let mut spec = spec("shop");
    spec.partition.seconds_per_bucket = 60;
    let house = House::with(spec).await;
    for _ in 0..3 {
        for _ in 0..20 {
            house.add("views", 1, None).await.expect("an add");
        }
        house.pass(SECOND * 50).await;
    }
    for _ in 0..7 {
        house.add("views", 1, None).await.expect("an add");
    }
    let explained = parts(&house, "views").await;
    assert_eq!((explained.rows.len(), explained.rows_left_out), (10, 57));
    assert!(!explained.rows_left_out_at_least, "{explained:?}");
    assert!(explained.rows.iter().all(|row| row.bucket <= row.event.key.time), "{explained:?}");
}

#[tokio::test]
async fn a_counter_that_nobody_wrote_has_no_parts_that_count() {
    let house = House::new().await;
    let explained = explain(&house, "nobody").await;
    assert!(explained.reading.never_written(), "{explained:?}");
    let parts = explained.parts.expect("parts");
    assert_eq!((parts.count, parts.tail.rows, parts.rows.len(), parts.rows_left_out), (0, 0, 0, 0));
    assert!(parts.rolled_up.checkpoint.is_none());
}

#[tokio::test]
async fn explaining_a_long_tail_gives_others_a_turn_after_every_thousand_events() {
    const EVENTS: usize = 5 * FOLD_EVENTS_AT_ONCE_MAX + 1;
    let (house, _log) = house_with_events(CounterType::Eventual, EVENTS).await;
    let (explained, turns) = turns_of(house.counting.explain(&house.shop, counter("views"), 10)).await;
    let parts = explained.expect("an explanation").parts.expect("parts");
    assert_eq!((parts.tail.rows, parts.count), (EVENTS as u64, EVENTS as i128));
    assert!(turns >= EVENTS / FOLD_EVENTS_AT_ONCE_MAX, "{turns} turns in {EVENTS} events");
}

#[tokio::test]
async fn explanations_share_the_turns_of_recounts_and_one_that_nobody_waits_for_reads_nothing_more() {
    const EVENTS: usize = 5 * FOLD_EVENTS_AT_ONCE_MAX + 1;
    let (house, log) = house_with_events(CounterType::Eventual, EVENTS).await;
    let explain = || Box::pin(house.counting.explain(&house.shop, counter("views"), 10));
    let mut calls: Vec<_> = (0..4 * RECOUNTS_AT_ONCE_MAX).map(|_| explain()).collect();
    for _ in 0..3 {
        let before = log.scans();
        for call in &mut calls {
            assert!(futures_util::poll!(call.as_mut()).is_pending(), "none is done after 3,000 events");
        }
        let scans = log.scans() - before;
        assert!(scans <= RECOUNTS_AT_ONCE_MAX, "{scans} pages before others had a turn");
        tokio::task::yield_now().await;
    }
    let read = log.scans();
    drop(calls);
    house.rest().await;
    assert_eq!(log.scans(), read);
}
