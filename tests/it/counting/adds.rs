//! Adds: counted once, whatever is repeated.

use std::sync::Arc;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::Reason;
use tallystone::domain::counter::{Counter, Provenance, ReportSource};
use tallystone::domain::namespace::CounterType;
use tallystone::domain::rollup::{Exactness, Freshness, ReadOptions};
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::{Add, Clear, Report, WriteOutcome};

use super::faulty_progress::{Fault, FaultyProgress};
use super::{House, SECOND, START, applied, counter, spec, token};

#[tokio::test]
async fn an_add_is_visible_to_an_up_to_date_read_at_once_and_to_others_after_the_window() {
    let house = House::new().await;
    house.add("views", 5, None).await.expect("an add that works");
    assert_eq!(house.fresh("views").await.count, 5);
    let early = house.get("views").await;
    assert_eq!((early.count, early.behind), (0, true));
    house.pass(8 * SECOND).await;
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind, reading.exactness), (5, false, Exactness::ExactAsOf));
}

#[tokio::test]
async fn a_retry_counts_once_and_is_told_so() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    assert_eq!(applied(&house.add("views", 5, Some(mine.clone())).await), Some(WriteOutcome::Applied));
    assert_eq!(applied(&house.add("views", 5, Some(mine.clone())).await), Some(WriteOutcome::AlreadyApplied));
    house.pass(20 * SECOND).await;
    assert_eq!(applied(&house.add("views", 5, Some(mine)).await), Some(WriteOutcome::AlreadyApplied));
    assert_eq!(house.fresh("views").await.count, 5);
}

#[tokio::test]
async fn a_token_used_for_another_delta_is_refused_and_both_are_shown() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    house.add("views", 5, Some(mine.clone())).await.expect("an add that works");
    for pause in [0, 20] {
        house.pass(pause * SECOND).await;
        let refused = house.add("views", 6, Some(mine.clone())).await.expect_err("the token names another change");
        assert_eq!(refused.reason(), Reason::AlreadyExists);
        assert!(
            refused.to_string().contains("an add of 5") && refused.to_string().contains("an add of 6"),
            "{refused}"
        );
    }
    assert_eq!(house.fresh("views").await.count, 5);
}

#[tokio::test]
async fn a_delta_of_zero_writes_nothing_and_keeps_no_token() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    assert_eq!(applied(&house.add("views", 0, Some(mine.clone())).await), Some(WriteOutcome::Applied));
    assert_eq!(applied(&house.add("views", 3, Some(mine)).await), Some(WriteOutcome::Applied));
    assert_eq!(house.fresh("views").await.count, 3);
}

#[tokio::test]
async fn a_token_far_ahead_of_the_server_is_refused_with_the_servers_time() {
    let house = House::new().await;
    let ahead = token("t1", house.now() + 6 * SECOND);
    let refused = house.add("views", 1, Some(ahead)).await.expect_err("too far ahead");
    assert_eq!(refused.reason(), Reason::InvalidFutureTime);
    assert!(refused.server_time().is_some());
    let allowed = token("t2", house.now() + 4 * SECOND);
    house.add("views", 1, Some(allowed)).await.expect("inside the future limit");
}

#[tokio::test]
async fn both_ends_of_a_delta_count_and_the_sum_saturates_only_in_the_answer() {
    let house = House::new().await;
    for delta in [i64::MAX, i64::MAX] {
        house.add("big", delta, None).await.expect("an add that works");
    }
    let reading = house.fresh("big").await;
    assert_eq!((reading.count, reading.saturated), (i64::MAX, true));
    house.add("big", i64::MIN, None).await.expect("an add that works");
    let reading = house.fresh("big").await;
    assert_eq!((reading.count, reading.saturated), (i64::MAX - 1, false));
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("big").await.count, i64::MAX - 1);
}

#[tokio::test]
async fn a_batch_answers_each_item_and_a_second_use_of_a_token_in_it_counts_once() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    let item =
        |delta| Ok(Add { name: counter("views"), delta, token: Some(mine.clone()), provenance: Provenance::default() });
    let answers = house
        .drive(house.counting.batch_add(&house.shop, vec![item(2), item(2), item(3)]))
        .await
        .expect("the namespace is there");
    assert_eq!(applied(&answers[0]), Some(WriteOutcome::Applied));
    assert_eq!(applied(&answers[1]), Some(WriteOutcome::AlreadyApplied));
    assert_eq!(answers[2].as_ref().expect_err("another delta").reason(), Reason::AlreadyExists);
    assert_eq!(house.fresh("views").await.count, 2);
}

#[tokio::test]
async fn add_and_get_says_what_kind_of_number_it_answers() {
    let house = House::new().await;
    let add = |delta| Add { name: counter("views"), delta, token: None, provenance: Provenance::default() };
    let (_, reading) = house
        .drive(house.counting.add_and_get(&house.shop, add(4), Freshness::ByType))
        .await
        .expect("an add that works");
    assert_eq!((reading.count, reading.exactness), (4, Exactness::Estimate));
    let (_, reading) = house
        .drive(house.counting.add_and_get(&house.shop, add(-1), Freshness::UpToDate))
        .await
        .expect("an add that works");
    assert_eq!((reading.count, reading.exactness), (3, Exactness::UpToDate));
}

