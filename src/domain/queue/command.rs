//! The commands of a shard and their replies.
//!
//! Commands contain durations, no times, except a visible-at and the time of a token. Refusals are a closed list.

use std::time::Duration;

use crate::queue::bulk_operation::PurgedStates;
use crate::queue::filter::Filter;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{
    AttemptError, LeaseToken, MessageKey, MessageRef, Metadata, Rank, RoutingValue, SessionId,
};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::{SettleAction, Settlement, UpdateToken};
use crate::queue::messages::state_machine::MessageState;
use crate::queue::session_records::{Ending, SessionCall};
use crate::queue::setup::settings::ShardSettings;
use crate::time::Timestamp;

/// A message as a caller sends it.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Its id and token.
    pub id: MessageId,
    /// The time of the token: that of its UUIDv7, or a generation time.
    pub token_time: Option<Timestamp>,
    /// The routing value that selected this shard; none if the id did.
    pub routing: Option<RoutingValue>,
    pub metadata: Metadata,
    /// The size of its payload.
    pub payload_bytes: u32,
    /// A hash of all parts that the caller sent. A repeat has the same hash.
    pub fingerprint: u64,
    /// Its priority within ±2^53; the time at which it becomes visible, in milliseconds, if it has none.
    pub priority: Option<i64>,
    /// The priority class, for a message without priority.
    pub class: Option<Box<str>>,
    /// How long it is invisible, at most 10 years.
    pub invisibility: Option<Duration>,
    /// The time from which it may be served, at most 10 years from now; the past means at once. Counts instead of an
    /// invisibility.
    pub visible_at: Option<Timestamp>,
    /// The default lease, 1 s to 12 h.
    pub lease_duration: Option<Duration>,
    /// The maximum number of attempts, 1 to 10,000.
    pub max_attempts: Option<u32>,
    /// The time after it becomes visible at which it is canceled unless it was leased, at most 10 years.
    pub ttl: Option<Duration>,
}

/// The report of a failed attempt.
#[derive(Clone, Default, Debug)]
pub struct FailureReport {
    /// The delay; the queue's retry policy if there is none.
    pub delay: Option<Duration>,
    /// The injected random number of the jitter.
    pub draw: u32,
    pub error: Option<AttemptError>,
}

/// An update of a message that is not leased.
#[derive(Clone, Default, Debug)]
pub struct MessageUpdate {
    pub priority: Option<i64>,
    /// The new time from which it may be served; the past means now.
    pub visible_at: Option<Timestamp>,
    /// The same as a delay from now, by the shard's clock. Not together with a visible-at.
    pub invisibility: Option<Duration>,
    /// The size of the payload that takes the place of the old one; its bytes come with the command.
    pub payload_bytes: Option<u32>,
    /// The metadata that take the place of the old ones.
    pub metadata: Option<Metadata>,
    /// Whether a later visible-at leaves the message unchanged.
    pub only_if_sooner: bool,
    /// The version the message must have.
    pub expected_version: Option<u64>,
    /// The token that identifies a repeat.
    pub token: Option<UpdateToken>,
}

impl MessageUpdate {
    /// Whether it brings a payload or metadata, which take room.
    pub fn has_content(&self) -> bool {
        self.payload_bytes.is_some() || self.metadata.is_some()
    }
}

#[derive(Clone, Default, Debug)]
pub struct Dequeue {
    /// The most messages, 1 to 100.
    pub max: usize,
    /// The lease, 1 s to 12 h; else that of the message, else that of the queue.
    pub lease: Option<Duration>,
    /// Only this message, which must be pending. The filter is ignored.
    pub message: Option<MessageRef>,
    pub filter: Filter,
    /// The cursor of an earlier call with the same filter.
    pub cursor: Option<Cursor>,
    /// The session of the call. A repeat of its call gets the same leases.
    pub session: Option<SessionCall>,
    /// The label of the session, for the history of the messages.
    pub worker: Option<Box<str>>,
    /// The most messages that a filter without a declared shape examines, at most 256; 0 means 256.
    pub look_at: usize,
}

/// The cursor of a walk with an undeclared filter. It continues after the examined messages. Messages that arrived
/// since its start may be missed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The last examined message; in an exclusive queue, the head of the last value entered.
    pub after: Rank,
    /// In an exclusive queue, the present value and its last examined message.
    pub inside: Option<(RoutingValue, Rank)>,
    /// The start of the walk.
    pub since: Timestamp,
}

