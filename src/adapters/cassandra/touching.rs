//! What an event needs beside its row before it may be acknowledged: its counter in the step, the last write time, its
//! name. Written once for each counter and step; later events of the step wait for that first touch and then need none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::RwLock;
use quick_cache::sync::Cache;

use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::place::{stored_counter, stored_dataset, stored_namespace, stored_shard};
use crate::adapters::cassandra::slices::{Slice, Slices};
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId, NamespaceId};
use crate::domain::limits::{NAMES_REMEMBERED_MAX, STEP, TOUCHES_REMEMBERED_MAX};
use crate::ports::StoreError;

/// Touches, names and namespaces that are known to be stored.
pub struct Touching {
    link: Arc<Link>,
    slices: Arc<Slices>,
    touched: Cache<(DatasetId, Counter, Timestamp), ()>,
    named: Cache<Counter, ()>,
    kept: RwLock<std::collections::BTreeMap<NamespaceId, Kept>>,
}

/// What is known of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Kept {
    /// Anything is kept of it beside events.
    pub rows: bool,
    /// It was deleted: nothing of it is answered any more.
    pub forgotten: bool,
}

impl Touching {
    /// Reads which namespaces there are.
    pub async fn open(link: Arc<Link>, slices: Arc<Slices>) -> Result<Self, StoreError> {
        let this = Self {
            link,
            slices,
            touched: Cache::new(TOUCHES_REMEMBERED_MAX),
            named: Cache::new(NAMES_REMEMBERED_MAX),
            kept: RwLock::default(),
        };
        this.follow().await?;
        Ok(this)
    }

    /// Reads which namespaces there are, for those of other servers.
    pub async fn follow(&self) -> Result<(), StoreError> {
        let statement = self.link.statement("list_namespaces");
        let rows: Vec<(i64, Option<bool>, Option<bool>)> = self.link.rows("read namespaces", statement, ()).await?;
        for (id, kept, forgotten) in rows {
            self.note(NamespaceId(id.cast_unsigned()), |known| {
                known.forgotten |= forgotten == Some(true);
                known.rows = kept == Some(true);
            });
        }
        Ok(())
    }

    /// Whether a namespace was deleted.
    pub fn is_forgotten(&self, namespace: NamespaceId) -> bool {
        self.kept.read().get(&namespace).is_some_and(|kept| kept.forgotten)
    }

    /// The namespaces that anything is kept of, above a number, in order.
    pub fn kept_namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Vec<NamespaceId> {
        let kept = self.kept.read();
        let rest = kept.iter().filter(|(id, kept)| kept.rows && above.is_none_or(|above| **id > above));
        rest.take(limit).map(|(id, _)| *id).collect()
    }

    /// Changes what is known of a namespace.
    pub fn note(&self, namespace: NamespaceId, change: impl FnOnce(&mut Kept)) {
        change(self.kept.write().entry(namespace).or_default());
    }

    /// Forgets that the names of a counter are stored, because they are about to be removed.
    pub fn unname(&self, counter: &Counter) {
        self.named.remove(counter);
    }

    /// Stores the touch of an event, unless it is stored. Answers when it is durable.
    pub async fn touch(
        &self,
        dataset: DatasetId,
        slice: &Slice,
        counter: &Counter,
        time: Timestamp,
    ) -> Result<(), StoreError> {
        let step = time.floor_to(STEP);
        let key = (dataset, counter.clone(), step);
        if self.touched.get(&key).is_some() {
            return Ok(());
        }
        // Boxed, because most adds find their step touched and are spared the room of it.
        let storing = Box::pin(self.store_touch(dataset, slice, counter, step));
        self.touched.get_or_insert_async(&key, storing).await
    }

    async fn store_touch(
        &self,
        dataset: DatasetId,
        slice: &Slice,
        counter: &Counter,
        step: Timestamp,
    ) -> Result<(), StoreError> {
        const OP: &str = "touch";
        let tables = self.slices.tables(slice, OP).await?;
        let shard = stored_shard(counter.touch_shard());
        let (ns, name) = stored_counter(counter);
        let dirty = (shard, step.micros(), ns, name);
        let mut writes: Vec<BoxFuture<'_, Result<(), StoreError>>> =
            vec![self.link.write(OP, tables.named("insert_touch"), dirty).boxed()];
        if !slice.knows_step(step) {
            writes.push(self.store_step(dataset, slice, step).boxed());
        }
        if !self.is_forgotten(counter.namespace()) {
            let written = last_write_of(step).micros();
            let values = (self.link.register_time(written), written, stored_dataset(dataset), ns, name);
            writes.push(self.link.write(OP, self.link.statement("set_last_write"), values).boxed());
            writes.push(self.name(counter).boxed());
        }
        try_join_all(writes).await.map(|_| ())
    }

    /// Stores that a step of a slice holds rows.
    pub async fn store_step(&self, dataset: DatasetId, slice: &Slice, step: Timestamp) -> Result<(), StoreError> {
        if slice.knows_step(step) {
            return Ok(());
        }
        let values = (stored_dataset(dataset), slice.start().micros(), step.micros());
        self.link.write("note step", self.link.statement("insert_step"), values).await?;
        slice.note_step(step);
        Ok(())
    }

    /// Lists a counter by its name, unless it is listed.
    pub async fn name(&self, counter: &Counter) -> Result<(), StoreError> {
        self.named.get_or_insert_async(counter, self.store_name(counter)).await
    }

    async fn store_name(&self, counter: &Counter) -> Result<(), StoreError> {
        const OP: &str = "list name";
        let namespace = counter.namespace();
        let is_kept = self.kept.read().get(&namespace).is_some_and(|kept| kept.rows);
        if !is_kept {
            let statement = self.link.statement("keep_namespace");
            self.link.write(OP, statement, (stored_namespace(namespace),)).await?;
            self.note(namespace, |kept| kept.rows = !kept.forgotten);
        }
        let shard = stored_shard(counter.touch_shard());
        let values = (stored_namespace(namespace), shard, counter.name().as_str());
        self.link.write(OP, self.link.statement("insert_name"), values).await
    }
}

/// The last write time that a touch stands for: the last microsecond of its step.
pub fn last_write_of(step: Timestamp) -> Timestamp {
    step + (STEP - Duration::from_micros(1))
}
