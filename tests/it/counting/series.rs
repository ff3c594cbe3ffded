//! Series, top, list, watch, events, recount.

use std::time::Duration;

use futures_util::StreamExt;
use tallystone::domain::counter::CounterName;
use tallystone::domain::namespace::{CounterType, SeriesSettings};
use tallystone::domain::rollup::series::SeriesRow;
use tallystone::domain::rollup::series_step::SeriesStep;
use tallystone::domain::{Reason, Timestamp};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::counting::{CounterSummary, CountingError, EventsQuery, Repair, SeriesQuery};

use super::{House, SECOND, counter, spec, token};

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
    let question = SeriesQuery { from, to: house.now(), step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    let rows: Vec<_> = answer.rows.iter().map(|row| (row.sum, row.value)).collect();
    assert_eq!(rows[..5], [(1, 1), (0, 1), (2, 3), (0, 3), (4, 7)]);
    assert!(!answer.rows[0].open && answer.rows.last().expect("rows").open);
}

#[tokio::test]
async fn days_of_a_time_zone_hold_what_was_added_between_its_midnights() {
    let mut kept = spec("shop");
    let steps = [10, 3_600].map(|step_seconds| SeriesSettings { step_seconds, keep: Duration::from_secs(864_000) });
    kept.series = steps.into();
    let house = House::with(kept).await;
    let from = house.now();
    // The house begins on a Friday at one o'clock of UTC, and an hour before midnight of the zone.
    for delta in [1, 2] {
        house.add("views", delta, None).await.expect("an add that works");
        house.pass(3_700 * SECOND).await;
    }
    let read = async |step: &str, zone: &str| {
        let step = SeriesStep::read(step, zone).expect("a valid step");
        let question = SeriesQuery { from, to: house.now(), step };
        let answer = house.counting.series(&house.shop, counter("views"), question).await?;
        let row = |row: &SeriesRow| (row.start, row.sum, row.value, row.open);
        Ok::<Vec<_>, CountingError>(answer.rows.iter().map(row).collect())
    };
    let hour = 3_600 * SECOND;
    let midnight = from - hour;
    let zoned = read("1d", "America/Noronha").await.expect("a series");
    assert_eq!(zoned, [(from - 23 * hour, 1, 1, false), (from + hour, 2, 3, true)]);
    assert_eq!(read("1d", "").await.expect("a series"), [(midnight, 3, 3, true)]);
    assert_eq!(read("1w", "").await.expect("a series"), [(midnight - 4 * 24 * hour, 3, 3, true)]);
    assert_eq!(read("1mo", "").await.expect("a series"), [(midnight - 19 * 24 * hour, 3, 3, true)]);
}

#[tokio::test]
async fn days_of_a_time_zone_are_refused_where_no_step_of_a_quarter_of_an_hour_is_kept() {
    let mut kept = spec("shop");
    kept.series = vec![SeriesSettings { step_seconds: 3_600, keep: Duration::from_secs(864_000) }];
    let house = House::with(kept).await;
    let step = SeriesStep::read("1d", "Asia/Kolkata").expect("a valid step");
    let question = SeriesQuery { from: house.now() - SECOND, to: house.now(), step };
    let refused = house.counting.series(&house.shop, counter("views"), question).await.expect_err("not kept");
    assert_eq!(refused.reason(), Reason::SeriesNotKept);
    assert!(refused.to_string().contains("a kept step that divides 15 minutes"), "{refused}");
}