/// Before every rank: sequences begin with 1.
pub(super) const FIRST: Rank = (i64::MIN, 0);

impl Cursor {
    /// Before all messages.
    pub fn start(now: Timestamp) -> Self {
        Self { after: FIRST, inside: None, since: now }
    }
}

/// The messages of a redrive, discard, purge or cancel.
#[derive(Clone, Default, Debug)]
pub struct BulkRequest {
    pub filter: Filter,
    /// The states that a purge covers. A redrive or discard covers errored messages, a cancel those that are not over.
    pub states: PurgedStates,
    /// The signature that their last error must have; none for any.
    pub signature: Option<Box<str>>,
    /// The time by which they must have ended; none for any time.
    pub ended_by: Option<Timestamp>,
    /// The last sequence of earlier steps; 0 at the beginning.
    pub after: u64,
    /// The last sequence of the operation: that of the shard when it began.
    pub through: u64,
    /// The most messages that it examines, 1 to 256.
    pub max: usize,
    /// Only counts.
    pub dry_run: bool,
}

#[derive(Clone, Debug)]
pub enum Command {
    /// Enqueues a message. O(log n).
    Enqueue(Box<NewMessage>),
    /// Leases messages, best rank first. O((max + due) log n), due at most max(16, 2 max).
    Dequeue(Dequeue),
    /// Ends a lease. O(log n).
    Settle {
        token: LeaseToken,
        /// How.
        verb: SettleAction,
        /// The report of Fail; ignored for other actions.
        failure: FailureReport,
    },
    /// Sets the remaining lease, 0 to end it at once. O(log n).
    Extend {
        token: LeaseToken,
        /// From now, at most 12 h.
        lease: Duration,
    },
    /// Cancels a message, or asks its worker to. O(log n).
    CancelMessage {
        message: MessageRef,
        /// The reason of the cancellation.
        reason: Box<str>,
    },
    /// Returns the valid leases of an earlier attempt of a session's call: none if all have ended, or a reply that
    /// there were none. Lower attempts of the call are refused from now on. O(leases log n).
    Recall(SessionCall),
    /// Renews a session and confirms leases. O((1 + confirmed leases) log n).
    Heartbeat {
        session: SessionId,
        /// The last call whose response the session has received.
        received_up_to: Option<u64>,
    },
    /// Ends a session in this shard, then its leases. Sweeps and dequeues end the remaining leases. O(max log n).
    EndSession {
        session: SessionId,
        /// The kind of the ending. Silence is detected by the shard itself.
        ending: Ending,
        /// How many leases at most, 1 to 256.
        max: usize,
    },
    /// Updates a message that is not leased. O(log n).
    Update {
        message: MessageRef,
        /// The change.
        update: MessageUpdate,
    },
    /// Gives an errored message its attempts back. O(log n).
    Redrive { message: MessageRef },
    /// Redrives errored messages in the order of their sequence. O(max log n).
    RedriveAll(BulkRequest),
    /// Discards an errored message. O(log n).
    Discard { message: MessageRef },
    /// Discards errored messages in the order of their sequence. O(max log n).
    DiscardAll(BulkRequest),
    /// Cancels the messages that are not over, in the order of their sequence: those that run, by asking their workers.
    /// O(max log n).
    CancelAll {
        bulk: BulkRequest,
        /// The reason of the cancellations.
        reason: Box<str>,
    },
    /// Cancels pending and invisible messages, and removes completed and canceled ones, as far as the states are asked
    /// for, in the order of their sequence. O(max log n).
    Purge(BulkRequest),
    /// Replaces settings and blocks by those of a higher version; a version that is not higher changes nothing, and is
    /// answered as if it had. Each change holds for what happens from now on: a message keeps the attempts, TTL and
    /// lease that it has been given. A shorter retention also holds for messages that are over, which sweeps go
    /// through. O(1).
    Configure(Box<ShardSettings>),
    /// Sets the limit of an exclusivity value, 0 to 10,000, or removes it. A lower limit revokes no lease. With 0 no
    /// message of the value is leased. O(log n).
    SetValueLimit {
        value: RoutingValue,
        /// The most messages of the value in flight; none for the limit of the queue.
        limit: Option<u32>,
    },
    /// Deletes every message. From then on all commands are refused as `Deleted`, except repeats of tokens with a time.
    /// A repeat gets the same reply. O(n).
    Delete,
    /// Applies due transitions, and deletes messages past their retention. O(max log n).
    Sweep {
        /// How many rows at most, 1 to 256.
        max: usize,
    },
}

