//! The slice rows of one dataset, as this server knows them, and the fold rules that they freeze.
//!
//! The rows this server knows touch without a gap, from the first ever written to two slices ahead; a roll over a range
//! that they do not cover is refused, never treated as empty.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use crate::domain::counter::{DatasetId, NamespaceId};
use crate::domain::rollup::{SliceStatus, TimeSlice};
use crate::domain::{Timestamp, rollup::window::slice_start};
use crate::ports::{StoreError, TimeSlices};

/// How many slices are made ahead of their time.
const AHEAD: u32 = 2;

/// The known slice rows of a dataset.
pub struct SliceTable {
    dataset: DatasetId,
    width: Duration,
    rows: ArcSwap<Vec<TimeSlice>>,
    /// One caller at a time makes rows, so that those of two callers leave no gap between them.
    making: Semaphore,
}

impl SliceTable {
    /// Reads the rows of a dataset.
    pub async fn open(dataset: DatasetId, width: Duration, store: &dyn TimeSlices) -> Result<Self, StoreError> {
        let rows = store.list(dataset).await?;
        Ok(Self { dataset, width, rows: ArcSwap::from_pointee(rows), making: Semaphore::new(1) })
    }

    /// The known rows, oldest first.
    pub fn rows(&self) -> Arc<Vec<TimeSlice>> {
        self.rows.load_full()
    }

    /// Whether the slice of a time takes events now.
    pub fn has(&self, time: Timestamp) -> bool {
        let rows = self.rows.load();
        match (rows.first(), rows.last()) {
            (Some(first), Some(last)) => first.start <= time && time < last.end,
            (None, _) | (_, None) => false,
        }
    }

    /// The first time that a token can still be answered for: what is older was dropped, or is due to be.
    pub fn oldest_live(&self, now: Timestamp, delete_after: Duration) -> Timestamp {
        let rows = self.rows.load();
        let due = slice_start(now - delete_after, self.width);
        let dropped = rows.iter().filter(|row| row.status == SliceStatus::Dropped).map(|row| row.end).max();
        let live = rows.iter().find(|row| row.status != SliceStatus::Dropped).map(|row| row.start);
        due.min(live.unwrap_or(due)).max(dropped.unwrap_or(Timestamp::MIN))
    }

    /// Makes the rows from `from` to two slices beyond `to` that are missing, and those between them and the known ones.
    ///
    /// `versions` are frozen into each new row.
    pub async fn ensure(
        &self,
        from: Timestamp,
        to: Timestamp,
        versions: &BTreeMap<NamespaceId, u64>,
        now: Timestamp,
        store: &dyn TimeSlices,
    ) -> Result<(), StoreError> {
        let _turn = self.making.acquire().await.expect("the semaphore is never closed");
        let known = self.rows.load_full();
        let mut start = slice_start(from, self.width);
        let mut end = slice_start(to, self.width) + self.width * (1 + AHEAD);
        if let (Some(first), Some(last)) = (known.first(), known.last()) {
            start = start.min(first.start);
            end = end.max(last.end);
        }
        let mut rows = Vec::with_capacity(known.len() + 4);
        let mut known = known.iter().peekable();
        while start < end {
            match known.next_if(|row| row.start == start) {
                Some(row) => rows.push(row.clone()),
                None => rows.push(store.create(self.new_row(start, versions, now)).await?),
            }
            start = start + self.width;
        }
        self.merge(rows);
        Ok(())
    }

    /// Notes that a slice moved on in its life.
    pub fn note_status(&self, start: Timestamp, status: SliceStatus) {
        self.rows.rcu(|rows| {
            let mut rows = Vec::clone(rows);
            for row in rows.iter_mut().filter(|row| row.start == start) {
                row.status = row.status.max(status);
            }
            rows
        });
    }

    fn new_row(&self, start: Timestamp, versions: &BTreeMap<NamespaceId, u64>, now: Timestamp) -> TimeSlice {
        let status = if start > now { SliceStatus::Future } else { SliceStatus::Open };
        TimeSlice { dataset: self.dataset, start, end: start + self.width, status, versions: versions.clone() }
    }

    /// Takes rows in; their status may have moved on meanwhile.
    fn merge(&self, new: Vec<TimeSlice>) {
        self.rows.rcu(|old| {
            let mut rows: BTreeMap<Timestamp, TimeSlice> = new.iter().map(|row| (row.start, row.clone())).collect();
            for row in old.iter() {
                let known = rows.entry(row.start).or_insert_with(|| row.clone());
                known.status = known.status.max(row.status);
            }
            rows.into_values().collect::<Vec<_>>()
        });
    }
}
