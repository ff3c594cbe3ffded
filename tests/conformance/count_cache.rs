//! The laws of `CountCache`. A cache may forget at any time, so every law also allows "nothing".

use tallystone_domain::counter::{Change, Counter};
use tallystone_domain::rollup::CachedCount;
use tallystone_domain::time::Timestamp;
use tallystone_ports::Stores;

use crate::backends::on_every_cache_backend;
use crate::given::{DATASET, append, at, checkpoint, counter, event, roll};

fn value(as_of_millis: i64, count: i128) -> CachedCount {
    CachedCount {
        count,
        as_of: at(as_of_millis),
        last_event_time: Some(at(as_of_millis)),
        clear: None,
        last_write_time: Some(at(as_of_millis)),
        checked_at: Some(at(as_of_millis)),
    }
}

/// The rollup store's own knowledge, which a cache in the same process may answer instead of a fill.
async fn stored(stores: &Stores, counter: &Counter) -> CachedCount {
    let row = stores.rollups.read(DATASET, counter).await.expect("a row");
    let checkpoint = row.checkpoint;
    CachedCount {
        count: checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.count),
        as_of: checkpoint.as_ref().map_or(Timestamp::MIN, |checkpoint| checkpoint.as_of),
        last_event_time: checkpoint.and_then(|checkpoint| checkpoint.last_event_time),
        clear: row.clear,
        last_write_time: row.last_write_time,
        checked_at: None,
    }
}

/// Whether the cache answers nothing, one of the values, or what the store holds.
async fn check(stores: &Stores, counter: &Counter, allowed: &[CachedCount]) {
    if let Some(answer) = stores.cache.get(counter).await {
        let known = stored(stores, counter).await;
        assert!(allowed.contains(&answer) || answer == known, "{answer:?} was neither filled nor stored");
    }
}

async fn fill(stores: &Stores, counter: &Counter, value: CachedCount) {
    let lease = stores.cache.lease(counter).await;
    stores.cache.fill(counter, value, lease).await;
}

#[tokio::test]
async fn count_cache_law_1_an_answer_was_filled_or_is_what_the_store_holds() {
    on_every_cache_backend(async |bench| {
        let views = counter("views");
        check(&bench.stores, &views, &[]).await;
        fill(&bench.stores, &views, value(5_000, 7)).await;
        check(&bench.stores, &views, &[value(5_000, 7)]).await;
        check(&bench.stores, &counter("other"), &[]).await;
        fill(&bench.stores, &views, value(6_000, 8)).await;
        check(&bench.stores, &views, &[value(6_000, 8)]).await;
    })
    .await;
}

#[tokio::test]
async fn count_cache_law_1_a_coherent_answer_is_exact_at_every_moment() {
    on_every_cache_backend(async |bench| {
        let stores = &bench.stores;
        let views = counter("views");
        let coherent = async || {
            if let Some(answer) = stores.cache.get(&views).await
                && answer.checked_at.is_none()
            {
                assert_eq!(answer, stored(stores, &views).await);
            }
        };
        for round in 1..=20 {
            let time = round * 1_000;
            append(stores, &views, event(time, "a", Change::Add(1))).await;
            coherent().await;
            if round % 3 == 0 {
                append(stores, &views, event(time + 1, "c", Change::Clear)).await;
                coherent().await;
            }
            if round % 2 == 0 {
                stores.progress.publish(DATASET, at(time + 2)).await.expect("a limit");
                let mut rolled = checkpoint(time + 2, i128::from(round));
                rolled.last_event_time = Some(at(time));
                stores.rollups.put(DATASET, vec![roll(&views, rolled)]).await.expect("a put");
                coherent().await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn count_cache_law_2_a_fill_under_a_lease_from_before_a_delete_changes_nothing() {
    on_every_cache_backend(async |bench| {
        let views = counter("views");
        let early = bench.stores.cache.lease(&views).await;
        assert!(bench.stores.cache.delete(&views).await, "a cache that is there always answers");
        bench.stores.cache.fill(&views, value(5_000, 7), early).await;
        check(&bench.stores, &views, &[]).await;
        let other = counter("other");
        let lease = bench.stores.cache.lease(&other).await;
        bench.stores.cache.delete(&views).await;
        bench.stores.cache.fill(&other, value(5_000, 9), lease).await;
        check(&bench.stores, &other, &[value(5_000, 9)]).await;
        fill(&bench.stores, &views, value(5_000, 8)).await;
        check(&bench.stores, &views, &[value(5_000, 8)]).await;
    })
    .await;
}

#[tokio::test]
async fn count_cache_law_3_a_fill_with_a_lower_as_of_changes_nothing() {
    on_every_cache_backend(async |bench| {
        let views = counter("views");
        fill(&bench.stores, &views, value(5_000, 7)).await;
        fill(&bench.stores, &views, value(4_999, 6)).await;
        check(&bench.stores, &views, &[value(5_000, 7)]).await;
    })
    .await;
}

#[tokio::test]
async fn count_cache_law_4_after_a_delete_nothing_filled_before_is_answered() {
    on_every_cache_backend(async |bench| {
        let views = counter("views");
        fill(&bench.stores, &views, value(9_000, 7)).await;
        assert!(bench.stores.cache.delete(&views).await);
        check(&bench.stores, &views, &[]).await;
        // After a clear a lower as_of may be filled again.
        fill(&bench.stores, &views, value(5_000, 0)).await;
        check(&bench.stores, &views, &[value(5_000, 0)]).await;
    })
    .await;
}

#[tokio::test]
async fn count_cache_law_2_of_racing_fills_and_deletes_no_fill_from_before_a_delete_is_answered() {
    on_every_cache_backend(async |bench| {
        let views = counter("views");
        // Leases from before every delete, some taken on a key that holds a value and some on one that holds none.
        for round in 1..=30_i64 {
            let old = bench.stores.cache.lease(&views).await;
            if round % 3 == 0 {
                fill(&bench.stores, &views, value(round * 1_000, 1)).await;
            }
            let older = bench.stores.cache.lease(&views).await;
            assert!(bench.stores.cache.delete(&views).await);
            if round % 2 == 0 {
                // Somebody else asks for the key anew.
                let _ = bench.stores.cache.lease(&views).await;
            }
            bench.stores.cache.fill(&views, value(round * 1_000, -1), old).await;
            bench.stores.cache.fill(&views, value(round * 1_000, -1), older).await;
            check(&bench.stores, &views, &[]).await;
        }
    })
    .await;
}

#[tokio::test]
async fn count_cache_law_1_every_part_of_a_value_comes_back() {
    on_every_cache_backend(async |bench| {
        let views = counter("views");
        let mut whole = value(5_000, i128::MIN);
        whole.clear = Some(crate::given::key(4_000, "c"));
        whole.last_write_time = None;
        fill(&bench.stores, &views, whole.clone()).await;
        check(&bench.stores, &views, &[whole]).await;
    })
    .await;
}
