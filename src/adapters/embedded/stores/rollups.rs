//! Checkpoints, series, names, limits and the count cache of an open store.

use async_trait::async_trait;

use super::EmbeddedStore;
use crate::counters::counter_row::CounterRow;
use crate::counters::read;
use crate::inbox::command::StoreCommand;
use crate::limits::{FORGOTTEN_COUNTERS_MAX, ROW_LOADS_MAX};
use crate::store_core::StoreCore;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::rollup::{BucketRecord, CachedCount, RollupRow, StepSum};
use tallystone_ports::{CacheLease, CountCache, LimitPublisher, RollWrite, RollupStore, StoreError, StoreErrorKind};

/// Rows of a forgotten namespace that one commit removes.
const TIDY_ROWS: usize = 1_000;

#[async_trait]
impl RollupStore for EmbeddedStore {
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError> {
        if self.core.meta_state.is_forgotten(counter.namespace()) {
            return Ok(RollupRow::default());
        }
        self.core.counters.note_namespace(counter.namespace(), dataset);
        if let Some(row) = self.core.counters.row(dataset, counter, CounterRow::to_rollup_row) {
            return row.map_err(|damaged| damaged.into_store_error("read"));
        }
        load(&self.core, dataset, counter)
    }

    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError> {
        for write in &writes {
            self.core.counters.note_namespace(write.counter.namespace(), dataset);
        }
        self.core.inbox.request("put", |answer| StoreCommand::Roll(dataset, writes, answer)).await
    }

    async fn buckets(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        if self.core.meta_state.is_forgotten(counter.namespace()) {
            return Ok(Vec::new());
        }
        let counter = counter.clone();
        self.core.read_long("buckets", move |core, _| read::buckets(&core.slices, dataset, &counter, from, to)).await
    }

    async fn series(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, StoreError> {
        if self.core.meta_state.is_forgotten(counter.namespace()) {
            return Ok(Vec::new());
        }
        let counter = counter.clone();
        self.core.read_long("series", move |core, _| core.series.steps(&counter, step_seconds, from, to)).await
    }

    async fn series_before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, StoreError> {
        if self.core.meta_state.is_forgotten(counter.namespace()) {
            return Ok(None);
        }
        let counter = counter.clone();
        self.core.read_long("series", move |core, _| core.series.before(&counter, step_seconds, before)).await
    }

    async fn trim_series(&self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError> {
        self.core.inbox.request("trim series", |answer| StoreCommand::TrimSeries(step_seconds, before, answer)).await
    }

    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError> {
        Ok(self.core.series.resolutions())
    }

    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        if self.core.meta_state.is_forgotten(namespace) {
            return Ok(Vec::new());
        }
        let (prefix, above) = (prefix.to_owned(), above.cloned());
        self.core
            .read_long("names", move |_, library| read::names(library, namespace, &prefix, above.as_ref(), limit))
            .await
    }

    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError> {
        self.core.read_long("namespaces", move |_, library| read::namespaces(library, above, limit)).await
    }

    async fn forget_counters(&self, dataset: DatasetId, silent: Vec<(Counter, Timestamp)>) -> Result<(), StoreError> {
        for some in silent.chunks(FORGOTTEN_COUNTERS_MAX) {
            let some = some.to_vec();
            let command = |answer| StoreCommand::ForgetCounters(dataset, some, answer);
            self.core.inbox.request("forget counters", command).await?;
        }
        Ok(())
    }

    async fn remove_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        self.core.inbox.request("forget", |answer| StoreCommand::Forget(namespace, answer)).await?;
        while self.core.inbox.request("forget", |answer| StoreCommand::PurgeRows(namespace, TIDY_ROWS, answer)).await? {
        }
        Ok(())
    }
}

/// Reads a row from disk and inserts it into memory.
fn load(core: &StoreCore, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError> {
    const OP: &str = "read";
    // A read takes about ten microseconds, and a counter changes at most once a commit, so few retries suffice.
    for _ in 0..ROW_LOADS_MAX {
        let ticket = core.counters.begin_load(dataset, counter);
        let found = core.read(OP, |library| read::row(library, &core.slices, dataset, counter, ticket.disk_to))?;
        if let Some(row) = core.counters.end_load(dataset, counter, ticket, found) {
            return row.to_rollup_row().map_err(|damaged| damaged.into_store_error(OP));
        }
    }
    Err(StoreError::not_applied(StoreErrorKind::Busy, OP))
}

#[async_trait]
impl CountCache for EmbeddedStore {
    async fn get(&self, counter: &Counter) -> Option<CachedCount> {
        if self.core.meta_state.is_forgotten(counter.namespace()) {
            return None;
        }
        let dataset = self.core.counters.dataset_of(counter.namespace())?;
        // A row that fails to decode counts as a miss; the read of the store reports the error.
        self.core.counters.row(dataset, counter, CounterRow::to_cached_count)?.ok()
    }

    async fn lease(&self, _counter: &Counter) -> CacheLease {
        // Every commit updates the rows in memory, so nobody needs to fill the cache.
        CacheLease::default()
    }

    async fn fill(&self, _counter: &Counter, _value: CachedCount, _lease: CacheLease) {}

    async fn delete(&self, _counter: &Counter) -> bool {
        true
    }
}

#[async_trait]
impl LimitPublisher for EmbeddedStore {
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError> {
        self.core.inbox.request("publish", |answer| StoreCommand::PublishLimit(dataset, closed, answer)).await
    }

    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        Ok(self.core.meta_state.limit(dataset))
    }
}
