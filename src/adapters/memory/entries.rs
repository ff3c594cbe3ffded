//! Catalogs of entries that stand alone, in ordered maps.

use async_trait::async_trait;
use parking_lot::Mutex;

use super::catalog::{MemoryEntries, conflict};
use crate::codec::entries::StoredEntry;
use tallystone_ports::{Catalog, CatalogChange, CatalogRecord, StoreError};

/// Entries that live as long as the process.
pub struct MemoryEntryCatalog<E: StoredEntry> {
    entries: Mutex<MemoryEntries<E>>,
}

impl<E: StoredEntry> Default for MemoryEntryCatalog<E> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

#[async_trait]
impl<E: StoredEntry> Catalog<E> for MemoryEntryCatalog<E> {
    async fn load(&self) -> Result<Vec<E>, StoreError> {
        Ok(self.entries.lock().all())
    }

    async fn commit(&self, record: CatalogRecord<E>) -> Result<(), StoreError> {
        let mut entries = self.entries.lock();
        entries.check(&record).map_err(|why| conflict(E::COMMIT, why))?;
        entries.apply(record);
        Ok(())
    }

    async fn history(&self, name: &E::Name, skip: usize, limit: usize) -> Result<Vec<CatalogChange<E>>, StoreError> {
        Ok(self.entries.lock().newest_first(name).skip(skip).take(limit).cloned().collect())
    }
}