#[tokio::test]
async fn a_batch_of_series_answers_each_counter_in_order_and_keeps_to_its_rows() {
    let mut kept = spec("shop");
    kept.series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(864_000) }];
    let house = House::with(kept).await;
    let from = house.now();
    for (name, delta) in [("a", 1), ("b", 2), ("a", 4)] {
        house.add(name, delta, None).await.expect("an add that works");
        house.pass(10 * SECOND).await;
    }
    let question = SeriesQuery { from, to: house.now(), step: None };
    let bad = CounterName::new("not a name");
    let names = vec![Ok(counter("b")), bad, Ok(counter("a")), Ok(counter("unknown"))];
    let answers = house.counting.batch_series(&house.shop, names, question.clone()).await.expect("answers");
    let sums = |at: usize| answers[at].as_ref().expect("a series").rows.iter().map(|row| row.sum).collect::<Vec<_>>();
    assert_eq!((sums(0)[..3].to_vec(), sums(2)[..3].to_vec()), (vec![0, 2, 0], vec![1, 0, 4]));
    assert_eq!(answers[1].as_ref().expect_err("no name").reason(), Reason::InvalidCounterName);
    assert!(sums(3).iter().all(|sum| *sum == 0));
    let single = house.counting.series(&house.shop, counter("a"), question).await.expect("a series");
    assert_eq!(answers[2].as_ref().expect("a series").rows, single.rows, "the same as alone");
    let range = |steps: u32| SeriesQuery { from: house.now() - 10 * SECOND * steps, to: house.now(), step: None };
    let many = |count: usize| (0..count).map(|_| Ok(counter("a"))).collect::<Vec<_>>();
    house.counting.batch_series(&house.shop, many(200), range(50)).await.expect("10,000 rows");
    let refused = house.counting.batch_series(&house.shop, many(200), range(51)).await.expect_err("200 rows more");
    assert_eq!(refused.reason(), Reason::InvalidRange);
    assert!(refused.to_string().contains("send fewer counters"), "{refused}");
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
    let question = SeriesQuery { from, to: house.now(), step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question.clone()).await.expect("a series");
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
    let mut watch =
        house.counting.watch(&house.shop, vec![counter("views")], CallerId::nobody()).await.expect("a watch");
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
async fn a_watch_shows_that_a_ttl_has_ended() {
    for counter_type in [CounterType::BestEffort, CounterType::Eventual, CounterType::Accurate] {
        let mut short = spec("shop");
        (short.counter_type, short.ttl) = (counter_type, Some(10 * SECOND));
        let house = House::with(short).await;
        house.add("views", 5, None).await.expect("an add that works");
        let mut watch =
            house.counting.watch(&house.shop, vec![counter("views")], CallerId::nobody()).await.expect("a watch");
        let mut shown = Vec::new();
        let began = house.now();
        while shown.last() != Some(&0) || !shown.contains(&5) {
            let (_, reading) = house.drive(watch.next()).await.expect("an item").expect("a reading");
            shown.push(reading.count);
        }
        let took = house.now().since(began);
        assert!(took >= 10 * SECOND && took <= 20 * SECOND, "{counter_type:?}: after {took:?}");
    }
}

#[tokio::test]
async fn events_are_listed_newest_first_by_pages() {
    let house = House::new().await;
    for delta in 1..=5 {
        house.add("views", delta, None).await.expect("an add that works");
        house.pass(SECOND).await;
    }
    let mut question = EventsQuery { from: Timestamp::MIN, to: Timestamp::MAX, older_than: None, limit: 2 };
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
    let recount =
        house.counting.recount(&house.shop, counter("views"), None, None, Repair::No).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.complete), (820, 820, true));
    assert_eq!((recount.events_read, recount.differences.len()), (40, 0));
    assert!(recount.buckets_compared >= 2);
}

#[tokio::test]
async fn a_series_that_begins_after_the_last_event_carries_its_value() {
    let mut kept = spec("shop");
    kept.series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(86_400) }];
    let house = House::with(kept).await;
    for delta in [1, 2] {
        house.add("views", delta, None).await.expect("an add that works");
        house.pass(20 * SECOND).await;
    }
    let from = house.now();
    house.pass(60 * SECOND).await;
    let question = SeriesQuery { from, to: house.now(), step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    assert!(answer.rows.len() >= 4 && answer.rows.iter().all(|row| (row.sum, row.value) == (0, 3)), "{answer:?}");
    let question = SeriesQuery { from: from - 3_000 * SECOND, to: from - 2_000 * SECOND, step: None };
    let answer = house.counting.series(&house.shop, counter("views"), question).await.expect("a series");
    assert!(answer.rows.len() == 100 && answer.rows.iter().all(|row| row.value == 0), "before the first event");
}

