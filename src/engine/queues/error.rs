//! How a queue call fails: one enum, each case with its reason and what the caller needs to go on.

use std::borrow::Cow;

use crate::domain::limits::SESSION_SHARDS_MAX;
use crate::domain::queue::command::{Refusal, ShardCapacity};
use crate::domain::queue::filter::ShapeKeys;
use crate::domain::queue::invalid_command::InvalidCommandPart;
use crate::domain::queue::session_records::Ending;
use crate::domain::queue::{MessageState, QueueId, QueueName};
use crate::domain::{Reason, Reject, Timestamp};
use crate::engine::caller_quota::QuotaExceeded;
use crate::engine::queues::limited_resource::{LimitedResource, no_room_text};
use crate::ports::{EffectOutcome, StoreError, StoreErrorKind};

/// Why a queue call was refused.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// An argument is invalid, or the catalog does not allow it.
    #[error(transparent)]
    Reject(#[from] Reject),
    /// No such queue.
    #[error("queue {name} does not exist; {}", advice_for(.made_by.as_deref()))]
    QueueNotFound {
        /// The name that was asked for.
        name: String,
        /// The template that makes it with its first enqueue.
        made_by: Option<String>,
    },
    /// No such queue to put a message into, and no template that makes it.
    #[error("queue {name} does not exist; create it first, for example with tallystone queue create {name}")]
    NoTemplate {
        /// The name that was asked for.
        name: String,
    },
    /// The queue of the name is not the one that is meant.
    #[error(
        "queue {name} has a different id; the queue with id {id} was deleted or never existed; nothing was done: read \
         the queue with GetQueue (tallystone queue describe {name}), and send its id to use it"
    )]
    OtherQueue {
        /// The name that was asked for.
        name: String,
        /// The number that it must have.
        id: QueueId,
    },
    /// The name is that of a template, which holds no messages.
    #[error(
        "{name} is a template and holds no messages; use a queue name that begins with {prefix}, and the template \
         creates that queue"
    )]
    IsTemplate {
        name: String,
        /// How the names of its queues begin.
        prefix: String,
    },
    /// The shard refused the command.
    #[error("{}", refusal_text(.0))]
    Refused(Refusal),
    /// An argument is invalid that other calls have under another name.
    #[error("{}", invalid_text(*.invalid))]
    Argument {
        /// Its name in this call.
        field: &'static str,
        /// What is wrong with it.
        invalid: InvalidCommandPart,
    },
    /// The time of the message's id is too far ahead.
    #[error("the id's time is more than 60 s ahead of the server's clock; nothing was enqueued")]
    FutureTime {
        /// The server's clock.
        server_time: Timestamp,
    },
    /// The server is busy and did nothing.
    #[error("too many calls to this queue wait for the store; nothing was done: retry with the same id")]
    RetryLater,
    /// As many of something are there as may be.
    #[error("{}", no_room_text(*.of, *.why))]
    LimitReached {
        /// What there are so many of.
        of: LimitedResource,
        /// Which bound was met.
        why: QuotaExceeded,
    },
    /// The session may hold leases in as many shards as it may.
    #[error(
        "the session holds leases in {SESSION_SHARDS_MAX} shards, the maximum; nothing was leased: settle leases, or \
         open another session"
    )]
    SessionShards,
    /// The server is stopping.
    #[error("the server is stopping; nothing was done")]
    ShuttingDown,
    /// No index counts this filter.
    #[error("{}", not_declared_text(.nearest.as_ref(), *.is_filling))]
    FilterNotDeclared {
        nearest: Option<ShapeKeys>,
        /// Whether its own is declared, and not filled yet.
        is_filling: bool,
    },
    /// The queue has other priority classes.
    #[error("{}", unknown_class_text(.known))]
    UnknownClass {
        /// Their names.
        known: Vec<Box<str>>,
    },
    /// No such operation.
    #[error("operation {id} is unknown: it ended long ago, or its server was restarted")]
    OperationNotFound {
        /// The name that was asked for.
        id: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Refusal> for QueueError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<InvalidCommandPart> for QueueError {
    fn from(invalid: InvalidCommandPart) -> Self {
        Self::Refused(Refusal::Invalid(invalid))
    }
}

impl QueueError {
    /// The error for a name without a queue.
    pub fn not_found(name: &QueueName) -> Self {
        Self::QueueNotFound { name: name.to_string(), made_by: None }
    }

    /// The same about an argument that this call has under another name than enqueues have.
    pub(super) fn about(self, of: InvalidCommandPart, field: &'static str) -> Self {
        match self {
            Self::Refused(Refusal::Invalid(invalid)) if invalid == of => Self::Argument { field, invalid },
            other => other,
        }
    }

    /// The reason, from the closed list.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Reject(reject) => reject.reason,
            Self::QueueNotFound { .. }
            | Self::NoTemplate { .. }
            | Self::OtherQueue { .. }
            | Self::IsTemplate { .. } => Reason::QueueNotFound,
            Self::Refused(refusal) => reason_of(refusal),
            Self::Argument { invalid, .. } => reason_of_invalid(*invalid),
            Self::FutureTime { .. } => Reason::InvalidFutureTime,
            Self::RetryLater | Self::SessionShards => Reason::RetryLater,
            Self::LimitReached { of: LimitedResource::TemplateQueue, .. } => Reason::QueueFull,
            Self::LimitReached { .. } => Reason::RetryLater,
            Self::ShuttingDown => Reason::ShuttingDown,
            Self::FilterNotDeclared { .. } => Reason::FilterNotDeclared,
            Self::UnknownClass { .. } => reason_of_invalid(InvalidCommandPart::PriorityClass),
            Self::OperationNotFound { .. } => Reason::OperationNotFound,
            Self::Store(error) => error.reason(),
        }
    }

    /// The field of the request that is at fault, where one is.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Refused(Refusal::Invalid(invalid)) => Some(field_of(*invalid)),
            Self::Argument { field, .. } => Some(field),
            Self::UnknownClass { .. } => Some(field_of(InvalidCommandPart::PriorityClass)),
            Self::FutureTime { .. } => Some("message.generation_time"),
            _ => None, // every other case is about more than one argument
        }
    }

    /// Values that a program may want, beside the text.
    pub fn metadata(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Refused(Refusal::WrongState(state)) => vec![("state", state.to_string())],
            Self::Refused(Refusal::VersionMismatch(version)) => vec![("version", version.to_string())],
            Self::Refused(Refusal::EnqueueBlocked(why) | Refusal::DequeueBlocked(why)) => {
                vec![("blocked_reason", why.to_string())]
            }
            Self::FilterNotDeclared { nearest: Some(keys), .. } => vec![("nearest", joined(keys, ","))],
            Self::QueueNotFound { name, .. }
            | Self::NoTemplate { name }
            | Self::OtherQueue { name, .. }
            | Self::IsTemplate { name, .. } => {
                vec![("queue", name.clone())]
            }
            _ => Vec::new(), // the text says it all
        }
    }

    /// The server's clock, where the caller needs it to correct its own.
    pub fn server_time(&self) -> Option<Timestamp> {
        match self {
            Self::FutureTime { server_time } => Some(*server_time),
            _ => None, // no other case is about clocks
        }
    }

    /// Whether it is about a session, which is over then.
    pub fn is_of_session(&self) -> bool {
        matches!(self, Self::Refused(Refusal::SessionNotFound | Refusal::SessionEnded(_)))
    }

    /// Whether the store may have applied the call although it answered with a failure.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Store(error) if error.outcome == EffectOutcome::Unknown)
    }

    /// Whether another server changed the catalog, or the queue went, between look and act.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(error) if error.kind == StoreErrorKind::Conflict)
    }
}

