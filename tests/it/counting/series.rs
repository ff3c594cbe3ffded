//! Series, top, list, watch, events, recount.

use std::time::Duration;

use futures_util::StreamExt;
use tallystone::domain::Timestamp;
use tallystone::domain::namespace::SeriesSettings;
use tallystone::engine::counting::{EventsQuestion, SeriesQuestion};

use super::{House, SECOND, counter, spec};

#[tokio::test]
async fn a_series_has_a_row_for_each_step_and_says_which_is_open() {
    let mut kept = spec("shop");
    kept.series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(86_400) }];
    let house = House::with(kept).await;
    let from = house.now();
    for delta in [1, 2, 4] {
        house.add("views", delta, None).await.expect("an add that works");
        house.pass(20 * SECOND).await;
    }
    let question = SeriesQuestion { from, to: house.now(), step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    let rows: Vec<_> = answer.rows.iter().map(|row| (row.sum, row.value)).collect();
    assert_eq!(rows[..5], [(1, 1), (0, 1), (2, 3), (0, 3), (4, 7)]);
    assert!(!answer.rows[0].open && answer.rows.last().expect("rows").open);
}

#[tokio::test]
async fn an_open_step_shows_what_a_read_of_a_silent_counter_shows() {
    let mut kept = spec("shop");
    kept.ttl = Some(60 * SECOND);
    kept.series = vec![SeriesSettings { step_seconds: 3_600, keep: Duration::from_secs(86_400) }];
    let house = House::with(kept).await;
    let from = house.now();
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(20 * SECOND).await;
    let question = SeriesQuestion { from, to: house.now(), step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    assert_eq!((answer.rows[0].sum, answer.rows[0].value, answer.rows[0].open), (5, 5, true));
    house.pass(100 * SECOND).await;
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    assert_eq!((answer.rows[0].sum, answer.rows[0].value, answer.rows[0].open), (5, 0, true));
}

#[tokio::test]
async fn top_counters_follow_the_rolls() {
    let house = House::new().await;
    for n in 0..30 {
        house.add(&format!("c{n}"), n, None).await.expect("an add that works");
    }
    house.pass(8 * SECOND).await;
    let top = house.drive(house.counting.top(&house.shop, 3)).await.expect("a ranking");
    let names: Vec<_> = top.counters.iter().map(|one| (one.name.as_str().to_owned(), one.count)).collect();
    assert_eq!(names, [("c29".to_owned(), 29), ("c28".to_owned(), 28), ("c27".to_owned(), 27)]);
    house.add("c1", 1_000, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    let top = house.drive(house.counting.top(&house.shop, 1)).await.expect("a ranking");
    assert_eq!(top.counters[0].count, 1_001);
}

#[tokio::test]
async fn counters_are_listed_by_prefix_in_the_order_of_names() {
    let house = House::new().await;
    for name in ["b/2", "a/1", "b/1", "b/3", "c"] {
        house.add(name, 1, None).await.expect("an add that works");
    }
    let page = house.counting.list(&house.shop, "b/", None, 2).await.expect("a page");
    let names = |page: &[tallystone::engine::counting::CounterSummary]| {
        page.iter().map(|one| one.name.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&page), ["b/1", "b/2"]);
    let rest = house.counting.list(&house.shop, "b/", Some(page[1].name.clone()), 2).await.expect("a page");
    assert_eq!(names(&rest), ["b/3"]);
}

#[tokio::test]
async fn a_watch_shows_the_present_value_and_then_each_change() {
    let house = House::new().await;
    house.add("views", 5, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    let mut watch = house.counting.watch(&house.shop, vec![counter("views")]).await.expect("a watch");
    let (_, first) = house.drive(watch.next()).await.expect("an item").expect("a reading");
    assert_eq!(first.count, 5);
    house.add("views", 2, None).await.expect("an add that works");
    let (_, second) = house.drive(watch.next()).await.expect("an item").expect("a reading");
    assert_eq!(second.count, 7);
    house.clear("views", None).await.expect("a clear that works");
    let (_, third) = house.drive(watch.next()).await.expect("an item").expect("a reading");
    assert_eq!(third.count, 0);
    drop(watch);
    assert_eq!(house.engine.watches(), 0);
}

#[tokio::test]
async fn events_are_listed_newest_first_by_pages() {
    let house = House::new().await;
    for delta in 1..=5 {
        house.add("views", delta, None).await.expect("an add that works");
        house.pass(SECOND).await;
    }
    let mut question = EventsQuestion { from: Timestamp::MIN, to: Timestamp::MAX, older_than: None, limit: 2 };
    let mut deltas = Vec::new();
    loop {
        let page = house.counting.events(&house.shop, counter("views"), question.clone()).await.expect("a page");
        deltas.extend(page.iter().map(|event| event.change.delta()));
        if page.len() < 2 {
            break;
        }
        question.older_than = page.last().map(|event| event.key.clone());
    }
    assert_eq!(deltas, [5, 4, 3, 2, 1]);
}

#[tokio::test]
async fn a_recount_of_an_untouched_log_finds_no_difference() {
    let house = House::new().await;
    for delta in 1..=40 {
        house.add("views", delta, None).await.expect("an add that works");
        house.pass(20 * SECOND).await;
    }
    house.pass(8 * SECOND).await;
    let recount = house.counting.recount(&house.shop, counter("views"), None, None).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.complete), (820, 820, true));
    assert_eq!((recount.events_read, recount.differences.len()), (40, 0));
    assert!(recount.buckets_compared >= 2);
}
