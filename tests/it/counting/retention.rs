//! Retention: slices are dropped when everything in them is rolled up, and not before.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::{Change, NamespaceName};
use tallystone::domain::limits::GAP_SLICES_MAX;
use tallystone::domain::namespace::NamespaceSpec;
use tallystone::domain::rollup::{SliceStatus, TimeSlice};
use tallystone::engine::counting::{Repair, TokenVerdict, WriteOutcome};
use tallystone::ports::{ExportSink, SliceRow, StoreError, StoreErrorKind};

use super::{House, SECOND, START, applied, counter, spec, token};

const HOUR: Duration = Duration::from_secs(3_600);

fn short() -> NamespaceSpec {
    let mut short = spec("shop");
    short.dataset.seconds_per_slice = 3_600;
    short.dataset.close_after = 2 * HOUR;
    short.dataset.delete_after = 3 * HOUR;
    short.partition.seconds_per_bucket = 600;
    short
}

async fn house() -> House {
    House::with(short()).await
}

/// Moves the clock in strides, as a quiet night would.
async fn night(house: &House, hours: u32) {
    for _ in 0..hours * 60 {
        house.clock.advance(Duration::from_secs(60));
        house.rest().await;
    }
    house.pass(30 * SECOND).await;
}

#[tokio::test]
async fn a_slice_past_its_time_is_dropped_and_the_count_stays() {
    let house = house().await;
    let dataset = house.engine.namespaces().datasets()[0].id;
    house.add("views", 5, None).await.expect("an add that works");
    let first = house.stores.slices.list(dataset).await.expect("rows")[0].start;
    night(&house, 6).await;
    let rows = house.stores.slices.list(dataset).await.expect("rows");
    let row = rows.iter().find(|row| row.start == first).expect("a dropped slice keeps its row");
    assert_eq!(row.status, SliceStatus::Dropped);
    assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start), "slices touch without a gap");
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (5, false));
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(8 * SECOND).await;
    assert_eq!(house.get("views").await.count, 7);
    let recount =
        house.counting.recount(&house.shop, counter("views"), None, None, Repair::No).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.complete), (7, 7, false));
}

const DAY: Duration = Duration::from_secs(86_400);

/// The smallest slices there are, kept for long.
fn tiny_slices() -> NamespaceSpec {
    let mut tiny = spec("shop");
    tiny.dataset.seconds_per_slice = 10;
    tiny.dataset.close_after = 20 * SECOND;
    tiny.dataset.delete_after = 90 * DAY;
    tiny.partition.seconds_per_bucket = 10;
    tiny
}

async fn slice_rows(house: &House) -> Vec<TimeSlice> {
    let dataset = house.engine.namespaces().datasets()[0].id;
    let rows = house.stores.slices.list(dataset).await.expect("rows");
    assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start), "slices touch without a gap");
    rows
}

async fn verdict(house: &House, text: &str, time: Timestamp) -> TokenVerdict {
    let check = house.counting.check_token(&house.shop, counter("views"), token(text, time));
    house.drive(check).await.expect("a check that works")
}

#[tokio::test]
async fn a_long_standstill_costs_few_slices_and_every_token_of_it_is_answered() {
    let house = House::with(tiny_slices()).await;
    let began = house.now();
    house.add("views", 5, Some(token("before", began))).await.expect("an add that works");
    house.engine.abandon().await;
    house.clock.advance(60 * DAY);
    let house = House::on(tiny_slices(), house.clock.clone(), house.stores.clone(), None).await;
    let rows = slice_rows(&house).await;
    assert!(rows.len() <= 2 * GAP_SLICES_MAX as usize, "{} rows for sixty days of ten seconds each", rows.len());
    let width = |row: &TimeSlice| row.end.since(row.start);
    let now = house.now();
    assert!(rows.iter().filter(|row| row.end > now - 5 * SECOND).all(|row| width(row) == 10 * SECOND), "{rows:?}");
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(10 * SECOND).await;
    let reading = house.get("views").await;
    assert_eq!((reading.count, reading.behind), (7, false));
    let again = house.add("views", 5, Some(token("before", began))).await;
    assert_eq!(applied(&again), Some(WriteOutcome::AlreadyApplied), "what came before the standstill is still known");
    for days in [1, 30, 59] {
        let time = began + days * DAY;
        assert_eq!(verdict(&house, "meanwhile", time).await, TokenVerdict::NotApplied, "day {days}");
        assert!(house.add("views", 1, Some(token("meanwhile", time))).await.is_err(), "and that is final");
    }
    let recount =
        house.counting.recount(&house.shop, counter("views"), None, None, Repair::No).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.complete), (7, 7, true));
    house.clock.advance(91 * DAY);
    house.pass(40 * SECOND).await;
    house.pass(40 * SECOND).await;
    let long = slice_rows(&house).await.into_iter().find(|row| width(row) > DAY).expect("the long slice keeps its row");
    assert_eq!(long.status, SliceStatus::Dropped, "it leaves like any other");
    assert_eq!(house.get("views").await.count, 7);
    assert_eq!(verdict(&house, "meanwhile", began + 30 * DAY).await, TokenVerdict::TooOld);
}

