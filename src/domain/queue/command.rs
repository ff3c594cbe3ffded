//! What a shard is asked and what it answers.
//!
//! Commands bring durations, never times, but for a visible-at and a token's own time. Refusals are a closed list.

use std::time::Duration;

use crate::domain::queue::commands::dequeue::FIRST;
use crate::domain::queue::filter::Filter;
use crate::domain::queue::messages::message::{
    AttemptError, LeaseToken, MessageId, MessageKey, Metadata, Rank, RoutingValue,
};
use crate::domain::queue::messages::state_machine::{MessageState, Trigger};
use crate::domain::queue::session_records::{Ending, SessionCall, SessionId};
use crate::domain::queue::setup::settings::Settings;
use crate::domain::time::Timestamp;

/// A message as a caller sends it.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Its name and token.
    pub id: MessageId,
    /// The time the token carries: that of its UUIDv7, or a generation time beside it.
    pub token_time: Option<Timestamp>,
    /// What selected this shard, if anything but the id did.
    pub routing: Option<RoutingValue>,
    /// Its metadata.
    pub metadata: Metadata,
    /// The size of its payload.
    pub payload_bytes: u32,
    /// A hash of everything the caller sent: a repeat has the same.
    pub fingerprint: u64,
    /// Its priority within ±2^53; now in milliseconds if it has none.
    pub priority: Option<i64>,
    /// The priority class, for a message without priority.
    pub class: Option<Box<str>>,
    /// How long it is invisible, at most 10 years.
    pub invisibility: Option<Duration>,
    /// The lease it asks for, 1 s to 12 h.
    pub lease_duration: Option<Duration>,
    /// How often it may be tried, 1 to 10,000.
    pub max_attempts: Option<u32>,
    /// When it is canceled if nobody has it, at most 10 years.
    pub ttl: Option<Duration>,
}

/// Either name of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessageRef {
    /// By its key.
    Key(MessageKey),
    /// By its id; where what routed it is said, only a message that this has routed.
    Id(MessageId, Option<RoutingValue>),
}

/// How a worker ends a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleAction {
    /// Finished.
    Complete,
    /// Given up for good.
    Cancel,
    /// Not finished.
    Fail,
    /// Not begun.
    Release,
}

/// Beside the verb Fail: when to try again and what happened.
#[derive(Clone, Default, Debug)]
pub struct FailureReport {
    /// The delay; the queue's retry policy if there is none.
    pub delay: Option<Duration>,
    /// The injected chance of the policy's jitter.
    pub draw: u32,
    /// What happened.
    pub error: Option<AttemptError>,
}

/// A change of a message that nobody has.
#[derive(Clone, Default, Debug)]
pub struct MessageUpdate {
    /// The new priority.
    pub priority: Option<i64>,
    /// The new time from which it may be served; the past means now.
    pub visible_at: Option<Timestamp>,
    /// The same from now, by the shard's clock; not beside it.
    pub invisibility: Option<Duration>,
    /// Whether a visible-at that is not sooner leaves everything as it is.
    pub only_if_sooner: bool,
    /// The version the message must have.
    pub expected_version: Option<u64>,
    /// What a repeat is known by.
    pub token: Option<UpdateToken>,
}

/// The token of an update.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpdateToken {
    /// The token, at most 64 bytes.
    pub text: Box<str>,
    /// A hash of everything the caller sent: a repeat has the same.
    pub fingerprint: u64,
}

/// What a dequeue asks for.
#[derive(Clone, Default, Debug)]
pub struct Dequeue {
    /// How many messages at most, 1 to 100.
    pub max: usize,
    /// The lease, 1 s to 12 h; else that of the message, else that of the queue.
    pub lease: Option<Duration>,
    /// This message only, which must be pending; the filter is not looked at.
    pub message: Option<MessageRef>,
    /// What the messages must have.
    pub filter: Filter,
    /// Where an earlier call of the same filter left off.
    pub cursor: Option<Cursor>,
    /// The session that asks; a repeat of its call gets the leases that the first was given.
    pub session: Option<SessionCall>,
    /// How many messages a filter without a shape of its own looks at, at most 256; 0 stands for 256.
    pub look_at: usize,
}

/// Where a walk of an undeclared filter stands. It goes on behind the messages it has seen; what came after it began is
/// not sure to be met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The last message seen; of an exclusive queue, the head of the last value entered.
    pub after: Rank,
    /// Of an exclusive queue, the value it stands in and the last message seen there.
    pub inside: Option<(RoutingValue, Rank)>,
    /// When the walk began.
    pub since: Timestamp,
}

impl Cursor {
    /// Before all messages.
    pub fn start(now: Timestamp) -> Self {
        Self { after: FIRST, inside: None, since: now }
    }
}