/// Whether an empty or short reply is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completeness {
    Complete,
    /// A bound left over due messages or values at their limits: call again.
    More,
    /// The filter is not declared, and messages remain to be examined: continue with the cursor.
    Partial,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseGrant {
    /// Its fence.
    pub token: LeaseToken,
    /// The number of the attempt, from 1.
    pub attempt_number: u32,
    /// How long it lasts.
    pub expires_in: Duration,
}

/// The reply to a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The message is enqueued.
    Enqueued {
        key: MessageKey,
        /// Its state: of a repeat the present one, or once the message is gone that directly after the first enqueue.
        state: MessageState,
        /// Whether this is a repeat.
        already_enqueued: bool,
    },
    /// Leases, perhaps none.
    Leases {
        /// In the order of their ranks.
        leases: Vec<LeaseGrant>,
        /// Whether there are no more messages than these.
        completeness: Completeness,
        /// The cursor, if the reply is partial.
        cursor: Option<Cursor>,
    },
    /// No attempt of the recalled call got leases here.
    Unanswered,
    /// The lease was extended.
    Extended {
        /// From now; 0 if it is over.
        expires_in: Duration,
        /// Whether a cancel of the message was requested.
        cancel_requested: bool,
    },
    /// The state of the message now, or directly after the first of these calls.
    Settled(Settlement),
    /// The number of changed messages.
    Touched {
        /// The number.
        count: usize,
        /// Whether the bound left some over.
        completeness: Completeness,
    },
    /// The session was renewed.
    Beaten {
        /// Its remaining lease.
        expires_in: Duration,
        /// Its leases whose messages should be canceled, at most 256.
        cancel_requested: Vec<LeaseToken>,
    },
    /// A step of a bulk operation is done.
    Walked {
        /// The number of changed messages.
        count: usize,
        /// The last sequence before the next step; none after the last step.
        next: Option<u64>,
    },
    /// The settings of this version, or of a higher one, are in force.
    Configured,
    /// The limit is in force for new leases.
    ValueLimitSet,
    /// The queue is deleted.
    Deleted {
        /// The number of messages that the shard had.
        messages: u64,
    },
}

/// The reason of a refusal. A refused command changed nothing but due transitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A part of the command is out of its range.
    Invalid(InvalidCommandPart),
    /// No such message.
    NotFound,
    /// The transition table has no such row for the message's state.
    WrongState(MessageState),
    /// The message has another version.
    VersionMismatch(u64),
    /// The lease does not belong to the message, or is over.
    LeaseLost,
    /// The same id was sent with other content.
    TokenReused,
    /// The token is older than the dedupe window.
    TokenExpired,
    /// The change needs an empty shard.
    NotEmpty,
    /// Other messages of its exclusivity value are in flight or come first.
    ValueHeld,
    /// The shard knows no such session: it had no leases here for 10 minutes.
    SessionNotFound,
    /// The session has ended.
    SessionEnded(Ending),
    /// The session's call is too old to be remembered.
    SequenceTooOld,
    /// A later attempt of the session's call arrived.
    TryBarred,
    /// The queue was deleted.
    Deleted,
    /// Enqueue is blocked, for this reason.
    EnqueueBlocked(Box<str>),
    /// Dequeue is blocked, for this reason.
    DequeueBlocked(Box<str>),
    Full(ShardCapacity),
}

/// The exhausted capacity of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardCapacity {
    /// Another message.
    Messages,
    /// The bytes of its payload.
    Bytes,
    /// Another dedupe record.
    Answers,
    /// Another session.
    Sessions,
    /// A limit of another exclusivity value.
    ValueLimits,
}

impl From<InvalidCommandPart> for Refusal {
    fn from(invalid: InvalidCommandPart) -> Self {
        Self::Invalid(invalid)
    }
}
