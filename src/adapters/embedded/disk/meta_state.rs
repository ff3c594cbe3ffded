//! The committed state of `meta` in memory: limits (frontiers), watermarks and forgotten namespaces.

use hashbrown::{HashMap, HashSet};
use parking_lot::RwLock;

use crate::disk::library::Library;
use crate::disk::meta;
use crate::disk::read::rows;
use crate::error::{ReadError, malformed_key};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{DatasetId, NamespaceId};
use tallystone_domain::limits::TOUCH_SHARDS;
use tallystone_ports::ScanOrder;

/// Limits, watermarks, forgotten namespaces. Small; only the committer writes it.
#[derive(Default)]
pub struct MetaState {
    limits: RwLock<HashMap<DatasetId, Timestamp>>,
    watermarks: RwLock<HashMap<DatasetId, Vec<Option<Timestamp>>>>,
    forgotten: RwLock<HashSet<NamespaceId>>,
}

impl MetaState {
    /// Reads the committed state at startup.
    pub fn open(library: &Library) -> Result<Self, ReadError> {
        let book = Self::default();
        for row in rows(&library.meta, meta::all(b'f'), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let dataset = meta::to_frontier(&key).ok_or_else(|| malformed_key("frontier", &key))?;
            book.raise_limit(dataset, time_from("frontier", &value)?);
        }
        for row in rows(&library.meta, meta::all(b'w'), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let (dataset, shard) = meta::to_watermark(&key).ok_or_else(|| malformed_key("watermark", &key))?;
            book.raise_watermark(dataset, shard, time_from("watermark", &value)?);
        }
        for row in rows(&library.meta, meta::all(b'g'), ScanOrder::OldestFirst) {
            let (key, _) = row?;
            book.forget(meta::to_forgotten(&key).ok_or_else(|| malformed_key("forgotten namespace", &key))?);
        }
        Ok(book)
    }

    /// Last published limit of a dataset.
    pub fn limit(&self, dataset: DatasetId) -> Timestamp {
        self.limits.read().get(&dataset).copied().unwrap_or(Timestamp::MIN)
    }

    pub fn limits(&self) -> Vec<(DatasetId, Timestamp)> {
        self.limits.read().iter().map(|(dataset, limit)| (*dataset, *limit)).collect()
    }

    pub fn raise_limit(&self, dataset: DatasetId, to: Timestamp) {
        let mut limits = self.limits.write();
        let limit = limits.entry(dataset).or_insert(Timestamp::MIN);
        *limit = to.max(*limit);
    }

    /// Watermarks of all shards of the dirty-counter index.
    pub fn watermarks(&self, dataset: DatasetId) -> Vec<Option<Timestamp>> {
        let none = || vec![None; TOUCH_SHARDS as usize];
        self.watermarks.read().get(&dataset).cloned().unwrap_or_else(none)
    }

    pub fn raise_watermark(&self, dataset: DatasetId, shard: u32, to: Timestamp) {
        let mut watermarks = self.watermarks.write();
        let shards = watermarks.entry(dataset).or_insert_with(|| vec![None; TOUCH_SHARDS as usize]);
        if let Some(watermark) = shards.get_mut(shard as usize) {
            *watermark = (*watermark).max(Some(to));
        }
    }

    /// Returns whether a namespace was forgotten.
    pub fn is_forgotten(&self, namespace: NamespaceId) -> bool {
        let forgotten = self.forgotten.read();
        !forgotten.is_empty() && forgotten.contains(&namespace)
    }

    /// Records that a namespace was forgotten.
    pub fn forget(&self, namespace: NamespaceId) {
        self.forgotten.write().insert(namespace);
    }
}

fn time_from(what: &'static str, value: &[u8]) -> Result<Timestamp, CorruptValue> {
    meta::to_time(value).ok_or_else(|| CorruptValue::new(what, "a value of another length"))
}
