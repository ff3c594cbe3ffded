//! Cumulative namespaces: repeats, restarts and rewinds of a source cannot miscount.

use tallystone::domain::Reason;
use tallystone::domain::counter::Source;
use tallystone::domain::namespace::Temporality;
use tallystone::engine::counting::{CountingError, Report, WriteOutcome, Written};

use super::{House, SECOND, applied, counter, spec};

async fn house() -> House {
    let mut spec = spec("shop");
    spec.temporality = Temporality::Cumulative;
    House::with(spec).await
}

async fn report(house: &House, source: &str, epoch: u64, serial: u64, total: i64) -> Result<Written, CountingError> {
    let report = Report { source: Source::new(source).expect("a valid source"), epoch, serial };
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
