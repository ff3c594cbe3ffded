//! The catalogs of namespaces and of queues in ordered maps.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use parking_lot::Mutex;

use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_domain::limits::QUEUE_REQUESTS_KEPT_MAX;
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec};
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::{CatalogQueue, QueueId, QueueName};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    self, CatalogChange, CatalogEntry, CatalogRecord, CatalogState, NamespaceChange, NamespaceRecord, QueueChange,
    QueueRecord, QueueRequest, StoreError, StoreErrorKind,
};

/// A catalog of namespaces that lives as long as the process.
#[derive(Default)]
pub struct Catalog {
    state: Mutex<MemoryCatalogState>,
}

#[derive(Default)]
struct MemoryCatalogState {
    entries: MemoryEntries<Namespace>,
    datasets: BTreeMap<DatasetId, Dataset>,
}

/// A catalog of queues that lives as long as the process.
#[derive(Default)]
pub struct QueueCatalog {
    state: Mutex<MemoryQueueCatalogState>,
}

impl QueueCatalog {
    /// A catalog that several servers of this process share, and follow by its revision.
    pub fn shared() -> Self {
        let state = MemoryQueueCatalogState { revision: Some(0), ..MemoryQueueCatalogState::default() };
        Self { state: Mutex::new(state) }
    }
}

#[derive(Default)]
struct MemoryQueueCatalogState {
    /// The number of commits; none where one server owns the catalog.
    revision: Option<i64>,
    entries: MemoryEntries<CatalogQueue>,
    requests: BTreeMap<(QueueId, Box<str>), QueueRequest>,
    lease_key: Option<LeaseKey>,
}

/// The entries of one kind and their history.
pub(super) struct MemoryEntries<E: CatalogEntry> {
    live: BTreeMap<E::Name, E>,
    used: BTreeSet<E::Id>,
    /// In order of commit.
    changes: Vec<CatalogChange<E>>,
}

impl<E: CatalogEntry> Default for MemoryEntries<E> {
    fn default() -> Self {
        Self { live: BTreeMap::new(), used: BTreeSet::new(), changes: Vec::new() }
    }
}

impl<E: CatalogEntry> MemoryEntries<E> {
    /// All live entries, by name.
    pub fn all(&self) -> Vec<E> {
        self.live.values().cloned().collect()
    }

    pub fn check(&self, record: &CatalogRecord<E>) -> Result<(), String> {
        record.check(self.live.get(&record.change.name), |id| self.used.contains(&id))
    }

    pub fn apply(&mut self, record: CatalogRecord<E>) {
        self.used.insert(record.change.id);
        match record.entry {
            Some(entry) => self.live.insert(record.change.name.clone(), entry),
            None => self.live.remove(&record.change.name),
        };
        self.changes.push(record.change);
    }

    pub fn newest_first(&self, name: &E::Name) -> impl Iterator<Item = &CatalogChange<E>> {
        self.changes.iter().rev().filter(move |change| change.name == *name)
    }
}

impl MemoryCatalogState {
    fn last_namespace(&self) -> u64 {
        self.entries.used.last().map_or(0, |id| id.0)
    }

    fn last_dataset(&self) -> u32 {
        self.datasets.last_key_value().map_or(0, |(id, _)| id.0)
    }
}

pub(super) fn conflict(op: &'static str, why: String) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Conflict, op).with_source(why)
}

#[async_trait]
impl tallystone_ports::Catalog<Namespace> for Catalog {
    async fn load(&self) -> Result<CatalogState, StoreError> {
        let state = self.state.lock();
        let mut namespaces: Vec<Namespace> = state.entries.live.values().cloned().collect();
        namespaces.sort_by_key(|namespace| namespace.id);
        Ok(CatalogState {
            datasets: state.datasets.values().cloned().collect(),
            namespaces,
            next_namespace_id: state.last_namespace() + 1,
            next_dataset_id: state.last_dataset() + 1,
        })
    }

    async fn commit(&self, mut record: NamespaceRecord) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let live = state.entries.live.get(&record.change.name);
        let last_ids = (state.last_namespace(), state.last_dataset());
        record.check_all(live, last_ids, state.datasets.values()).map_err(|why| conflict("commit", why))?;
        state.datasets.extend(record.companion.take().map(|dataset| (dataset.id, dataset)));
        state.entries.apply(record);
        Ok(())
    }

    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        let state = self.state.lock();
        let is_older = |change: &&NamespaceChange| beyond.is_none_or(|beyond| (change.id, change.version) < beyond);
        Ok(state.entries.newest_first(name).filter(is_older).take(limit).cloned().collect())
    }
}

#[async_trait]
impl tallystone_ports::NamespaceStore for Catalog {
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError> {
        let state = self.state.lock();
        let found = state.entries.changes.iter().find(|change| (change.id, change.version) == (namespace, version));
        Ok(found.and_then(|change| change.spec.clone()))
    }
}

#[async_trait]
impl tallystone_ports::Catalog<CatalogQueue> for QueueCatalog {
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError> {
        Ok(self.state.lock().entries.all())
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        Ok(self.state.lock().revision)
    }

    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        state.entries.check(&record).map_err(|why| conflict("commit queue", why))?;
        state.entries.apply(record);
        state.revision = state.revision.map(|revision| revision + 1);
        Ok(())
    }

    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        Ok(self.state.lock().entries.newest_first(name).skip(skip).take(limit).cloned().collect())
    }
}

#[async_trait]
impl tallystone_ports::QueueCatalog for QueueCatalog {
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError> {
        let requests = &mut self.state.lock().requests;
        let place = (request.queue, request.token.clone());
        requests.retain(|_, kept| kept.until > now);
        if requests.len() >= QUEUE_REQUESTS_KEPT_MAX && !requests.contains_key(&place) {
            return Err(StoreError::not_applied(StoreErrorKind::Busy, "keep request"));
        }
        requests.insert(place, request);
        Ok(())
    }

    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError> {
        Ok(self.state.lock().requests.get(&(queue, token.into())).cloned())
    }

    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError> {
        Ok(*self.state.lock().lease_key.get_or_insert(made))
    }
}