/// Which messages a redrive, discard or purge touches.
#[derive(Clone, Default, Debug)]
pub struct BulkRequest {
    /// What they must have.
    pub filter: Filter,
    /// The signature that their last failure must have; none for any.
    pub signature: Option<Box<str>>,
    /// By when they must have come to their end; none for any time.
    pub ended_by: Option<Timestamp>,
    /// Sequences up to this one have been seen to by earlier steps; 0 begins.
    pub after: u64,
    /// The last sequence it touches: the shard's when the operation began.
    pub through: u64,
    /// How many it looks at, 1 to 256.
    pub max: usize,
    /// Only counts.
    pub dry_run: bool,
}

/// One command.
#[derive(Clone, Debug)]
pub enum Command {
    /// Takes a message in. O(log n).
    Enqueue(Box<NewMessage>),
    /// Leases messages, best rank first. O((max + due) log n), due at most max(16, 2 max).
    Dequeue(Dequeue),
    /// Ends a lease. O(log n).
    Settle {
        /// The lease.
        token: LeaseToken,
        /// How.
        verb: SettleAction,
        /// Beside Fail; ignored with other verbs.
        failure: FailureReport,
    },
    /// Lets a lease end that long from now, 0 for at once. O(log n).
    Extend {
        /// The lease.
        token: LeaseToken,
        /// From now, at most 12 h.
        lease: Duration,
    },
    /// Cancels a message, or asks its worker to. O(log n).
    CancelMessage {
        /// The message.
        message: MessageRef,
        /// Why.
        reason: Box<str>,
    },
    /// Answers the leases that hold of those which an earlier try of a session's call was given, none if all have ended,
    /// or that it was given none; hears no lower try of it from now on. O(leases log n).
    Recall(SessionCall),
    /// Lets a session live on, and confirms leases. O((1 + leases confirmed) log n).
    Heartbeat {
        /// The session.
        session: SessionId,
        /// The last call whose answer it has.
        received_up_to: Option<u64>,
    },
    /// Ends a session here, then its leases; what is left over ends by sweeps and dequeues. O(max log n).
    EndSession {
        /// The session.
        session: SessionId,
        /// How; one that ends by silence is not told so.
        ending: Ending,
        /// How many leases at most, 1 to 256.
        max: usize,
    },
    /// Changes a message that nobody has. O(log n).
    Update {
        /// The message.
        message: MessageRef,
        /// The change.
        update: MessageUpdate,
    },
    /// Gives an errored message its attempts back. O(log n).
    Redrive {
        /// The message.
        message: MessageRef,
    },
    /// Redrives errored messages in the order of their sequence. O(max log n).
    RedriveAll(BulkRequest),
    /// Throws an errored message away. O(log n).
    Discard {
        /// The message.
        message: MessageRef,
    },
    /// Throws errored messages away in the order of their sequence. O(max log n).
    DiscardAll(BulkRequest),
    /// Cancels pending and invisible messages in the order of their sequence. O(max log n).
    Purge(BulkRequest),
    /// Replaces the settings. Each change holds for what happens from now on: a message keeps the attempts, TTL, lease
    /// and retention that it has been given. O(1).
    Configure(Box<Settings>),
    /// Gives an exclusivity value a limit of its own, 0 to 10,000, or takes it back. A lower limit revokes no lease; with
    /// 0 the value rests. O(log n).
    SetValueLimit {
        /// The value.
        value: RoutingValue,
        /// How many of its messages may be in flight; none for the queue's limit.
        limit: Option<u32>,
    },
    /// Forgets every message; from then on all is refused as `Deleted`, but for repeats of tokens that carry their time.
    /// A repeat answers as the first. O(n).
    Delete,
    /// Blocks enqueue, dequeue, both or neither, each with its reason. O(1).
    Block {
        /// Why nothing comes in.
        enqueue: Option<Box<str>>,
        /// Why nothing goes out.
        dequeue: Option<Box<str>>,
    },
    /// Does what time asks for, and forgets results that were kept for long enough. O(max log n).
    Sweep {
        /// How many rows at most, 1 to 256.
        max: usize,
    },
}

/// Whether an empty or short answer is the whole truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completeness {
    /// It is.
    Complete,
    /// A bound left due messages or values at their limits over: call again.
    More,
    /// The filter is not declared and messages are left to be looked at: go on with the cursor.
    Partial,
}

/// One lease that was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseGrant {
    /// What proves it.
    pub token: LeaseToken,
    /// The number of the attempt, from 1.
    pub attempt_number: u32,
    /// How long it lasts.
    pub expires_in: Duration,
}

/// Where a command left a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// The state.
    pub state: MessageState,
    /// The version.
    pub version: u64,
}

