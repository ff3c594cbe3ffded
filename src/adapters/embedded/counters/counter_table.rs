//! What the store keeps of its counters in memory: all recent events, and the rows of the counters in use.
//!
//! One writer, the committer, changes it, after each commit; readers take one short lock. Each shard has a floor per
//! dataset, at or below the published limit: every event above it is here. A counter knows better: every event of it
//! above its own `disk_to` is here, however old. A row that is here is exact; a row that is not is read from disk and
//! taken in only if its counter did not change meanwhile.

use hashbrown::{HashMap, HashTable};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::adapters::embedded::counters::counter_row::CounterRow;
use crate::domain::Timestamp;
use crate::domain::counter::{Change, Counter, DatasetId, Event, EventKey, NamespaceId};
use crate::ports::{ScanRange, TailLookup as TailAnswer};

mod entry;
mod evict;

pub use entry::{CounterEntry, NameListing};

/// The shards of the table; a power of two.
const SHARDS: usize = 256;

/// All counters in memory.
pub struct CounterTable {
    shards: Box<[Mutex<CounterTableShard>]>,
    /// The dataset of each namespace in use; none for a namespace that is used in two.
    datasets: RwLock<HashMap<NamespaceId, Option<DatasetId>>>,
    /// The bytes that rows and names of one shard may take.
    shard_bytes_max: usize,
}

/// The counters of one shard.
pub struct CounterTableShard {
    entries: HashTable<Box<CounterEntry>>,
    floors: Vec<(DatasetId, Timestamp)>,
    /// The floor of datasets that are not listed.
    floor: Timestamp,
    /// Grows with every change; no two states of a counter have the same.
    stamp: u64,
    tail_bytes: usize,
    entry_bytes: usize,
    /// Which part of the entries the next eviction looks at.
    next_part: u8,
    /// How many entries the next eviction may pass.
    visit_credit: usize,
    #[cfg(test)]
    looks: usize,
}

/// What memory knows about a key.
#[derive(Debug)]
pub enum EventLookup {
    /// This event stands at the key.
    Present(Event),
    /// No event stands at the key.
    Missing,
    /// Disk has to be asked.
    ReadDisk,
}

/// Where a read of a row from disk begins.
#[derive(Clone, Copy, Debug)]
pub struct RowLoad {
    stamp: u64,
    /// Rows above this are in memory.
    pub disk_to: Timestamp,
}

/// What a read of a row from disk found.
#[derive(Debug)]
pub struct LoadedRow {
    /// The row, without what is in memory.
    pub row: CounterRow,
    /// Above this, and at or below the ticket's, disk holds no event.
    pub disk_to: Timestamp,
}

impl CounterTable {
    /// An empty table whose rows may take the given bytes.
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
        // The low bits of the hash pick the touch shard.
        self.shards[(counter.hash() >> 56) as usize % SHARDS].lock()
    }

    /// The bytes of all tails, and of all rows and names.
    pub fn bytes(&self) -> (usize, usize) {
        self.shards.iter().fold((0, 0), |(tails, rows), shard| {
            let shard = shard.lock();
            (tails + shard.tail_bytes, rows + shard.entry_bytes)
        })
    }

    /// Notes that a namespace lives in a dataset, so that its rows can be found without naming the dataset.
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

    /// The dataset of a namespace, if it is known and the only one.
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

    /// The events of a range, if all of them are here.
    pub fn scan(&self, dataset: DatasetId, counter: &Counter, range: &ScanRange) -> Option<Vec<Event>> {
        let shard = self.shard(counter);
        match shard.get(dataset, counter) {
            Some(entry) => (range.after >= entry.disk_to).then(|| entry.tail.scan(range)),
            None => (range.after >= shard.floor_of(dataset)).then(Vec::new),
        }
    }

    /// What is known of a key.
    pub fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> EventLookup {
        let shard = self.shard(counter);
        match shard.get(dataset, counter) {
            Some(entry) => entry.find(key),
            None if key.time > shard.floor_of(dataset) => EventLookup::Missing,
            None => EventLookup::ReadDisk,
        }
    }

    /// What is known of a key, and whether a new event there needs neither a touch of its step nor a listed name.
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

    /// The row of a counter, if it is here.
    pub fn row<T>(&self, dataset: DatasetId, counter: &Counter, read: impl FnOnce(&CounterRow) -> T) -> Option<T> {
        let mut shard = self.shard(counter);
        let entry = shard.get_mut(dataset, counter)?;
        entry.used = true;
        entry.row.as_deref().map(read)
    }

    /// Whether the name of a counter is listed.
    pub fn name_listing(&self, dataset: DatasetId, counter: &Counter) -> NameListing {
        self.shard(counter).get(dataset, counter).map_or(NameListing::Unknown, |entry| entry.name_listing)
    }

    /// Notes that a counter gets a listed row, and an event in a step; says whether the step's touch may be missing.
    pub fn record_use(&self, dataset: DatasetId, counter: &Counter, step: Option<Timestamp>) -> bool {
        let mut shard = self.shard(counter);
        let entry = shard.entry(dataset, counter);
        entry.name_listing = NameListing::Yes;
        step.is_some_and(|step| entry.touch(step))
    }

    /// Makes a counter known as one that has no row anywhere.
    pub fn insert_unused(&self, dataset: DatasetId, counter: &Counter) {
        let mut shard = self.shard(counter);
        let entry = shard.entry(dataset, counter);
        let freed = entry.drop_row();
        entry.disk_to = Timestamp::MIN;
        entry.row = Some(Box::default());
        shard.entry_bytes = shard.entry_bytes + size_of::<CounterRow>() - freed;
        shard.evict(self.shard_bytes_max);
    }

    /// The bytes of all tails.
    pub fn tail_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().tail_bytes).sum()
    }

    /// Begins to read the row of a counter from disk.
    pub fn begin_load(&self, dataset: DatasetId, counter: &Counter) -> RowLoad {
        let mut shard = self.shard(counter);
        let entry = shard.entry(dataset, counter);
        RowLoad { stamp: entry.stamp, disk_to: entry.disk_to }
    }

    /// Ends reading a row: takes it in and answers it, or nothing if the counter changed meanwhile.
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

    /// Takes in a committed event.
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

    /// Takes in a committed checkpoint.
    pub fn publish_checkpoint(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        bytes: &[u8],
        checkpoint: &crate::domain::rollup::Checkpoint,
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

    /// Forgets the rows of a namespace; events stay.
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

    /// Forgets the events of a dataset with `from <= time <= to`, because their slice is gone.
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

    /// Sets the floor of a dataset in all shards; for a store that opens.
    pub fn set_floor(&self, dataset: DatasetId, floor: Timestamp) {
        for shard in &self.shards {
            shard.lock().raise_floor(dataset, floor);
        }
    }
}

impl CounterTableShard {
    /// The counter, if it is here.
    pub fn get(&self, dataset: DatasetId, counter: &Counter) -> Option<&CounterEntry> {
        self.entries.find(counter.hash(), |entry| entry.matches(dataset, counter)).map(Box::as_ref)
    }

    /// The counter, if it is here.
    pub fn get_mut(&mut self, dataset: DatasetId, counter: &Counter) -> Option<&mut CounterEntry> {
        self.entries.find_mut(counter.hash(), |entry| entry.matches(dataset, counter)).map(Box::as_mut)
    }

    /// The counter, made if it is not here. A made one knows what its shard knows.
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

    /// Every event of the dataset above this time is here.
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
