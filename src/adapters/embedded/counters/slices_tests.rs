//! Tests of the cost of many slices at once, and of keyspaces that are created with the first rows of a slice.

use futures_util::FutureExt;
use futures_util::future::join_all;

use crate::tests::{DATASET, add, all, append, at, counter, make_slice, open_small};
use tallystone_domain::rollup::SliceStatus;
use tallystone_ports::{EffectOutcome, StoreErrorKind};

/// Creates the slice of 100 seconds with this number.
async fn make(stores: &tallystone_ports::Stores, number: i64) {
    make_slice(stores, 100 * number, 100 * (number + 1)).await;
}

#[tokio::test]
async fn slices_that_are_made_or_moved_on_together_share_commits() {
    const COUNT: i64 = 1_000;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    let before = store.health().commit_number;
    join_all((0..COUNT).map(|number| make(&stores, number))).await;
    let made = store.health().commit_number;
    assert!(made - before < COUNT as u64 / 2, "{} commits for {COUNT} slices", made - before);
    let close = |number: i64| stores.slices.set_status(DATASET, at(100 * number), SliceStatus::Closed);
    for moved in join_all((0..COUNT).map(close)).await {
        moved.expect("closed");
    }
    let moved = store.health().commit_number;
    assert!(moved - made < COUNT as u64 / 2, "{} commits for {COUNT} states", moved - made);
    store.close();
    let (_store, stores) = open_small(dir.path());
    let rows = stores.slices.list(DATASET).await.expect("readable");
    assert_eq!(rows.len(), COUNT as usize);
    assert!(rows.iter().all(|row| row.status == SliceStatus::Closed));
}

#[tokio::test]
async fn a_slice_made_twice_in_one_commit_is_one_and_keeps_what_it_holds() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (_store, stores) = open_small(dir.path());
    tokio::join!(make(&stores, 0), make(&stores, 0));
    append(&stores, vec![add("a", 10, "t1", 5)]).await;
    tokio::join!(make(&stores, 0), make(&stores, 0));
    stores.slices.set_status(DATASET, at(0), SliceStatus::Closed).await.expect("closed");
    stores.slices.set_status(DATASET, at(0), SliceStatus::Open).await.expect("no step back, and no error");
    assert_eq!(stores.slices.list(DATASET).await.expect("readable")[0].status, SliceStatus::Closed);
    assert_eq!(stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable").len(), 1);
    let missing = stores.slices.set_status(DATASET, at(100), SliceStatus::Closed).await;
    assert_eq!(missing.expect_err("none").kind, StoreErrorKind::Conflict);
}

#[tokio::test]
async fn the_first_rows_of_many_slices_come_at_once_and_are_there_afterwards() {
    const COUNT: i64 = 20;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    join_all((0..COUNT).map(|number| make(&stores, number))).await;
    // Two appends for each slice, and one append that spans all of them.
    let single = |number: i64| append(&stores, vec![add("a", 50 * number + 1, "t1", 5)]);
    let each = join_all((0..2 * COUNT).map(single));
    let whole = append(&stores, (0..COUNT).map(|number| add("b", 100 * number, "t2", 7)).collect());
    tokio::join!(each, whole);
    store.close();
    let (_store, stores) = open_small(dir.path());
    let count = async |name| stores.log.scan(DATASET, &counter(name), all()).await.expect("readable").len();
    assert_eq!((count("a").await, count("b").await), (2 * COUNT as usize, COUNT as usize));
}

#[tokio::test]
async fn an_append_whose_caller_goes_while_its_keyspaces_are_made_is_done() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make(&stores, 0).await;
    let mut given_up = Box::pin(append(&stores, vec![add("a", 10, "t1", 5)]));
    assert!((&mut given_up).now_or_never().is_none(), "the first append waits");
    drop(given_up);
    append(&stores, vec![add("a", 20, "t2", 7)]).await;
    assert_eq!(stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable").len(), 2);
    store.close();
    let refused = stores.log.append(DATASET, vec![add("a", 30, "t3", 1)], Box::new(())).await;
    assert_eq!(refused[0].as_ref().expect_err("it is closed").kind, StoreErrorKind::Closed);
}

#[tokio::test]
async fn a_store_that_closes_or_fails_answers_every_append_that_waits_for_keyspaces() {
    for fails in [false, true] {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (store, stores) = open_small(dir.path());
        join_all((0..20).map(|number| make(&stores, number))).await;
        let single = |number: i64| stores.log.append(DATASET, vec![add("a", 100 * number, "t", 1)], Box::new(()));
        let mut waiting = Box::pin(join_all((0..20).map(single)));
        assert!((&mut waiting).now_or_never().is_none(), "they wait");
        if fails {
            store.core.fail("a test".to_owned());
        }
        store.close();
        let outcomes: Vec<_> = waiting.await.into_iter().flatten().collect();
        assert_eq!(outcomes.len(), 20);
        let taken = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        for refused in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Closed, EffectOutcome::NotApplied));
        }
        let (_store, stores) = open_small(dir.path());
        let found = stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable");
        assert_eq!(found.len(), taken, "what was refused is not there, what was taken is");
    }
}

#[tokio::test]
async fn a_slice_that_is_dropped_while_its_keyspaces_are_made_leaves_none() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    for number in 0..10 {
        make(&stores, number).await;
        let first = stores.log.append(DATASET, vec![add("a", 100 * number, "t", 1)], Box::new(()));
        let drop = stores.slices.set_status(DATASET, at(100 * number), SliceStatus::Dropped);
        let (outcomes, dropped) = tokio::join!(first, drop);
        dropped.expect("dropped");
        if let Err(refused) = &outcomes[0] {
            assert_eq!(refused.kind, StoreErrorKind::Conflict);
        }
    }
    // Jobs run in order, so the first job is done when a later one is.
    make(&stores, 10).await;
    append(&stores, vec![add("b", 1_000, "t", 1)]).await;
    let left = store.core.read("list", |library| Ok(library.listed("events."))).expect("open");
    assert_eq!(left, ["events.1.1000"]);
}
