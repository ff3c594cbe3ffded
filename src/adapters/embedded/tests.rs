//! Tests specific to this store: what survives a restart, what memory may evict, what startup refuses. The conformance
//! suite tests the laws of the ports.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::inbox::command::StoreCommand;
use super::{Embedded, OpenError, Options, open};
use tallystone_adapters::manual::ManualClock;
use tallystone_adapters::memory::FastTable;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{
    Change, Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId, Provenance,
};
use tallystone_domain::rollup::{Checkpoint, FoldRules, SliceStatus, TailLookup, TimeSlice, fold};
use tallystone_ports::{
    AppendOutcome, NewEvent, RollWrite, ScanOrder, ScanRange, StoreErrorKind, Stores, VerdictOutcome,
};

pub(super) const DATASET: DatasetId = DatasetId(1);
const NAMESPACE: NamespaceId = NamespaceId(7);

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

pub(super) fn counter(name: &str) -> Counter {
    Counter::new(NAMESPACE, CounterName::new(name).expect("a valid name"))
}

fn event(seconds: i64, token: &str, change: Change) -> Event {
    Event { key: EventKey { time: at(seconds), id: EventId::text(token) }, change, provenance: Provenance::default() }
}

pub(super) fn add(name: &str, seconds: i64, token: &str, delta: i64) -> NewEvent {
    NewEvent { counter: counter(name), event: event(seconds, token, Change::Add(delta)) }
}

pub(super) fn small(dir: &Path) -> Options {
    Options { reserve_bytes: 0, row_bytes: 0, tail_bytes: 0, block_bytes: 1 << 20, ..Options::new(dir) }
}

#[test]
fn a_process_with_little_memory_has_small_tables_and_caches() {
    let of = |memory: u64| {
        let set = Options { block_bytes: 1 << 30, ..Options::new("data") };
        let Options { memtable_bytes, block_bytes, row_bytes, tail_bytes, .. } = set.within_memory(memory);
        [memtable_bytes, block_bytes, row_bytes, tail_bytes].map(|bytes| bytes >> 20)
    };
    let expected =
        [[2, 16, 128, 64], [4, 32, 256, 128], [8, 1_024, 384, 128], [16, 1_024, 384, 128], [16, 1_024, 384, 128]];
    assert_eq!([512, 1_024, 2_048, 4_096, 65_536].map(|mib| of(mib << 20)), expected);
    assert_eq!(of(0), [2, 8, 0, 0]);
}

pub(super) fn open_small(dir: &Path) -> (Embedded, Stores) {
    let store = open(small(dir)).expect("the store opens");
    let fast = Arc::new(FastTable::new(Arc::new(ManualClock::at(at(0))), 1 << 20));
    let stores = store.stores(fast);
    (store, stores)
}

pub(super) async fn make_slice(stores: &Stores, start: i64, end: i64) {
    let slice = TimeSlice {
        dataset: DATASET,
        start: at(start),
        end: at(end),
        status: SliceStatus::Open,
        versions: [(NAMESPACE, 3)].into(),
    };
    stores.slices.create(slice).await.expect("the slice is made");
}

pub(super) async fn append(stores: &Stores, events: Vec<NewEvent>) -> Vec<AppendOutcome> {
    let outcomes = stores.log.append(DATASET, events, Box::new(())).await;
    outcomes.into_iter().map(|outcome| outcome.expect("the append is taken")).collect()
}

pub(super) fn all() -> ScanRange {
    ScanRange { after: Timestamp::MIN, to: Timestamp::MAX, order: ScanOrder::OldestFirst, beyond: None, limit: 1_000 }
}

/// Rolls up a counter as the engine does.
async fn roll(stores: &Stores, name: &str, to: i64) -> Checkpoint {
    let counter = counter(name);
    let row = stores.rollups.read(DATASET, &counter).await.expect("readable");
    let base = row.checkpoint.unwrap_or_else(|| Checkpoint::empty(Timestamp::MIN));
    let range = ScanRange { after: base.as_of, to: at(to), ..all() };
    let events = stores.log.scan(DATASET, &counter, range).await.expect("readable");
    let rules = FoldRules::constant(Duration::from_secs(60), None, vec![10]);
    let rolled = fold(base, &events, at(to), &rules);
    let checkpoint = rolled.checkpoint.clone();
    let write = RollWrite {
        counter,
        checkpoint: rolled.checkpoint,
        finished_buckets: rolled.finished_buckets,
        finished_steps: rolled.finished_steps,
    };
    stores.rollups.put(DATASET, vec![write]).await.expect("the roll is taken");
    checkpoint
}

