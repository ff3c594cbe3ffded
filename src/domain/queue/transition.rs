//! The record of one applied row of the transition table: the history of a message consists of these.

use crate::queue::messages::message::{AttemptError, Fence, MessageHead, MessageKey, Metadata, SessionId};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::time::Timestamp;

/// The record of one row applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transition {
    pub key: MessageKey,
    /// Its version after the row.
    pub version: u64,
    pub trigger: Trigger,
    /// The previous state.
    pub from: Option<MessageState>,
    pub to: Option<MessageState>,
    /// The time, by the shard's clock.
    pub at: Timestamp,
    pub detail: TransitionDetail,
}

impl Transition {
    /// Whether the row asks the worker of a running message to cancel it.
    pub fn requests_cancel(&self) -> bool {
        self.trigger == Trigger::CancelMessage && self.to == Some(MessageState::Running)
    }
}

/// The parts of a record that only the history of the message needs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TransitionDetail {
    /// The place of the row among all rows of the shard. It names the row for ever.
    pub position: RowPosition,
    /// The number of the attempt that the row begins or ends; 0 before the first.
    pub attempt: u32,
    /// In rows that give a lease, since when the message was ready; in rows that end one, since when it was leased.
    pub since: Option<Timestamp>,
    /// The lease that the row gives, extends or ends.
    pub fence: Option<Fence>,
    /// The session of that lease.
    pub session: Option<SessionId>,
    /// The label of the session, in rows that give a lease.
    pub worker: Option<Box<str>>,
    /// The reason of a cancellation.
    pub reason: Option<Box<str>>,
    /// The error that the worker reported, in rows of a failure; in other rows to errored, that of the last failure.
    pub error: Option<Box<AttemptError>>,
}

/// The place of a row in its shard: rows are ordered by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct RowPosition {
    /// The epoch of the shard at the row.
    pub epoch: u32,
    /// The number of rows applied to the shard up to this one, from 1.
    pub position: u64,
}

/// A record for the history, which outlives the message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryRow {
    pub transition: Transition,
    /// The message as it was enqueued; in enqueue rows only.
    pub enqueued: Option<Box<EnqueuedMessage>>,
}

/// The parts of a new message that the history keeps. The payload is not among them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnqueuedMessage {
    pub id: MessageId,
    pub metadata: Metadata,
    /// The type that the producer set.
    pub kind: Option<Box<str>>,
    pub priority: i64,
    pub payload_bytes: u32,
    /// The metadata keys whose values are counted for this message, and searched exactly.
    pub counted_keys: Vec<Box<str>>,
}

impl HistoryRow {
    /// The place of the row in its shard.
    pub fn position(&self) -> RowPosition {
        self.transition.detail.position
    }
}

impl EnqueuedMessage {
    /// The parts of a message directly after its enqueue. `kind` is the type of its body.
    pub fn of(message: &MessageHead, kind: Option<&str>, counted_keys: Vec<Box<str>>) -> Self {
        let MessageHead { id, metadata, priority, payload_bytes, .. } = message;
        let (id, metadata) = (id.clone(), metadata.clone());
        Self {
            id,
            metadata,
            kind: kind.map(Into::into),
            priority: *priority,
            payload_bytes: *payload_bytes,
            counted_keys,
        }
    }
}
