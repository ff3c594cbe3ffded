//! Cumulative namespaces: repeats, restarts and rewinds of a source cannot miscount.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::Reason;
use tallystone::domain::counter::{Change, Counter, Event, EventId, EventKey, Provenance, ReportSource};
use tallystone::domain::namespace::{NamespaceSpec, OnNewEpoch, SeriesSettings, Temporality};
use tallystone::engine::counting::{CountingError, Report, SeriesQuery, WriteOutcome, Written};
use tallystone::ports::NewEvent;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, applied, counter, spec};

fn totals(on_new_epoch: OnNewEpoch) -> NamespaceSpec {
    let mut spec = spec("shop");
    spec.temporality = Temporality::Cumulative;
    spec.on_new_epoch = Some(on_new_epoch);
    spec
}

async fn house() -> House {
    House::with(totals(OnNewEpoch::Replace)).await
}

async fn report(house: &House, source: &str, epoch: u64, serial: u64, total: i64) -> Result<Written, CountingError> {
    let report = Report { source: ReportSource::new(source).expect("a valid source"), epoch, serial };
    let items = vec![Ok((counter("depth"), total))];
    let answers = house.drive(house.counting.report_totals(&house.shop, report, items)).await?;
    answers.into_iter().next().expect("an answer for the item")
}

#[tokio::test]
async fn the_value_is_the_sum_of_the_newest_totals_of_all_sources() {
    let house = house().await;
    report(&house, "a", 1, 1, 10).await.expect("a report");
    report(&house, "b", 1, 1, 5).await.expect("a report");
    report(&house, "a", 1, 2, 12).await.expect("a report");
    assert_eq!(house.fresh("depth").await.count, 17);
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("depth").await.count, 17);
    report(&house, "a", 2, 1, 3).await.expect("a restart of the source");
    assert_eq!(house.fresh("depth").await.count, 8);
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("depth").await.count, 8);
}

#[tokio::test]
async fn what_a_source_counted_before_its_restart_stays_counted() {
    let mut spec = totals(OnNewEpoch::Add);
    spec.series = vec![SeriesSettings { step_seconds: 10, keep: SECOND * 86_400 }];
    let house = House::with(spec).await;
    let begin = house.now().floor_to(SECOND * 10) + SECOND * 10;
    let (mut counts, mut serial) = (Vec::new(), 0);
    for (epoch, total) in [(1, 1_000), (1, 1_500), (2, 20), (2, 60)] {
        house.pass(SECOND * 10).await;
        serial += 1;
        report(&house, "a", epoch, serial, total).await.expect("a report");
        counts.push(house.fresh("depth").await.count);
    }
    assert_eq!(counts, [1_000, 1_500, 1_520, 1_560]);
    assert_eq!(report(&house, "a", 1, 9, 1_600).await.expect_err("an epoch that is over").reason(), Reason::SerialBack);
    report(&house, "b", 7, 1, 5).await.expect("another source");
    house.pass(SECOND * 30).await;
    assert_eq!(house.get("depth").await.count, 1_565, "and the same once all is rolled up");
    let range = SeriesQuery { from: begin, to: begin + SECOND * 40, step: None };
    let series = house.drive(house.counting.series(&house.shop, counter("depth"), range)).await.expect("a series");
    let steps: Vec<i128> = series.rows.iter().map(|row| row.sum).collect();
    assert_eq!(steps, [1_000, 500, 20, 45]);
}

#[tokio::test]
async fn a_total_that_falls_within_its_epoch_is_refused_where_epochs_are_added() {
    let house = House::with(totals(OnNewEpoch::Add)).await;
    report(&house, "a", 1, 5, 10).await.expect("a report");
    for pause in [0, 10] {
        house.pass(pause * SECOND).await;
        let fell = report(&house, "a", 1, 6, 9).await.expect_err("it falls");
        assert_eq!(fell.reason(), Reason::TotalBack);
        assert!(fell.to_string().contains("below 10, where epoch 1 of the source stands"), "{fell}");
        assert_eq!(fell.metadata(), [("known_total", "10".to_owned())]);
        assert_eq!(report(&house, "a", 2, 1, -1).await.expect_err("an epoch begins at 0").reason(), Reason::TotalBack);
        assert_eq!(report(&house, "a", 1, 4, 9).await.expect_err("goes back").reason(), Reason::SerialBack);
        assert_eq!(report(&house, "a", 1, 5, 9).await.expect_err("differs").reason(), Reason::AlreadyExists);
    }
    report(&house, "a", 1, 6, 10).await.expect("a total that stands");
    assert_eq!(house.fresh("depth").await.count, 10);
    let levels = self::house().await;
    report(&levels, "a", 1, 1, 10).await.expect("a report");
    report(&levels, "a", 1, 2, -4).await.expect("a level may fall");
    assert_eq!(levels.fresh("depth").await.count, -4);
}

