//! The laws of `Touches`.

use std::collections::BTreeSet;

use tallystone_domain::counter::{Change, Counter};
use tallystone_domain::limits::{STEP, TOUCH_SHARDS};
use tallystone_domain::rollup::SliceStatus;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{Stores, Touch};

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{DATASET, OTHER_DATASET, append, at, checkpoint, counter, event, foreign, roll};

/// Every touch of a range of a shard, read by pages.
async fn touched(stores: &Stores, shard: u32, from: Timestamp, to: Timestamp, page: usize) -> Vec<Touch> {
    let mut all: Vec<Touch> = Vec::new();
    loop {
        let beyond = all.last().cloned();
        let more = stores.touches.touched(DATASET, shard, from, to, beyond.as_ref(), page).await.expect("touches");
        assert!(more.len() <= page);
        let is_last = more.len() < page;
        all.extend(more);
        if is_last {
            return all;
        }
    }
}

fn step_of(millis: i64) -> Timestamp {
    at(millis).floor_to(STEP)
}

fn place(touch: &Touch) -> (Timestamp, Counter) {
    (touch.step, touch.counter.clone())
}

#[tokio::test]
async fn touches_law_1_every_acknowledged_event_stands_in_its_shard_and_step() {
    on_every_backend(async |bench| {
        let mut expected = BTreeSet::new();
        for n in 0..40 {
            let counter = if n % 2 == 0 { counter(&format!("c{n}")) } else { foreign(&format!("c{n}")) };
            for millis in [-600_000, -1, 0, 9_999, 10_000, 599_999, 600_000] {
                append(&bench.stores, &counter, event(millis, "a", Change::Add(1))).await;
                expected.insert((step_of(millis), counter.clone()));
            }
        }
        let mut found = BTreeSet::new();
        for shard in 0..TOUCH_SHARDS {
            for touch in touched(&bench.stores, shard, Timestamp::MIN, Timestamp::MAX, 1_000).await {
                assert_eq!(touch.counter.touch_shard(), shard);
                found.insert(place(&touch));
            }
        }
        assert_eq!(found, expected);
        let elsewhere = bench.stores.touches;
        let shard = counter("c0").touch_shard();
        let other = elsewhere.touched(OTHER_DATASET, shard, Timestamp::MIN, Timestamp::MAX, None, 9).await;
        assert_eq!(other.expect("touches"), []);
    })
    .await;
}

#[tokio::test]
async fn touches_law_1_touches_stay_until_their_slice_is_dropped() {
    on_every_backend(async |bench| {
        let views = counter("views");
        append(&bench.stores, &views, event(-5_000, "a", Change::Add(1))).await;
        append(&bench.stores, &views, event(5_000, "b", Change::Add(1))).await;
        let shard = views.touch_shard();
        bench.stores.progress.publish(DATASET, at(6_000)).await.expect("a limit");
        bench.stores.rollups.put(DATASET, vec![roll(&views, checkpoint(6_000, 2))]).await.expect("a put");
        bench.stores.touches.put_watermarks(DATASET, vec![(shard, at(6_000))]).await.expect("a watermark");
        let all = touched(&bench.stores, shard, Timestamp::MIN, Timestamp::MAX, 9).await;
        assert_eq!(all.iter().map(|touch| touch.step).collect::<Vec<_>>(), [step_of(-5_000), step_of(5_000)]);
        bench.stores.slices.set_status(DATASET, at(-600_000), SliceStatus::Dropped).await.expect("a drop");
        let all = touched(&bench.stores, shard, Timestamp::MIN, Timestamp::MAX, 9).await;
        assert_eq!(all.iter().map(|touch| touch.step).collect::<Vec<_>>(), [step_of(5_000)]);
    })
    .await;
}

