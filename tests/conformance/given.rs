//! What the laws are tried on: one dataset with three slices of ten minutes, counters of two namespaces, events by name.

use std::collections::BTreeMap;
use std::time::Duration;

use tallystone_domain::counter::{
    Change, Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId, NamespaceName, Provenance,
};
use tallystone_domain::rollup::{Checkpoint, SliceStatus, TimeSlice};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{AppendOutcome, NewEvent, RollWrite, ScanOrder, ScanRange, StoreError, Stores};

/// The dataset.
pub const DATASET: DatasetId = DatasetId(1);
/// A dataset that has slices of the same times and nothing in them.
pub const OTHER_DATASET: DatasetId = DatasetId(2);
/// The namespace of `counter`.
pub const NAMESPACE: NamespaceId = NamespaceId(1);
/// The namespace of `foreign`.
pub const OTHER_NAMESPACE: NamespaceId = NamespaceId(2);
/// 2026-11-20T00:00:00Z, the beginning of the middle slice.
pub const T0: Timestamp = Timestamp::from_secs(1_795_132_800);
/// Counters of either namespace that have event buckets of their own, on stores that have such.
pub const HOT: [&str; 2] = ["a", "views"];
/// The width of a slice.
pub const SLICE: Duration = Duration::from_secs(600);
/// The beginnings of the slices, in seconds from `T0`.
pub const SLICE_STARTS: [i64; 3] = [-600, 0, 600];

/// The time so many milliseconds from `T0`.
pub fn at(millis: i64) -> Timestamp {
    Timestamp::from_micros(T0.micros() + millis * 1_000)
}

/// The slices of both datasets.
pub fn slices() -> Vec<TimeSlice> {
    let of = |dataset| SLICE_STARTS.map(|secs| slice(dataset, secs * 1_000));
    [of(DATASET), of(OTHER_DATASET)].concat()
}

/// An open slice.
pub fn slice(dataset: DatasetId, start_millis: i64) -> TimeSlice {
    slice_of_version(dataset, start_millis, 1)
}

/// An open slice that freezes a version of the settings of `NAMESPACE`.
pub fn slice_of_version(dataset: DatasetId, start_millis: i64, version: u64) -> TimeSlice {
    let versions = BTreeMap::from([(NAMESPACE, version)]);
    let start = at(start_millis);
    TimeSlice { dataset, start, end: start + SLICE, status: SliceStatus::Open, versions }
}

/// A counter of `NAMESPACE`.
pub fn counter(name: &str) -> Counter {
    Counter::new(NAMESPACE, counter_name(name))
}

/// A counter of `OTHER_NAMESPACE`.
pub fn foreign(name: &str) -> Counter {
    Counter::new(OTHER_NAMESPACE, counter_name(name))
}

/// A valid name.
pub fn counter_name(name: &str) -> CounterName {
    CounterName::new(name).expect("a valid name")
}

/// A valid name of a namespace or dataset.
pub fn namespace_name(name: &str) -> NamespaceName {
    NamespaceName::new(name).expect("a valid name")
}

/// The key of a text token.
pub fn key(millis: i64, token: &str) -> EventKey {
    EventKey { time: at(millis), id: EventId::text(token) }
}

/// An event of a text token.
pub fn event(millis: i64, token: &str, change: Change) -> Event {
    Event { key: key(millis, token), change, provenance: Provenance::new("test").expect("short") }
}

/// An event of a counter.
pub fn of(counter: &Counter, event: Event) -> NewEvent {
    NewEvent { counter: counter.clone(), event }
}

/// Appends events and answers what became of each.
pub async fn append_all(stores: &Stores, events: Vec<NewEvent>) -> Vec<Result<AppendOutcome, StoreError>> {
    stores.log.append(DATASET, events, Box::new(())).await
}

/// Appends one event that is taken.
pub async fn append(stores: &Stores, counter: &Counter, event: Event) -> AppendOutcome {
    let mut answers = append_all(stores, vec![of(counter, event)]).await;
    assert_eq!(answers.len(), 1, "one answer for one event");
    answers.remove(0).expect("an append inside a live slice")
}

/// Every event of a counter, oldest first.
pub async fn all_events(stores: &Stores, counter: &Counter) -> Vec<Event> {
    stores.log.scan(DATASET, counter, everything()).await.expect("a scan")
}

/// The whole range, oldest first.
pub fn everything() -> ScanRange {
    ScanRange {
        after: Timestamp::MIN,
        to: Timestamp::MAX,
        order: ScanOrder::OldestFirst,
        beyond: None,
        limit: usize::MAX,
    }
}

/// A checkpoint with a count.
pub fn checkpoint(as_of_millis: i64, count: i128) -> Checkpoint {
    Checkpoint { count, ..Checkpoint::empty(at(as_of_millis)) }
}

/// A roll that finishes nothing.
pub fn roll(counter: &Counter, checkpoint: Checkpoint) -> RollWrite {
    RollWrite { counter: counter.clone(), checkpoint, finished_buckets: Vec::new(), finished_steps: Vec::new() }
}
