//! API keys and experiments: checked in memory, stored in rows of the catalog's keyspace.
//!
//! ```text
//! k name                  live key
//! l name 0 number u64     change, never deleted; its number is above those of all changes before it
//! e name                  live experiment
//! f name 0 number u64     the same as l, of experiments
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use parking_lot::RwLock;

use crate::disk::library::Library;
use crate::disk::read::rows;
use crate::disk::writer::CommitBatch;
use crate::error::{ReadError, malformed_key};
use tallystone_adapters::codec::entries::StoredEntry;
use tallystone_domain::access::AccessKey;
use tallystone_experiments::CatalogExperiment;
use tallystone_ports::{CatalogChange, CatalogRecord, ScanOrder};

/// An entry with the first bytes of its rows.
pub trait EmbeddedEntry: StoredEntry {
    /// The first byte of the rows of live entries.
    const LIVE: u8;
    /// The first byte of the rows of changes.
    const CHANGES: u8;
}

impl EmbeddedEntry for AccessKey {
    const LIVE: u8 = b'k';
    const CHANGES: u8 = b'l';
}

impl EmbeddedEntry for CatalogExperiment {
    const LIVE: u8 = b'e';
    const CHANGES: u8 = b'f';
}

/// The entries of a kind as last committed.
pub struct EntryIndex<E: EmbeddedEntry> {
    state: RwLock<EntryIndexState<E>>,
}

struct EntryIndexState<E: EmbeddedEntry> {
    live: BTreeMap<E::Name, E>,
    /// The ids in use or used before.
    used: BTreeSet<E::Id>,
    /// The number of the newest change.
    last_change: u64,
}

impl<E: EmbeddedEntry> EntryIndex<E> {
    /// Reads the committed entries at startup.
    pub fn open(library: &Library) -> Result<Self, ReadError> {
        let mut state = EntryIndexState { live: BTreeMap::new(), used: BTreeSet::new(), last_change: 0 };
        let tagged = |tag: u8| (Bound::Included(vec![tag]), Bound::Excluded(vec![tag + 1]));
        for row in rows(&library.catalog, tagged(E::LIVE), ScanOrder::OldestFirst) {
            let entry = E::decode(&row?.1)?;
            state.live.insert(entry.name().clone(), entry);
        }
        for row in rows(&library.catalog, tagged(E::CHANGES), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let number = key.last_chunk().copied().map(u64::from_be_bytes);
            let number = number.ok_or_else(|| malformed_key("change of a catalog", &key))?;
            state.last_change = state.last_change.max(number);
            state.used.insert(E::decode_change(&value)?.id);
        }
        Ok(Self { state: RwLock::new(state) })
    }

    /// Returns all live entries, by name.
    pub fn load(&self) -> Vec<E> {
        self.state.read().live.values().cloned().collect()
    }

    /// Returns an error text if a record cannot be committed.
    pub fn check(&self, record: &CatalogRecord<E>) -> Result<(), String> {
        let state = self.state.read();
        record.check(state.live.get(&record.change.name), |id| state.used.contains(&id))
    }

    /// Stages the rows of a record.
    pub fn stage(&self, library: &Library, batch: &mut CommitBatch, record: &CatalogRecord<E>) {
        let change = &record.change;
        let live = [&[E::LIVE], E::text_of(&change.name).as_bytes()].concat();
        match &record.entry {
            Some(entry) => batch.put(&library.catalog, live, entry.encode()),
            None => batch.remove(&library.catalog, live),
        }
        let number = self.state.read().last_change + 1;
        batch.put(&library.catalog, change_key::<E>(&change.name, number), E::encode_change(change));
    }

    /// Applies a committed record.
    pub fn publish(&self, record: CatalogRecord<E>) {
        let mut state = self.state.write();
        state.last_change += 1;
        state.used.insert(record.change.id);
        match record.entry {
            Some(entry) => state.live.insert(record.change.name, entry),
            None => state.live.remove(&record.change.name),
        };
    }
}

/// Reads the changes of a name, newest first.
pub fn history<E: EmbeddedEntry>(
    library: &Library,
    name: &E::Name,
    skip: usize,
    limit: usize,
) -> Result<Vec<CatalogChange<E>>, ReadError> {
    let range = (Bound::Included(change_key::<E>(name, 0)), Bound::Included(change_key::<E>(name, u64::MAX)));
    let changes = rows(&library.catalog, range, ScanOrder::NewestFirst).skip(skip).take(limit);
    changes.map(|row| Ok(E::decode_change(&row?.1)?)).collect()
}

/// Names contain no 0 byte, so 0 ends the name.
fn change_key<E: EmbeddedEntry>(name: &E::Name, number: u64) -> Vec<u8> {
    [&[E::CHANGES], E::text_of(name).as_bytes(), &[0], &number.to_be_bytes()].concat()
}
