//! One counter in memory.

use super::EventLookup;
use crate::adapters::embedded::counters::counter_row::CounterRow;
use crate::adapters::embedded::counters::event_tail::EventTail;
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, EventKey};

/// Whether the name of a counter is listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameListing {
    /// Disk has to be asked.
    Unknown,
    /// It is not.
    No,
    /// It is.
    Yes,
}

/// One counter. Every event of it above `disk_to` is in `tail`.
#[derive(Debug)]
pub struct CounterEntry {
    /// The dataset.
    pub dataset: DatasetId,
    /// The counter.
    pub counter: Counter,
    /// Grows with every change.
    pub stamp: u64,
    /// Events above this time are all in the tail.
    pub disk_to: Timestamp,
    /// Recent events.
    pub tail: EventTail,
    /// What is kept beside the events, if it was read.
    pub row: Option<Box<CounterRow>>,
    /// Whether the name is listed.
    pub name_listing: NameListing,
    /// Whether it was used since the last look for counters to evict.
    pub used: bool,
    /// The two steps last touched.
    touched: [Timestamp; 2],
}

impl CounterEntry {
    pub(super) fn new(dataset: DatasetId, counter: Counter, disk_to: Timestamp, stamp: u64) -> Self {
        Self {
            dataset,
            counter,
            stamp,
            disk_to,
            tail: EventTail::default(),
            row: None,
            name_listing: NameListing::Unknown,
            used: true,
            touched: [Timestamp::MAX; 2],
        }
    }

    /// Whether it is this counter.
    pub fn matches(&self, dataset: DatasetId, counter: &Counter) -> bool {
        self.counter == *counter && self.dataset == dataset
    }

    /// What is known of a key.
    pub fn find(&self, key: &EventKey) -> EventLookup {
        match self.tail.find(key) {
            Some(event) => EventLookup::Present(event.clone()),
            None if key.time > self.disk_to => EventLookup::Missing,
            None => EventLookup::ReadDisk,
        }
    }

    /// Whether the touch of a step is known to be in the index.
    pub fn has_touch(&self, step: Timestamp) -> bool {
        self.touched.contains(&step)
    }

    /// Notes a touch; says whether it may be missing in the index.
    pub fn touch(&mut self, step: Timestamp) -> bool {
        if self.has_touch(step) {
            return false;
        }
        self.touched = [step, self.touched[0]];
        true
    }

    pub(super) fn own_bytes(&self) -> usize {
        // The entry, its place in the table, its name with the head of its allocation.
        size_of::<Self>() + 24 + self.counter.name().as_str().len() + 32
    }

    pub(super) fn row_heap_bytes(&self) -> usize {
        self.row.as_ref().map_or(0, |row| row.heap_bytes())
    }

    /// Drops the row; answers the freed bytes.
    pub(super) fn drop_row(&mut self) -> usize {
        self.row.take().map_or(0, |row| row.heap_bytes() + size_of::<CounterRow>())
    }
}