#[tokio::test]
async fn a_token_from_long_before_the_first_slice_costs_few_slices() {
    let house = House::with(tiny_slices()).await;
    for days in [1, 80, 40, 0] {
        let time = house.now() - days * DAY - 60 * SECOND;
        assert_eq!(verdict(&house, &format!("t{days}"), time).await, TokenVerdict::NotApplied, "{days} days ago");
    }
    let rows = slice_rows(&house).await;
    assert!(rows.len() <= 8 * GAP_SLICES_MAX as usize, "{} rows for eighty days of ten seconds each", rows.len());
    house.add("views", 2, None).await.expect("an add that works");
    house.pass(10 * SECOND).await;
    assert_eq!(house.get("views").await.count, 2);
}

#[tokio::test]
async fn slices_of_an_idle_dataset_are_dropped_without_complaint() {
    let house = house().await;
    house.add("views", 5, None).await.expect("an add that works");
    night(&house, 2).await;
    for _ in 0..3 * 360 {
        house.clock.advance(10 * SECOND);
        house.rest().await;
    }
    let stats = house.engine.stats();
    assert!(stats.slices_dropped.get() >= 2, "{} were dropped", stats.slices_dropped.get());
    assert_eq!(stats.slices_kept_back.get(), 0);
}

/// Keeps exports in memory; the first one of each slice fails at its end.
#[derive(Default)]
struct Kept {
    state: Mutex<KeptState>,
}

#[derive(Default)]
struct KeptState {
    failed: HashSet<Timestamp>,
    parts: HashMap<Timestamp, Vec<SliceRow>>,
    finished: HashMap<Timestamp, Vec<SliceRow>>,
}

#[async_trait]
impl ExportSink for Kept {
    async fn begin(&self, _dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        self.state.lock().parts.insert(slice_start, Vec::new());
        Ok(())
    }

    async fn write(
        &self,
        _dataset: &NamespaceName,
        slice_start: Timestamp,
        rows: Vec<(String, SliceRow)>,
    ) -> Result<(), StoreError> {
        let rows = rows.into_iter().map(|(_, row)| row);
        self.state.lock().parts.get_mut(&slice_start).expect("it was begun").extend(rows);
        Ok(())
    }

    async fn finish(&self, _dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.failed.insert(slice_start) {
            return Err(StoreError::unknown(StoreErrorKind::Unavailable, "finish export"));
        }
        let rows = state.parts.remove(&slice_start).expect("it was begun");
        state.finished.insert(slice_start, rows);
        Ok(())
    }
}

#[tokio::test]
async fn a_slice_is_dropped_only_after_its_own_export() {
    let mut exported = short();
    exported.dataset.export_before_drop = true;
    let clock = ManualClock::at(START + HOUR);
    let stores = memory::stores_on(Arc::new(clock.clone()));
    let kept = Arc::new(Kept::default());
    let house = House::on(exported, clock, stores, Some(kept.clone())).await;
    house.add("views", 5, None).await.expect("an add that works");
    house.add("likes", 7, None).await.expect("an add that works");
    let now = house.now();
    let row = slice_rows(&house).await.into_iter().find(|row| row.start <= now && now < row.end);
    let first = row.expect("the slice of the events").start;
    for _ in 0..8 * 360 {
        house.clock.advance(10 * SECOND);
        house.rest().await;
        let is_finished = kept.state.lock().finished.contains_key(&first);
        let row = slice_rows(&house).await.into_iter().find(|row| row.start == first).expect("it keeps its row");
        assert!(is_finished || row.status != SliceStatus::Dropped, "its export failed, and it is gone");
        if row.status == SliceStatus::Dropped {
            let state = kept.state.lock();
            let changes: HashSet<_> = state.finished[&first].iter().map(|row| row.event.change).collect();
            assert_eq!(changes, HashSet::from([Change::Add(5), Change::Add(7)]));
            return;
        }
    }
    panic!("a slice that is exported is dropped");
}