/// Publishes a limit until every shard of memory was swept up to it.
async fn forget_up_to(stores: &Stores, seconds: i64) {
    for millis in 0..64 {
        let limit = at(seconds) + Duration::from_millis(millis);
        stores.progress.publish(DATASET, limit).await.expect("the limit is taken");
    }
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_the_store_was_opened_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 1_000).await;
    append(&stores, vec![add("a", 10, "t1", 5), add("a", 20, "t2", 7), add("b", 30, "t3", 1)]).await;
    let clear = NewEvent { counter: counter("b"), event: event(31, "t4", Change::Clear) };
    append(&stores, vec![clear]).await;
    stores.progress.publish(DATASET, at(15)).await.expect("the limit is taken");
    let checkpoint = roll(&stores, "a", 15).await;
    stores.touches.put_watermarks(DATASET, vec![(3, at(9))]).await.expect("the watermark is taken");
    store.close();
    assert_eq!(stores.rollups.read(DATASET, &counter("zz")).await.unwrap_err().kind, StoreErrorKind::Closed);

    let (_store, stores) = open_small(dir.path());
    assert_eq!(stores.progress.limit(DATASET).await.expect("known"), at(15));
    assert_eq!(stores.touches.watermarks(DATASET).await.expect("known")[3], Some(at(9)));
    let slices = stores.slices.list(DATASET).await.expect("known");
    assert_eq!((slices.len(), slices[0].versions[&NAMESPACE]), (1, 3));
    let row = stores.rollups.read(DATASET, &counter("a")).await.expect("readable");
    assert_eq!(row.checkpoint, Some(checkpoint));
    assert_eq!(row.last_write_time, Some(at(20)));
    let row = stores.rollups.read(DATASET, &counter("b")).await.expect("readable");
    assert_eq!(row.clear.map(|clear| clear.time), Some(at(31)));
    assert_eq!(append(&stores, vec![add("a", 20, "t2", 8)]).await, [AppendOutcome::Existing(Change::Add(7))]);
    assert_eq!(
        stores.log.tail(DATASET, &counter("a"), at(15)),
        TailLookup::Unknown,
        "what was above the limit is on disk"
    );
    let events = stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable");
    assert_eq!(events, [event(10, "t1", Change::Add(5)), event(20, "t2", Change::Add(7))]);
    // An event older than events from before the restart must work like any other.
    append(&stores, vec![add("b", 25, "t5", 1), add("b", 45, "t6", 2)]).await;
    assert_eq!(append(&stores, vec![add("b", 25, "t5", 2)]).await, [AppendOutcome::Existing(Change::Add(1))]);
    let range = ScanRange { after: at(15), ..all() };
    let seen = stores.log.scan(DATASET, &counter("b"), range).await.expect("readable");
    assert_eq!(seen.iter().map(|event| event.key.time).collect::<Vec<_>>(), [at(25), at(30), at(31), at(45)]);
    match stores.log.tail(DATASET, &counter("b"), at(40)) {
        TailLookup::Sum(sum) => assert_eq!((sum.sum, sum.mutations), (2, 1)),
        other @ (TailLookup::Empty | TailLookup::Unknown) => {
            panic!("what came after the start is in memory: {other:?}")
        }
    }
}

