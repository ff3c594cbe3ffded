//! The laws of `EventLog`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt;
use tallystone_domain::counter::{Change, EventId, EventKey, NamespaceId};
use tallystone_domain::limits::STEP;
use tallystone_domain::rollup::{SliceStatus, TailLookup, TailSum};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    AppendHold, AppendOutcome, EffectOutcome, ScanOrder, ScanRange, SliceRow, StoreErrorKind, Stores, VerdictOutcome,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{
    DATASET, NAMESPACE, OTHER_DATASET, all_events, append, append_all, at, counter, event, everything, foreign, key, of,
};

/// Law 1 for one acknowledged event.
async fn check_known(stores: &Stores, counter: &tallystone_domain::counter::Counter, time: Timestamp) {
    let step = time.floor_to(STEP);
    let shard = counter.touch_shard();
    let touched = stores.touches.touched(DATASET, shard, step, step, None, 10).await.expect("touches");
    assert!(touched.iter().any(|touch| touch.step == step && touch.counter == *counter), "touched in {step:?}");
    let names = stores.rollups.names(counter.namespace(), counter.name().as_str(), None, 1).await.expect("names");
    assert_eq!(names.first(), Some(counter.name()), "listed");
    let row = stores.rollups.read(DATASET, counter).await.expect("a row");
    assert!(row.last_write_time >= Some(time), "{:?} covers {time:?}", row.last_write_time);
}

#[tokio::test]
async fn event_log_law_1_an_acknowledged_event_is_readable_touched_listed_and_known() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let cases = [
            (counter("adds"), event(5_000, "a", Change::Add(7))),
            (counter("clears"), event(15_000, "c", Change::Clear)),
            (counter("totals"), event(25_000, "t", Change::Total(9))),
            (foreign("adds"), event(-5_000, "b", Change::Add(-1))),
        ];
        for (counter, event) in cases {
            assert_eq!(append(stores, &counter, event.clone()).await, AppendOutcome::Inserted);
            let found = stores.log.find(DATASET, &counter, &event.key).await.expect("a find");
            assert_eq!(found, Some(event.clone()));
            check_known(stores, &counter, event.key.time).await;
            let row = stores.rollups.read(DATASET, &counter).await.expect("a row");
            let register = (event.change == Change::Clear).then_some(event.key);
            assert_eq!(row.clear, register, "the clear register");
        }
    })
    .await;
}

/// The hold of a process that lost its membership.
struct Lapsed;

