//! The catalog of queues: which name stands for which queue, its settings, and the history of their changes.

use async_trait::async_trait;

use crate::{Catalog, CatalogChange, CatalogEntry, CatalogRecord, StoreError};
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::name::{QueueId, QueueName};
use tallystone_domain::queue::setup::queue_spec::{CatalogQueue, QueueSpec};
use tallystone_domain::time::Timestamp;

/// One change of a queue. A deletion keeps the record by which a repeat is answered.
pub type QueueChange = CatalogChange<CatalogQueue>;

/// A change of a queue to commit.
pub type QueueRecord = CatalogRecord<CatalogQueue>;

/// The record by which a repeated deletion is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueDeletion {
    /// The request token of the caller, if there was one.
    pub token: Option<Box<str>>,
    /// The number of messages at the deletion.
    pub messages: u64,
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

impl CatalogEntry for CatalogQueue {
    const WORD: &'static str = "queue";
    type Id = QueueId;
    type Name = QueueName;
    type Spec = QueueSpec;
    /// In the order of names.
    type State = Vec<Self>;
    type Companion = ();
    type Deletion = Option<QueueDeletion>;
    /// The number of newer changes that are skipped.
    type HistoryStart = usize;

    fn id(&self) -> QueueId {
        self.id
    }

    fn name(&self) -> &QueueName {
        &self.spec.name
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn spec(&self) -> &QueueSpec {
        &self.spec
    }
}

/// The catalog of queues.
///
/// Laws, beyond those of `Catalog`:
/// 1. `load` returns queues in the order of names. Among changes of one time, `history` returns the higher version
///    first.
/// 2. `saved_request` returns the request of the last `save_request` of the queue and token, durably, at least until
///    the time of the request is over.
/// 3. `lease_key` returns the key of its first call, durably: a store has one key for its lifetime.
#[async_trait]
pub trait QueueCatalog: Catalog<CatalogQueue> {
    /// Saves a request. Requests whose time is over at `now` may be evicted for it. If too many requests are still
    /// within their time, it is refused with `Busy` and `NotApplied`.
    async fn save_request(&self, request: QueueRequest, now: Timestamp) -> Result<(), StoreError>;

    /// Reads a request.
    async fn saved_request(&self, queue: QueueId, token: &str) -> Result<Option<QueueRequest>, StoreError>;

    /// The key that seals the lease tokens of the store. The given random key becomes it if the store has none yet.
    async fn lease_key(&self, made: LeaseKey) -> Result<LeaseKey, StoreError>;
}