fn advice_for(made_by: Option<&str>) -> String {
    match made_by {
        None => "check its name, for example with tallystone queue ls".to_owned(),
        Some(template) => format!("the first enqueue creates it, by template {template}"),
    }
}

fn unknown_class_text(known: &[Box<str>]) -> String {
    match known {
        [] => "the queue has no priority classes; send a priority, or add the class to its priority_classes".to_owned(),
        known => format!("the queue has no such priority class; it has {}", known.join(", ")),
    }
}

fn not_declared_text(nearest: Option<&ShapeKeys>, is_filling: bool) -> String {
    if is_filling {
        return "the filter shape of these keys is new and its index is not complete yet; retry in a moment".to_owned();
    }
    let what = "the queue has no filter shape with these keys";
    let step =
        "declare these keys in filter_shapes, with UpdateQueue (tallystone queue update QUEUE --filter-shape KEY,KEY)";
    match nearest {
        Some(keys) => format!("{what}; the nearest is {}: use that shape, or {step}", joined(keys, ", ")),
        None => format!("{what}, and no other usable shape: {step}"),
    }
}

fn joined(keys: &ShapeKeys, between: &str) -> String {
    keys.iter().collect::<Vec<_>>().join(between)
}

fn reason_of(refusal: &Refusal) -> Reason {
    match refusal {
        Refusal::Invalid(invalid) => reason_of_invalid(*invalid),
        Refusal::NotFound => Reason::MessageNotFound,
        Refusal::WrongState(_) => Reason::WrongMessageState,
        Refusal::VersionMismatch(_) => Reason::EtagMismatch,
        Refusal::LeaseLost => Reason::LeaseLost,
        Refusal::SessionNotFound => Reason::SessionNotFound,
        Refusal::SessionEnded(Ending::Replaced) => Reason::SessionReplaced,
        Refusal::SessionEnded(Ending::Closed | Ending::Expired) => Reason::SessionEnded,
        Refusal::SequenceTooOld => Reason::SequenceTooOld,
        Refusal::TryBarred => Reason::TryBarred,
        Refusal::TokenReused => Reason::TokenReused,
        Refusal::TokenExpired => Reason::TokenExpired,
        Refusal::NotEmpty => Reason::SettingIsFixed,
        Refusal::ValueHeld => Reason::ValueHeld,
        Refusal::Deleted => Reason::QueueNotFound,
        Refusal::EnqueueBlocked(_) => Reason::EnqueueBlocked,
        Refusal::DequeueBlocked(_) => Reason::DequeueBlocked,
        Refusal::Full(_) => Reason::QueueFull,
    }
}

