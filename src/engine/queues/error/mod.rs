//! How a queue call fails: one enum, each case with its reason and what the caller needs to go on.

pub(in crate::queues) mod argument_checks;
pub(in crate::queues) mod limited_resource;
pub(in crate::queues) mod refusal_text;

use crate::caller_quota::QuotaExceeded;
use crate::queues::error::limited_resource::{LimitedResource, no_room_text};
use crate::queues::error::refusal_text::{invalid_text, refusal_text};
use tallystone_domain::access::QuotaRefusal;
use tallystone_domain::limits::SESSION_SHARDS_MAX;
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::key_syntax::KeyTextError;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::{QueueId, QueueName, Reply};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_ports::{EffectOutcome, StoreError, StoreErrorKind};

/// The reason of a refused queue call.
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
        /// The fault of the argument.
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
        /// The kind of resource of which there are as many as may be.
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
    /// A message of an exclusive queue has no value of its exclusivity key, or one that is too long.
    #[error(
        "the queue is exclusive: the metadata must contain its exclusivity key {key:?} with a value of 1 to 256 bytes"
    )]
    NoExclusivityValue {
        /// The metadata key.
        key: String,
    },
    /// The queue has other priority classes.
    #[error("{}", unknown_class_text(.known))]
    UnknownClass {
        /// Their names.
        known: Vec<Box<str>>,
    },
    /// The lease token is genuine, and of a queue that does not have the name.
    #[error("{}", KeyTextError::OtherQueue)]
    LeaseOfOtherQueue,
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
    pub(in crate::queues) fn about(self, of: InvalidCommandPart, field: &'static str) -> Self {
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
            Self::RetryLater | Self::SessionShards | Self::LimitReached { why: QuotaExceeded::OfKey(_), .. } => {
                Reason::RetryLater
            }
            Self::LimitReached { of: LimitedResource::TemplateQueue, .. } => Reason::QueueFull,
            Self::LimitReached { .. } => Reason::RetryLater,
            Self::ShuttingDown => Reason::ShuttingDown,
            Self::FilterNotDeclared { .. } => Reason::FilterNotDeclared,
            Self::UnknownClass { .. } => reason_of_invalid(InvalidCommandPart::PriorityClass),
            Self::NoExclusivityValue { .. } => reason_of_invalid(InvalidCommandPart::ExclusivityValue),
            Self::LeaseOfOtherQueue => Reason::InvalidLeaseToken,
            Self::OperationNotFound { .. } => Reason::OperationNotFound,
            Self::Store(error) => error.reason(),
        }
    }

    /// The quota of the caller's key that is used up, if one is.
    pub fn quota(&self) -> Option<QuotaRefusal> {
        match self {
            Self::LimitReached { why: QuotaExceeded::OfKey(refusal), .. } => Some(*refusal),
            _ => None, // no other case is about a key
        }
    }

    /// The field of the request that is at fault, where one is.
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::Refused(Refusal::Invalid(invalid)) => Some(field_of(*invalid)),
            Self::Argument { field, .. } => Some(field),
            Self::UnknownClass { .. } => Some(field_of(InvalidCommandPart::PriorityClass)),
            Self::NoExclusivityValue { .. } => Some(field_of(InvalidCommandPart::ExclusivityValue)),
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

    /// Whether the store does not have the queue of the call, or the call is about another queue of the same name.
    pub fn is_of_unknown_queue(&self) -> bool {
        matches!(self, Self::QueueNotFound { .. } | Self::LeaseOfOtherQueue)
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

/// The error for a reply that does not belong to the command: a defect of the store.
pub(in crate::queues) fn unexpected(op: &'static str, _reply: &Reply) -> QueueError {
    Reject::new(Reason::Internal, format!("the store answered a {op} with another command's reply")).into()
}
