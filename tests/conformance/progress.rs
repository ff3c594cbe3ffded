//! The laws of `Progress`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tallystone_domain::time::Timestamp;
use tokio::task::JoinSet;

use crate::backends::{on_every_backend, on_every_durable_backend};
use crate::given::{DATASET, OTHER_DATASET, at};

#[tokio::test]
async fn progress_law_1_a_limit_is_a_whole_millisecond_at_or_below_what_was_closed() {
    on_every_backend(async |bench| {
        for micros in [0, 1_500, 999_999, 5_000_000] {
            let closed = Timestamp::from_micros(at(0).micros() + micros);
            let limit = bench.stores.progress.publish(DATASET, closed).await.expect("a limit");
            assert!(limit <= closed, "{limit:?} lies at or below {closed:?}");
            assert_eq!(limit, Timestamp::from_millis(limit.millis()));
            assert_eq!(bench.stores.progress.limit(DATASET).await.expect("a limit"), limit);
        }
    })
    .await;
}

#[tokio::test]
async fn progress_law_2_a_limit_never_goes_back() {
    on_every_backend(async |bench| {
        let progress = &bench.stores.progress;
        let high = progress.publish(DATASET, at(5_000)).await.expect("a limit");
        for lower in [at(4_999), at(0), Timestamp::MIN] {
            assert_eq!(progress.publish(DATASET, lower).await.expect("a limit"), high);
            assert_eq!(progress.limit(DATASET).await.expect("a limit"), high);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn progress_law_2_racing_publications_never_show_a_limit_going_back() {
    on_every_backend(async |bench| {
        let highest_told = Arc::new(AtomicI64::new(i64::MIN));
        let mut racing = JoinSet::new();
        for task in 0..8 {
            let (progress, highest_told) = (bench.stores.progress.clone(), highest_told.clone());
            racing.spawn(async move {
                for round in 0..50 {
                    let told_before = highest_told.load(Ordering::SeqCst);
                    let limit = progress.publish(DATASET, at(round * 10 + task)).await.expect("a limit");
                    assert!(limit.micros() >= told_before, "{limit:?} after {told_before}");
                    highest_told.fetch_max(limit.micros(), Ordering::SeqCst);
                }
            });
        }
        racing.join_all().await;
        assert_eq!(bench.stores.progress.limit(DATASET).await.expect("a limit"), at(497));
    })
    .await;
}

#[tokio::test]
async fn progress_law_2_a_limit_that_was_told_outlives_the_process() {
    on_every_durable_backend(async |mut bench, ending| {
        for round in 1..=5 {
            let told = bench.stores.progress.publish(DATASET, at(round * 1_000)).await.expect("a limit");
            bench = bench.reopen(ending).await;
            assert!(bench.stores.progress.limit(DATASET).await.expect("a limit") >= told);
        }
    })
    .await;
}

#[tokio::test]
async fn progress_law_3_each_dataset_has_its_own_limit_and_begins_with_none() {
    on_every_backend(async |bench| {
        let progress = &bench.stores.progress;
        assert_eq!(progress.limit(DATASET).await.expect("a limit"), Timestamp::MIN);
        progress.publish(DATASET, at(5_000)).await.expect("a limit");
        assert_eq!(progress.limit(DATASET).await.expect("a limit"), at(5_000));
        assert_eq!(progress.limit(OTHER_DATASET).await.expect("a limit"), Timestamp::MIN);
    })
    .await;
}
