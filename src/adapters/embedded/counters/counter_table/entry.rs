//! The in-memory entry of one counter.

use super::EventLookup;
use crate::counters::counter_row::CounterRow;
use crate::counters::event_tail::EventTail;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, EventKey};

/// Whether the list of names contains the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameListing {
    /// Unknown; read the name from disk.
    Unknown,
    /// The name is not listed.
    No,
    Yes,
}

/// One counter; `tail` holds every event of it above `disk_to`.
#[derive(Debug)]
pub struct CounterEntry {
    pub dataset: DatasetId,
    /// Identity of the counter.
    pub counter: Counter,
    /// Version of the entry; increases with every change.
    pub stamp: u64,
    /// The tail holds all events above this time.
    pub disk_to: Timestamp,
    /// Recent events.
    pub tail: EventTail,
    /// Stored values other than events: checkpoint, newest clear, last write; `None` until they are read.
    pub row: Option<Box<CounterRow>>,
    /// Whether the name is listed.
    pub name_listing: NameListing,
    /// Whether the entry was used since the last eviction pass.
    pub used: bool,
    /// The two steps most recently entered in the dirty-counter index.
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

    /// Returns whether this is the entry of the given counter.
    pub fn matches(&self, dataset: DatasetId, counter: &Counter) -> bool {
        self.counter == *counter && self.dataset == dataset
    }

    /// Looks up an event by its key.
    pub fn find(&self, key: &EventKey) -> EventLookup {
        match self.tail.find(key) {
            Some(event) => EventLookup::Present(event.clone()),
            None if key.time > self.disk_to => EventLookup::Missing,
            None => EventLookup::ReadDisk,
        }
    }

    /// Returns whether the dirty-counter index is known to have an entry for the step.
    pub fn has_touch(&self, step: Timestamp) -> bool {
        self.touched.contains(&step)
    }

    /// Records a dirty-counter index entry; returns whether the index may still lack it.
    pub fn touch(&mut self, step: Timestamp) -> bool {
        if self.has_touch(step) {
            return false;
        }
        self.touched = [step, self.touched[0]];
        true
    }

    pub(super) fn own_bytes(&self) -> usize {
        // The entry, its slot in the table, and the name with its allocation header.
        size_of::<Self>() + 24 + self.counter.name().as_str().len() + 32
    }

    pub(super) fn row_heap_bytes(&self) -> usize {
        self.row.as_ref().map_or(0, |row| row.heap_bytes())
    }

    /// Drops the row; returns the freed bytes.
    pub(super) fn drop_row(&mut self) -> usize {
        self.row.take().map_or(0, |row| row.heap_bytes() + size_of::<CounterRow>())
    }
}
