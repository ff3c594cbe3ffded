//! The catalog of queues: checked in memory, stored in rows.
//!
//! ```text
//! h name 0 time i64 version u64 queue u128     change, never deleted
//! n queue u128                                 queue id in use or used before, never deleted
//! q name                                       live queue
//! r queue u128 token                           purge or redrive request, kept until it expires
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use parking_lot::RwLock;

use super::key;
use super::keyspaces::QueueKeyspaces;
use crate::disk::key::to_sortable;
use crate::disk::read::rows;
use crate::disk::writer::CommitBatch;
use crate::error::{ReadError, malformed_key};
use tallystone_adapters::codec::queues::catalog::{
    decode_change, decode_queue, decode_request, encode_change, encode_queue, encode_request,
};
use tallystone_domain::limits::{BULK_MESSAGES_MAX, QUEUE_REQUESTS_KEPT_MAX};
use tallystone_domain::queue::{CatalogQueue, QueueId, QueueName};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{QueueChange, QueueRecord, QueueRequest, ScanOrder};

/// The catalog as last committed.
#[derive(Default)]
pub struct QueueCatalogIndex {
    state: RwLock<QueueCatalogIndexState>,
}

#[derive(Default)]
struct QueueCatalogIndexState {
    queues: BTreeMap<QueueName, CatalogQueue>,
    numbers: BTreeSet<QueueId>,
    requests: BTreeMap<RequestKey, QueueRequest>,
    /// Expiry time of each request.
    ends: BTreeSet<(Timestamp, RequestKey)>,
}

/// Key of a request: queue and token.
type RequestKey = (QueueId, Box<str>);

impl QueueCatalogIndex {
    /// Reads the committed catalog at startup.
    pub fn open(spaces: &QueueKeyspaces) -> Result<Self, ReadError> {
        let mut state = QueueCatalogIndexState::default();
        for row in rows(&spaces.catalog, key::all(b'q'), ScanOrder::OldestFirst) {
            let queue = decode_queue(&row?.1)?;
            state.queues.insert(queue.spec.name.clone(), queue);
        }
        for row in rows(&spaces.catalog, key::all(b'n'), ScanOrder::OldestFirst) {
            let (key, _) = row?;
            state.numbers.insert(key::to_queue(&key).ok_or_else(|| malformed_key("number of a queue", &key))?);
        }
        for row in rows(&spaces.catalog, key::all(b'r'), ScanOrder::OldestFirst) {
            let (key, value) = row?;
            let (queue, token) = to_request(&key).ok_or_else(|| malformed_key("request of a queue", &key))?;
            let request = decode_request(queue, &token, &value)?;
            state.insert_request(request);
        }
        Ok(Self { state: RwLock::new(state) })
    }

    /// Returns all live queues, by name.
    pub fn load(&self) -> Vec<CatalogQueue> {
        self.state.read().queues.values().cloned().collect()
    }

    /// Returns an error text if a record cannot be committed.
    pub fn check(&self, record: &QueueRecord) -> Result<(), String> {
        let state = self.state.read();
        record.check(state.queues.get(&record.change.name), |id| state.numbers.contains(&id))
    }

    pub fn find_request(&self, queue: QueueId, token: &str) -> Option<QueueRequest> {
        self.state.read().requests.get(&(queue, token.into())).cloned()
    }

    /// Returns the expired requests that a new request evicts, or `None` if there is no space for it. O(evicted
    /// requests).
    pub fn evicted_for(&self, request: &QueueRequest, now: Timestamp) -> Option<Vec<RequestKey>> {
        let state = self.state.read();
        let own = (request.queue, request.token.clone());
        let over = state.ends.iter().take_while(|(until, _)| *until <= now).filter(|(_, place)| *place != own);
        let over: Vec<RequestKey> = over.take(BULK_MESSAGES_MAX).map(|(_, place)| place.clone()).collect();
        let kept = &state.requests;
        let has_room = kept.contains_key(&own) || kept.len() - over.len() < QUEUE_REQUESTS_KEPT_MAX;
        has_room.then_some(over)
    }

    /// Applies a committed request and removes the evicted ones.
    pub fn save_request(&self, request: QueueRequest, gone: &[RequestKey]) {
        let mut state = self.state.write();
        gone.iter().for_each(|place| state.forget(place));
        state.insert_request(request);
    }

