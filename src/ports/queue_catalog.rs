//! The catalog of queues: which name stands for which queue, its settings, and the history of their changes.

use async_trait::async_trait;

use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::name::{QueueId, QueueName};
use crate::domain::queue::setup::queue_spec::{CatalogQueue, QueueSpec};
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// One change of a queue, as its history keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueChange {
    /// The queue.
    pub queue: QueueId,
    /// Its name.
    pub name: QueueName,
    /// The version that the change made.
    pub version: u64,
    /// The time of the change.
    pub time: Timestamp,
    /// The author.
    pub actor: String,
    /// The reason that the author gave.
    pub reason: String,
    /// The differences, a line for each setting.
    pub differences: Vec<String>,
    /// The settings after the change; none when it deleted the queue.
    pub spec: Option<QueueSpec>,
    /// The record by which a repeated deletion is answered.
    pub deletion: Option<QueueDeletion>,
}

/// The record by which a repeated deletion is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueDeletion {
    /// The request token of the caller, if there was one.
    pub token: Option<Box<str>>,
    /// The number of messages at the deletion.
    pub messages: u64,
}

/// A change to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRecord {
    /// The version that the queue must have. `None`: no live queue may have the name, and no queue ever had the id.
    pub expected_version: Option<u64>,
    /// The queue after the change; none deletes it.
    pub queue: Option<CatalogQueue>,
    /// The entry of the history.
    pub change: QueueChange,
}

/// A request that its caller may repeat, even across a restart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRequest {
    /// The queue.
    pub queue: QueueId,
    /// The request token of the caller, 1 to 64 bytes.
    pub token: Box<str>,
    /// A hash of the request. A repeat has the same hash.
    pub fingerprint: u64,
    /// The sequence of each shard at the beginning: later messages are not touched. For the redrive of one message, its
    /// sequence and version.
    pub through: Vec<u64>,
    /// For a discard: only messages that ended by this time, by the clock of queues.
    pub ended_by: Option<Timestamp>,
    /// The wall time until which the request is kept.
    pub until: Timestamp,
}

/// The catalog of queues.
///
/// Laws:
/// 1. `commit` applies all of a record or nothing, durably, and only if the expectation holds; otherwise `Conflict`.
/// 2. An id names one queue and is never reused. A commit that creates a queue with a used id, or changes a queue under
///    another id, is a `Conflict`.
/// 3. `load` returns every live queue, by name, as its last commit left it.
/// 4. `history` returns the changes of all queues that ever had the name, newest first. Among changes of one time the higher
///    version comes first.
/// 5. `saved_request` returns the request of the last `save_request` of the queue and token, durably, at least until the time
///    of the request is over.
/// 6. `lease_key` returns the key of its first call, durably: a store has one key for its lifetime.
#[async_trait]
pub trait QueueCatalog: Send + Sync + 'static {
    /// Reads every live queue.
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError>;

    /// Commits a change.
    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError>;

    /// Saves a request. Requests whose time is over at `now` may be evicted for it. If too many requests are still within
    /// their time, it is refused with `Busy` and `NotApplied`.
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError>;

    /// Reads a request.
    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError>;

    /// The key that seals the lease tokens of the store. The given random key becomes it if the store has none yet.
    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError>;

    /// Reads the history of a name: `limit` changes after the first `skip`.
    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError>;
}
