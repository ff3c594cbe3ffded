//! The laws of `RollupStore`.

use tallystone_domain::counter::{Change, Counter, CounterName, NamespaceId};
use tallystone_domain::rollup::{
    BucketRecord, Checkpoint, CountAt, RollupRow, SliceStatus, SourceTotal, SourceTotals, StepSum,
};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{RollWrite, Stores, VerdictOutcome};

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{
    DATASET, NAMESPACE, OTHER_DATASET, OTHER_NAMESPACE, all_events, append, append_all, at, checkpoint, counter,
    counter_name, event, foreign, key, of, roll,
};

fn bucket(start_millis: i64, rows: u64) -> BucketRecord {
    BucketRecord { start: at(start_millis), rows, sum: i128::from(rows) * 3, clear: None, digest: rows ^ 0xff00 }
}

fn step(step_seconds: u32, start_millis: i64, sum: i128) -> StepSum {
    let (value, last_event_time) = (sum + 100, at(start_millis + 3));
    let before = Some(CountAt { value: 100, time: at(start_millis - 5) });
    StepSum { step_seconds, start: at(start_millis), sum, value, last_event_time, before }
}

async fn read(stores: &Stores, counter: &Counter) -> RollupRow {
    stores.rollups.read(DATASET, counter).await.expect("a row")
}

async fn put(stores: &Stores, write: RollWrite) {
    stores.rollups.put(DATASET, vec![write]).await.expect("a put");
}

async fn buckets(stores: &Stores, counter: &Counter) -> Vec<BucketRecord> {
    stores.rollups.buckets(DATASET, counter, Timestamp::MIN, Timestamp::MAX).await.expect("buckets")
}

async fn series(stores: &Stores, counter: &Counter, step_seconds: u32) -> Vec<StepSum> {
    stores.rollups.series(counter, step_seconds, Timestamp::MIN, Timestamp::MAX).await.expect("a series")
}

async fn names(stores: &Stores, namespace: NamespaceId, prefix: &str) -> Vec<CounterName> {
    stores.rollups.names(namespace, prefix, None, 1_000).await.expect("names")
}

fn total(epoch: u64) -> SourceTotal {
    SourceTotal { epoch, serial: 2, total: -3, time: at(7) }
}

fn full_checkpoint() -> Checkpoint {
    Checkpoint {
        count: i128::MAX,
        as_of: at(20_000),
        clear: Some(key(5_000, "c")),
        last_event_time: Some(at(19_000)),
        open_bucket: Some(bucket(10_000, 7)),
        open_steps: vec![step(10, 10_000, -5), step(60, 0, i128::MIN + 100)],
        repairs: 3,
        sources: [("web-1".into(), SourceTotals { newest: total(3), earlier: vec![total(2), total(1)], settled: -9 })]
            .into(),
        writer: Some(tallystone_domain::rollup::CheckpointWriter {
            at: at(26_000),
            server: Some("counts-1:7450".into()),
        }),
    }
}

