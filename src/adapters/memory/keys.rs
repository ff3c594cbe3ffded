//! The catalog of API keys in ordered maps.

use async_trait::async_trait;
use parking_lot::Mutex;

use super::catalog::{MemoryEntries, conflict};
use crate::domain::access::{AccessKey, PrincipalName};
use crate::ports::{Catalog, KeyChange, KeyRecord, StoreError};

/// API keys that live as long as the process.
#[derive(Default)]
pub struct MemoryKeys {
    entries: Mutex<MemoryEntries<AccessKey>>,
}

#[async_trait]
impl Catalog<AccessKey> for MemoryKeys {
    async fn load(&self) -> Result<Vec<AccessKey>, StoreError> {
        Ok(self.entries.lock().all())
    }

    async fn commit(&self, record: KeyRecord) -> Result<(), StoreError> {
        let mut entries = self.entries.lock();
        entries.check(&record).map_err(|why| conflict("commit key", why))?;
        entries.apply(record);
        Ok(())
    }

    async fn history(&self, name: &PrincipalName, skip: usize, limit: usize) -> Result<Vec<KeyChange>, StoreError> {
        Ok(self.entries.lock().newest_first(name).skip(skip).take(limit).cloned().collect())
    }
}
