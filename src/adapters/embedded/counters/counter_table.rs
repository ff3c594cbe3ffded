//! The in-memory state of counters: all recent events, and the rows of the counters in use.
//!
//! The committer is the only writer and changes the table after each commit; readers take one short lock. Each shard
//! has a floor per dataset, at or below the published limit: the table holds every event above it. Each entry has its
//! own bound: the tail holds every event above its `disk_to`, however old. A row in the table is exact. A row that is
//! missing is read from disk, and is inserted only if its counter did not change during the read.

use hashbrown::{HashMap, HashTable};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::counters::counter_row::CounterRow;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, DatasetId, Event, EventKey, NamespaceId};
use tallystone_domain::rollup::TailLookup as TailAnswer;
use tallystone_ports::ScanRange;

mod entry;
mod evict;

pub use entry::{CounterEntry, NameListing};

/// Number of shards of the table; a power of two.
const SHARDS: usize = 256;

/// All counters in memory, in shards by hash.
pub struct CounterTable {
    shards: Box<[Mutex<CounterTableShard>]>,
    /// The dataset of each namespace in use; `None` for a namespace that two datasets use.
    datasets: RwLock<HashMap<NamespaceId, Option<DatasetId>>>,
    /// Byte limit for the rows and names of one shard.
    shard_bytes_max: usize,
}

/// The counters of one shard; the caller holds its lock.
pub struct CounterTableShard {
    entries: HashTable<Box<CounterEntry>>,
    floors: Vec<(DatasetId, Timestamp)>,
    /// Floor of the datasets without an entry of their own.
    floor: Timestamp,
    /// Increases with every change, so no two states of a counter share a stamp.
    stamp: u64,
    tail_bytes: usize,
    entry_bytes: usize,
    /// The part of the entries that the next eviction pass visits.
    next_part: u8,
    /// Number of entries that the next eviction pass may visit.
    visit_credit: usize,
    #[cfg(test)]
    looks: usize,
}

/// Result of an in-memory lookup by event key.
#[derive(Debug)]
pub enum EventLookup {
    /// The event with this key.
    Present(Event),
    /// There is no event with this key.
    Missing,
    /// Unknown; read the event from disk.
    ReadDisk,
}

/// State of an entry when a read of its row from disk begins.
#[derive(Clone, Copy, Debug)]
pub struct RowLoad {
    stamp: u64,
    /// Memory holds all events above this time.
    pub disk_to: Timestamp,
}

/// Result of reading a row from disk.
#[derive(Debug)]
pub struct LoadedRow {
    /// The row from disk, without the events that memory holds.
    pub row: CounterRow,
    /// Disk has no event above this time and at or below the `disk_to` of the load.
    pub disk_to: Timestamp,
}

impl CounterTable {
    /// Creates an empty table whose rows and names may take the given bytes.
    pub fn new(row_bytes_max: u64) -> Self {
        let shard = || {
            Mutex::new(CounterTableShard {
                entries: HashTable::new(),
                floors: Vec::new(),
                floor: Timestamp::MIN,
                stamp: 0,
                tail_bytes: 0,
                entry_bytes: 0,
                next_part: 0,
                visit_credit: 0,
                #[cfg(test)]
                looks: 0,
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            datasets: RwLock::default(),
            shard_bytes_max: usize::try_from(row_bytes_max).unwrap_or(usize::MAX) / SHARDS,
        }
    }

    /// Locks the shard of a counter.
    pub fn shard(&self, counter: &Counter) -> MutexGuard<'_, CounterTableShard> {
        // The low bits of the hash select the shard of the dirty-counter index.
        self.shards[(counter.hash() >> 56) as usize % SHARDS].lock()
    }

    /// Returns the bytes of all tails, and the bytes of all rows and names.
    pub fn bytes(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(tails, rows), shard| {
            let shard = shard.lock();
            (tails + shard.tail_bytes, rows + shard.entry_bytes)
        })
    }

    /// Records the dataset of a namespace, so that rows can be found by namespace alone.
    pub fn note_namespace(&self, namespace: NamespaceId, dataset: DatasetId) {
        if self.datasets.read().get(&namespace).is_some_and(|known| *known == Some(dataset) || known.is_none()) {
            return;
        }
        let mut datasets = self.datasets.write();
        let known = datasets.entry(namespace).or_insert(Some(dataset));
        if *known != Some(dataset) {
            *known = None;
        }
    }

    /// Returns the dataset of a namespace if exactly one is known.
    pub fn dataset_of(&self, namespace: NamespaceId) -> Option<DatasetId> {
        self.datasets.read().get(&namespace).copied().flatten()
    }

