//! The catalog of namespaces: checked in memory, stored in rows.
//!
//! ```text
//! x                                    the highest ids assigned so far: namespace u64, dataset u32
//! d dataset u32                        dataset
//! n namespace u64                      live namespace
//! h name | 0 | namespace u64 version   change, never deleted
//! g, r name                            rules, see `rules`
//! k, l, e, f name                      API keys and experiments, see `entries`
//! v namespace u64 version u64          settings of a version, never deleted
//! ```

use std::collections::BTreeMap;
use std::ops::Bound;

use parking_lot::RwLock;

use crate::disk::key;
use crate::disk::library::Library;
use crate::disk::read::rows;
use crate::disk::writer::CommitBatch;
use crate::error::ReadError;
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::catalog::{
    decode_change, decode_dataset, decode_namespace, decode_spec, encode_change, encode_dataset, encode_namespace,
    encode_spec,
};
use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec};
use tallystone_ports::{CatalogState, NamespaceChange, NamespaceRecord, ScanOrder};

const NUMBERS: &[u8] = b"x";

/// The catalog as last committed.
#[derive(Default)]
pub struct CatalogIndex {
    state: RwLock<CatalogIndexState>,
}

#[derive(Clone, Default)]
struct CatalogIndexState {
    datasets: BTreeMap<DatasetId, Dataset>,
    namespaces: BTreeMap<NamespaceId, Namespace>,
    last_namespace: u64,
    last_dataset: u32,
}

impl CatalogIndex {
    /// Reads the committed catalog at startup.
    pub fn open(library: &Library) -> Result<Self, ReadError> {
        let mut state = CatalogIndexState::default();
        for row in rows(&library.catalog, all(b'd'), ScanOrder::OldestFirst) {
            let dataset = decode_dataset(&row?.1)?;
            state.datasets.insert(dataset.id, dataset);
        }
        for row in rows(&library.catalog, all(b'n'), ScanOrder::OldestFirst) {
            let namespace = decode_namespace(&row?.1)?;
            state.namespaces.insert(namespace.id, namespace);
        }
        if let Some(numbers) = library.catalog.get(NUMBERS)? {
            let wrong = || CorruptValue::new("numbers of the catalog", "a value of another length");
            let numbers: &[u8; 12] = numbers.as_ref().try_into().map_err(|_| wrong())?;
            let (namespace, dataset) = numbers.split_at(8);
            state.last_namespace = u64::from_be_bytes(namespace.try_into().map_err(|_| wrong())?);
            state.last_dataset = u32::from_be_bytes(dataset.try_into().map_err(|_| wrong())?);
        }
        Ok(Self { state: RwLock::new(state) })
    }

    /// Returns all live datasets and namespaces.
    pub fn load(&self) -> CatalogState {
        let state = self.state.read();
        CatalogState {
            datasets: state.datasets.values().cloned().collect(),
            namespaces: state.namespaces.values().cloned().collect(),
            next_namespace_id: state.last_namespace + 1,
            next_dataset_id: state.last_dataset + 1,
        }
    }

    /// Returns an error text if a record cannot be committed.
    pub fn check(&self, record: &NamespaceRecord) -> Result<(), String> {
        self.state.read().check(record)
    }

    /// Stages the rows of a record.
    pub fn stage(&self, library: &Library, batch: &mut CommitBatch, record: &NamespaceRecord) {
        let mut after = self.state.read().clone();
        after.apply(record);
        let catalog = &library.catalog;
        let change = &record.change;
        if let Some(dataset) = &record.companion {
            batch.put(catalog, tagged(b'd', &dataset.id.0.to_be_bytes()), encode_dataset(dataset));
        }
        let namespace_key = tagged(b'n', &change.id.0.to_be_bytes());
        match &record.entry {
            Some(namespace) => batch.put(catalog, namespace_key, encode_namespace(namespace)),
            None => batch.remove(catalog, namespace_key),
        }
        if let Some(spec) = &change.spec {
            batch.put(catalog, version_key(change.id, change.version), encode_spec(spec));
        }
        batch.put(catalog, change_key(&change.name, change.id, change.version), encode_change(change));
        let numbers = [&after.last_namespace.to_be_bytes()[..], &after.last_dataset.to_be_bytes()[..]].concat();
        batch.put(catalog, NUMBERS, numbers);
    }

    /// Applies a committed record.
    pub fn publish(&self, record: &NamespaceRecord) {
        self.state.write().apply(record);
    }
}

impl CatalogIndexState {
    fn check(&self, record: &NamespaceRecord) -> Result<(), String> {
        let live = self.namespaces.values().find(|namespace| namespace.spec.name == record.change.name);
        record.check_all(live, (self.last_namespace, self.last_dataset), self.datasets.values())
    }

    fn apply(&mut self, record: &NamespaceRecord) {
        if let Some(dataset) = &record.companion {
            self.last_dataset = self.last_dataset.max(dataset.id.0);
            self.datasets.insert(dataset.id, dataset.clone());
        }
        self.last_namespace = self.last_namespace.max(record.change.id.0);
        match &record.entry {
            Some(namespace) => self.namespaces.insert(record.change.id, namespace.clone()),
            None => self.namespaces.remove(&record.change.id),
        };
    }
}

/// Reads the settings of one version.
pub fn version_of(library: &Library, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, ReadError> {
    let value = library.catalog.get(version_key(namespace, version))?;
    Ok(value.map(|bytes| decode_spec(&bytes)).transpose()?)
}

/// Reads the changes of a name, newest first.
pub fn history(
    library: &Library,
    name: &NamespaceName,
    beyond: Option<(NamespaceId, u64)>,
    limit: usize,
) -> Result<Vec<NamespaceChange>, ReadError> {
    let first = change_key(name, NamespaceId(0), 0);
    let last = change_key(name, NamespaceId(u64::MAX), u64::MAX);
    let mut keys = (Bound::Included(first), Bound::Included(last));
    if let Some((namespace, version)) = beyond {
        keys = key::below(keys, change_key(name, namespace, version));
    }
    let changes = rows(&library.catalog, keys, ScanOrder::NewestFirst).take(limit);
    changes.map(|row| Ok(decode_change(&row?.1)?)).collect()
}

fn all(tag: u8) -> key::KeyRange {
    (Bound::Included(vec![tag]), Bound::Excluded(vec![tag + 1]))
}

fn tagged(tag: u8, rest: &[u8]) -> Vec<u8> {
    [&[tag], rest].concat()
}

fn version_key(namespace: NamespaceId, version: u64) -> Vec<u8> {
    [&b"v"[..], &namespace.0.to_be_bytes(), &version.to_be_bytes()].concat()
}

fn change_key(name: &NamespaceName, namespace: NamespaceId, version: u64) -> Vec<u8> {
    // Names contain no 0 byte, so 0 ends the name.
    [b"h", name.as_str().as_bytes(), &[0], &namespace.0.to_be_bytes(), &version.to_be_bytes()].concat()
}