#[tokio::test]
async fn a_silent_counter_sinks_in_the_ranking() {
    let mut short = spec("shop");
    short.ttl = Some(60 * SECOND);
    let house = House::with(short).await;
    house.add("loud", 9, None).await.expect("an add that works");
    house.pass(40 * SECOND).await;
    house.add("late", 2, None).await.expect("an add that works");
    house.pass(10 * SECOND).await;
    let counts = |top: tallystone::engine::counting::TopCountersResult| {
        top.counters.iter().map(|one| (one.name.as_str().to_owned(), one.count)).collect::<Vec<_>>()
    };
    let top = house.drive(house.counting.top(&house.shop, 2)).await.expect("a ranking");
    assert_eq!(counts(top), [("loud".to_owned(), 9), ("late".to_owned(), 2)]);
    house.pass(37 * SECOND).await;
    let top = house.drive(house.counting.top(&house.shop, 2)).await.expect("a ranking");
    assert_eq!(counts(top), [("late".to_owned(), 2), ("loud".to_owned(), 0)]);
}

#[tokio::test]
async fn the_ranking_of_an_idle_dataset_is_of_this_moment() {
    let house = House::new().await;
    house.add("views", 9, None).await.expect("an add that works");
    house.pass(600 * SECOND).await;
    let top = house.drive(house.counting.top(&house.shop, 2)).await.expect("a ranking");
    let accept_limit = 5 * SECOND;
    assert!(house.now().since(top.as_of) <= accept_limit + 3 * SECOND, "as of {:?}", top.as_of);
    assert!(top.counters[0].as_of >= top.as_of);
}

#[tokio::test]
async fn the_time_of_a_ranking_is_a_whole_millisecond_and_never_goes_back() {
    let house = House::new().await;
    house.add("views", 9, None).await.expect("an add that works");
    house.pass(25 * SECOND).await;
    let mut told = Timestamp::MIN;
    for name in ["a", "b", "c"] {
        // Whoever reads a counter that is not rolled up yet asks for a roll from before what was told.
        house.add(name, 1, None).await.expect("an add that works");
        assert!(house.get(name).await.behind);
        for _ in 0..30 {
            let top = house.drive(house.counting.top(&house.shop, 5)).await.expect("a ranking");
            assert_eq!(top.as_of, top.as_of.floor_to(Duration::from_millis(1)));
            assert!(top.as_of >= told, "{:?} after {told:?}", top.as_of);
            assert!(top.counters.iter().all(|one| one.as_of >= top.as_of));
            told = top.as_of;
            house.pass(SECOND / 5).await;
        }
        house.pass(20 * SECOND).await;
    }
}

#[tokio::test]
async fn a_dataset_that_nobody_uses_is_not_behind_after_a_start() {
    // What a start replays waits for its turn, longer than until the watermarks are looked at for the first time.
    let mut slow = spec("shop");
    slow.rollup.coalesce_ms = 10_000;
    let house = House::with(slow.clone()).await;
    house.add("views", 9, None).await.expect("an add that works");
    house.pass(15 * SECOND).await;
    house.add("late", 1, None).await.expect("an add that works");
    house.pass(3 * SECOND).await;
    // As after a kill: the watermarks stay where they were stored.
    let (clock, stores) = (house.clock.clone(), house.stores.clone());
    drop(house);
    let next = House::on(slow, clock, stores, None).await;
    next.pass(40 * SECOND).await;
    let gauges = next.engine.datasets();
    assert!(
        gauges.iter().all(|dataset| dataset.watermark_lag == Some(Duration::ZERO)),
        "{:?}",
        gauges[0].watermark_lag
    );
    let watermarks = next.stores.touches.watermarks(gauges[0].id).await.expect("memory reads");
    let limit = next.stores.progress.limit(gauges[0].id).await.expect("memory reads");
    assert!(watermarks.iter().all(|watermark| *watermark >= Some(limit)), "{limit:?}: {:?}", watermarks.iter().min());
}

