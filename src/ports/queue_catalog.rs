//! The catalog of queues: which name stands for which queue, its settings, and the history of their changes.

use async_trait::async_trait;

use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::name::{QueueId, QueueName};
use crate::domain::queue::setup::queue_spec::{CatalogQueue, QueueSpec};
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// One change of a queue, for ever.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueChange {
    /// The queue.
    pub queue: QueueId,
    /// Its name.
    pub name: QueueName,
    /// The version that the change made.
    pub version: u64,
    /// When.
    pub time: Timestamp,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// What changed, one line a setting.
    pub differences: Vec<String>,
    /// The settings after the change; none when it deleted the queue.
    pub spec: Option<QueueSpec>,
    /// Of a deletion: what it was asked with and answered.
    pub deletion: Option<QueueDeletion>,
}

/// What a repeat of a deletion is answered by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueDeletion {
    /// The caller's name of the request, if it has one.
    pub token: Option<Box<str>>,
    /// How many messages the queue held.
    pub messages: u64,
}

/// A change to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRecord {
    /// The version the queue must have now; `None`: no live queue may have the name, and none ever had the number.
    pub expected_version: Option<u64>,
    /// The queue after the change; none deletes it.
    pub queue: Option<CatalogQueue>,
    /// The entry of the history.
    pub change: QueueChange,
}

/// A request that its caller may repeat, over a restart too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRequest {
    /// The queue.
    pub queue: QueueId,
    /// The caller's name of the request, 1 to 64 bytes.
    pub token: Box<str>,
    /// A hash of what was asked for: a repeat has the same.
    pub fingerprint: u64,
    /// The sequence of each shard when it began: it touches nothing that came later. Of the redrive of one message the
    /// sequence and the version of that one.
    pub through: Vec<u64>,
    /// Of a discard: it touches what came to its end by then, by the time of queues.
    pub ended_by: Option<Timestamp>,
    /// Until when it is kept, by the wall.
    pub until: Timestamp,
}

/// The catalog of queues.
///
/// Laws:
/// 1. `commit` applies all of a record or nothing, durably, and only if the expectation holds; otherwise `Conflict`.
/// 2. A number stands for one queue for ever: a commit that creates with a number that any queue ever had, or that
///    changes a queue under another number than it has, is a `Conflict`.
/// 3. `load` answers every live queue, by name, as its last commit left it.
/// 4. `history` answers the changes of all queues that ever had the name, newest first; among changes of one time the
///    higher version first.
/// 5. `kept` answers what the last `keep` of the queue and token was given, durably, at least until its time is over.
/// 6. `lease_key` answers the key that its first call was given, durably: a store has one key for ever.
#[async_trait]
pub trait QueueCatalog: Send + Sync + 'static {
    /// Reads every live queue.
    async fn load(&self) -> Result<Vec<CatalogQueue>, StoreError>;

    /// Commits a change.
    async fn commit(&self, record: QueueRecord) -> Result<(), StoreError>;

    /// Keeps a request; those whose time is over at `now` give way to it. Where too many are kept whose time is not over,
    /// another one is `Busy` and `NotApplied`.
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError>;

    /// Reads a request.
    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError>;

    /// The key that seals the lease tokens of the store; this one, made by chance, if it has none yet.
    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError>;

    /// Reads the history of a name: `limit` changes after the first `skip`.
    async fn history(&self, name: &QueueName, skip: usize, limit: usize) -> Result<Vec<QueueChange>, StoreError>;
}