#[tokio::test]
async fn a_serial_that_goes_back_is_refused_and_a_repeat_is_known() {
    let house = house().await;
    report(&house, "a", 1, 5, 10).await.expect("a report");
    for pause in [0, 10] {
        house.pass(pause * SECOND).await;
        assert_eq!(applied(&report(&house, "a", 1, 5, 10).await), Some(WriteOutcome::AlreadyApplied));
        assert_eq!(report(&house, "a", 1, 4, 9).await.expect_err("goes back").reason(), Reason::SerialBack);
        assert_eq!(report(&house, "a", 1, 5, 11).await.expect_err("differs").reason(), Reason::AlreadyExists);
    }
    assert_eq!(house.fresh("depth").await.count, 10);
}

#[tokio::test]
async fn a_repeat_answers_the_time_of_the_event_that_it_repeats() {
    let house = house().await;
    let first = report(&house, "a", 1, 5, 10).await.expect("a report").token.key.time;
    for pause in [0, 1, 10] {
        house.pass(pause * SECOND).await;
        let again = report(&house, "a", 1, 5, 10).await.expect("a repeat");
        assert_eq!((again.outcome, again.token.key.time), (WriteOutcome::AlreadyApplied, first));
        let taken = report(&house, "a", 1, 5, 11).await.expect_err("another total");
        assert!(taken.to_string().contains("raise the serial") && !taken.to_string().contains("token"), "{taken}");
    }
}

#[tokio::test]
async fn a_257th_source_is_refused() {
    let house = house().await;
    for n in 0..256 {
        report(&house, &format!("s{n}"), 1, 1, 1).await.expect("a report");
    }
    assert_eq!(report(&house, "one-more", 1, 1, 1).await.expect_err("too many").reason(), Reason::TooManySources);
    assert_eq!(house.fresh("depth").await.count, 256);
}

#[tokio::test]
async fn deltas_and_totals_do_not_mix() {
    let house = house().await;
    assert_eq!(house.add("depth", 1, None).await.expect_err("totals only").reason(), Reason::WrongTemporality);
    assert_eq!(house.clear("depth", None).await.expect_err("totals only").reason(), Reason::WrongTemporality);
    let deltas = House::new().await;
    assert_eq!(report(&deltas, "a", 1, 1, 1).await.expect_err("deltas only").reason(), Reason::WrongTemporality);
}

#[tokio::test]
async fn two_reports_of_one_source_at_once_are_judged_one_after_the_other() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let house = House::on(totals(OnNewEpoch::Replace), clock, stores, None).await;
    log.shut();
    let in_flight = |serial: u64, total: i64| {
        let (counting, shop) = (house.counting.clone(), house.shop.clone());
        let report = Report { source: ReportSource::new("a").expect("a valid source"), epoch: 1, serial };
        tokio::spawn(async move {
            let answers = counting.report_totals(&shop, report, vec![Ok((counter("depth"), total))]).await;
            answers.expect("the namespace is there").pop().expect("an answer for the item")
        })
    };
    let mut calls = Vec::new();
    for (serial, total) in [(5, 10), (5, 11), (4, 9), (5, 10)] {
        calls.push(in_flight(serial, total));
        house.rest().await;
        house.clock.advance(Duration::from_millis(5));
    }
    log.open();
    let mut told = Vec::new();
    for call in calls {
        told.push(house.drive(call).await.expect("no panic"));
    }
    assert_eq!(applied(&told[0]), Some(WriteOutcome::Applied));
    assert_eq!(told[1].as_ref().expect_err("differs").reason(), Reason::AlreadyExists);
    assert_eq!(told[2].as_ref().expect_err("goes back").reason(), Reason::SerialBack);
    assert_eq!(applied(&told[3]), Some(WriteOutcome::AlreadyApplied));
    assert_eq!(house.fresh("depth").await.count, 10);
}

#[tokio::test]
async fn the_newest_total_is_known_however_long_the_tail_is() {
    let house = house().await;
    report(&house, "a", 1, 1, 1).await.expect("a report");
    let shop = house.engine.namespaces().get(&house.shop).expect("it is there");
    let depth = Counter::new(shop.id, counter("depth"));
    let total = |serial: u64| {
        let key = EventKey { time: house.now(), id: EventId::total("a", 1, serial) };
        let event = Event { key, change: Change::Total(7), provenance: Provenance::default() };
        NewEvent { counter: depth.clone(), event }
    };
    let events = (2..10_050).map(total).collect();
    let answers = house.stores.log.append(shop.dataset_id, events, Box::new(())).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(report(&house, "a", 1, 10_040, 9).await.expect_err("goes back").reason(), Reason::SerialBack);
    assert_eq!(applied(&report(&house, "a", 1, 10_049, 7).await), Some(WriteOutcome::AlreadyApplied));
}