#[tokio::test]
async fn a_void_that_came_later_than_its_bucket_was_recorded_is_no_difference() {
    let house = House::new().await;
    house.add("views", 3, None).await.expect("an add that works");
    let late = token("late", house.now());
    house.pass(1_000 * SECOND).await;
    assert_eq!(house.add("views", 9, Some(late)).await.expect_err("closed").reason(), Reason::NotApplied);
    let recount =
        house.counting.recount(&house.shop, counter("views"), None, None, Repair::No).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.differences.len()), (3, 3, 0));
    let backwards =
        house.counting.recount(&house.shop, counter("views"), Some(house.now()), Some(house.now()), Repair::No).await;
    assert_eq!(backwards.expect_err("an empty range").reason(), Reason::InvalidRange);
}

#[tokio::test]
async fn a_watch_ends_with_its_namespace() {
    let house = House::new().await;
    let mut watch =
        house.counting.watch(&house.shop, vec![counter("views")], CallerId::nobody()).await.expect("a watch");
    house.drive(watch.next()).await.expect("an item").expect("a reading");
    house.engine.namespaces().delete(&house.shop, None, Author::default()).await.expect("it is there");
    house.engine.namespaces().create(spec("shop"), Author::default()).await.expect("the name is free again");
    let end = house.drive(watch.next()).await.expect("an item");
    assert_eq!(end.expect_err("another namespace has the name").reason(), Reason::NamespaceNotFound);
}

#[tokio::test]
async fn a_watch_of_an_accurate_counter_shows_an_add_before_it_is_rolled_up() {
    let house = House::of_type(CounterType::Accurate).await;
    let mut watch =
        house.counting.watch(&house.shop, vec![counter("views")], CallerId::nobody()).await.expect("a watch");
    house.drive(watch.next()).await.expect("an item").expect("a reading");
    let before = house.now();
    house.add("views", 2, None).await.expect("an add that works");
    let (_, second) = house.drive(watch.next()).await.expect("an item").expect("a reading");
    assert_eq!(second.count, 2);
    let took = house.now().since(before);
    assert!(took >= Duration::from_millis(900) && took <= 2 * SECOND, "at most one in coalesce_ms, after {took:?}");
}

#[tokio::test]
async fn every_answer_with_a_count_keeps_and_says_what_lies_beyond_64_bits() {
    let mut kept = spec("shop");
    kept.series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(86_400) }];
    let house = House::with(kept).await;
    let from = house.now();
    for delta in [i64::MAX, i64::MAX] {
        house.add("high", delta, None).await.expect("an add that works");
    }
    for delta in [i64::MIN, i64::MIN] {
        house.add("low", delta, None).await.expect("an add that works");
    }
    house.add("plain", i64::MAX, None).await.expect("an add that works");
    house.pass(20 * SECOND).await;
    let expected = [("high", i64::MAX, true), ("low", i64::MIN, true), ("plain", i64::MAX, false)];
    let shown = |counters: Vec<CounterSummary>| -> Vec<(String, i64, bool)> {
        counters.into_iter().map(|one| (one.name.as_str().to_owned(), one.count, one.saturated)).collect()
    };
    let expected = expected.map(|(name, count, saturated)| (name.to_owned(), count, saturated));
    let listed = house.drive(house.counting.list(&house.shop, "", None, 10)).await.expect("a page");
    assert_eq!(shown(listed), expected);
    let mut top = shown(house.drive(house.counting.top(&house.shop, 10)).await.expect("a ranking").counters);
    assert_eq!(top[0].0, "high", "the true counts are ranked");
    top.sort();
    assert_eq!(top, expected);
    let whole = 2 * i128::from(i64::MAX);
    let question = SeriesQuery { from, to: house.now(), step: None };
    let series = house.drive(house.counting.series(&house.shop, counter("high"), question)).await.expect("a series");
    assert_eq!((series.rows[0].sum, series.rows[1].value), (whole, whole));
    let recount =
        house.counting.recount(&house.shop, counter("high"), None, None, Repair::No).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.differences.len()), (whole, whole, 0));
}

