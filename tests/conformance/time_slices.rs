//! The laws of `TimeSlices`.

use std::collections::BTreeMap;

use tallystone_domain::counter::{Change, NamespaceId};
use tallystone_domain::rollup::{BucketRecord, SliceStatus};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{ScanRange, StoreErrorKind, Stores, VerdictOutcome};
use tokio::task::JoinSet;

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{
    DATASET, OTHER_DATASET, all_events, append, append_all, at, checkpoint, counter, event, everything, key, of, roll,
    slice, slices,
};

#[tokio::test]
async fn time_slices_law_1_the_first_row_of_a_start_holds_and_never_changes() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let first = slice(DATASET, 1_200_000);
        assert_eq!(stores.slices.create(first.clone()).await.expect("a row"), first);
        let mut second = first.clone();
        second.versions = BTreeMap::from([(NamespaceId(1), 9), (NamespaceId(2), 1)]);
        second.status = SliceStatus::Future;
        assert_eq!(stores.slices.create(second).await.expect("a row"), first);
        let listed = stores.slices.list(DATASET).await.expect("rows");
        let mut expected = slices();
        expected.retain(|slice| slice.dataset == DATASET);
        expected.push(first);
        assert_eq!(listed, expected, "oldest first");
        assert_eq!(stores.slices.list(OTHER_DATASET).await.expect("rows").len(), 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn time_slices_law_1_of_racing_creations_all_answer_the_row_that_holds() {
    on_every_backend(async |bench| {
        for round in 0..10 {
            let start = 1_200_000 + round * 600_000;
            let mut racing = JoinSet::new();
            for version in 1..=4 {
                let slices = bench.stores.slices.clone();
                racing.spawn(async move {
                    let mut row = slice(DATASET, start);
                    row.versions = BTreeMap::from([(NamespaceId(1), version)]);
                    slices.create(row).await.expect("a row")
                });
            }
            let answers = racing.join_all().await;
            let listed = bench.stores.slices.list(DATASET).await.expect("rows");
            let held = listed.iter().find(|row| row.start == at(start)).expect("the row");
            assert!(answers.iter().all(|answer| answer == held), "{answers:?} and {held:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn time_slices_law_1_rows_outlive_the_process() {
    on_every_durable_backend(async |bench, ending| {
        bench.stores.slices.create(slice(DATASET, 1_200_000)).await.expect("a row");
        bench.stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
        bench.stores.slices.set_status(DATASET, at(0), SliceStatus::Closed).await.expect("it closes");
        let before = bench.stores.slices.list(DATASET).await.expect("rows");
        let bench = bench.reopen(ending).await;
        assert_eq!(bench.stores.slices.list(DATASET).await.expect("rows"), before);
    })
    .await;
}

#[tokio::test]
async fn time_slices_law_2_a_status_only_moves_forward() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let mut future = slice(DATASET, 1_200_000);
        future.status = SliceStatus::Future;
        stores.slices.create(future).await.expect("a row");
        for (set, expected) in [
            (SliceStatus::Future, SliceStatus::Future),
            (SliceStatus::Open, SliceStatus::Open),
            (SliceStatus::Future, SliceStatus::Open),
            (SliceStatus::Closed, SliceStatus::Closed),
            (SliceStatus::Open, SliceStatus::Closed),
            (SliceStatus::Dropped, SliceStatus::Dropped),
            (SliceStatus::Open, SliceStatus::Dropped),
        ] {
            stores.slices.set_status(DATASET, at(1_200_000), set).await.expect("a status");
            let listed = stores.slices.list(DATASET).await.expect("rows");
            assert_eq!(listed.last().expect("the row").status, expected, "after {set:?}");
        }
        assert!(stores.slices.set_status(DATASET, at(33), SliceStatus::Open).await.is_err(), "there is no such row");
    })
    .await;
}

#[tokio::test]
async fn time_slices_law_3_with_a_dropped_slice_its_events_touches_and_records_go_and_its_row_stays() {
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        let views = counter("views");
        let bucket = |millis| BucketRecord { start: at(millis), rows: 1, sum: 1, clear: None, digest: 1 };
        // Both ends of the slice and the first places outside of it.
        for millis in [-1, 0, 599_999, 600_000] {
            append(stores, &views, event(millis, "a", Change::Add(1))).await;
        }
        let mut write = roll(&views, checkpoint(700_000, 4));
        write.finished_buckets = vec![bucket(-10_000), bucket(0), bucket(590_000), bucket(600_000)];
        stores.progress.publish(DATASET, at(700_000)).await.expect("a limit");
        stores.rollups.put(DATASET, vec![write]).await.expect("a put");
        stores.slices.set_status(DATASET, at(0), SliceStatus::Dropped).await.expect("a drop");
        let times: Vec<_> = all_events(stores, &views).await.iter().map(|event| event.key.time).collect();
        assert_eq!(times, [at(-1), at(600_000)]);
        let touches = stores.touches.touched(DATASET, views.touch_shard(), Timestamp::MIN, Timestamp::MAX, None, 9);
        let steps: Vec<_> = touches.await.expect("touches").iter().map(|touch| touch.step).collect();
        assert_eq!(steps, [at(-10_000), at(600_000)]);
        let kept = stores.rollups.buckets(DATASET, &views, Timestamp::MIN, Timestamp::MAX).await.expect("buckets");
        assert_eq!(kept, [bucket(-10_000), bucket(600_000)]);
        let rows = stores.slices.list(DATASET).await.expect("rows");
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].status, SliceStatus::Dropped);
        let created = stores.slices.create(slice(DATASET, 0)).await.expect("a row");
        assert_eq!(created.status, SliceStatus::Dropped, "a dropped slice does not come back");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn time_slices_law_3_reads_and_writes_that_race_a_drop_see_all_of_the_slice_or_nothing() {
    on_every_backend(async |bench| {
        let stores = bench.stores;
        let views = counter("views");
        for round in 0..10 {
            let start = 1_200_000 + round * 600_000;
            stores.slices.create(slice(DATASET, start)).await.expect("a row");
            for millis in 0..10 {
                append(&stores, &views, event(start + millis, "a", Change::Add(1))).await;
            }
            stores.progress.publish(DATASET, at(start + 10)).await.expect("a limit");
            let mut racing = JoinSet::new();
            for _ in 0..2 {
                let (stores, views) = (stores.clone(), views.clone());
                racing.spawn(async move {
                    let range = ScanRange { after: at(start - 1), to: at(start + 10), ..everything() };
                    loop {
                        let seen = stores.log.scan(DATASET, &views, range.clone()).await.expect("a scan").len();
                        let rows = stores.log.scan_slice(DATASET, at(start), None, 9_999).await.expect("rows");
                        let rows = rows.iter().filter(|row| row.counter == views).count();
                        assert!(seen == 10 || seen == 0, "{seen} of 10 events");
                        assert!(rows == seen || rows == 0, "what is gone stays gone: {rows} after {seen}");
                        if seen == 0 {
                            return;
                        }
                    }
                });
            }
            let (writing, of_writer) = (stores.clone(), views.clone());
            racing.spawn(async move {
                for millis in 11.. {
                    let late = vec![of(&counter("late"), event(start + millis, "b", Change::Add(1)))];
                    if append_all(&writing, late).await[0].is_err() {
                        break;
                    }
                }
                let refused = writing.log.settle(DATASET, &of_writer, &key(start, "c")).await;
                assert_eq!(refused.expect_err("the slice is gone").kind, StoreErrorKind::Conflict);
            });
            tokio::task::yield_now().await;
            stores.slices.set_status(DATASET, at(start), SliceStatus::Dropped).await.expect("a drop");
            assert_eq!(all_events(&stores, &views).await, []);
            assert_eq!(all_events(&stores, &counter("late")).await, []);
            racing.join_all().await;
        }
    })
    .await;
}

#[tokio::test]
async fn time_slices_law_3_what_was_dropped_does_not_come_back_with_a_restart() {
    on_every_durable_backend(async |bench, ending| {
        let views = counter("views");
        append(&bench.stores, &views, event(-5_000, "a", Change::Add(1))).await;
        append(&bench.stores, &views, event(5_000, "b", Change::Add(2))).await;
        bench.stores.progress.publish(DATASET, at(0)).await.expect("a limit");
        bench.stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
        let bench = bench.reopen(ending).await;
        assert_eq!(all_events(&bench.stores, &views).await, [event(5_000, "b", Change::Add(2))]);
        let rows = bench.stores.slices.list(DATASET).await.expect("rows");
        assert_eq!(rows[0].status, SliceStatus::Dropped);
    })
    .await;
}

#[tokio::test]
async fn time_slices_a_slice_over_a_long_gap_holds_and_loses_rows_like_any_other() {
    let month = 30 * 86_400_000;
    let (first, last) = (1_200_000, 1_200_000 + month - 1);
    let views = counter("views");
    let fill = async |stores: &Stores| {
        let mut long = slice(DATASET, first);
        long.end = at(last + 1);
        assert_eq!(stores.slices.create(long.clone()).await.expect("a row"), long);
        stores.slices.create(slice(DATASET, last + 1)).await.expect("a row");
        for millis in [first - 1, first, first + month / 2, last, last + 1] {
            append(stores, &views, event(millis, "a", Change::Add(1))).await;
            let settled = stores.log.settle(DATASET, &views, &key(millis, "b")).await.expect("a verdict");
            assert_eq!(settled, VerdictOutcome::Voided);
        }
    };
    let times = async |stores: &Stores| {
        let all = all_events(stores, &views).await.into_iter().filter(|event| event.change.is_mutation());
        all.map(|event| event.key.time).collect::<Vec<_>>()
    };
    let outside = [at(first - 1), at(last + 1)];
    on_every_backend(async |bench| {
        let stores = &bench.stores;
        fill(stores).await;
        assert_eq!(times(stores).await.len(), 5);
        assert_eq!(stores.log.scan_slice(DATASET, at(first), None, 99).await.expect("rows").len(), 6);
        let found = stores.log.find(DATASET, &views, &key(first + month / 2, "a")).await.expect("a look");
        assert_eq!(found.map(|event| event.change), Some(Change::Add(1)));
        stores.progress.publish(DATASET, at(last + 2)).await.expect("a limit");
        stores.slices.set_status(DATASET, at(first), SliceStatus::Dropped).await.expect("a drop");
        assert_eq!(times(stores).await, outside);
        let refused = stores.log.settle(DATASET, &views, &key(first + month / 3, "c")).await;
        assert_eq!(refused.expect_err("it is dropped").kind, StoreErrorKind::Conflict);
    })
    .await;
    on_every_durable_backend(async |bench, ending| {
        fill(&bench.stores).await;
        let bench = bench.reopen(ending).await;
        assert_eq!(times(&bench.stores).await.len(), 5);
        bench.stores.slices.set_status(DATASET, at(first), SliceStatus::Dropped).await.expect("a drop");
        let bench = bench.reopen(ending).await;
        assert_eq!(times(&bench.stores).await, outside);
    })
    .await;
}
