//! The catalog of queues in ordered maps.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::domain::limits::QUEUE_REQUESTS_KEPT_MAX;
use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::name::{QueueId, QueueName};
use crate::domain::queue::setup::queue_spec::CatalogQueue;
use crate::domain::time::Timestamp;
use crate::ports::{self, QueueChange, QueueRecord, QueueRequest, StoreError, StoreErrorKind};

/// A catalog of queues that lives as long as the process.
#[derive(Default)]
pub struct QueueCatalog {
    state: Mutex<MemoryQueueCatalogState>,
}

#[derive(Default)]
struct MemoryQueueCatalogState {
    queues: BTreeMap<QueueName, CatalogQueue>,
    numbers: BTreeSet<QueueId>,
    /// In order of commit.
    changes: Vec<QueueChange>,
    requests: BTreeMap<(QueueId, Box<str>), QueueRequest>,
    lease_key: Option<LeaseKey>,
}

#[async_trait]
impl ports::QueueCatalog for QueueCatalog {
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError> {
        Ok(self.state.lock().queues.values().cloned().collect())
    }

    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let conflict = |why| StoreError::not_applied(StoreErrorKind::Conflict, "commit queue").with_source(why);
        state.check(&record).map_err(conflict)?;
        state.numbers.insert(record.change.queue);
        match record.queue {
            Some(queue) => state.queues.insert(record.change.name.clone(), queue),
            None => state.queues.remove(&record.change.name),
        };
        state.changes.push(record.change);
        Ok(())
    }

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

    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError> {
        let state = self.state.lock();
        let of_name = state.changes.iter().rev().filter(|change| change.name == *name);
        Ok(of_name.skip(skip).take(limit).cloned().collect())
    }
}

impl MemoryQueueCatalogState {
    /// Returns an error text if a record cannot be committed.
    fn check(&self, record: &QueueRecord) -> Result<(), String> {
        let (name, number) = (&record.change.name, record.change.queue);
        let live = self.queues.get(name);
        if live.map(|live| live.version) != record.expected_version {
            let is = live.map_or("absent".to_owned(), |live| format!("at version {}", live.version));
            return Err(format!("queue {name} is {is}"));
        }
        match live {
            Some(live) if live.id != number => Err(format!("queue {name} has the number {}", live.id)),
            None if self.numbers.contains(&number) => Err(format!("queue number {number} was used before")),
            Some(_) | None => Ok(()),
        }
    }
}
