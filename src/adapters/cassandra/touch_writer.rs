//! The rows that an event needs besides its own before its acknowledgement: its counter in the step, the last write
//! time, and its name. They are written once for each counter and step. Later events of the step wait for the first
//! touch.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::RwLock;
use quick_cache::sync::Cache;

use crate::limits::{NAMES_REMEMBERED_MAX, TOUCHES_REMEMBERED_MAX};
use crate::request_runner::RequestRunner;
use crate::row_keys::{stored_counter, stored_dataset, stored_namespace, stored_shard};
use crate::slices::{CqlSlice, CqlSlices};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, NamespaceId};
use tallystone_domain::limits::STEP;
use tallystone_ports::StoreError;

/// Touches, names and namespaces that are known to be stored.
pub struct TouchWriter {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    touched: Cache<(DatasetId, Counter, Timestamp), ()>,
    /// The names that this process has listed, each with the beginning of the newest slice for which it did.
    stored_names: Cache<Counter, Timestamp>,
    namespaces: RwLock<std::collections::BTreeMap<NamespaceId, NamespacePresence>>,
}

/// The state of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NamespacePresence {
    /// Whether it has rows other than events.
    pub has_rows: bool,
    /// Whether it was deleted: then no read returns its rows.
    pub is_deleted: bool,
}

impl TouchWriter {
    /// Reads the namespaces.
    pub async fn open(requests: Arc<RequestRunner>, slices: Arc<CqlSlices>) -> Result<Self, StoreError> {
        let this = Self {
            requests,
            slices,
            touched: Cache::new(TOUCHES_REMEMBERED_MAX),
            stored_names: Cache::new(NAMES_REMEMBERED_MAX),
            namespaces: RwLock::default(),
        };
        this.refresh_namespaces().await?;
        Ok(this)
    }

    /// Reads the namespaces again, for those of other servers.
    pub async fn refresh_namespaces(&self) -> Result<(), StoreError> {
        let statement = self.requests.statement("list_namespaces");
        let rows: Vec<(i64, Option<bool>, Option<bool>)> = self.requests.rows("read namespaces", statement, ()).await?;
        for (id, kept, forgotten) in rows {
            self.update_namespace(NamespaceId(id.cast_unsigned()), |known| {
                known.is_deleted |= forgotten == Some(true);
                known.has_rows = kept == Some(true);
            });
        }
        Ok(())
    }

    /// Whether a namespace was deleted.
    pub fn is_deleted(&self, namespace: NamespaceId) -> bool {
        self.namespaces.read().get(&namespace).is_some_and(|kept| kept.is_deleted)
    }

    /// The namespaces with rows, above an id, in order.
    pub fn stored_namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Vec<NamespaceId> {
        let kept = self.namespaces.read();
        let rest = kept.iter().filter(|(id, kept)| kept.has_rows && above.is_none_or(|above| **id > above));
        rest.take(limit).map(|(id, _)| *id).collect()
    }

    /// Changes the state of a namespace.
    pub fn update_namespace(&self, namespace: NamespaceId, change: impl FnOnce(&mut NamespacePresence)) {
        change(self.namespaces.write().entry(namespace).or_default());
    }

    /// Drops a counter from the stored names, before its names are removed.
    pub fn unname(&self, counter: &Counter) {
        self.stored_names.remove(counter);
    }

    /// Stores the touch of an event, unless it is stored. Returns when it is durable.
    pub async fn touch(
        &self,
        dataset: DatasetId,
        slice: &CqlSlice,
        counter: &Counter,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        let step = time.floor_to(STEP);
        let key = (dataset, counter.clone(), step);
        if self.touched.get(&key).is_some() {
            return Ok(());
        }
        // Boxed, because most adds find their step touched and need no space for it.
        let storing = Box::pin(self.store_touch(dataset, slice, counter, step));
        self.touched.get_or_insert_async(&key, storing).await
    }

    async fn store_touch(
        &self,
        dataset: DatasetId,
        slice: &CqlSlice,
        counter: &Counter,
        step: Timestamp,
    ) -> Result<(), StoreError> {
        const OP: &str = "touch";
        let tables = self.slices.tables(slice, OP).await?;
        let shard = stored_shard(counter.touch_shard());
        let (ns, name) = stored_counter(counter);
        let dirty = (shard, step.micros(), ns, name);
        let mut writes: Vec<BoxFuture<'_, Result<(), StoreError>>> =
            vec![self.requests.write(OP, tables.get("insert_touch"), dirty).boxed()];
        if !slice.has_step(step) {
            writes.push(self.store_step(dataset, slice, step).boxed());
        }
        if !self.is_deleted(counter.namespace()) {
            let written = last_write_of(step).micros();
            let values = (self.requests.register_time(written), written, stored_dataset(dataset), ns, name);
            writes.push(self.requests.write(OP, self.requests.statement("set_last_write"), values).boxed());
            writes.push(self.ensure_name_stored(counter, slice.start(), last_write_of(step)).boxed());
        }
        try_join_all(writes).await.map(|_| ())
    }

    /// Stores that a step of a slice has rows.
    pub async fn store_step(&self, dataset: DatasetId, slice: &CqlSlice, step: Timestamp) -> Result<(), StoreError> {
        if slice.has_step(step) {
            return Ok(());
        }
        let values = (stored_dataset(dataset), slice.start().micros(), step.micros());
        self.requests.write("note step", self.requests.statement("insert_step"), values).await?;
        slice.add_step(step);
        Ok(())
    }

    /// Lists a counter by its name, once for each slice with its events: another server may forget the counter after
    /// all slices with its events were dropped. The name stays if `at` lies above the time up to which it is forgotten.
    pub async fn ensure_name_stored(
        &self,
        counter: &Counter,
        slice_start: Timestamp,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        if self.stored_names.get(counter).is_some_and(|known| known >= slice_start) {
            return Ok(());
        }
        self.store_name(counter, at).await?;
        self.stored_names.insert(counter.clone(), slice_start);
        Ok(())
    }

    async fn store_name(&self, counter: &Counter, at: Timestamp) -> Result<(), StoreError> {
        const OP: &str = "list name";
        let namespace = counter.namespace();
        let is_kept = self.namespaces.read().get(&namespace).is_some_and(|kept| kept.has_rows);
        if !is_kept {
            let statement = self.requests.statement("keep_namespace");
            self.requests.write(OP, statement, (stored_namespace(namespace),)).await?;
            self.update_namespace(namespace, |kept| kept.has_rows = !kept.is_deleted);
        }
        let shard = stored_shard(counter.touch_shard());
        let values = (stored_namespace(namespace), shard, counter.name().as_str(), at.micros());
        self.requests.write(OP, self.requests.statement("insert_name"), values).await
    }
}

/// The last write time of a touch: the last microsecond of its step.
pub fn last_write_of(step: Timestamp) -> Timestamp {
    step + (STEP - Duration::from_micros(1))
}
