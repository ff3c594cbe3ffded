//! The operations on queues that the servers of one store know of each other.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::Reason;
use tallystone_domain::fleet::MemberId;
use tallystone_domain::queue::bulk_operation::{BulkCursor, BulkOperation};
use tallystone_domain::queue::name::{QueueId, QueueName};
use tallystone_domain::time::Timestamp;

/// The caller that began an operation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OperationAuthor {
    /// As people are told; empty if that is not known.
    pub text: Box<str>,
    /// The name of its principal; none where callers need no key.
    pub owner: Option<Box<str>>,
}

/// A place in the list of the operations of a queue: the start of an operation, then its id.
pub type OperationPlace = (Timestamp, Box<str>);

/// An operation, as its runner wrote it last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperationRow {
    /// Its id, at most 100 bytes.
    pub id: Box<str>,
    /// The version of the row, from 1.
    pub version: u64,
    /// Its queue.
    pub queue: QueueId,
    /// The name that the queue had at the start.
    pub name: QueueName,
    /// The work that it does.
    pub work: BulkOperation,
    /// The sequence of each shard at the start: later messages are not touched.
    pub through: Vec<u64>,
    /// For a discard: only messages that ended by this time, by the clock of queues.
    pub ended_by: Option<Timestamp>,
    /// The step that comes next. Steps before it are done.
    pub next: BulkCursor,
    /// The messages of the steps before.
    pub done: u64,
    /// The estimated number of messages.
    pub total: u64,
    /// The start, by wall time. It is the same in all versions.
    pub began: Timestamp,
    /// The caller that began it.
    pub author: OperationAuthor,
    /// The member that runs it; none if its server has stopped.
    pub runner: Option<MemberId>,
    /// Whether somebody asked to cancel it.
    pub is_cancelled: bool,
    /// Its end.
    pub end: Option<OperationEnd>,
}

/// The end of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperationEnd {
    /// The time, by wall time.
    pub at: Timestamp,
    /// The result.
    pub outcome: OperationOutcome,
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationOutcome {
    /// All steps are done.
    Done,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed {
        /// The reason.
        reason: Reason,
        /// The text for people.
        text: Box<str>,
    },
}

/// The rows of operations that servers share. They may be lost with the store: an operation is then forgotten, and what
/// it did stays done.
///
/// Laws:
/// 1. `put` stores a row if its version is one more than that of the stored row of its id, or 1 where there is none,
///    and answers whether it did. Of several servers that put one version, exactly one gets the answer that it did.
/// 2. `get` and `running` see every row whose `put` was answered before they began. `running` returns exactly the rows
///    without an end, in any order.
/// 3. `forget` removes exactly the rows that ended before a time. Their ids are free then.
/// 4. `of_queue` returns the rows of a queue that are no dry runs, newest start first, those of one start by their ids
///    downwards: those behind a place, at most so many. O(rows returned).
/// 5. At most `OPERATIONS_MAX` rows are kept. A new one makes the row leave that ended longest ago; if none has ended,
///    it is refused with `Busy` and `NotApplied`.
#[async_trait]
pub trait OperationDirectory: Send + Sync + 'static {
    /// Stores the next version of a row.
    async fn put(&self, row: &OperationRow) -> Result<bool, StoreError>;

    /// Reads a row.
    async fn get(&self, id: &str) -> Result<Option<OperationRow>, StoreError>;

    /// Reads the rows of operations that have not ended. O(rows).
    async fn running(&self) -> Result<Vec<OperationRow>, StoreError>;

    /// Reads a page of the operations of a queue, newest first, behind a place.
    async fn of_queue(
        &self,
        queue: QueueId,
        behind: Option<&OperationPlace>,
        rows: usize,
    ) -> Result<Vec<OperationRow>, StoreError>;

    /// Removes the rows of operations that ended before a time, by wall time.
    async fn forget(&self, before: Timestamp) -> Result<(), StoreError>;
}