    /// Applies a committed record.
    pub fn publish(&self, record: QueueRecord) {
        let mut state = self.state.write();
        state.numbers.insert(record.change.id);
        match record.entry {
            Some(queue) => state.queues.insert(record.change.name, queue),
            None => state.queues.remove(&record.change.name),
        };
    }
}

impl QueueCatalogIndexState {
    fn insert_request(&mut self, request: QueueRequest) {
        let place = (request.queue, request.token.clone());
        self.forget(&place);
        self.ends.insert((request.until, place.clone()));
        self.requests.insert(place, request);
    }

    fn forget(&mut self, place: &RequestKey) {
        if let Some(request) = self.requests.remove(place) {
            self.ends.remove(&(request.until, place.clone()));
        }
    }
}

/// Stages the rows of a record.
pub fn stage(spaces: &QueueKeyspaces, batch: &mut CommitBatch, record: &QueueRecord) {
    let change = &record.change;
    let live = [b"q", change.name.as_str().as_bytes()].concat();
    match &record.entry {
        Some(queue) => batch.put(&spaces.catalog, live, encode_queue(queue)),
        None => batch.remove(&spaces.catalog, live),
    }
    batch.put(&spaces.catalog, [&b"n"[..], &change.id.0.to_be_bytes()].concat(), &b""[..]);
    batch.put(&spaces.catalog, change_key(change), encode_change(change));
}

/// Stages the row of a request, and removes the evicted ones.
pub fn stage_request(spaces: &QueueKeyspaces, batch: &mut CommitBatch, request: &QueueRequest, gone: &[RequestKey]) {
    for (queue, token) in gone {
        batch.remove(&spaces.catalog, of_request(*queue, token));
    }
    batch.put(&spaces.catalog, of_request(request.queue, &request.token), encode_request(request));
}

fn of_request(queue: QueueId, token: &str) -> Vec<u8> {
    [&b"r"[..], &queue.0.to_be_bytes(), token.as_bytes()].concat()
}

fn to_request(key: &[u8]) -> Option<RequestKey> {
    let (queue, token) = key.get(1..)?.split_first_chunk::<16>()?;
    Some((QueueId(u128::from_be_bytes(*queue)), std::str::from_utf8(token).ok()?.into()))
}

/// Reads the changes of a name, newest first.
pub fn history(
    spaces: &QueueKeyspaces,
    name: &QueueName,
    skip: usize,
    limit: usize,
) -> Result<Vec<QueueChange>, ReadError> {
    let mut end = of_name(name);
    // The last byte is the 0 after the name; raised by one, it bounds the keys of the name.
    *end.last_mut().expect("a key is not empty") = 1;
    let range = (Bound::Included(of_name(name)), Bound::Excluded(end));
    let changes = rows(&spaces.catalog, range, ScanOrder::NewestFirst).skip(skip).take(limit);
    changes.map(|row| Ok(decode_change(&row?.1)?)).collect()
}

fn change_key(change: &QueueChange) -> Vec<u8> {
    let (version, queue) = (change.version.to_be_bytes(), change.id.0.to_be_bytes());
    [&of_name(&change.name)[..], &to_sortable(change.time), &version, &queue].concat()
}

/// Names contain no 0 byte, so 0 ends the name.
fn of_name(name: &QueueName) -> Vec<u8> {
    [b"h", name.as_str().as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_requests_until_their_time_is_over() {
        let catalog = QueueCatalogIndex::default();
        let time = Timestamp::from_secs;
        let request = |queue: usize, until: i64| QueueRequest {
            queue: QueueId(queue as u128),
            token: "once".into(),
            fingerprint: 7,
            through: vec![1],
            ended_by: None,
            until: time(until),
        };
        (0..QUEUE_REQUESTS_KEPT_MAX).for_each(|queue| catalog.save_request(request(queue, 10), &[]));
        let (other, same) = (request(QUEUE_REQUESTS_KEPT_MAX, 20), request(0, 20));
        assert_eq!(catalog.evicted_for(&other, time(9)), None, "no room");
        assert_eq!(catalog.evicted_for(&same, time(9)), Some(Vec::new()), "it takes its own place");
        let gone = catalog.evicted_for(&other, time(10)).expect("their time is over");
        assert_eq!(gone.len(), BULK_MESSAGES_MAX, "some at a time");
        catalog.save_request(other.clone(), &gone);
        assert_eq!(
            (catalog.find_request(gone[0].0, "once"), catalog.find_request(other.queue, "once")),
            (None, Some(other))
        );
    }
}
