//! Checkpoints, bucket records, series, names and limits in ordered maps.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;

use crate::memory::{MemoryRollupRow, MemoryStore, MemoryStoreState};
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::rollup::{BucketRecord, RollupRow, SliceStatus, StepSum};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{LimitPublisher, RollWrite, RollupStore, StoreError};

#[async_trait]
impl RollupStore for MemoryStore {
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError> {
        let row = self.state.lock().rows.get(&(dataset, counter.clone())).cloned().unwrap_or_default();
        let (checkpoint, clear, last_write_time) = (row.checkpoint, row.clear, row.last_write_time);
        Ok(RollupRow { checkpoint, clear, last_write_time, just_repaired: false })
    }

    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        for write in writes {
            state.put(dataset, write);
        }
        Ok(())
    }

    async fn buckets(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        let state = self.state.lock();
        let records = state
            .buckets
            .iter()
            .filter(|((of, at, start), _)| (*of, at) == (dataset, counter) && from <= *start && *start < to);
        Ok(records.map(|(_, record)| record.clone()).collect())
    }

    async fn series(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, StoreError> {
        let state = self.state.lock();
        let steps = state.steps_of(counter, step_seconds).filter(|step| from <= step.start && step.start < to);
        Ok(steps.cloned().collect())
    }

    async fn series_before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, StoreError> {
        let state = self.state.lock();
        Ok(state.steps_of(counter, step_seconds).filter(|step| step.start < before).last().cloned())
    }

    async fn trim_series(&self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError> {
        self.state.lock().steps.retain(|(_, seconds, start), _| *seconds != step_seconds || *start >= before);
        Ok(())
    }

    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError> {
        let resolutions: BTreeSet<u32> = self.state.lock().steps.keys().map(|(_, seconds, _)| *seconds).collect();
        Ok(resolutions.into_iter().collect())
    }

    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        let state = self.state.lock();
        let names = state.names.iter().filter(|(of, _)| *of == namespace).map(|(_, name)| name);
        let rest = names.filter(|name| name.as_str().starts_with(prefix) && above.is_none_or(|above| *name > above));
        Ok(rest.take(limit).cloned().collect())
    }

    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError> {
        let state = self.state.lock();
        let all: BTreeSet<NamespaceId> = state.names.iter().map(|(of, _)| *of).collect();
        Ok(all.into_iter().filter(|id| above.is_none_or(|above| *id > above)).take(limit).collect())
    }

    async fn forget_counters(&self, dataset: DatasetId, silent: Vec<(Counter, Timestamp)>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        for (counter, up_to) in silent {
            state.forget_counter(dataset, counter, up_to);
        }
        Ok(())
    }

    async fn remove_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        state.forgotten.insert(namespace);
        state.rows.retain(|(_, counter), _| counter.namespace() != namespace);
        state.buckets.retain(|(_, counter, _), _| counter.namespace() != namespace);
        state.steps.retain(|(counter, _, _), _| counter.namespace() != namespace);
        state.names.retain(|(of, _)| *of != namespace);
        Ok(())
    }
}

#[async_trait]
impl LimitPublisher for MemoryStore {
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError> {
        let mut state = self.state.lock();
        let limit = state.limits.entry(dataset).or_insert(Timestamp::MIN);
        *limit = (*limit).max(closed.floor_to(Duration::from_millis(1)));
        Ok(*limit)
    }

    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        Ok(self.state.lock().limits.get(&dataset).copied().unwrap_or(Timestamp::MIN))
    }
}

impl MemoryStoreState {
    fn put(&mut self, dataset: DatasetId, write: RollWrite) {
        let RollWrite { counter, checkpoint, finished_buckets, finished_steps } = write;
        if self.forgotten.contains(&counter.namespace()) {
            return;
        }
        let row = self.rows.entry((dataset, counter.clone())).or_default();
        if row.checkpoint.as_ref().is_some_and(|held| held.as_of >= checkpoint.as_of) {
            return;
        }
        row.checkpoint = Some(checkpoint);
        self.names.insert((counter.namespace(), counter.name().clone()));
        for bucket in finished_buckets {
            // The bucket records of a dropped slice are gone, too.
            let dropped =
                self.slice_at(dataset, bucket.start).is_some_and(|slice| slice.status == SliceStatus::Dropped);
            if !dropped {
                self.buckets.insert((dataset, counter.clone(), bucket.start), bucket);
            }
        }
        for step in finished_steps {
            self.steps.insert((counter.clone(), step.step_seconds, step.start), step);
        }
    }

    fn forget_counter(&mut self, dataset: DatasetId, counter: Counter, up_to: Timestamp) {
        let key = (dataset, counter);
        let is_later = |row: &MemoryRollupRow| {
            let as_of = row.checkpoint.as_ref().map(|checkpoint| checkpoint.as_of);
            as_of.max(row.last_write_time) > Some(up_to)
        };
        if self.events.contains_key(&key) || self.rows.get(&key).is_some_and(is_later) {
            return;
        }
        self.rows.remove(&key);
        let (_, counter) = key;
        self.names.remove(&(counter.namespace(), counter.name().clone()));
    }

    fn steps_of(&self, counter: &Counter, step_seconds: u32) -> impl Iterator<Item = &StepSum> {
        let first = (counter.clone(), step_seconds, Timestamp::MIN);
        let last = (counter.clone(), step_seconds, Timestamp::MAX);
        self.steps.range(first..=last).map(|(_, step)| step)
    }
}
