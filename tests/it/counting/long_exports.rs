//! Exports of long slices: others have their turn after every page of 1,000 events, and a drain ends them at its deadline.
//!
//! Everything runs on one thread and on a store that answers at once, so nothing but the export itself gives others a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::domain::Timestamp;
use tallystone::domain::counter::NamespaceName;
use tallystone::domain::limits::SCAN_PAGE_EVENTS;
use tallystone::domain::rollup::SliceStatus;
use tallystone::ports::{Clock, ExportSink, SliceRow, StoreError};
use tokio::task::JoinSet;

use super::{House, SECOND, START, spec};

const HOUR: Duration = Duration::from_secs(3_600);
const PAGES: usize = 5;
const EVENTS: usize = (PAGES - 1) * SCAN_PAGE_EVENTS + 1;

/// Takes the pages of the one slice with events, each in so long a time, and notes how many turns others had had at each.
struct Pages {
    clock: ManualClock,
    takes: Duration,
    turns: Arc<AtomicU64>,
    at_turns: Mutex<Vec<u64>>,
    rows: Mutex<usize>,
    slice: Mutex<Option<Timestamp>>,
    is_finished: Mutex<bool>,
}

#[async_trait]
impl ExportSink for Pages {
    async fn begin(&self, _dataset: &NamespaceName, _slice_start: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    async fn write(
        &self,
        _dataset: &NamespaceName,
        slice_start: Timestamp,
        rows: Vec<(String, SliceRow)>,
    ) -> Result<(), StoreError> {
        assert!(rows.len() <= SCAN_PAGE_EVENTS, "{} rows at once", rows.len());
        if rows.is_empty() {
            return Ok(());
        }
        let slice = *self.slice.lock().get_or_insert(slice_start);
        assert_eq!(slice, slice_start, "one slice has events");
        *self.rows.lock() += rows.len();
        self.at_turns.lock().push(self.turns.load(Ordering::Relaxed));
        if !self.takes.is_zero() {
            self.clock.sleep(self.takes).await;
        }
        Ok(())
    }

    async fn finish(&self, _dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        if *self.slice.lock() == Some(slice_start) {
            *self.is_finished.lock() = true;
        }
        Ok(())
    }
}

impl Pages {
    fn written(&self) -> usize {
        self.at_turns.lock().len()
    }
}

/// A house in which the export of a slice of many events has just begun, and a task that counts its turns.
async fn exporting(takes: Duration) -> (House, Arc<Pages>, JoinSet<()>) {
    let mut spec = spec("shop");
    spec.dataset.seconds_per_slice = 3_600;
    spec.dataset.close_after = 2 * HOUR;
    spec.dataset.delete_after = 3 * HOUR;
    spec.dataset.export_before_drop = true;
    spec.partition.seconds_per_bucket = 600;
    let clock = ManualClock::at(START + HOUR);
    let stores = memory::stores_on(Arc::new(clock.clone()));
    let turns = Arc::new(AtomicU64::new(0));
    let pages = Arc::new(Pages {
        clock: clock.clone(),
        takes,
        turns: Arc::clone(&turns),
        at_turns: Mutex::default(),
        rows: Mutex::default(),
        slice: Mutex::default(),
        is_finished: Mutex::default(),
    });
    let house = House::on(spec, clock, stores, Some(pages.clone())).await;
    for _ in 0..EVENTS {
        house.add("views", 1, None).await.expect("an add that works");
    }
    let mut others = JoinSet::new();
    others.spawn(async move {
        loop {
            turns.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..8 * 360 {
        if pages.written() > 0 {
            return (house, pages, others);
        }
        house.clock.advance(10 * SECOND);
        house.rest().await;
    }
    panic!("a slice past its time is exported");
}

#[tokio::test]
async fn an_export_gives_others_a_turn_after_every_thousand_events() {
    let (house, pages, _others) = exporting(Duration::ZERO).await;
    house.rest().await;
    assert!(*pages.is_finished.lock(), "{} pages", pages.written());
    assert_eq!((*pages.rows.lock(), pages.written()), (EVENTS, PAGES));
    let at_turns = pages.at_turns.lock().clone();
    // Tasks that give each other turns may take them in the order ABBA.
    let has_turns = at_turns.windows(3).all(|three| three[0] < three[2]);
    assert!(has_turns, "others had no turn between pages: {at_turns:?}");
}

#[tokio::test]
async fn an_export_ends_at_the_deadline_of_the_drain_and_its_slice_stays() {
    let (house, pages, _others) = exporting(SECOND).await;
    let began = house.clock.elapsed();
    let deadline = 2 * SECOND;
    assert!(!house.drive(house.engine.drain(deadline)).await, "it was not done in time");
    let took = house.clock.elapsed() - began;
    assert!(took <= deadline + SECOND / 10, "{took:?}");
    let written = pages.written();
    assert!(written < PAGES && !*pages.is_finished.lock(), "{written} pages");
    house.pass(10 * SECOND).await;
    assert_eq!(pages.written(), written, "nothing is written after the deadline");
    let dataset = house.engine.namespaces().datasets()[0].id;
    let rows = house.stores.slices.list(dataset).await.expect("rows");
    let slice = pages.slice.lock().expect("a page was written");
    let row = rows.iter().find(|row| row.start == slice).expect("it keeps its row");
    assert_eq!(row.status, SliceStatus::Closed);
}
