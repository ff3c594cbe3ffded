//! Rollups. Some calls have no dataset: series and names are in the store of their namespace, and calls that concern
//! all stores go to all.

use async_trait::async_trait;

use crate::by_dataset::ByDataset;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::rollup::{BucketRecord, RollupRow, StepSum};
use tallystone_ports::{RollWrite, RollupStore, StoreError};

#[async_trait]
impl RollupStore for ByDataset {
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError> {
        self.stores_of_dataset(dataset).await?.rollups.read(dataset, counter).await
    }

    fn rolled_to(&self, dataset: DatasetId, counter: &Counter) -> Option<Timestamp> {
        self.cached_stores_of(dataset)?.rollups.rolled_to(dataset, counter)
    }

    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError> {
        self.stores_of_dataset(dataset).await?.rollups.put(dataset, writes).await
    }

    async fn buckets(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        self.stores_of_dataset(dataset).await?.rollups.buckets(dataset, counter, from, to).await
    }

    async fn series(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, StoreError> {
        match self.stores_of_namespace(counter.namespace()).await? {
            Some(stores) => stores.rollups.series(counter, step_seconds, from, to).await,
            None => Ok(Vec::new()),
        }
    }

    async fn series_before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, StoreError> {
        match self.stores_of_namespace(counter.namespace()).await? {
            Some(stores) => stores.rollups.series_before(counter, step_seconds, before).await,
            None => Ok(None),
        }
    }

    async fn trim_series(&self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError> {
        let mut failed = Ok(());
        for stores in self.all_stores() {
            failed = failed.and(stores.rollups.trim_series(step_seconds, before).await);
        }
        failed
    }

    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError> {
        let mut found = Vec::new();
        for stores in self.all_stores() {
            found.extend(stores.rollups.series_resolutions().await?);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        if let Some(stores) = self.stores_of_namespace(namespace).await? {
            return stores.rollups.names(namespace, prefix, above, limit).await;
        }
        let mut found = Vec::new();
        for stores in self.all_stores() {
            found.extend(stores.rollups.names(namespace, prefix, above, limit).await?);
        }
        Ok(merge_first(found, limit))
    }

    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError> {
        let mut found = Vec::new();
        for stores in self.all_stores() {
            found.extend(stores.rollups.namespaces(above, limit).await?);
        }
        Ok(merge_first(found, limit))
    }

    async fn forget_counters(&self, dataset: DatasetId, silent: Vec<(Counter, Timestamp)>) -> Result<(), StoreError> {
        self.stores_of_dataset(dataset).await?.rollups.forget_counters(dataset, silent).await
    }

    async fn remove_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        let mut failed = Ok(());
        for stores in self.all_stores() {
            failed = failed.and(stores.rollups.remove_namespace(namespace).await);
        }
        self.clusters_by_namespace.remove(&namespace);
        failed
    }
}

/// The first `limit` of several ordered results.
fn merge_first<T: Ord>(mut found: Vec<T>, limit: usize) -> Vec<T> {
    found.sort_unstable();
    found.dedup();
    found.truncate(limit);
    found
}