#[tokio::test]
async fn rollup_store_law_1_the_checkpoint_with_the_greatest_as_of_wins_in_any_order() {
    on_every_backend(async |bench| {
        let views = counter("views");
        assert_eq!(read(&bench.stores, &views).await, RollupRow::default());
        for (as_of, count, expected) in
            [(5_000, 1, 1), (9_000, 2, 2), (9_000, 3, 2), (7_000, 4, 2), (8_999, 5, 2), (9_001, 6, 6)]
        {
            let mut write = roll(&views, checkpoint(as_of, count));
            write.finished_buckets = vec![bucket(0, u64::try_from(count).expect("small"))];
            write.finished_steps = vec![step(10, 0, count)];
            put(&bench.stores, write).await;
            let held = read(&bench.stores, &views).await.checkpoint.expect("a checkpoint");
            assert_eq!(held.count, expected, "after as_of {as_of}");
            assert_eq!(buckets(&bench.stores, &views).await, [bucket(0, u64::try_from(expected).expect("small"))]);
            assert_eq!(series(&bench.stores, &views, 10).await, [step(10, 0, expected)]);
        }
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_1_holds_inside_one_call_too() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let writes = [(9_000, 1), (5_000, 2), (9_000, 3), (9_500, 4)];
        let writes = writes.map(|(as_of, count)| roll(&views, checkpoint(as_of, count)));
        bench.stores.rollups.put(DATASET, writes.into()).await.expect("a put");
        let held = read(&bench.stores, &views).await.checkpoint.expect("a checkpoint");
        assert_eq!((held.as_of, held.count), (at(9_500), 4));
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_1_every_field_of_a_checkpoint_comes_back() {
    on_every_backend(async |bench| {
        let views = counter("views");
        put(&bench.stores, roll(&views, full_checkpoint())).await;
        assert_eq!(read(&bench.stores, &views).await.checkpoint, Some(full_checkpoint()));
        let elsewhere = bench.stores.rollups.read(OTHER_DATASET, &views).await.expect("a row");
        assert_eq!(elsewhere.checkpoint, None, "rows of datasets are apart");
        assert_eq!(read(&bench.stores, &foreign("views")).await.checkpoint, None);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_9_nobody_knows_more_than_what_is_stored() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let known = || bench.stores.rollups.rolled_to(DATASET, &views);
        assert!(known().is_none(), "nothing was rolled up");
        for (as_of, stored) in [(5_000, 5_000), (9_000, 9_000), (7_000, 9_000)] {
            put(&bench.stores, roll(&views, checkpoint(as_of, 1))).await;
            assert!(known().is_none_or(|known| known <= at(stored)), "after as_of {as_of}");
            let held = read(&bench.stores, &views).await.checkpoint.expect("a checkpoint").as_of;
            assert!(known().is_none_or(|known| known == held), "after it was read");
        }
        assert!(bench.stores.rollups.rolled_to(OTHER_DATASET, &views).is_none(), "rows of datasets are apart");
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_2_finished_records_come_with_their_checkpoint() {
    on_every_backend(async |bench| {
        let (views, other) = (counter("views"), counter("views2"));
        let mut write = roll(&views, checkpoint(40_000, 9));
        write.finished_buckets = vec![bucket(-600_000, 1), bucket(0, 2), bucket(600_000, 3)];
        write.finished_steps = vec![step(10, -10_000, 1), step(10, 0, 2), step(60, 0, 3)];
        let mut of_other = roll(&other, checkpoint(40_000, 9));
        of_other.finished_buckets = vec![bucket(0, 99)];
        of_other.finished_steps = vec![step(10, 0, 99)];
        bench.stores.rollups.put(DATASET, vec![write.clone(), of_other]).await.expect("a put");
        assert_eq!(buckets(&bench.stores, &views).await, write.finished_buckets);
        assert_eq!(series(&bench.stores, &views, 10).await, write.finished_steps[..2]);
        assert_eq!(series(&bench.stores, &views, 60).await, write.finished_steps[2..]);
        let within = bench.stores.rollups.buckets(DATASET, &views, at(-600_000), at(0)).await.expect("buckets");
        assert_eq!(within, write.finished_buckets[..1], "from is inside, to is not");
        let within = bench.stores.rollups.series(&views, 10, at(0), at(1)).await.expect("a series");
        assert_eq!(within, write.finished_steps[1..2]);
        assert_eq!(bench.stores.rollups.series(&views, 10, at(5), at(0)).await.expect("a series"), []);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rollup_store_law_2_no_reader_sees_a_checkpoint_without_the_records_it_no_longer_carries() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let stores = bench.stores.clone();
        let writer = tokio::spawn({
            let views = views.clone();
            async move {
                for round in 1..=200 {
                    let mut write = roll(&views, checkpoint(round * 100, 1));
                    write.finished_buckets = vec![bucket((round - 1) * 100, 1)];
                    write.finished_steps = vec![step(10, (round - 1) * 10_000, 1)];
                    put(&stores, write).await;
                }
            }
        });
        let mut as_of = at(0);
        while as_of < at(20_000) {
            as_of = read(&bench.stores, &views).await.checkpoint.map_or(at(0), |checkpoint| checkpoint.as_of);
            let rounds = usize::try_from((as_of.micros() - at(0).micros()) / 100_000).expect("it grows");
            assert!(buckets(&bench.stores, &views).await.len() >= rounds);
            assert!(series(&bench.stores, &views, 10).await.len() >= rounds);
            tokio::task::yield_now().await;
        }
        writer.await.expect("no panic");
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_3_a_read_shows_last_write_and_clear_beside_any_checkpoint() {
    on_every_backend(async |bench| {
        let views = counter("views");
        append(&bench.stores, &views, event(5_000, "a", Change::Clear)).await;
        bench.stores.progress.publish(DATASET, at(6_000)).await.expect("a limit");
        let mut rolled = checkpoint(6_000, 0);
        (rolled.clear, rolled.last_event_time) = (Some(key(5_000, "a")), Some(at(5_000)));
        put(&bench.stores, roll(&views, rolled)).await;
        append(&bench.stores, &views, event(7_000, "b", Change::Clear)).await;
        append(&bench.stores, &views, event(8_000, "c", Change::Add(1))).await;
        let row = read(&bench.stores, &views).await;
        assert_eq!(row.checkpoint.map(|checkpoint| checkpoint.as_of), Some(at(6_000)));
        assert_eq!(row.clear, Some(key(7_000, "b")));
        assert!(row.last_write_time >= Some(at(8_000)));
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_4_what_a_watermark_covers_outlives_the_process_whole() {
    on_every_durable_backend(async |bench, ending| {
        let views = counter("views");
        let mut write = roll(&views, full_checkpoint());
        write.finished_buckets = vec![bucket(0, 2)];
        write.finished_steps = vec![step(10, 0, 2)];
        put(&bench.stores, write.clone()).await;
        bench.stores.touches.put_watermarks(DATASET, vec![(0, at(20_000))]).await.expect("a watermark");
        let bench = bench.reopen(ending).await;
        assert_eq!(read(&bench.stores, &views).await.checkpoint, Some(write.checkpoint));
        assert_eq!(buckets(&bench.stores, &views).await, write.finished_buckets);
        assert_eq!(series(&bench.stores, &views, 10).await, write.finished_steps);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_5_every_counter_with_an_event_or_a_checkpoint_is_listed_once_in_order() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        for name in ["b", "a", "a.b", "ab", "a:b", "B", "a~", "a-b", "0"] {
            append(stores, &counter(name), event(0, "x", Change::Add(1))).await;
            append(stores, &counter(name), event(1, "x", Change::Add(1))).await;
        }
        put(stores, roll(&counter("a/rolled"), checkpoint(0, 1))).await;
        put(stores, roll(&counter("a"), checkpoint(0, 1))).await;
        append(stores, &foreign("a/foreign"), event(0, "x", Change::Add(1))).await;
        let expected = |prefix: &str| {
            let mut all = vec!["0", "B", "a", "a-b", "a.b", "a/rolled", "a:b", "ab", "a~", "b"];
            all.retain(|name| name.starts_with(prefix));
            all.into_iter().map(counter_name).collect::<Vec<_>>()
        };
        for prefix in ["", "a", "a.", "b", "zzz", "ab"] {
            assert_eq!(names(stores, NAMESPACE, prefix).await, expected(prefix), "{prefix:?}");
            let mut paged: Vec<CounterName> = Vec::new();
            loop {
                let page = stores.rollups.names(NAMESPACE, prefix, paged.last(), 2).await.expect("names");
                let is_last = page.len() < 2;
                paged.extend(page);
                if is_last {
                    break;
                }
            }
            assert_eq!(paged, expected(prefix), "{prefix:?} by pages");
        }
        let above = stores.rollups.names(NAMESPACE, "a", Some(&counter_name("a.5")), 3).await.expect("names");
        assert_eq!(above, ["a.b", "a/rolled", "a:b"].map(counter_name), "above a name that is not listed");
        assert_eq!(stores.rollups.names(NAMESPACE, "a", Some(&counter_name("b")), 3).await.expect("names"), []);
        assert_eq!(names(stores, OTHER_NAMESPACE, "").await, [counter_name("a/foreign")]);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_5_a_counter_that_was_only_asked_about_is_not_listed() {
    on_every_backend(async |bench| {
        bench.stores.log.settle(DATASET, &counter("asked"), &key(0, "a")).await.expect("a verdict");
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, []);
        append(&bench.stores, &counter("asked"), event(1, "b", Change::Add(1))).await;
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, [counter_name("asked")]);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_5_a_verdict_right_after_the_first_event_does_not_unlist_its_counter() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        for round in 0..30 {
            // All of it lined up at once, so that a store that groups its writes takes it together; the crowd in between
            // pushes the new counter out of a small memory.
            let new = counter(&format!("new{round}"));
            let first = append(stores, &new, event(1, "a", Change::Add(1)));
            let crowd: Vec<_> =
                (0..40).map(|n| of(&counter(&format!("r{round}.{n}")), event(1, "a", Change::Clear))).collect();
            let crowd = append_all(stores, crowd);
            let asked = key(0, "asked");
            let verdict = stores.log.settle(DATASET, &new, &asked);
            let (_, _, settled) = tokio::join!(first, crowd, verdict);
            assert_eq!(settled.expect("a verdict"), VerdictOutcome::Voided);
            assert_eq!(names(stores, NAMESPACE, new.name().as_str()).await[0], *new.name());
        }
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_5_names_stay_when_their_events_are_dropped() {
    on_every_backend(async |bench| {
        let views = counter("views");
        append(&bench.stores, &views, event(-5_000, "a", Change::Add(1))).await;
        bench.stores.progress.publish(DATASET, at(0)).await.expect("a limit");
        let mut rolled = checkpoint(0, 1);
        rolled.last_event_time = Some(at(-5_000));
        put(&bench.stores, roll(&views, rolled.clone())).await;
        bench.stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, [counter_name("views")]);
        let row = read(&bench.stores, &views).await;
        assert_eq!(row.checkpoint, Some(rolled), "the count outlives its events");
        assert!(row.last_write_time >= Some(at(-5_000)));
    })
    .await;
}

/// A namespace with everything that can be kept of a counter, and another one.
async fn fill_two_namespaces(stores: &Stores) {
    for counter in [counter("views"), foreign("views")] {
        append(stores, &counter, event(0, "a", Change::Add(1))).await;
        append(stores, &counter, event(1, "b", Change::Clear)).await;
        let mut write = roll(&counter, full_checkpoint());
        write.finished_buckets = vec![bucket(0, 2)];
        write.finished_steps = vec![step(10, 0, 2)];
        put(stores, write).await;
    }
}

async fn check_forgotten(stores: &Stores) {
    assert_eq!(read(stores, &counter("views")).await, RollupRow::default());
    assert_eq!(buckets(stores, &counter("views")).await, []);
    assert_eq!(series(stores, &counter("views"), 10).await, []);
    assert_eq!(stores.rollups.series_before(&counter("views"), 10, Timestamp::MAX).await.expect("a step"), None);
    assert_eq!(names(stores, NAMESPACE, "").await, []);
    assert!(read(stores, &foreign("views")).await.checkpoint.is_some(), "the other namespace is whole");
    assert_eq!(buckets(stores, &foreign("views")).await.len(), 1);
    assert_eq!(series(stores, &foreign("views"), 10).await.len(), 1);
    assert_eq!(names(stores, OTHER_NAMESPACE, "").await, [counter_name("views")]);
}

#[tokio::test]
async fn rollup_store_law_6_nothing_of_a_forgotten_namespace_is_answered() {
    on_every_backend(async |bench| {
        fill_two_namespaces(&bench.stores).await;
        bench.stores.rollups.remove_namespace(NAMESPACE).await.expect("it forgets");
        check_forgotten(&bench.stores).await;
        assert_eq!(all_events(&bench.stores, &foreign("views")).await.len(), 2);
        bench.stores.rollups.remove_namespace(NAMESPACE).await.expect("it forgets again");
        bench.stores.rollups.remove_namespace(NamespaceId(77)).await.expect("it forgets what was never there");
        check_forgotten(&bench.stores).await;
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_6_what_is_forgotten_stays_so_over_a_restart() {
    on_every_durable_backend(async |bench, ending| {
        fill_two_namespaces(&bench.stores).await;
        // Durable from here on: a put alone may be lost in a crash.
        bench.stores.touches.put_watermarks(DATASET, vec![(0, at(0))]).await.expect("a watermark");
        bench.stores.rollups.remove_namespace(NAMESPACE).await.expect("it forgets");
        let bench = bench.reopen(ending).await;
        check_forgotten(&bench.stores).await;
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_6_what_arrives_after_a_removal_is_not_answered_and_the_next_removal_removes_it() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        fill_two_namespaces(stores).await;
        stores.rollups.remove_namespace(NAMESPACE).await.expect("it forgets");
        // Writes and a roll that were under way.
        append(stores, &counter("views"), event(2, "c", Change::Add(1))).await;
        append(stores, &counter("late"), event(3, "d", Change::Clear)).await;
        let mut write = roll(&counter("late"), checkpoint(30_000, 7));
        write.finished_buckets = vec![bucket(0, 2)];
        write.finished_steps = vec![step(10, 0, 2)];
        put(stores, write).await;
        check_forgotten(stores).await;
        assert_eq!(read(stores, &counter("late")).await, RollupRow::default());
        assert_eq!(series(stores, &counter("late"), 10).await, []);
        stores.rollups.remove_namespace(NAMESPACE).await.expect("it forgets again");
        check_forgotten(stores).await;
        let left = stores.rollups.namespaces(None, 9).await.expect("namespaces");
        assert_eq!(left, [OTHER_NAMESPACE], "nothing is left");
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_7_every_namespace_that_has_rows_is_listed_once_in_order() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        assert_eq!(stores.rollups.namespaces(None, 9).await.expect("namespaces"), []);
        for id in [300, 2, 256, 7, 1] {
            for name in ["a", "b"] {
                let counter = Counter::new(NamespaceId(id), counter_name(name));
                append(stores, &counter, event(0, "x", Change::Add(1))).await;
            }
        }
        let rolled = Counter::new(NamespaceId(9), counter_name("rolled"));
        put(stores, roll(&rolled, checkpoint(0, 1))).await;
        let expected = [1, 2, 7, 9, 256, 300].map(NamespaceId);
        for limit in [1, 2, 6, 9] {
            let mut listed: Vec<NamespaceId> = Vec::new();
            loop {
                let page = stores.rollups.namespaces(listed.last().copied(), limit).await.expect("namespaces");
                let is_last = page.len() < limit;
                listed.extend(page);
                if is_last {
                    break;
                }
            }
            assert_eq!(listed, expected, "by pages of {limit}");
        }
        let above = stores.rollups.namespaces(Some(NamespaceId(8)), 9).await.expect("namespaces");
        assert_eq!(above, expected[3..], "above a number that is not there");
        assert_eq!(stores.rollups.namespaces(Some(NamespaceId(u64::MAX)), 9).await.expect("namespaces"), []);
        stores.rollups.remove_namespace(NamespaceId(7)).await.expect("it forgets");
        assert_eq!(stores.rollups.namespaces(None, 3).await.expect("namespaces"), [1, 2, 9].map(NamespaceId));
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_8_every_resolution_that_has_steps_is_listed_until_they_are_trimmed() {
    on_every_backend(async |bench| {
        let rollups = &bench.stores.rollups;
        assert!(rollups.series_resolutions().await.expect("resolutions").is_empty());
        let mut write = roll(&counter("views"), checkpoint(0, 1));
        write.finished_steps = vec![step(3_600, 0, 1), step(10, 0, 1), step(10, 90_000_000, 1), step(60, 0, 1)];
        put(&bench.stores, write).await;
        assert_eq!(rollups.series_resolutions().await.expect("resolutions"), [10, 60, 3_600]);
        rollups.trim_series(10, Timestamp::MAX).await.expect("a trim");
        assert_eq!(rollups.series_resolutions().await.expect("resolutions"), [60, 3_600]);
        assert_eq!(series(&bench.stores, &counter("views"), 10).await, []);
        assert_eq!(series(&bench.stores, &counter("views"), 60).await.len(), 1);
    })
    .await;
}

/// A counter whose last event, at -5,000 ms, is gone with its slice.
async fn fill_silent(stores: &Stores, silent: &Counter) {
    append(stores, silent, event(-5_000, "a", Change::Clear)).await;
    stores.progress.publish(DATASET, at(0)).await.expect("a limit");
    let mut write = roll(silent, checkpoint(0, 1));
    write.checkpoint.last_event_time = Some(at(-5_000));
    write.finished_steps = vec![step(10, -10_000, 2)];
    put(stores, write).await;
}

async fn drop_first_slice(stores: &Stores) {
    stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
}

async fn forget_counters(stores: &Stores, silent: &[(&Counter, i64)]) {
    let silent = silent.iter().map(|(counter, millis)| ((*counter).clone(), at(*millis))).collect();
    stores.rollups.forget_counters(DATASET, silent).await.expect("they are forgotten");
}

#[tokio::test]
async fn rollup_store_law_10_a_silent_counter_is_forgotten_and_no_other() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let [silent, kept] = ["silent", "kept"].map(counter);
        for counter in [&silent, &kept, &foreign("silent")] {
            fill_silent(stores, counter).await;
        }
        forget_counters(stores, &[(&silent, 0)]).await;
        assert_eq!(names(stores, NAMESPACE, "").await.len(), 2, "its events are still there");
        drop_first_slice(stores).await;
        forget_counters(stores, &[(&silent, -1)]).await;
        assert_eq!(names(stores, NAMESPACE, "").await.len(), 2, "its checkpoint is newer");
        forget_counters(stores, &[(&silent, 0), (&counter("unknown"), 0)]).await;
        forget_counters(stores, &[(&silent, 0)]).await;
        assert_eq!(names(stores, NAMESPACE, "").await, [counter_name("kept")]);
        assert_eq!(read(stores, &silent).await, RollupRow::default());
        assert_eq!(read(stores, &kept).await.checkpoint.map(|checkpoint| checkpoint.count), Some(1));
        assert_eq!(names(stores, OTHER_NAMESPACE, "").await, [counter_name("silent")]);
        assert!(read(stores, &foreign("silent")).await.checkpoint.is_some(), "the other namespace is whole");
        assert_eq!(series(stores, &silent, 10).await.len(), 1, "finished steps stay for their retention");
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_10_what_is_forgotten_stays_so_over_a_restart() {
    on_every_durable_backend(async |bench, ending| {
        let silent = counter("silent");
        fill_silent(&bench.stores, &silent).await;
        drop_first_slice(&bench.stores).await;
        forget_counters(&bench.stores, &[(&silent, 0)]).await;
        let bench = bench.reopen(ending).await;
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, []);
        assert_eq!(read(&bench.stores, &silent).await, RollupRow::default());
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_11_what_is_written_above_the_time_stays_whenever_it_is_written() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let [again, rolled, before] = ["again", "rolled", "before"].map(counter);
        for counter in [&again, &rolled, &before] {
            fill_silent(stores, counter).await;
        }
        drop_first_slice(stores).await;
        append(stores, &before, event(5_000, "b", Change::Add(1))).await;
        forget_counters(stores, &[(&again, 0), (&rolled, 0), (&before, 0)]).await;
        assert_eq!(names(stores, NAMESPACE, "").await, [counter_name("before")]);
        assert!(read(stores, &before).await.checkpoint.is_some(), "it stays whole");
        append(stores, &again, event(7_000, "c", Change::Clear)).await;
        put(stores, roll(&rolled, checkpoint(8_000, 3))).await;
        forget_counters(stores, &[(&again, 0), (&rolled, 0), (&before, 0)]).await;
        assert_eq!(names(stores, NAMESPACE, "").await, ["again", "before", "rolled"].map(counter_name));
        assert_eq!(read(stores, &rolled).await.checkpoint, Some(checkpoint(8_000, 3)));
        let row = read(stores, &again).await;
        assert_eq!((row.checkpoint, row.clear), (None, Some(key(7_000, "c"))));
        assert!(row.last_write_time >= Some(at(7_000)));
        assert_eq!(all_events(stores, &again).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_11_a_process_that_listed_a_name_lists_it_again_after_another_forgot_it() {
    on_every_backend(async |bench| {
        let silent = counter("silent");
        fill_silent(&bench.stores, &silent).await;
        let Some(other) = bench.beside().await else { return };
        drop_first_slice(&other).await;
        forget_counters(&other, &[(&silent, 0)]).await;
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, []);
        append(&bench.stores, &silent, event(5_000, "b", Change::Add(1))).await;
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, [counter_name("silent")]);
        assert_eq!(names(&other, NAMESPACE, "").await, [counter_name("silent")]);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_law_11_a_counter_that_comes_back_is_there_after_a_restart() {
    on_every_durable_backend(async |bench, ending| {
        let silent = counter("silent");
        fill_silent(&bench.stores, &silent).await;
        drop_first_slice(&bench.stores).await;
        forget_counters(&bench.stores, &[(&silent, 0)]).await;
        append(&bench.stores, &silent, event(5_000, "b", Change::Add(1))).await;
        let bench = bench.reopen(ending).await;
        assert_eq!(names(&bench.stores, NAMESPACE, "").await, [counter_name("silent")]);
        assert_eq!(all_events(&bench.stores, &silent).await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn rollup_store_the_last_step_before_a_time_is_found_and_old_steps_can_be_trimmed() {
    on_every_backend(async |bench| {
        let views = counter("views");
        let day = 86_400_000;
        let mut write = roll(&views, checkpoint(0, 9));
        write.finished_steps = (-40..0).map(|days| step(60, days * day, i128::from(days))).collect();
        write.finished_steps.push(step(10, -40 * day, 7));
        put(&bench.stores, write.clone()).await;
        let before = |millis| bench.stores.rollups.series_before(&views, 60, at(millis));
        assert_eq!(before(-5 * day).await.expect("a step"), Some(step(60, -6 * day, -6)), "it starts before");
        assert_eq!(before(-5 * day + 1).await.expect("a step"), Some(step(60, -5 * day, -5)));
        assert_eq!(before(-40 * day).await.expect("a step"), None);
        assert_eq!(bench.stores.rollups.series_before(&views, 120, at(0)).await.expect("a step"), None);
        bench.stores.rollups.trim_series(60, at(-5 * day)).await.expect("a trim");
        let kept = series(&bench.stores, &views, 60).await;
        assert_eq!(kept[kept.len() - 5..], write.finished_steps[35..40], "what is not older stays");
        assert!(kept.len() < 40, "whole periods go");
        assert!(kept.is_sorted_by_key(|step| step.start));
        assert_eq!(series(&bench.stores, &views, 10).await.len(), 1, "another resolution is left alone");
    })
    .await;
}