#[tokio::test]
async fn a_best_effort_counter_answers_estimates_and_promises_no_idempotency() {
    let house = House::of_type(CounterType::BestEffort).await;
    let written = house.add("views", 5, Some(token("t", house.now()))).await.expect("an add that works");
    assert!(!written.token.idempotent);
    house.add("views", -8, None).await.expect("an add that works");
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.exactness), (-3, Exactness::Estimate));
    let cleared = house.clear("views", None).await.expect("a clear that works");
    assert_eq!(house.get("views").await.count, 0);
    let again = house.clear("views", None).await.expect("a clear that works");
    assert!(!cleared.token.idempotent && cleared.token != again.token, "each has a token of its own");
}

#[tokio::test]
async fn a_caller_that_goes_away_changes_nothing_about_its_write() {
    let house = House::new().await;
    let mine = token("t1", house.now());
    {
        let add =
            Add { name: counter("views"), delta: 5, token: Some(mine.clone()), provenance: Provenance::default() };
        let call = house.counting.add(&house.shop, add);
        tokio::pin!(call);
        // Polled once, then dropped.
        let _ = futures_util::poll!(call.as_mut());
    }
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 5);
    assert_eq!(applied(&house.add("views", 5, Some(mine)).await), Some(WriteOutcome::AlreadyApplied));
}

#[tokio::test]
async fn a_best_effort_add_of_zero_makes_no_counter() {
    let house = House::of_type(CounterType::BestEffort).await;
    house.add("views", 0, None).await.expect("an add that works");
    assert!(house.counting.list(&house.shop, "", None, 10).await.expect("a page").is_empty());
}

#[tokio::test]
async fn namespaces_of_the_service_take_no_writes_of_users() {
    let house = House::new().await;
    let own = spec("tallystone.usage");
    house.engine.namespaces().ensure(own.clone(), Author::default()).await.expect("the service may");
    let add = Add { name: counter("views"), delta: 1, token: None, provenance: Provenance::default() };
    let refused = house.counting.add(&own.name, add.clone()).await.expect_err("read only");
    assert_eq!(refused.reason(), Reason::NamespaceReadOnly);
    let refused = house.counting.batch_add(&own.name, vec![Ok(add.clone())]).await.expect_err("read only");
    assert_eq!(refused.reason(), Reason::NamespaceReadOnly);
    let refused = house.counting.add_and_get(&own.name, add, Freshness::ByType).await.expect_err("read only");
    assert_eq!(refused.reason(), Reason::NamespaceReadOnly);
    let clear = Clear { name: counter("views"), token: None, provenance: Provenance::default() };
    assert_eq!(
        house.counting.clear(&own.name, clear).await.expect_err("read only").reason(),
        Reason::NamespaceReadOnly
    );
    let late = token("t1", house.now() - 30 * SECOND);
    let refused = house.counting.check_token(&own.name, counter("views"), late.clone()).await.expect_err("read only");
    assert_eq!(refused.reason(), Reason::NamespaceReadOnly);
    let stands = Counter::new(house.engine.namespaces().get(&own.name).expect("it is there").id, counter("views"));
    let dataset = house.engine.namespaces().get(&own.name).expect("it is there").dataset_id;
    let found = house.stores.log.find(dataset, &stands, &late.key).await.expect("a look that works");
    assert_eq!(found, None, "no void was written");
    let report = Report { source: ReportSource::new("web-1").expect("a valid source"), epoch: 1, serial: 1 };
    let totals = vec![Ok((counter("views"), 1))];
    let refused = house.counting.report_totals(&own.name, report, totals).await.expect_err("read only");
    assert_eq!(refused.reason(), Reason::NamespaceReadOnly);
    let read = house.drive(house.counting.get(&own.name, counter("views"), ReadOptions::default())).await;
    assert_eq!(read.expect("a read that works").count, 0);
}

#[tokio::test]
async fn an_add_acknowledged_at_or_below_a_told_limit_is_counted_as_what_must_not_be() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let progress = FaultyProgress::before(&mut stores);
    let house = House::on(spec("shop"), clock, stores, None).await;
    let broken = || house.engine.stats().acknowledged_below_limit.get();
    house.add("views", 1, None).await.expect("an add that works");
    house.pass(10 * SECOND).await;
    house.get("views").await;
    house.add("views", 1, None).await.expect("an add that works");
    assert_eq!(broken(), 0);
    progress.set(Fault::Ahead(60 * SECOND));
    house.pass(10 * SECOND).await;
    house.get("views").await;
    house.add("views", 1, None).await.expect("an add that works");
    assert_eq!(broken(), 1, "a limit above what this writer had closed was told");
    house.clear("views", None).await.expect("a clear that works");
    assert_eq!(broken(), 2);
}
