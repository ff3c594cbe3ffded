//! API keys and experiments of an open store.

use async_trait::async_trait;

use super::EmbeddedStore;
use crate::counters::entries;
use crate::inbox::command::StoreCommand;
use tallystone_adapters::codec::entries::StoredEntry as _;
use tallystone_domain::access::{AccessKey, PrincipalName};
use tallystone_experiments::{CatalogExperiment, ExperimentWord};
use tallystone_ports::{Catalog, ExperimentChange, ExperimentRecord, KeyChange, KeyRecord, StoreError};

#[async_trait]
impl Catalog<AccessKey> for EmbeddedStore {
    async fn load(&self) -> Result<Vec<AccessKey>, StoreError> {
        self.core.read(AccessKey::LOAD, |_| Ok(()))?; // fails once the store is closed, as every call does
        Ok(self.core.keys.load())
    }

    async fn commit(&self, record: KeyRecord) -> Result<(), StoreError> {
        let command = |answer| StoreCommand::Keys(Box::new(record), answer);
        self.core.inbox.request(AccessKey::COMMIT, command).await
    }

    async fn history(&self, name: &PrincipalName, skip: usize, limit: usize) -> Result<Vec<KeyChange>, StoreError> {
        self.core.read("read history", |library| entries::history::<AccessKey>(library, name, skip, limit))
    }
}

#[async_trait]
impl Catalog<CatalogExperiment> for EmbeddedStore {
    async fn load(&self) -> Result<Vec<CatalogExperiment>, StoreError> {
        self.core.read(CatalogExperiment::LOAD, |_| Ok(()))?; // fails once the store is closed, as every call does
        Ok(self.core.experiments.load())
    }

    async fn commit(&self, record: ExperimentRecord) -> Result<(), StoreError> {
        let command = |answer| StoreCommand::Experiments(Box::new(record), answer);
        self.core.inbox.request(CatalogExperiment::COMMIT, command).await
    }

    async fn history(
        &self,
        name: &ExperimentWord,
        skip: usize,
        limit: usize,
    ) -> Result<Vec<ExperimentChange>, StoreError> {
        self.core.read("read history", |library| entries::history::<CatalogExperiment>(library, name, skip, limit))
    }
}