    /// Sums the events of a counter above a time.
    pub fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailAnswer {
        let shard = self.shard(counter);
        match shard.get(dataset, counter) {
            Some(entry) if after >= entry.disk_to => entry.tail.sum_above(after),
            None if after >= shard.floor_of(dataset) => TailAnswer::Empty,
            Some(_) | None => TailAnswer::Unknown,
        }
    }

    /// Returns the events of a range if memory holds all of them.
    pub fn scan(&self, dataset: DatasetId, counter: &Counter, range: &ScanRange) -> Option<Vec<Event>> {
        let shard = self.shard(counter);
        match shard.get(dataset, counter) {
            Some(entry) => (range.after >= entry.disk_to).then(|| entry.tail.scan(range)),
            None => (range.after >= shard.floor_of(dataset)).then(Vec::new),
        }
    }

    /// Looks up an event by its key.
    pub fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> EventLookup {
        let shard = self.shard(counter);
        match shard.get(dataset, counter) {
            Some(entry) => entry.find(key),
            None if key.time > shard.floor_of(dataset) => EventLookup::Missing,
            None => EventLookup::ReadDisk,
        }
    }

    /// Looks up an event by its key, and returns whether a new event there needs no index entry and no name.
    pub fn find_for_insert(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
        step: Timestamp,
    ) -> (EventLookup, bool) {
        let shard = self.shard(counter);
        match shard.get(dataset, counter) {
            Some(entry) => (entry.find(key), entry.name_listing == NameListing::Yes && entry.has_touch(step)),
            None if key.time > shard.floor_of(dataset) => (EventLookup::Missing, false),
            None => (EventLookup::ReadDisk, false),
        }
    }

    /// Reads the row of a counter, if memory holds it.
    pub fn row<T>(&self, dataset: DatasetId, counter: &Counter, read: impl FnOnce(&CounterRow) -> T) -> Option<T> {
        let mut shard = self.shard(counter);
        let entry = shard.get_mut(dataset, counter)?;
        entry.used = true;
        entry.row.as_deref().map(read)
    }

    /// Returns whether the name of a counter is listed.
    pub fn name_listing(&self, dataset: DatasetId, counter: &Counter) -> NameListing {
        self.shard(counter).get(dataset, counter).map_or(NameListing::Unknown, |entry| entry.name_listing)
    }

    /// Records that a counter gets a listed row, and an event in `step`; returns whether the index may lack that step.
    pub fn record_use(&self, dataset: DatasetId, counter: &Counter, step: Option<Timestamp>) -> bool {
        let mut shard = self.shard(counter);
        let entry = shard.entry(dataset, counter);
        entry.name_listing = NameListing::Yes;
        step.is_some_and(|step| entry.touch(step))
    }

    /// Inserts a counter that has no rows on disk.
    pub fn insert_unused(&self, dataset: DatasetId, counter: &Counter) {
        let mut shard = self.shard(counter);
        let entry = shard.entry(dataset, counter);
        let freed = entry.drop_row();
        entry.disk_to = Timestamp::MIN;
        entry.row = Some(Box::default());
        shard.entry_bytes = shard.entry_bytes + size_of::<CounterRow>() - freed;
        shard.evict(self.shard_bytes_max);
    }