/// What a command answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The message is in the shard.
    Enqueued {
        /// Its key.
        key: MessageKey,
        /// Its state right after the first enqueue.
        state: MessageState,
        /// Whether this is a repeat.
        already_enqueued: bool,
    },
    /// Leases, perhaps none.
    Leases {
        /// In the order of their ranks.
        leases: Vec<LeaseGrant>,
        /// Whether fewer than asked for are all there are.
        completeness: Completeness,
        /// Where to go on, if the answer is partial.
        cursor: Option<Cursor>,
    },
    /// No try of the call that was recalled was answered with leases here.
    Unanswered,
    /// The lease lasts that long.
    Extended {
        /// From now; 0 if it is over.
        expires_in: Duration,
        /// Whether somebody asked to cancel the message.
        cancel_requested: bool,
    },
    /// The message is in this state now, or was right after the first of these calls.
    Settled(Settlement),
    /// How many messages were touched.
    Touched {
        /// That many.
        count: usize,
        /// Whether the bound left some over.
        completeness: Completeness,
    },
    /// The session lives on.
    Beaten {
        /// For so long.
        expires_in: Duration,
        /// Its leases whose messages somebody wants canceled, at most 256.
        cancel_requested: Vec<LeaseToken>,
    },
    /// A step of a bulk operation is done.
    Walked {
        /// How many messages it touched.
        count: usize,
        /// After which sequence the next step begins; none if that was the last.
        next: Option<u64>,
    },
    /// The flags are set.
    Blocked,
    /// The settings hold.
    Configured,
    /// The limit holds for leases to come.
    ValueLimitSet,
    /// The queue is deleted.
    Deleted {
        /// How many messages the shard had.
        messages: u64,
    },
}

/// Which part of a command is out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidCommandPart {
    /// The id is not 1 to 64 bytes, or begins `m.`.
    MessageId,
    /// The routing value is not 1 to 256 bytes.
    Routing,
    /// Too many pairs, or too long ones, or a key twice.
    Metadata,
    /// The payload is larger than 32 KiB.
    Payload,
    /// The payload is larger than this, which is all that the queue takes, in bytes.
    PayloadOfQueue(u32),
    /// The metadata is larger than this, which is all that the queue takes, in bytes.
    MetadataOfQueue(u32),
    /// The priority is beyond ±2^53.
    Priority,
    /// The queue has no such class.
    PriorityClass,
    /// The window is longer than 10 years.
    Invisibility,
    /// The lease is not 1 s to 12 h.
    Lease,
    /// The attempts are not 1 to 10,000.
    Attempts,
    /// The TTL is longer than 10 years.
    Ttl,
    /// The token's time is more than 60 s ahead.
    TokenTime,
    /// The number of messages is 0 or beyond its bound.
    Count,
    /// The metadata lacks the exclusivity key, its value is not 1 to 256 bytes, or the message was routed by another one.
    ExclusivityValue,
    /// An exclusive queue takes no shard key.
    ShardKey,
    /// The limit is beyond 10,000.
    ValueLimit,
    /// Only an exclusive queue has limits of values.
    NotExclusive,
    /// Not 1 to 4 keys of 1 to 64 bytes.
    Shape,
    /// The session's lease is not 1 s to 12 h.
    SessionLease,
    /// The number of a session's call is 0.
    Sequence,
    /// The number of a try is 0.
    Try,
    /// A call says that the answer of itself or of a later one has arrived.
    Received,
    /// The session only replays.
    Session,
    /// More than 4 pairs, too long ones, or a key twice.
    Filter,
    /// The error's text is longer than 1 KiB.
    ErrorText,
    /// The settings contradict each other or leave their ranges.
    Settings,
}

/// Why a command was refused; it changed nothing but what time had changed already.
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
    /// The lease is not the message's, or is over.
    LeaseLost,
    /// The same id came with other content.
    TokenReused,
    /// The token is older than what is kept of answers.
    TokenExpired,
    /// Only an empty shard may be changed so.
    NotEmpty,
    /// Other messages of its exclusivity value are in flight or come first.
    ValueHeld,
    /// The shard knows no such session: it had no leases here for 10 minutes.
    SessionNotFound,
    /// The session has ended.
    SessionEnded(Ending),
    /// The session's call is too old to be remembered.
    SequenceTooOld,
    /// A later try of the session's call was heard.
    TryBarred,
    /// The queue was deleted.
    Deleted,
    /// Nothing comes in, for this reason.
    EnqueueBlocked(Box<str>),
    /// Nothing goes out, for this reason.
    DequeueBlocked(Box<str>),
    /// The shard is full.
    Full(ShardCapacity),
}

/// What a shard has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShardCapacity {
    /// Another message.
    Messages,
    /// The bytes of its payload.
    Bytes,
    /// Another answer that is kept for repeats.
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

/// The record of one row applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The message.
    pub key: MessageKey,
    /// Its version after the row.
    pub version: u64,
    /// What changed it.
    pub trigger: Trigger,
    /// From where.
    pub from: Option<MessageState>,
    /// To where.
    pub to: Option<MessageState>,
    /// When, by the shard's clock.
    pub at: Timestamp,
}

/// How often a message came to be pending by these rows. O(rows).
pub fn count_pending_arrivals(rows: &[Transition]) -> u64 {
    rows.iter().filter(|row| row.to == Some(MessageState::Pending)).count() as u64
}
