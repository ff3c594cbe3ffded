//! The history of messages: rows in the order of their shards, found by message, by id and by term.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::history::audit::rows::AuditRegister;
use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;

/// The next rows of a shard. At most `HISTORY_BATCH_ROWS_MAX` rows, in the order of their positions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryBatch {
    /// The shard of the rows.
    pub shard: ShardId,
    /// The rows.
    pub rows: Vec<HistoryRow>,
    /// Rows that are missing, between or after these.
    pub gaps: Vec<HistoryGap>,
    /// The cursor after this batch.
    pub cursor: HistoryCursor,
}

/// The shards of a queue whose rows are searched. Shards are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueShards {
    /// The queue.
    pub queue: QueueId,
    /// The number of its shards.
    pub shards: u32,
}

/// The encoding of registers, the same on every store: see `HistoryCursor::register`.
///
/// Laws:
/// 1. `decode` returns what `encode` was given. The encoding has at most `REGISTER_BYTES_MAX` bytes.
/// 2. A register of a build with fewer rows of the transition table is read with 0 for the others. Of other bytes, and
///    of a build with more rows, `decode` returns `None`; it never panics.
pub trait RegisterCodec: Send + Sync + 'static {
    /// Encodes a register. O(rows of the table).
    fn encode(&self, register: &AuditRegister) -> Box<[u8]>;

    /// Decodes a register.
    fn decode(&self, bytes: &[u8]) -> Option<AuditRegister>;
}

/// The usage of a history store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HistoryUsage {
    /// Bytes on disk, if the store knows them.
    pub bytes: Option<u64>,
    /// Rows written since the process started, repeats included.
    pub rows_written: u64,
    /// Bytes of those rows, as the store encodes them.
    pub row_bytes_written: u64,
}

/// The history of the messages of all queues.
///
/// Laws:
/// 1. Rows are named by shard and position. Writing a batch again changes nothing, alone or with others between.
/// 2. The cursor of a shard is the greatest that was written, by epoch and position. It is durable no earlier than the
///    rows and gaps of its batch.
/// 3. `trace` returns every written row of a message above a position, in the order of positions, up to the limit.
/// 4. `lives` returns the keys of the messages that were enqueued under an id, the newest enqueue first, up to the
///    limit.
/// 5. `find` returns the rows with a term (`HistoryTerm::of`) that lie before a row, newest first by
///    (time, shard, position), each once, up to the limit.
/// 6. `last` returns the row of each message with the greatest position, in the order of the keys; `None` for a message
///    without rows.
/// 7. `gaps` returns the gaps of a queue, newest first by `to_time`, up to the limit.
/// 8. Rows and gaps leave only by age, or because the store exceeds its size; then the oldest leave first. `starts_at`
///    is a time from which on no row has left; `None` if none ever left.
/// 9. Rows of one queue are never returned for another. A read sees every batch that was answered before it began.
#[async_trait]
pub trait HistoryStore: Send + Sync + 'static {
    /// Writes batches. Durable when answered. Of a failed call any part may be written, but no cursor before its rows.
    async fn append(&self, batches: Vec<HistoryBatch>) -> Result<(), StoreError>;

    /// Reads the cursor of a shard; `None` before the first batch.
    async fn cursor(&self, shard: ShardId) -> Result<Option<HistoryCursor>, StoreError>;

    /// Reads the rows of a message. Cost: O(rows of the message).
    async fn trace(
        &self,
        queue: QueueId,
        message: MessageKey,
        after: Option<RowPosition>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, StoreError>;

    /// Reads the newest row of each message. Cost: O(rows of the messages).
    async fn last(&self, queue: QueueId, messages: Vec<MessageKey>) -> Result<Vec<Option<HistoryRow>>, StoreError>;

    /// Finds the messages that had an id. Cost: O(limit).
    async fn lives(&self, queue: QueueId, id: &MessageId, limit: usize) -> Result<Vec<MessageKey>, StoreError>;

    /// Finds rows by a term, newest first. Cost: O(limit + shards); the embedded store also reads the rows of the term
    /// in the second of `before`.
    async fn find(
        &self,
        queue: QueueShards,
        term: &HistoryTerm,
        before: Option<HistoryHit>,
        limit: usize,
    ) -> Result<Vec<HistoryHit>, StoreError>;

    /// Reads the gaps of a queue. Cost: O(limit + shards).
    async fn gaps(&self, queue: QueueShards, limit: usize) -> Result<Vec<HistoryGap>, StoreError>;

    /// The time from which on no row has left.
    async fn starts_at(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Lets rows leave that are older than a time, in whole storage periods; and the oldest periods while the store
    /// exceeds its size. A store whose rows leave by themselves does nothing.
    async fn trim(&self, before: Timestamp) -> Result<(), StoreError>;

    /// The size of the store. Never blocks.
    fn usage(&self) -> HistoryUsage;
}