#[tokio::test]
async fn memory_may_forget_everything_below_the_limit_and_nothing_changes() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (_store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 100).await;
    make_slice(&stores, 100, 200).await;
    append(&stores, vec![add("a", 10, "t1", 5), add("a", 110, "t2", 7), add("b", 50, "t3", 1)]).await;
    assert_eq!(
        stores.log.settle(DATASET, &counter("a"), &event(120, "v", Change::Void).key).await.expect("settled"),
        VerdictOutcome::Voided
    );
    roll(&stores, "a", 60).await;
    forget_up_to(&stores, 150).await;
    assert_eq!(stores.log.tail(DATASET, &counter("b"), at(20)), TailLookup::Unknown, "it was forgotten");

    let row = stores.rollups.read(DATASET, &counter("a")).await.expect("readable");
    assert_eq!(row.last_write_time, Some(at(110)), "a void is no write");
    let scanned = |after, order, limit| {
        let log = stores.log.clone();
        async move {
            let range = ScanRange { after: at(after), order, limit, ..all() };
            let events = log.scan(DATASET, &counter("a"), range).await.expect("readable");
            events.iter().map(|event| event.key.time).collect::<Vec<_>>()
        }
    };
    assert_eq!(scanned(0, ScanOrder::OldestFirst, 9).await, [at(10), at(110), at(120)]);
    assert_eq!(scanned(0, ScanOrder::NewestFirst, 2).await, [at(120), at(110)]);
    assert_eq!(scanned(10, ScanOrder::OldestFirst, 1).await, [at(110)]);
    assert_eq!(append(&stores, vec![add("b", 50, "t3", 2)]).await, [AppendOutcome::Existing(Change::Add(1))]);
    assert_eq!(append(&stores, vec![add("a", 120, "v", 2)]).await, [AppendOutcome::Existing(Change::Void)]);
    assert_eq!(append(&stores, vec![add("a", 55, "t9", 2)]).await, [AppendOutcome::Inserted], "late, but new");
    assert_eq!(scanned(0, ScanOrder::OldestFirst, 9).await, [at(10), at(55), at(110), at(120)]);
}

#[tokio::test]
async fn a_counter_with_voids_only_is_not_taken_for_a_new_one() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 100).await;
    stores.log.settle(DATASET, &counter("a"), &event(10, "v", Change::Void).key).await.expect("settled");
    forget_up_to(&stores, 50).await;
    assert_eq!(append(&stores, vec![add("a", 10, "v", 2)]).await, [AppendOutcome::Existing(Change::Void)]);
    assert!(stores.rollups.names(NAMESPACE, "", None, 9).await.expect("readable").is_empty(), "not listed");
    store.close();
    let (_store, stores) = open_small(dir.path());
    assert_eq!(
        append(&stores, vec![add("a", 10, "v", 2), add("a", 60, "t", 2)]).await[0],
        AppendOutcome::Existing(Change::Void)
    );
    assert_eq!(stores.rollups.names(NAMESPACE, "", None, 9).await.expect("readable").len(), 1);
}

#[tokio::test]
async fn a_dropped_slice_is_gone_before_and_after_the_store_is_opened_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 100).await;
    make_slice(&stores, 100, 200).await;
    append(&stores, vec![add("a", 10, "t1", 5), add("a", 110, "t2", 7)]).await;
    roll(&stores, "a", 150).await;
    stores.slices.set_status(DATASET, at(0), SliceStatus::Dropped).await.expect("dropped");
    for round in ["before", "after"] {
        let (_again, stores) = if round == "after" {
            store.close();
            let (again, stores) = open_small(dir.path());
            (Some(again), stores)
        } else {
            (None, stores.clone())
        };
        let events = stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable");
        assert_eq!(events.len(), 1, "{round}");
        assert!(stores.log.scan_slice(DATASET, at(0), None, 9).await.expect("readable").is_empty(), "{round}");
        let refused = stores.log.append(DATASET, vec![add("a", 11, "t3", 1)], Box::new(())).await;
        assert_eq!(refused[0].as_ref().unwrap_err().kind, StoreErrorKind::Conflict, "{round}");
    }
}

#[tokio::test]
async fn a_forgotten_namespace_leaves_no_row() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 1_000).await;
    for batch in 0..3 {
        let events = (0..700).map(|n| add(&format!("c{batch}.{n}"), 10, "t", 1)).collect();
        append(&stores, events).await;
    }
    roll(&stores, "c0.0", 900).await;
    stores.rollups.remove_namespace(NAMESPACE).await.expect("forgotten");
    store.close();
    let (store, stores) = open_small(dir.path());
    assert!(stores.rollups.names(NAMESPACE, "", None, 9).await.expect("readable").is_empty());
    assert_eq!(stores.rollups.read(DATASET, &counter("c0.0")).await.expect("readable"), Default::default());
    store.close();
}