fn reason_of_invalid(invalid: InvalidCommandPart) -> Reason {
    match invalid {
        InvalidCommandPart::MessageId => Reason::InvalidMessageId,
        InvalidCommandPart::Invisibility
        | InvalidCommandPart::Lease
        | InvalidCommandPart::Ttl
        | InvalidCommandPart::Count
        | InvalidCommandPart::SessionLease
        | InvalidCommandPart::Sequence
        | InvalidCommandPart::Try
        | InvalidCommandPart::Received
        | InvalidCommandPart::Session => Reason::InvalidRange,
        InvalidCommandPart::TokenTime => Reason::InvalidFutureTime,
        InvalidCommandPart::Settings
        | InvalidCommandPart::ValueLimit
        | InvalidCommandPart::NotExclusive
        | InvalidCommandPart::CountedKeySets
        | InvalidCommandPart::Shape => Reason::InvalidSettings,
        InvalidCommandPart::Filter => Reason::InvalidFilter,
        InvalidCommandPart::Routing
        | InvalidCommandPart::Metadata
        | InvalidCommandPart::Payload
        | InvalidCommandPart::PayloadOfQueue(_)
        | InvalidCommandPart::MetadataOfQueue(_)
        | InvalidCommandPart::Priority
        | InvalidCommandPart::PriorityClass
        | InvalidCommandPart::Attempts
        | InvalidCommandPart::ExclusivityValue
        | InvalidCommandPart::ShardKey
        | InvalidCommandPart::ErrorText => Reason::InvalidMessage,
    }
}

fn field_of(invalid: InvalidCommandPart) -> &'static str {
    match invalid {
        InvalidCommandPart::MessageId => "message.message_id",
        InvalidCommandPart::Routing | InvalidCommandPart::ShardKey => "message.shard_key",
        InvalidCommandPart::Metadata
        | InvalidCommandPart::MetadataOfQueue(_)
        | InvalidCommandPart::ExclusivityValue => "message.metadata",
        InvalidCommandPart::Payload | InvalidCommandPart::PayloadOfQueue(_) => "message.payload",
        InvalidCommandPart::Priority => "message.priority",
        InvalidCommandPart::PriorityClass => "message.priority_class",
        InvalidCommandPart::Invisibility => "message.invisibility",
        InvalidCommandPart::Lease => "lease_duration",
        InvalidCommandPart::Attempts => "message.max_attempts",
        InvalidCommandPart::Ttl => "message.ttl",
        InvalidCommandPart::TokenTime => "message.generation_time",
        InvalidCommandPart::Count => "max_messages",
        InvalidCommandPart::ValueLimit => "limit",
        InvalidCommandPart::NotExclusive => "queue",
        InvalidCommandPart::Filter => "filter",
        InvalidCommandPart::SessionLease => "session_lease",
        InvalidCommandPart::Sequence => "sequence",
        InvalidCommandPart::Try => "try",
        InvalidCommandPart::Received => "received_up_to",
        InvalidCommandPart::Session => "session_id",
        InvalidCommandPart::ErrorText => "error",
        InvalidCommandPart::CountedKeySets => "queue.count_by",
        InvalidCommandPart::Settings | InvalidCommandPart::Shape => "queue",
    }
}

fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Invalid(invalid) => return invalid_text(*invalid).into_owned(),
        Refusal::WrongState(state) => return wrong_state_text(*state),
        Refusal::VersionMismatch(version) => {
            return format!("the version of the message is {version}, not the expected_version of the call");
        }
        Refusal::EnqueueBlocked(why) => {
            return format!(
                "enqueues are blocked: {why}; nothing was enqueued: retry with the same id after the queue \
                is unblocked"
            );
        }
        Refusal::DequeueBlocked(why) => {
            return format!(
                "dequeues are blocked: {why}; existing leases can be settled: retry after the queue is \
                unblocked"
            );
        }
        Refusal::NotFound => "there is no such message: it was never enqueued, or its retention is over",
        Refusal::LeaseLost => "the lease has ended or never existed; nothing was changed",
        Refusal::SessionNotFound => {
            "there is no such session: it ended long ago, or was never opened; open a new \
            session"
        }
        Refusal::SessionEnded(Ending::Replaced) => {
            "another session was opened with the same label, which ended this session and its leases; open a new \
             session"
        }
        Refusal::SessionEnded(Ending::Closed) => "the session was closed; open a new session",
        Refusal::SessionEnded(Ending::Expired) => {
            "the session sent nothing for longer than its lease, and its confirmed leases have ended; open a new \
             session"
        }
        Refusal::SequenceTooOld => {
            "this call is older than the session's latest call, and its response is no longer stored; nothing was \
             leased: retry with a higher sequence"
        }
        Refusal::TryBarred => {
            "a later try of this call has arrived; nothing was leased: wait for the response of the \
            later try"
        }
        Refusal::TokenReused => "a message with this id was enqueued with other content",
        Refusal::TokenExpired => {
            "the id is too old for the dedupe window; nothing was enqueued (if the id is new, the server's clock was \
             ahead earlier: see tallystone queue reset-clock)"
        }
        Refusal::NotEmpty => "this setting changes only while the queue is empty",
        Refusal::ValueHeld => {
            "other messages of its exclusivity value are leased or come first, or the limit of the value is 0: see \
             which with ExplainMessage (tallystone msg explain -q QUEUE MESSAGE); wait for them, or \
             raise the limit of the value with SetValueLimit (tallystone queue limit QUEUE VALUE N)"
        }
        Refusal::Deleted => "the queue was deleted",
        Refusal::Full(full) => full_text(*full),
    }
    .to_owned()
}

/// What the state of a message forbids, and what may be done instead. The command line puts the names that it knows in
/// the place of QUEUE and MESSAGE.
fn wrong_state_text(state: MessageState) -> String {
    let step = match state {
        MessageState::Invisible | MessageState::Pending => {
            "it is not served yet, and only errored messages can be redriven or discarded"
        }
        MessageState::Running => {
            "wait for the end of its lease, or ask its worker to stop with CancelMessage (tallystone msg cancel -q QUEUE \
             --id MESSAGE)"
        }
        MessageState::Completed => "to repeat the work, enqueue it with another id",
        MessageState::Canceled => "if the work is still needed, enqueue it with another id",
        MessageState::Errored => {
            "to retry it, redrive it with RedriveMessages (tallystone dlq redrive -q QUEUE MESSAGE)"
        }
    };
    format!("the message is {state}, which does not allow this call: {step}")
}