#[tokio::test]
async fn touches_law_1_touches_outlive_the_process() {
    on_every_durable_backend(async |bench, ending| {
        let views = counter("views");
        for millis in [-5_000, 5_000, 605_000] {
            append(&bench.stores, &views, event(millis, "a", Change::Add(1))).await;
        }
        let bench = bench.reopen(ending).await;
        let all = touched(&bench.stores, views.touch_shard(), Timestamp::MIN, Timestamp::MAX, 9).await;
        let steps: Vec<_> = all.iter().map(|touch| touch.step).collect();
        assert_eq!(steps, [step_of(-5_000), step_of(5_000), step_of(605_000)]);
    })
    .await;
}

#[tokio::test]
async fn touches_law_2_each_is_answered_once_steps_in_order_whatever_the_page() {
    on_every_backend(async |bench| {
        // Counters of one shard, so that steps hold several of them.
        let shard = counter("c0").touch_shard();
        let same = |n: &u32| counter(&format!("c{n}")).touch_shard() == shard;
        let counters: Vec<Counter> = (0..2_000).filter(same).take(5).map(|n| counter(&format!("c{n}"))).collect();
        assert_eq!(counters.len(), 5);
        for millis in [-20_000, 0, 10_000, 20_000, 610_000] {
            for counter in &counters {
                for token in ["a", "b"] {
                    append(&bench.stores, counter, event(millis, token, Change::Add(1))).await;
                }
            }
        }
        let whole = touched(&bench.stores, shard, Timestamp::MIN, Timestamp::MAX, 1_000).await;
        assert_eq!(whole.len(), 25);
        assert!(whole.is_sorted_by_key(|touch| touch.step));
        assert_eq!(whole.iter().map(place).collect::<BTreeSet<_>>().len(), 25);
        for page in 1..8 {
            assert_eq!(touched(&bench.stores, shard, Timestamp::MIN, Timestamp::MAX, page).await, whole, "{page}");
        }
        let inner = touched(&bench.stores, shard, step_of(0), step_of(10_000), 3).await;
        assert_eq!(inner, whole[5..15], "both ends of a range belong to it");
        assert_eq!(touched(&bench.stores, shard, step_of(10_000), step_of(0), 3).await, []);
    })
    .await;
}

#[tokio::test]
async fn touches_law_3_a_watermark_never_goes_back() {
    on_every_backend(async |bench| {
        let touches = &bench.stores.touches;
        let none = vec![None; TOUCH_SHARDS as usize];
        assert_eq!(touches.watermarks(DATASET).await.expect("watermarks"), none);
        touches.put_watermarks(DATASET, vec![(0, at(5)), (63, at(7))]).await.expect("a put");
        touches.put_watermarks(DATASET, vec![(0, at(4)), (63, at(8)), (1, at(-9))]).await.expect("a put");
        let mut expected = none.clone();
        (expected[0], expected[1], expected[63]) = (Some(at(5)), Some(at(-9)), Some(at(8)));
        assert_eq!(touches.watermarks(DATASET).await.expect("watermarks"), expected);
        assert_eq!(touches.watermarks(OTHER_DATASET).await.expect("watermarks"), none);
    })
    .await;
}

#[tokio::test]
async fn touches_law_4_a_watermark_that_outlives_the_process_has_its_checkpoints_with_it() {
    on_every_durable_backend(async |mut bench, ending| {
        let views = counter("views");
        for round in 1..=5 {
            let (time, count) = (round * 1_000, i128::from(round));
            append(&bench.stores, &views, event(time, "a", Change::Add(1))).await;
            bench.stores.progress.publish(DATASET, at(time)).await.expect("a limit");
            bench.stores.rollups.put(DATASET, vec![roll(&views, checkpoint(time, count))]).await.expect("a put");
            let moved = vec![(views.touch_shard(), at(time))];
            bench.stores.touches.put_watermarks(DATASET, moved).await.expect("a watermark");
            bench = bench.reopen(ending).await;
            let watermarks = bench.stores.touches.watermarks(DATASET).await.expect("watermarks");
            let row = bench.stores.rollups.read(DATASET, &views).await.expect("a row");
            let as_of = row.checkpoint.map(|checkpoint| checkpoint.as_of);
            assert!(as_of >= watermarks[views.touch_shard() as usize], "{as_of:?} covers the watermark");
        }
    })
    .await;
}
