//! API keys: checked in memory, stored in rows of the catalog's keyspace.
//!
//! ```text
//! k name                  live key
//! l name 0 number u64     change, never deleted; its number is above those of all changes before it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use parking_lot::RwLock;

use crate::adapters::codec::keys::{decode_key, decode_key_change, encode_key, encode_key_change};
use crate::adapters::embedded::disk::library::Library;
use crate::adapters::embedded::disk::read::rows;
use crate::adapters::embedded::disk::writer::CommitBatch;
use crate::adapters::embedded::error::{ReadError, malformed_key};
use crate::domain::access::{AccessKey, KeyId, PrincipalName};
use crate::ports::{KeyChange, KeyRecord, ScanOrder};

const KEYS: u8 = b'k';
const CHANGES: u8 = b'l';

/// The keys as last committed.
#[derive(Default)]
pub struct KeyIndex {
    state: RwLock<KeyIndexState>,
}

#[derive(Default)]
struct KeyIndexState {
    keys: BTreeMap<PrincipalName, AccessKey>,
    /// The ids in use or used before.
    used: BTreeSet<KeyId>,
    /// The number of the newest change.
    last_change: u64,
}

impl KeyIndex {
    /// Reads the committed keys at startup.
    pub fn open(library: &Library) -> Result<Self, ReadError> {
        let mut state = KeyIndexState::default();
        let tagged = |tag: u8| (Bound::Included(vec![tag]), Bound::Excluded(vec![tag + 1]));
        for row in rows(&library.catalog, tagged(KEYS), ScanOrder::OldestFirst) {
            let key = decode_key(&row?.1)?;
            state.keys.insert(key.spec.name.clone(), key);
        }
        for row in rows(&library.catalog, tagged(CHANGES), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let number = key.last_chunk().copied().map(u64::from_be_bytes);
            let number = number.ok_or_else(|| malformed_key("change of a key", &key))?;
            state.last_change = state.last_change.max(number);
            state.used.insert(decode_key_change(&value)?.id);
        }
        Ok(Self { state: RwLock::new(state) })
    }

    /// Returns all live keys, by name.
    pub fn load(&self) -> Vec<AccessKey> {
        self.state.read().keys.values().cloned().collect()
    }

    /// Returns an error text if a record cannot be committed.
    pub fn check(&self, record: &KeyRecord) -> Result<(), String> {
        let state = self.state.read();
        record.check(state.keys.get(&record.change.name), |id| state.used.contains(&id))
    }

    /// Stages the rows of a record.
    pub fn stage(&self, library: &Library, batch: &mut CommitBatch, record: &KeyRecord) {
        let change = &record.change;
        let live = [&[KEYS], change.name.as_str().as_bytes()].concat();
        match &record.entry {
            Some(key) => batch.put(&library.catalog, live, encode_key(key)),
            None => batch.remove(&library.catalog, live),
        }
        let number = self.state.read().last_change + 1;
        batch.put(&library.catalog, change_key(&change.name, number), encode_key_change(change));
    }

    /// Applies a committed record.
    pub fn publish(&self, record: KeyRecord) {
        let mut state = self.state.write();
        state.last_change += 1;
        state.used.insert(record.change.id);
        match record.entry {
            Some(key) => state.keys.insert(record.change.name, key),
            None => state.keys.remove(&record.change.name),
        };
    }
}

/// Reads the changes of a name, newest first.
pub fn history(
    library: &Library,
    name: &PrincipalName,
    skip: usize,
    limit: usize,
) -> Result<Vec<KeyChange>, ReadError> {
    let range = (Bound::Included(change_key(name, 0)), Bound::Included(change_key(name, u64::MAX)));
    let changes = rows(&library.catalog, range, ScanOrder::NewestFirst).skip(skip).take(limit);
    changes.map(|row| Ok(decode_key_change(&row?.1)?)).collect()
}

/// Names contain no 0 byte, so 0 ends the name.
fn change_key(name: &PrincipalName, number: u64) -> Vec<u8> {
    [&[CHANGES], name.as_str().as_bytes(), &[0], &number.to_be_bytes()].concat()
}