fn full_text(full: ShardCapacity) -> &'static str {
    match full {
        ShardCapacity::Messages => {
            "the queue reached its quota_messages, finished messages included: let workers catch up, shorten the \
             retention, or raise the quota"
        }
        ShardCapacity::Bytes => {
            "the queue reached its quota_bytes, payloads of finished messages included: let workers catch up, shorten \
             the retention, or raise the quota"
        }
        ShardCapacity::Answers => {
            "the dedupe records of the queue reached its dedupe_max_bytes: raise dedupe_max_bytes, or retry in 10 \
             minutes"
        }
        ShardCapacity::Sessions => {
            "a shard of the queue has the maximum number of sessions: retry after some have ended"
        }
        ShardCapacity::ValueLimits => {
            "a shard of the queue has 10,000 exclusivity values with their own limit, the maximum: reset some of them \
             first"
        }
    }
}

fn invalid_text(invalid: InvalidCommandPart) -> Cow<'static, str> {
    let text = match invalid {
        InvalidCommandPart::PayloadOfQueue(most) => {
            let what = "the payload_max_bytes of this queue; store the data elsewhere and send its address";
            return format!("the payload is larger than {most} bytes, {what}").into();
        }
        InvalidCommandPart::MetadataOfQueue(most) => {
            let what = "the metadata_max_bytes of this queue; send less, or move data into the payload";
            return format!("keys and values of the metadata are larger than {most} bytes together, {what}").into();
        }
        InvalidCommandPart::MessageId => "the message id must have 1 to 64 bytes and not begin with m.",
        InvalidCommandPart::Routing => "a shard key has 1 to 256 bytes",
        InvalidCommandPart::Metadata => {
            "metadata has at most 4 pairs with different keys; a key has 1 to 64 bytes, a value at most 256"
        }
        InvalidCommandPart::Payload => {
            "the payload is larger than 32,768 bytes; store the data elsewhere and send its address"
        }
        InvalidCommandPart::Priority => "the priority must be -2^53 to 2^53",
        InvalidCommandPart::PriorityClass => "the queue has no such priority class",
        InvalidCommandPart::Invisibility => "an invisibility or delay is at most 10 years",
        InvalidCommandPart::Lease => "a lease lasts 1 s to 12 h",
        InvalidCommandPart::Attempts => "max_attempts must be 1 to 10,000",
        InvalidCommandPart::Ttl => "a TTL is at most 10 years",
        InvalidCommandPart::TokenTime => "the id's time is more than 60 s ahead of the server's clock",
        InvalidCommandPart::Count => "the number of messages must be 1 to 100",
        InvalidCommandPart::ExclusivityValue => {
            "the queue is exclusive: the metadata must contain its exclusivity key with a value of 1 to 256 bytes"
        }
        InvalidCommandPart::ShardKey => {
            "an exclusive queue routes by exclusivity value and does not accept a shard key"
        }
        InvalidCommandPart::ValueLimit => "limit must be 0 to 10,000; omit it for the limit of the queue",
        InvalidCommandPart::NotExclusive => {
            "this is a simple queue; only a queue of type QUEUE_TYPE_EXCLUSIVE has limits of exclusivity values"
        }
        InvalidCommandPart::Filter => "a filter has at most 4 pairs; a key has 1 to 64 bytes, a value at most 256",
        InvalidCommandPart::Shape => "a filter shape has 1 to 4 different keys of 1 to 64 bytes",
        InvalidCommandPart::SessionLease => "the lease of a session lasts 1 s to 12 h",
        InvalidCommandPart::Sequence => {
            "sequence is missing: number the calls of a session 1, 2, 3, and repeat a call with its number"
        }
        InvalidCommandPart::Try => "try must be at least 1: number the tries of a call 1, 2, 3, or omit try",
        InvalidCommandPart::Received => {
            "received_up_to must be below sequence: send the number of the last call whose response has arrived"
        }
        InvalidCommandPart::Session => {
            "this session is only for replays: it ends with its server and accepts no heartbeats"
        }
        InvalidCommandPart::ErrorText => "an error's signature and text have at most 1,024 bytes each",
        InvalidCommandPart::CountedKeySets => {
            "the messages of this queue are counted under 64 different sets of keys, the maximum; use one of the earlier \
             sets, or try again when messages of old sets are gone"
        }
        InvalidCommandPart::Settings => "the settings are out of range or contradict each other",
    };
    text.into()
}
