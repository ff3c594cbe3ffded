//! The closed list of reasons for which any call can be refused, and what each means to the caller.
//!
//! One table serves gRPC, HTTP, the command line and `docs/errors.md`; the names are those of
//! `proto/tallystone/error/v1/reason.proto`, which a test compares.

mod queues;
mod table;

use std::fmt;

use queues::QUEUES;
use table::TABLE;

/// Whether a refused call is worth repeating.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// The same call is refused again.
    Never,
    /// The same call with the same token may succeed later.
    SameToken,
}

/// Whether a refused call may have changed something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It changed nothing.
    Nothing,
    /// It may have been applied, once.
    Unknown,
}

/// The gRPC status codes in use, with their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Code {
    /// `UNKNOWN`
    Unknown = 2,
    /// `INVALID_ARGUMENT`
    InvalidArgument = 3,
    /// `DEADLINE_EXCEEDED`
    DeadlineExceeded = 4,
    /// `NOT_FOUND`
    NotFound = 5,
    /// `ALREADY_EXISTS`
    AlreadyExists = 6,
    /// `PERMISSION_DENIED`
    PermissionDenied = 7,
    /// `RESOURCE_EXHAUSTED`
    ResourceExhausted = 8,
    /// `FAILED_PRECONDITION`
    FailedPrecondition = 9,
    /// `ABORTED`
    Aborted = 10,
    /// `UNIMPLEMENTED`
    Unimplemented = 12,
    /// `INTERNAL`
    Internal = 13,
    /// `UNAVAILABLE`
    Unavailable = 14,
}

/// What a reason means.
#[derive(Clone, Copy, Debug)]
pub struct ReasonInfo {
    /// The reason as it is written on the wire.
    pub name: &'static str,
    /// The gRPC status code.
    pub code: Code,
    /// The HTTP status.
    pub http: u16,
    /// Whether to repeat the call.
    pub retry: Retry,
    /// Whether it may have been applied.
    pub effect: Effect,
    /// What to do.
    pub help: &'static str,
}

/// Why a call was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// `INVALID_NAMESPACE`
    InvalidNamespace,
    /// `INVALID_COUNTER_NAME`
    InvalidCounterName,
    /// `INVALID_TOKEN`
    InvalidToken,
    /// `INVALID_GENERATION_TIME`
    InvalidGenerationTime,
    /// `INVALID_FUTURE_TIME`
    InvalidFutureTime,
    /// `INVALID_BATCH_SIZE`
    InvalidBatchSize,
    /// `INVALID_PAGE_SIZE`
    InvalidPageSize,
    /// `INVALID_PAGE_TOKEN`
    InvalidPageToken,
    /// `INVALID_RANGE`
    InvalidRange,
    /// `INVALID_PROVENANCE`
    InvalidProvenance,
    /// `INVALID_REPORT`
    InvalidReport,
    /// `INVALID_SETTINGS`
    InvalidSettings,
    /// `INVALID_DOCUMENT`
    InvalidDocument,
    /// `INVALID_JSON`
    InvalidJson,
    /// `INVALID_FIELD`
    InvalidField,
    /// `INVALID_CONTENT_TYPE`
    InvalidContentType,
    /// `INVALID_BODY_TOO_LARGE`
    InvalidBodyTooLarge,
    /// `INVALID_ARGUMENT`
    InvalidArgument,
    /// `UNKNOWN_METHOD`
    UnknownMethod,
    /// `METHOD_NOT_ALLOWED`
    MethodNotAllowed,
    /// `NAMESPACE_NOT_FOUND`
    NamespaceNotFound,
    /// `NAMESPACE_EXISTS`
    NamespaceExists,
    /// `ETAG_MISMATCH`
    EtagMismatch,
    /// `SETTING_IS_FIXED`
    SettingIsFixed,
    /// `DATASET_DIFFERS`
    DatasetDiffers,
    /// `NAMESPACE_READ_ONLY`
    NamespaceReadOnly,
    /// `WRONG_COUNTER_TYPE`
    WrongCounterType,
    /// `WRONG_TEMPORALITY`
    WrongTemporality,
    /// `SERIES_NOT_KEPT`
    SeriesNotKept,
    /// `NOT_APPLIED`
    NotApplied,
    /// `PENDING`
    Pending,
    /// `TOO_OLD`
    TooOld,
    /// `OUTCOME_UNKNOWN`
    OutcomeUnknown,
    /// `RETRY_LATER`
    RetryLater,
    /// `ALREADY_EXISTS`
    AlreadyExists,
    /// `SERIAL_BACK`
    SerialBack,
    /// `TOO_MANY_SOURCES`
    TooManySources,
    /// `STORAGE_FULL`
    StorageFull,
    /// `STORE_UNAVAILABLE`
    StoreUnavailable,
    /// `SHUTTING_DOWN`
    ShuttingDown,
    /// `DEADLINE_EXCEEDED`
    DeadlineExceeded,
    /// `INTERNAL`
    Internal,
    /// `INVALID_QUEUE_NAME`
    InvalidQueueName,
    /// `INVALID_MESSAGE_ID`
    InvalidMessageId,
    /// `INVALID_MESSAGE`
    InvalidMessage,
    /// `INVALID_LEASE_TOKEN`
    InvalidLeaseToken,
    /// `INVALID_FILTER`
    InvalidFilter,
    /// `QUEUE_NOT_FOUND`
    QueueNotFound,
    /// `QUEUE_EXISTS`
    QueueExists,
    /// `MESSAGE_NOT_FOUND`
    MessageNotFound,
    /// `OPERATION_NOT_FOUND`
    OperationNotFound,
    /// `WRONG_MESSAGE_STATE`
    WrongMessageState,
    /// `VALUE_HELD`
    ValueHeld,
    /// `LEASE_LOST`
    LeaseLost,
    /// `TOKEN_REUSED`
    TokenReused,
    /// `TOKEN_EXPIRED`
    TokenExpired,
    /// `ENQUEUE_BLOCKED`
    EnqueueBlocked,
    /// `DEQUEUE_BLOCKED`
    DequeueBlocked,
    /// `QUEUE_FULL`
    QueueFull,
    /// `FILTER_NOT_DECLARED`
    FilterNotDeclared,
    /// `SESSION_NOT_FOUND`
    SessionNotFound,
    /// `SESSION_REPLACED`
    SessionReplaced,
    /// `SESSION_ENDED`
    SessionEnded,
    /// `SEQUENCE_TOO_OLD`
    SequenceTooOld,
    /// `TRY_BARRED`
    TryBarred,
    /// `QUEUES_NOT_KEPT`
    QueuesNotKept,
    /// `DURABILITY_NOT_OFFERED`
    DurabilityNotOffered,
    /// `HOST_NOT_ALLOWED`
    HostNotAllowed,
    /// `NOT_A_MEMBER`
    NotAMember,
}