/// Number of rows of a namespace, except events, in all permanent keyspaces.
fn rows_left(store: &Embedded) -> usize {
    let count = |library: &super::disk::library::Library| {
        let mut left = 0;
        for keyspace in [&library.names, &library.registers, &library.rollups] {
            let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
            for row in super::disk::read::rows(keyspace, everything, ScanOrder::OldestFirst) {
                left += usize::from(row?.0.as_ref() != super::disk::key::TIDIED);
            }
        }
        Ok(left)
    };
    store.core.read("count", count).expect("readable")
}

#[tokio::test]
async fn a_removal_of_a_namespace_that_was_cut_off_is_found_again() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 1_000).await;
    append(&stores, (0..10).map(|n| add(&format!("c{n}"), 10, "t", 1)).collect()).await;
    for n in 0..10 {
        roll(&stores, &format!("c{n}"), 900).await;
    }
    assert_eq!(rows_left(&store), 20, "ten names and ten checkpoints");
    let asked = &store.core.inbox;
    asked.request("forget", |answer| StoreCommand::Forget(NAMESPACE, answer)).await.expect("marked");
    // Ten checkpoints, ten series steps, ten bucket records, and three of ten names.
    let more = asked.request("forget", |answer| StoreCommand::PurgeRows(NAMESPACE, 33, answer)).await.expect("begun");
    assert!(more, "not all went at once");
    store.close();
    let (store, stores) = open_small(dir.path());
    assert_eq!(rows_left(&store), 7);
    assert_eq!(stores.rollups.namespaces(None, 9).await.expect("readable"), [NAMESPACE]);
    stores.rollups.remove_namespace(NAMESPACE).await.expect("forgotten");
    assert_eq!((rows_left(&store), stores.rollups.namespaces(None, 9).await.expect("readable")), (0, Vec::new()));
}

#[tokio::test]
async fn a_second_opening_of_the_same_directory_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _) = open_small(dir.path());
    let refused = open(small(dir.path())).err().expect("in use");
    assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    store.close();
    open(small(dir.path())).expect("free again");
}

#[tokio::test]
async fn a_full_file_system_refuses_adds_and_goes_on_reading() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 100).await;
    append(&stores, vec![add("a", 10, "t1", 5)]).await;
    store.close();
    let options = Options { reserve_bytes: u64::MAX, ..small(dir.path()) };
    let store = open(options).expect("it opens");
    let stores = store.stores(Arc::new(FastTable::new(Arc::new(ManualClock::at(at(0))), 1 << 20)));
    let refused = stores.log.append(DATASET, vec![add("a", 11, "t2", 1)], Box::new(())).await;
    let error = refused[0].as_ref().unwrap_err();
    assert_eq!((error.kind, error.outcome), (StoreErrorKind::Full, tallystone_ports::EffectOutcome::NotApplied));
    assert!(store.health().full);
    assert_eq!(stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable").len(), 1);
}

#[tokio::test]
async fn whatever_was_answered_is_held_no_longer() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 1_000).await;
    append(&stores, (0..100).map(|n| add(&format!("c{n}"), 10, "t", 1)).collect()).await;
    let beyond = stores.log.append(DATASET, vec![add("a", 2_000, "t", 1)], Box::new(())).await;
    assert_eq!(beyond[0].as_ref().unwrap_err().kind, StoreErrorKind::Conflict);
    stores.log.settle(DATASET, &counter("a"), &event(10, "v", Change::Void).key).await.expect("settled");
    roll(&stores, "c0", 900).await;
    stores.slices.set_status(DATASET, at(0), SliceStatus::Dropped).await.expect("dropped");
    stores.rollups.remove_namespace(NAMESPACE).await.expect("forgotten");
    store.close();
    assert_eq!(store.health().waiting_bytes, 0);
}

#[tokio::test]
async fn a_store_below_its_mark_does_not_open() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(dir.path());
    make_slice(&stores, 0, 100).await;
    store.close();
    let mark = super::disk::acknowledged_file::AcknowledgedFile::open(dir.path()).expect("readable").expect("whole");
    mark.0.write(mark.1 + 1).expect("writable");
    let refused = open(small(dir.path())).err().expect("below its mark");
    assert!(matches!(refused, OpenError::Behind { .. }), "{refused}");
}