#[tokio::test]
async fn a_row_ends_with_what_a_read_showed_at_its_end() {
    let mut kept = spec("shop");
    kept.ttl = Some(60 * SECOND);
    kept.series = vec![SeriesSettings { step_seconds: 60, keep: Duration::from_secs(86_400) }];
    let house = House::with(kept).await;
    let from = house.now();
    house.pass(20 * SECOND).await;
    house.add("views", 9, None).await.expect("an add that works");
    let mut shown = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..40 {
        house.pass(5 * SECOND).await;
        let reading = house.get("views").await;
        let question = SeriesQuery { from, to: reading.as_of, step: Some(SeriesStep::Fixed(120 * SECOND)) };
        let answer = house.drive(house.counting.series(&house.shop, counter("views"), question)).await;
        let rows = answer.expect("a series").rows;
        shown.push(rows.last().expect("a row").value);
        seen.push(i128::from(reading.count));
    }
    assert_eq!(shown, seen);
    assert!(seen.contains(&9) && seen.last() == Some(&0), "{seen:?}");
}

#[tokio::test]
async fn a_series_that_is_kept_from_later_on_tells_nothing_of_before_and_never_changes() {
    let house = House::new().await;
    let from = house.now();
    house.add("views", 5, None).await.expect("an add that works");
    house.add("quiet", 3, None).await.expect("an add that works");
    house.pass(40 * SECOND).await;
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(40 * SECOND).await;
    let mut kept = spec("shop");
    kept.series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(86_400) }];
    house.engine.namespaces().update(kept, None, Author::default()).await.expect("a valid change");
    let rows = |name: &'static str, to: Timestamp| {
        let question = SeriesQuery { from, to, step: None };
        let house = &house;
        async move {
            let answer = house.drive(house.counting.series(&house.shop, counter(name), question)).await;
            let closed = answer.expect("a series").rows.into_iter().filter(|row| !row.open);
            closed.map(|row| (row.start.since(from).as_secs(), row.sum, row.value)).collect::<Vec<_>>()
        }
    };
    let (before, end) = (house.now() - 10 * SECOND, from + 160 * SECOND);
    let first = rows("views", before).await;
    assert_eq!(first, [(50, 0, 7), (60, 0, 7)], "from the newest event on nothing is unknown");
    assert_eq!(rows("views", from + 30 * SECOND).await, [], "what was added there is not known");
    house.add("views", 4, None).await.expect("an add that works");
    house.pass(100 * SECOND).await;
    assert_eq!(rows("views", before).await, first, "a closed row does not change");
    assert_eq!(rows("views", from + 30 * SECOND).await, []);
    house.clear("views", None).await.expect("a clear that works");
    house.add("views", 1, None).await.expect("an add that works");
    house.pass(20 * SECOND).await;
    assert_eq!(rows("views", before).await, first, "nor when something is cleared later");
    let all = rows("views", end).await;
    assert!(all.contains(&(80, 4, 11)) && all.contains(&(150, 0, 11)) && all.len() == 11, "{all:?}");
    let quiet = rows("quiet", end).await;
    assert!(quiet.len() == 15 && quiet.iter().all(|row| (row.1, row.2) == (0, 3)), "{quiet:?}");
}
