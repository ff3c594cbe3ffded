//! Time slices and the catalog of an open store.

use async_trait::async_trait;

use super::EmbeddedStore;
use crate::counters::catalog;
use crate::inbox::command::StoreCommand;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Namespace, NamespaceSpec};
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_ports::{
    Catalog, CatalogState, NamespaceChange, NamespaceRecord, NamespaceStore, StoreError, TimeSlices,
};

#[async_trait]
impl TimeSlices for EmbeddedStore {
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        Ok(self.core.slices.rows(dataset))
    }

    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
        if let Some(row) = self.core.slices.row(slice.dataset, slice.start) {
            return Ok(row);
        }
        self.core.inbox.request("create slice", |answer| StoreCommand::CreateSlice(slice, answer)).await
    }

    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError> {
        if status == SliceStatus::Dropped {
            return self
                .core
                .inbox
                .request("drop slice", |answer| StoreCommand::DropSlice(dataset, start, answer))
                .await;
        }
        self.core
            .inbox
            .request("set slice status", |answer| StoreCommand::SetStatus(dataset, start, status, answer))
            .await
    }
}

#[async_trait]
impl Catalog<Namespace> for EmbeddedStore {
    async fn load(&self) -> Result<CatalogState, StoreError> {
        Ok(self.core.catalog.load())
    }

    async fn commit(&self, record: NamespaceRecord) -> Result<(), StoreError> {
        self.core.inbox.request("commit", |answer| StoreCommand::Catalog(Box::new(record), answer)).await
    }

    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        self.core.read("history", |library| catalog::history(library, name, beyond, limit))
    }
}

#[async_trait]
impl NamespaceStore for EmbeddedStore {
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError> {
        self.core.read("version of", |library| catalog::version_of(library, namespace, version))
    }
}