impl Reason {
    /// Every reason, in the order of the proto.
    pub const ALL: &[Self] = &[
        Self::InvalidNamespace,
        Self::InvalidCounterName,
        Self::InvalidToken,
        Self::InvalidGenerationTime,
        Self::InvalidFutureTime,
        Self::InvalidBatchSize,
        Self::InvalidPageSize,
        Self::InvalidPageToken,
        Self::InvalidRange,
        Self::InvalidProvenance,
        Self::InvalidReport,
        Self::InvalidSettings,
        Self::InvalidDocument,
        Self::InvalidJson,
        Self::InvalidField,
        Self::InvalidContentType,
        Self::InvalidBodyTooLarge,
        Self::InvalidArgument,
        Self::UnknownMethod,
        Self::MethodNotAllowed,
        Self::NamespaceNotFound,
        Self::NamespaceExists,
        Self::EtagMismatch,
        Self::SettingIsFixed,
        Self::DatasetDiffers,
        Self::NamespaceReadOnly,
        Self::WrongCounterType,
        Self::WrongTemporality,
        Self::SeriesNotKept,
        Self::NotApplied,
        Self::Pending,
        Self::TooOld,
        Self::OutcomeUnknown,
        Self::RetryLater,
        Self::AlreadyExists,
        Self::SerialBack,
        Self::TooManySources,
        Self::StorageFull,
        Self::StoreUnavailable,
        Self::ShuttingDown,
        Self::DeadlineExceeded,
        Self::Internal,
        Self::InvalidQueueName,
        Self::InvalidMessageId,
        Self::InvalidMessage,
        Self::InvalidLeaseToken,
        Self::InvalidFilter,
        Self::QueueNotFound,
        Self::QueueExists,
        Self::MessageNotFound,
        Self::OperationNotFound,
        Self::WrongMessageState,
        Self::ValueHeld,
        Self::LeaseLost,
        Self::TokenReused,
        Self::TokenExpired,
        Self::EnqueueBlocked,
        Self::DequeueBlocked,
        Self::QueueFull,
        Self::FilterNotDeclared,
        Self::SessionNotFound,
        Self::SessionReplaced,
        Self::SessionEnded,
        Self::SequenceTooOld,
        Self::TryBarred,
        Self::QueuesNotKept,
        Self::DurabilityNotOffered,
        Self::HostNotAllowed,
        Self::NotAMember,
    ];

    /// What the reason means.
    pub const fn info(self) -> &'static ReasonInfo {
        let at = self as usize;
        if at < TABLE.len() { &TABLE[at] } else { &QUEUES[at - TABLE.len()] }
    }

    /// Finds a reason by its name, in any letter case, with or without the `REASON_` prefix.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let name = name.strip_prefix("REASON_").unwrap_or(&name);
        Self::ALL.iter().copied().find(|reason| reason.info().name == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

/// An invalid argument or a broken precondition that no retry cures; nothing was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// Why.
    pub reason: Reason,
    /// What is wrong, with the values at hand.
    pub message: String,
    /// The fields of the request that are at fault, where they are known, and what is wrong with each.
    pub fields: Vec<(String, String)>,
}

impl Reject {
    /// Refuses for a reason, in words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), fields: Vec::new() }
    }

    /// Names a field at fault, and what is wrong with it.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>, what: impl Into<String>) -> Self {
        self.fields.push((field.into(), what.into()));
        self
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Reject {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_finds_itself_by_name() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.info().name), Some(*reason));
            assert_eq!(Reason::from_name(&format!("reason_{}", reason.info().name.to_lowercase())), Some(*reason));
        }
        assert_eq!(Reason::ALL.len(), TABLE.len() + QUEUES.len());
    }

    #[test]
    fn whatever_is_invalid_is_invalid_argument_and_400() {
        for reason in Reason::ALL {
            let info = reason.info();
            let is_invalid = info.name.starts_with("INVALID_");
            assert_eq!(is_invalid, (info.code, info.http) == (Code::InvalidArgument, 400), "{reason}");
        }
    }

    #[test]
    fn an_unknown_effect_is_never_called_unavailable() {
        for reason in Reason::ALL {
            let info = reason.info();
            assert!(info.effect == Effect::Nothing || info.code != Code::Unavailable, "{reason}");
        }
    }
}
