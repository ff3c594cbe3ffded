//! API keys of an open store.

use async_trait::async_trait;

use super::EmbeddedStore;
use crate::adapters::embedded::counters::keys;
use crate::adapters::embedded::inbox::command::StoreCommand;
use crate::domain::access::{AccessKey, PrincipalName};
use crate::ports::{Catalog, KeyChange, KeyRecord, StoreError};

#[async_trait]
impl Catalog<AccessKey> for EmbeddedStore {
    async fn load(&self) -> Result<Vec<AccessKey>, StoreError> {
        self.core.read("load keys", |_| Ok(()))?; // fails once the store is closed, as every call does
        Ok(self.core.keys.load())
    }

    async fn commit(&self, record: KeyRecord) -> Result<(), StoreError> {
        self.core.inbox.request("commit key", |answer| StoreCommand::Keys(Box::new(record), answer)).await
    }

    async fn history(&self, name: &PrincipalName, skip: usize, limit: usize) -> Result<Vec<KeyChange>, StoreError> {
        self.core.read("read history", |library| keys::history(library, name, skip, limit))
    }
}