impl AppendHold for Lapsed {
    fn keeps_limits_back(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn event_log_law_1_the_clear_register_names_no_clear_that_a_verdict_may_have_refused() {
    on_every_backend(async |bench| {
        let (stores, views) = (&bench.stores, counter("views"));
        let clear = event(5_000, "c", Change::Clear);
        let answers = stores.log.append(DATASET, vec![of(&views, clear.clone())], Box::new(Lapsed)).await;
        // A process that owns its store is no member of anything: what it commits is final.
        let is_shared = stores.log.capabilities().unknown_outcomes;
        let failed: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).map(|why| why.outcome).collect();
        assert_eq!(failed, if is_shared { vec![EffectOutcome::Unknown] } else { Vec::new() });
        let register = async || stores.rollups.read(DATASET, &views).await.expect("a row").clear;
        assert_eq!(register().await, (!is_shared).then(|| clear.key.clone()));
        let settled = stores.log.settle(DATASET, &views, &clear.key).await.expect("a verdict");
        assert_eq!((settled, register().await), (VerdictOutcome::Found(clear.clone()), Some(clear.key)));
    })
    .await;
}

#[tokio::test]
async fn event_log_law_1_an_acknowledged_event_and_all_that_goes_with_it_outlive_the_process() {
    on_every_durable_backend(async |bench, ending| {
        let views = counter("views");
        append(&bench.stores, &views, event(5_000, "a", Change::Add(7))).await;
        append(&bench.stores, &views, event(6_000, "b", Change::Clear)).await;
        let bench = bench.reopen(ending).await;
        let events = all_events(&bench.stores, &views).await;
        assert_eq!(events, [event(5_000, "a", Change::Add(7)), event(6_000, "b", Change::Clear)]);
        check_known(&bench.stores, &views, at(6_000)).await;
        let row = bench.stores.rollups.read(DATASET, &views).await.expect("a row");
        assert_eq!(row.clear, Some(key(6_000, "b")));
        // The token is still held, by either kind of retry.
        if bench.stores.log.capabilities().reports_existing {
            let again = append(&bench.stores, &views, event(5_000, "a", Change::Add(7))).await;
            assert_eq!(again, AppendOutcome::Existing(Change::Add(7)));
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_law_1_the_registers_keep_the_newest_whatever_arrives_last() {
    on_every_backend(async |bench| {
        let views = counter("views");
        for (millis, token) in [(9_000, "b"), (5_000, "a"), (9_000, "a"), (9_000, "c"), (1_000, "z")] {
            append(&bench.stores, &views, event(millis, token, Change::Clear)).await;
        }
        append(&bench.stores, &views, event(3_000, "late", Change::Add(1))).await;
        let row = bench.stores.rollups.read(DATASET, &views).await.expect("a row");
        assert_eq!(row.clear, Some(key(9_000, "c")));
        assert!(row.last_write_time >= Some(at(9_000)));
    })
    .await;
}

#[tokio::test]
async fn event_log_law_2_a_key_holds_one_event_for_ever() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let first = event(5_000, "a", Change::Add(7));
        append(&bench.stores, &views, first.clone()).await;
        for change in [Change::Add(7), Change::Add(8), Change::Clear, Change::Total(7)] {
            let answer = append(&bench.stores, &views, event(5_000, "a", change)).await;
            if bench.stores.log.capabilities().reports_existing {
                assert_eq!(answer, AppendOutcome::Existing(Change::Add(7)), "reused for {change:?}");
            }
        }
        assert_eq!(all_events(&bench.stores, &views).await, [first]);
        let row = bench.stores.rollups.read(DATASET, &views).await.expect("a row");
        assert_eq!(row.clear, None, "a clear that was not taken leaves the register alone");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_2_the_key_is_counter_time_and_id_together() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let uuid = EventKey { time: at(5_000), id: EventId::Uuid([7; 16]) };
        let mut with_uuid = event(5_000, "x", Change::Add(5));
        with_uuid.key = uuid;
        for (counter, event) in [
            (counter("views"), event(5_000, "a", Change::Add(1))),
            (counter("views"), event(5_001, "a", Change::Add(2))),
            (counter("views"), event(5_000, "b", Change::Add(3))),
            (counter("views2"), event(5_000, "a", Change::Add(4))),
            (counter("views"), with_uuid),
            (foreign("views"), event(5_000, "a", Change::Add(6))),
        ] {
            assert_eq!(append(stores, &counter, event).await, AppendOutcome::Inserted);
        }
        let elsewhere = vec![of(&counter("views"), event(5_000, "a", Change::Add(9)))];
        let answers = stores.log.append(OTHER_DATASET, elsewhere, Box::new(())).await;
        assert!(matches!(answers[..], [Ok(AppendOutcome::Inserted)]), "{answers:?}");
        assert_eq!(all_events(stores, &counter("views")).await.len(), 4);
        assert_eq!(all_events(stores, &counter("views2")).await.len(), 1);
        assert_eq!(all_events(stores, &foreign("views")).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn event_log_law_2_two_items_of_one_call_are_two_appends_in_their_order() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let items = [
            event(5_000, "a", Change::Add(1)),
            event(5_000, "a", Change::Add(2)),
            event(5_000, "b", Change::Add(3)),
            event(5_000, "a", Change::Add(1)),
        ];
        let answers = append_all(&bench.stores, items.into_iter().map(|event| of(&views, event)).collect()).await;
        let answers: Vec<AppendOutcome> = answers.into_iter().map(|answer| answer.expect("a live slice")).collect();
        let held = AppendOutcome::Existing(Change::Add(1));
        assert_eq!(answers, [AppendOutcome::Inserted, held, AppendOutcome::Inserted, held]);
        let events = all_events(&bench.stores, &views).await;
        assert_eq!(events, [event(5_000, "a", Change::Add(1)), event(5_000, "b", Change::Add(3))]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn event_log_law_2_of_many_racing_appends_of_a_key_one_is_held_and_all_say_so() {
    on_every_backend(async |bench| {
        let views = counter("views");
        for round in 0..50 {
            let mut racing = JoinSet::new();
            for delta in 1..=8 {
                let (stores, views) = (bench.stores.clone(), views.clone());
                racing.spawn(async move {
                    let event = event(5_000 + round, "contended", Change::Add(delta));
                    (delta, append(&stores, &views, event).await)
                });
            }
            let answers = racing.join_all().await;
            let held = bench.stores.log.find(DATASET, &views, &key(5_000 + round, "contended")).await;
            let held = held.expect("a find").expect("one of them is there").change;
            if bench.stores.log.capabilities().reports_existing {
                for (delta, answer) in answers {
                    let expected = if held == Change::Add(delta) {
                        AppendOutcome::Inserted
                    } else {
                        AppendOutcome::Existing(held)
                    };
                    assert_eq!(answer, expected);
                }
            }
        }
        assert_eq!(all_events(&bench.stores, &views).await.len(), 50);
    })
    .await;
}

#[tokio::test]
async fn event_log_law_3_a_refused_item_leaves_no_trace_and_the_others_are_taken() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let (good, bad) = (counter("good"), counter("bad"));
        let outside = 5_000_000;
        let items = vec![
            of(&good, event(5_000, "a", Change::Add(1))),
            of(&bad, event(outside, "b", Change::Clear)),
            of(&good, event(5_000, "c", Change::Add(2))),
        ];
        let answers = append_all(stores, items).await;
        assert!(matches!(answers[0], Ok(AppendOutcome::Inserted)) && matches!(answers[2], Ok(AppendOutcome::Inserted)));
        let refused = answers[1].as_ref().expect_err("no slice takes it");
        assert_eq!(refused.outcome, EffectOutcome::NotApplied);
        assert_eq!(all_events(stores, &good).await.len(), 2);
        assert_eq!(all_events(stores, &bad).await, []);
        assert_eq!(stores.log.find(DATASET, &bad, &key(outside, "b")).await.expect("a find"), None);
        assert_eq!(stores.rollups.read(DATASET, &bad).await.expect("a row"), Default::default());
        assert_eq!(stores.rollups.names(NAMESPACE, "bad", None, 9).await.expect("names"), []);
        let touched = stores.touches.touched(DATASET, bad.touch_shard(), Timestamp::MIN, Timestamp::MAX, None, 9).await;
        assert!(touched.expect("touches").iter().all(|touch| touch.counter != bad));
        let tail = stores.log.tail(DATASET, &bad, Timestamp::MIN);
        assert!(tail == TailLookup::Empty || !stores.log.capabilities().keeps_tail, "{tail:?}");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_4_settling_a_free_key_voids_its_token_for_ever() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let settled = bench.stores.log.settle(DATASET, &views, &key(5_000, "a")).await.expect("a verdict");
        assert_eq!(settled, VerdictOutcome::Voided);
        let late = append(&bench.stores, &views, event(5_000, "a", Change::Add(7))).await;
        if bench.stores.log.capabilities().reports_existing {
            assert_eq!(late, AppendOutcome::Existing(Change::Void));
        }
        let again = bench.stores.log.settle(DATASET, &views, &key(5_000, "a")).await.expect("a verdict");
        assert_eq!(again, VerdictOutcome::Voided);
        let events = all_events(&bench.stores, &views).await;
        assert_eq!(events.len(), 1);
        assert_eq!((&events[0].key, events[0].change), (&key(5_000, "a"), Change::Void));
        let row = bench.stores.rollups.read(DATASET, &views).await.expect("a row");
        assert_eq!(row.last_write_time, None, "a void is no write");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_4_settling_a_held_key_answers_its_event_at_any_time() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let cases = [event(5_000, "a", Change::Add(7)), event(6_000, "b", Change::Clear)];
        for event in &cases {
            append(&bench.stores, &views, event.clone()).await;
        }
        for limit in [0, 5_500, 9_000] {
            bench.stores.progress.publish(DATASET, at(limit)).await.expect("a limit");
            for event in &cases {
                let settled = bench.stores.log.settle(DATASET, &views, &event.key).await.expect("a verdict");
                assert_eq!(settled, VerdictOutcome::Found(event.clone()));
            }
            let row = bench.stores.rollups.read(DATASET, &views).await.expect("a row");
            assert_eq!(row.clear, Some(key(6_000, "b")), "a settled clear is in the register");
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_law_4_a_verdict_outlives_the_process() {
    on_every_durable_backend(async |bench, ending| {
        let views = counter("views");
        append(&bench.stores, &views, event(5_000, "a", Change::Add(7))).await;
        bench.stores.progress.publish(DATASET, at(9_000)).await.expect("a limit");
        let void = bench.stores.log.settle(DATASET, &views, &key(4_000, "gone")).await.expect("a verdict");
        assert_eq!(void, VerdictOutcome::Voided);
        let bench = bench.reopen(ending).await;
        let void = bench.stores.log.settle(DATASET, &views, &key(4_000, "gone")).await.expect("a verdict");
        assert_eq!(void, VerdictOutcome::Voided);
        let found = bench.stores.log.settle(DATASET, &views, &key(5_000, "a")).await.expect("a verdict");
        assert_eq!(found, VerdictOutcome::Found(event(5_000, "a", Change::Add(7))));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn event_log_law_4_a_verdict_that_races_an_append_agrees_with_it() {
    on_every_backend(async |bench| {
        let views = counter("views");
        for round in 0..100 {
            let token = key(5_000 + round, "raced");
            let (stores, counter) = (bench.stores.clone(), views.clone());
            let appending =
                tokio::spawn(
                    async move { append(&stores, &counter, event(5_000 + round, "raced", Change::Add(1))).await },
                );
            let settled = bench.stores.log.settle(DATASET, &views, &token).await.expect("a verdict");
            let appended = appending.await.expect("no panic");
            let found = bench.stores.log.find(DATASET, &views, &token).await.expect("a find").expect("a row");
            let expected = match found.change {
                Change::Void => (VerdictOutcome::Voided, AppendOutcome::Existing(Change::Void)),
                Change::Add(_) | Change::Clear | Change::Total(_) => {
                    (VerdictOutcome::Found(found), AppendOutcome::Inserted)
                }
            };
            assert_eq!(settled, expected.0);
            if bench.stores.log.capabilities().reports_existing {
                assert_eq!(appended, expected.1);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_law_5_a_scan_answers_the_range_in_order_in_either_direction_and_page() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let mut events = Vec::new();
        // All three slices, ties in time, both ends of slices and buckets.
        for millis in [-600_000, -1, 0, 1, 9_999, 10_000, 599_999, 600_000, 1_199_999] {
            for token in ["a", "b", "c"] {
                events.push(event(millis, token, Change::Add(millis)));
            }
        }
        for event in events.iter().rev() {
            append(&bench.stores, &views, event.clone()).await;
        }
        append(&bench.stores, &counter("view"), event(0, "x", Change::Add(1))).await;
        append(&bench.stores, &counter("views0"), event(0, "x", Change::Add(1))).await;
        for limit_millis in [-600_001, 0, 600_000, 1_200_000] {
            // What lies below the limit may move from memory to disk; answers stay the same.
            bench.stores.progress.publish(DATASET, at(limit_millis)).await.expect("a limit");
            for (after, to) in [(-700_000, 1_300_000), (-1, 9_999), (0, 600_000), (599_999, 599_999), (5, 3)] {
                for (order, page) in
                    [(ScanOrder::OldestFirst, 4), (ScanOrder::NewestFirst, 4), (ScanOrder::NewestFirst, 100)]
                {
                    let expected: Vec<_> = {
                        let inside =
                            events.iter().filter(|event| at(after) < event.key.time && event.key.time <= at(to));
                        match order {
                            ScanOrder::OldestFirst => inside.cloned().collect(),
                            ScanOrder::NewestFirst => inside.rev().cloned().collect(),
                        }
                    };
                    let range = ScanRange { after: at(after), to: at(to), order, beyond: None, limit: page };
                    assert_eq!(scan_pages(&bench.stores, range).await, expected, "{after}..={to} {order:?}");
                }
            }
        }
    })
    .await;
}

/// Reads a range page by page; every page but the last must be full.
async fn scan_pages(stores: &Stores, mut range: ScanRange) -> Vec<tallystone_domain::counter::Event> {
    let mut all = Vec::new();
    loop {
        let page = stores.log.scan(DATASET, &counter("views"), range.clone()).await.expect("a scan");
        assert!(page.len() <= range.limit);
        let is_last = page.len() < range.limit;
        range.beyond = page.last().map(|event| event.key.clone());
        all.extend(page);
        if is_last {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn event_log_law_5_a_scan_misses_nothing_acknowledged_while_rows_move_below_the_limit() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let stores = bench.stores.clone();
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let writer = tokio::spawn({
            let (views, acknowledged) = (views.clone(), acknowledged.clone());
            async move {
                for millis in 0..400 {
                    append(&stores, &views, event(millis, "a", Change::Add(1))).await;
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                    if millis % 10 == 9 {
                        stores.progress.publish(DATASET, at(millis)).await.expect("a limit");
                    }
                }
            }
        });
        let mut seen = 0;
        while seen < 400 {
            // What is in flight meanwhile may be seen or not, and in any mixture.
            let least = acknowledged.load(Ordering::SeqCst);
            let events = all_events(&bench.stores, &views).await;
            assert!(events.len() >= least, "{} of {least} events", events.len());
            let whole = (0..).zip(&events[..least]).all(|(millis, event)| event.key == key(millis, "a"));
            assert!(whole && events.is_sorted_by(|a, b| a.key < b.key), "events come in their order without a gap");
            assert!(events.len() >= seen, "what was seen stays");
            seen = events.len();
            tokio::task::yield_now().await;
        }
        writer.await.expect("no panic");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_6_the_tail_sums_what_is_above_a_time() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let log = &bench.stores.log;
        let keeps = log.capabilities().keeps_tail;
        let tail = |after: i64| log.tail(DATASET, &views, at(after));
        let check = |answer: TailLookup, expected: TailLookup| {
            assert!(answer == expected || (!keeps && answer == TailLookup::Unknown));
        };
        check(tail(-600_000), TailLookup::Empty);
        for (millis, change) in [
            (1_000, Change::Add(i64::MAX)),
            (2_000, Change::Add(i64::MAX)),
            (3_000, Change::Clear),
            (4_000, Change::Add(5)),
            (700_000, Change::Add(-7)),
        ] {
            append(&bench.stores, &views, event(millis, "a", change)).await;
        }
        log.settle(DATASET, &views, &key(900_000, "void")).await.expect("a verdict");
        let sum = |mutations, sum, clear: Option<i64>, first, last| {
            let clear = clear.map(|millis| key(millis, "a"));
            TailLookup::Sum(TailSum { mutations, sum, clear, first: at(first), last: at(last) })
        };
        check(tail(-600_000), sum(5, -2, Some(3_000), 1_000, 700_000));
        check(tail(2_999), sum(3, -2, Some(3_000), 3_000, 700_000));
        check(tail(3_000), sum(2, -2, None, 4_000, 700_000));
        check(tail(699_999), sum(1, -7, None, 700_000, 700_000));
        check(tail(700_000), TailLookup::Empty);
        bench.stores.progress.publish(DATASET, at(2_500)).await.expect("a limit");
        check(tail(2_500), sum(3, -2, Some(3_000), 3_000, 700_000));
        append(&bench.stores, &views, event(2_600, "early", Change::Add(i64::MAX))).await;
        check(tail(2_500), sum(4, -2, Some(3_000), 2_600, 700_000));
    })
    .await;
}

#[tokio::test]
async fn event_log_law_6_a_tail_with_totals_has_no_sum() {
    on_every_backend(async |bench| {
        let (views, total) = (counter("views"), EventKey { time: at(9_000), id: EventId::total("s", 1, 1) });
        let mut reported = event(9_000, "x", Change::Total(4));
        reported.key = total;
        append(&bench.stores, &views, reported).await;
        assert_eq!(bench.stores.log.tail(DATASET, &views, at(0)), TailLookup::Unknown);
        let beyond = bench.stores.log.tail(DATASET, &views, at(9_000));
        assert!(matches!(beyond, TailLookup::Empty | TailLookup::Unknown), "{beyond:?}");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_6_the_tail_after_a_restart_is_right_or_unknown() {
    on_every_durable_backend(async |bench, ending| {
        let views = counter("views");
        append(&bench.stores, &views, event(1_000, "a", Change::Add(3))).await;
        bench.stores.progress.publish(DATASET, at(2_000)).await.expect("a limit");
        append(&bench.stores, &views, event(3_000, "b", Change::Add(4))).await;
        let before = bench.stores.log.tail(DATASET, &views, at(2_000));
        let bench = bench.reopen(ending).await;
        let log = &bench.stores.log;
        let after = log.tail(DATASET, &views, at(2_000));
        assert!(after == before || after == TailLookup::Unknown, "{after:?}");
        // A touched step lasts ten seconds; what comes behind it is in memory as always.
        append(&bench.stores, &views, event(20_000, "c", Change::Add(5))).await;
        let newest = log.tail(DATASET, &views, at(10_000));
        let is_right = matches!(&newest, TailLookup::Sum(sum) if (sum.sum, sum.mutations) == (5, 1));
        assert!(is_right || !log.capabilities().keeps_tail, "{newest:?}");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_7_rows_of_a_dropped_slice_are_gone_from_every_answer() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let views = counter("views");
        append(stores, &views, event(-300_000, "old", Change::Add(1))).await;
        append(stores, &views, event(300_000, "new", Change::Add(2))).await;
        stores.log.append(OTHER_DATASET, vec![of(&views, event(-300_000, "old", Change::Add(3)))], Box::new(())).await;
        stores.progress.publish(DATASET, at(0)).await.expect("a limit");
        stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
        assert_eq!(all_events(stores, &views).await, [event(300_000, "new", Change::Add(2))]);
        assert_eq!(stores.log.find(DATASET, &views, &key(-300_000, "old")).await.expect("a find"), None);
        assert_eq!(stores.log.scan_slice(DATASET, at(-600_000), None, 9).await.expect("rows"), []);
        let other = stores.log.scan_slice(OTHER_DATASET, at(-600_000), None, 9).await.expect("rows");
        assert_eq!(other.len(), 1, "another dataset's slice of that time is another slice");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_8_a_read_of_a_healthy_store_is_no_error() {
    // The other side, a read that fails, needs a store that can be broken: see the tests of each backend.
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let nobody = counter("nobody");
        assert_eq!(all_events(stores, &nobody).await, []);
        assert_eq!(stores.log.find(DATASET, &nobody, &key(0, "a")).await.expect("a find"), None);
        assert_eq!(stores.log.scan_slice(DATASET, at(0), None, 9).await.expect("rows"), []);
        assert_eq!(stores.log.scan_slice(DATASET, at(77), None, 9).await.expect("rows"), [], "no slice begins there");
        let none = ScanRange { limit: 0, ..everything() };
        append(stores, &nobody, event(0, "a", Change::Add(1))).await;
        assert_eq!(stores.log.scan(DATASET, &nobody, none).await.expect("a scan"), []);
        assert_eq!(stores.log.scan_slice(DATASET, at(0), None, 0).await.expect("rows"), []);
    })
    .await;
}

/// Tells what the log could read of the event when it let go.
struct Probe {
    stores: Stores,
    dropped: Option<oneshot::Sender<bool>>,
}

impl Drop for Probe {
    fn drop(&mut self) {
        let readable = match self.stores.log.tail(DATASET, &counter("views"), at(0)) {
            TailLookup::Sum(_) => true,
            TailLookup::Empty => false,
            TailLookup::Unknown => true,
        };
        if let Some(dropped) = self.dropped.take() {
            let _ = dropped.send(readable);
        }
    }
}

impl AppendHold for Probe {
    fn keeps_limits_back(&self) -> bool {
        true
    }
}

fn probe(stores: &Stores) -> (Box<Probe>, oneshot::Receiver<bool>) {
    let (dropped, told) = oneshot::channel();
    (Box::new(Probe { stores: stores.clone(), dropped: Some(dropped) }), told)
}

#[tokio::test]
async fn event_log_law_9_the_hold_ends_when_the_event_is_readable_and_not_before() {
    on_every_backend(async |bench| {
        let (held, told) = probe(&bench.stores);
        let views = counter("views");
        let events = vec![of(&views, event(5_000, "a", Change::Add(1)))];
        bench.stores.log.append(DATASET, events, held).await;
        assert!(told.await.expect("the hold ends"), "readable when the hold ends");
    })
    .await;
}

#[tokio::test]
async fn event_log_law_9_the_hold_ends_also_when_the_caller_stops_waiting() {
    on_every_backend(async |bench| {
        let (held, told) = probe(&bench.stores);
        let views = counter("views");
        let events = vec![of(&views, event(5_000, "a", Change::Add(1)))];
        // One poll, then the caller is gone.
        let _ = bench.stores.log.append(DATASET, events, held).now_or_never();
        assert!(told.await.expect("the hold ends"), "readable when the hold ends");
        assert_eq!(all_events(&bench.stores, &views).await, [event(5_000, "a", Change::Add(1))]);
    })
    .await;
}

#[tokio::test]
async fn event_log_law_9_the_hold_ends_when_everything_was_refused() {
    on_every_backend(async |bench| {
        struct Flag(Arc<AtomicBool>, Option<oneshot::Sender<()>>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Release);
                drop(self.1.take());
            }
        }
        impl AppendHold for Flag {
            fn keeps_limits_back(&self) -> bool {
                true
            }
        }
        for events in [vec![of(&counter("views"), event(9_000_000, "a", Change::Add(1)))], Vec::new()] {
            let ended = Arc::new(AtomicBool::new(false));
            let (told, wait) = oneshot::channel::<()>();
            let held = Box::new(Flag(ended.clone(), Some(told)));
            let answers = bench.stores.log.append(DATASET, events.clone(), held).await;
            assert_eq!(answers.len(), events.len());
            assert!(answers.iter().all(Result::is_err));
            // The sender is dropped with the hold.
            assert!(wait.await.is_err() && ended.load(Ordering::Acquire));
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_law_10_what_no_live_slice_covers_is_refused_without_effect() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let views = counter("views");
        stores.progress.publish(DATASET, at(0)).await.expect("a limit");
        stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
        for millis in [-600_001, -600_000, -1, 1_200_000, i64::from(i32::MAX)] {
            let answers = append_all(stores, vec![of(&views, event(millis, "a", Change::Add(1)))]).await;
            let refused = answers[0].as_ref().expect_err("no live slice");
            assert_eq!(
                (refused.kind, refused.outcome),
                (StoreErrorKind::Conflict, EffectOutcome::NotApplied),
                "{millis}"
            );
            let refused = stores.log.settle(DATASET, &views, &key(millis, "a")).await.expect_err("no live slice");
            assert_eq!(
                (refused.kind, refused.outcome),
                (StoreErrorKind::Conflict, EffectOutcome::NotApplied),
                "{millis}"
            );
            assert_eq!(stores.log.find(DATASET, &views, &key(millis, "a")).await.expect("a find"), None);
        }
        assert_eq!(all_events(stores, &views).await, []);
        for millis in [0, 1_199_999] {
            assert_eq!(append(stores, &views, event(millis, "a", Change::Add(1))).await, AppendOutcome::Inserted);
        }
    })
    .await;
}

#[tokio::test]
async fn event_log_a_slice_is_scanned_counter_by_counter_in_the_order_of_keys() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let mut rows = Vec::new();
        let names = ["a", "a.b", "aa", "b", "ab"];
        for namespace in [1, 2, 300] {
            for name in names {
                for millis in [0, 5, 599_999] {
                    let counter = tallystone_domain::counter::Counter::new(
                        NamespaceId(namespace),
                        crate::given::counter_name(name),
                    );
                    let row = SliceRow { counter, event: event(millis, "t", Change::Add(millis)) };
                    append(stores, &row.counter, row.event.clone()).await;
                    rows.push(row);
                }
            }
        }
        append(stores, &counter("a"), event(-1, "before", Change::Add(1))).await;
        append(stores, &counter("a"), event(600_000, "after", Change::Add(1))).await;
        rows.sort_by(|a, b| {
            let place = |row: &SliceRow| (row.counter.namespace(), row.counter.name().clone(), row.event.key.clone());
            place(a).cmp(&place(b))
        });
        let mut scanned = Vec::new();
        let mut beyond = None;
        loop {
            let page = stores.log.scan_slice(DATASET, at(0), beyond, 4).await.expect("rows");
            let is_last = page.len() < 4;
            beyond = page.last().map(|row| (row.counter.clone(), row.event.key.clone()));
            scanned.extend(page);
            if is_last {
                break;
            }
        }
        let mut order: Vec<_> = scanned.iter().map(|row| row.counter.clone()).collect();
        order.dedup();
        assert_eq!(order.len(), 3 * names.len(), "the rows of a counter come together");
        for counter in order {
            let of = |rows: &[SliceRow]| -> Vec<SliceRow> {
                rows.iter().filter(|row| row.counter == counter).cloned().collect()
            };
            assert_eq!(of(&scanned), of(&rows));
        }
        assert_eq!(scanned.len(), rows.len());
    })
    .await;
}