    pub fn tail_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tail_bytes).sum()
    }

    /// Begins to read the row of a counter from disk.
    pub fn begin_load(&self, dataset: DatasetId, counter: &Counter) -> RowLoad {
        let mut shard = self.shard(counter);
        let entry = shard.entry(dataset, counter);
        RowLoad { stamp: entry.stamp, disk_to: entry.disk_to }
    }

    /// Finishes reading a row: inserts and returns it, or returns `None` if the counter changed in the meantime.
    pub fn end_load(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        ticket: RowLoad,
        found: LoadedRow,
    ) -> Option<CounterRow> {
        let mut shard = self.shard(counter);
        let entry = shard.get_mut(dataset, counter)?;
        if entry.stamp != ticket.stamp {
            return None;
        }
        let mut row = found.row;
        if let Some(time) = entry.tail.newest_mutation() {
            row.raise_last_write(time);
        }
        if let Some(clear) = entry.tail.newest_clear() {
            row.raise_clear(&clear);
        }
        entry.disk_to = entry.disk_to.min(found.disk_to);
        entry.used = true;
        let freed = entry.drop_row();
        let grown = row.heap_bytes() + size_of::<CounterRow>();
        entry.row = Some(Box::new(row.clone()));
        shard.entry_bytes = shard.entry_bytes + grown - freed;
        shard.evict(self.shard_bytes_max);
        Some(row)
    }

    /// Applies a committed event.
    pub fn publish(&self, dataset: DatasetId, counter: &Counter, event: &Event) {
        let mut shard = self.shard(counter);
        let stamp = shard.next_stamp();
        let entry = shard.entry(dataset, counter);
        entry.stamp = stamp;
        entry.used = true;
        let before = entry.row_heap_bytes();
        if let Some(row) = &mut entry.row {
            if event.change.is_mutation() {
                row.raise_last_write(event.key.time);
            }
            if event.change == Change::Clear {
                row.raise_clear(&event.key);
            }
        }
        let after = entry.row_heap_bytes();
        let bytes = if event.key.time > entry.disk_to { entry.tail.insert(event.clone()) } else { 0 };
        shard.tail_bytes += bytes;
        shard.entry_bytes = shard.entry_bytes + after - before;
    }

    /// Applies a committed checkpoint.
    pub fn publish_checkpoint(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        bytes: &[u8],
        checkpoint: &tallystone_domain::rollup::Checkpoint,
    ) {
        let mut shard = self.shard(counter);
        let stamp = shard.next_stamp();
        let Some(entry) = shard.get_mut(dataset, counter) else { return };
        entry.stamp = stamp;
        let before = entry.row_heap_bytes();
        if let Some(row) = &mut entry.row {
            row.put_checkpoint(bytes, checkpoint);
        }
        let after = entry.row_heap_bytes();
        shard.entry_bytes = shard.entry_bytes + after - before;
    }

    /// Drops the row and the name of a counter.
    pub fn forget_row(&self, dataset: DatasetId, counter: &Counter) {
        let mut shard = self.shard(counter);
        let stamp = shard.next_stamp();
        let Some(entry) = shard.get_mut(dataset, counter) else { return };
        entry.stamp = stamp;
        entry.name_listing = NameListing::Unknown;
        let freed = entry.drop_row();
        shard.entry_bytes -= freed;
    }

    /// Drops the rows of a namespace; its events stay.
    pub fn forget_rows(&self, namespace: NamespaceId) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let stamp = shard.next_stamp();
            let mut freed = 0;
            for entry in shard.entries.iter_mut().filter(|entry| entry.counter.namespace() == namespace) {
                entry.stamp = stamp;
                freed += entry.drop_row();
                entry.name_listing = NameListing::Unknown;
            }
            shard.entry_bytes -= freed;
        }
    }

    /// Drops the events of a dataset with `from <= time <= to`, because their slice was dropped.
    pub fn forget_events(&self, dataset: DatasetId, from: Timestamp, to: Timestamp) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let stamp = shard.next_stamp();
            let mut freed = 0;
            for entry in shard.entries.iter_mut().filter(|entry| entry.dataset == dataset) {
                let (newest, bytes) = entry.tail.remove(from, to);
                if newest.is_some() {
                    entry.stamp = stamp;
                }
                freed += bytes;
            }
            shard.tail_bytes -= freed;
        }
    }

    /// Sets the floor of a dataset in all shards; called at startup.
    pub fn set_floor(&self, dataset: DatasetId, floor: Timestamp) {
        for shard in &self.shards {
            shard.lock().raise_floor(dataset, floor);
        }
    }
}

impl CounterTableShard {
    /// Returns the entry of a counter, if there is one.
    pub fn get(&self, dataset: DatasetId, counter: &Counter) -> Option<&CounterEntry> {
        self.entries.find(counter.hash(), |entry| entry.matches(dataset, counter)).map(Box::as_ref)
    }

    /// Returns the entry of a counter for a change, if there is one.
    pub fn get_mut(&mut self, dataset: DatasetId, counter: &Counter) -> Option<&mut CounterEntry> {
        self.entries.find_mut(counter.hash(), |entry| entry.matches(dataset, counter)).map(Box::as_mut)
    }

    /// Returns the entry of a counter and creates it if it is missing. A new entry starts with the floor of the shard.
    pub fn entry(&mut self, dataset: DatasetId, counter: &Counter) -> &mut CounterEntry {
        let floor = self.floor_of(dataset);
        let stamp = self.next_stamp();
        let entry_bytes = &mut self.entry_bytes;
        let slot =
            self.entries.entry(counter.hash(), |entry| entry.matches(dataset, counter), |entry| entry.counter.hash());
        slot.or_insert_with(|| {
            let entry = Box::new(CounterEntry::new(dataset, counter.clone(), floor, stamp));
            *entry_bytes += entry.own_bytes();
            entry
        })
        .into_mut()
    }

    /// The shard holds every event of the dataset above this time.
    pub fn floor_of(&self, dataset: DatasetId) -> Timestamp {
        self.floors.iter().find(|(known, _)| *known == dataset).map_or(self.floor, |(_, floor)| *floor)
    }

    fn raise_floor(&mut self, dataset: DatasetId, floor: Timestamp) {
        match self.floors.iter_mut().find(|(known, _)| *known == dataset) {
            Some((_, known)) => *known = (*known).max(floor),
            None => self.floors.push((dataset, floor)),
        }
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }
}
