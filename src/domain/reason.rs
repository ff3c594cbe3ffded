//! The closed list of reasons for which any call can be refused, and what each means to the caller.
//!
//! One table serves gRPC, HTTP, the command line and `docs/errors.md`; the names are those of
//! `proto/tallystone/error/v1/reason.proto`, which a test compares.

use std::fmt;

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
    ];

    /// What the reason means.
    pub const fn info(self) -> &'static ReasonInfo {
        &TABLE[self as usize]
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
}

impl Reject {
    /// Refuses for a reason, in words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Reject {}

/// One row for each reason, in the order of the enum.
const TABLE: [ReasonInfo; 42] = [
    ReasonInfo {
        name: "INVALID_NAMESPACE",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Use a namespace name of 1 to 64 bytes that begins with a letter or digit and holds only letters, digits and . _ : / = ~ % @ + -.",
    },
    ReasonInfo {
        name: "INVALID_COUNTER_NAME",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Use a counter name of 1 to 256 bytes that begins with a letter or digit and holds only letters, digits and . _ : / = ~ % @ + -.",
    },
    ReasonInfo {
        name: "INVALID_TOKEN",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send a token of 1 to 64 bytes, best a UUIDv7 made once per change and kept over retries; or leave idempotency_token out and give up safe retries.",
    },
    ReasonInfo {
        name: "INVALID_GENERATION_TIME",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "A UUIDv7 token carries its own time: leave generation_time out, or send one inside the same millisecond. Any other token needs a generation_time, the same on every retry.",
    },
    ReasonInfo {
        name: "INVALID_FUTURE_TIME",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "The token's time lies further ahead of the server's clock than the namespace's future_limit. Correct the client's clock; the answer carries the server_time to compare with.",
    },
    ReasonInfo {
        name: "INVALID_BATCH_SIZE",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send 1 to 1,000 items in one call; split larger batches.",
    },
    ReasonInfo {
        name: "INVALID_PAGE_SIZE",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send a page_size of 0 (the default) or more.",
    },
    ReasonInfo {
        name: "INVALID_PAGE_TOKEN",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send the next_page_token of the page before, unchanged and with the same request; or leave it out to begin anew.",
    },
    ReasonInfo {
        name: "INVALID_RANGE",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Check from, to, step, n and durations: from must lie before to, a step must be a multiple of 10 s, nothing may be negative.",
    },
    ReasonInfo {
        name: "INVALID_PROVENANCE",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send at most 256 bytes of provenance.",
    },
    ReasonInfo {
        name: "INVALID_REPORT",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send a source of 1 to 40 bytes, an epoch that grows with each start of the source and a serial that grows with each report.",
    },
    ReasonInfo {
        name: "INVALID_SETTINGS",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Correct the setting that the message names; docs/configuration.md lists the settings of a namespace with their ranges.",
    },
    ReasonInfo {
        name: "INVALID_DOCUMENT",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Correct the document at the place that the message names; docs/configuration.md shows the TOML, the JSON and the published form.",
    },
    ReasonInfo {
        name: "INVALID_JSON",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send one JSON object in canonical protobuf JSON: 64-bit numbers as strings or numbers, times as RFC 3339, durations as \"5s\".",
    },
    ReasonInfo {
        name: "INVALID_FIELD",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Remove or correct the field that the message names; field names may be written in snake_case or camelCase.",
    },
    ReasonInfo {
        name: "INVALID_CONTENT_TYPE",
        code: Code::InvalidArgument,
        http: 415,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send content-type application/json for JSON, application/grpc for gRPC, or application/grpc-web for gRPC-Web.",
    },
    ReasonInfo {
        name: "INVALID_BODY_TOO_LARGE",
        code: Code::InvalidArgument,
        http: 413,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Send at most 4 MiB in one call; split larger batches.",
    },
    ReasonInfo {
        name: "INVALID_ARGUMENT",
        code: Code::InvalidArgument,
        http: 400,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Correct the argument that the message names.",
    },
    ReasonInfo {
        name: "UNKNOWN_METHOD",
        code: Code::Unimplemented,
        http: 404,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Check the path: POST /package.Service/Method, for example /tallystone.counter.v1.CounterService/GetCount. Server reflection lists all methods.",
    },
    ReasonInfo {
        name: "METHOD_NOT_ALLOWED",
        code: Code::Unimplemented,
        http: 405,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Call the path with POST.",
    },
    ReasonInfo {
        name: "NAMESPACE_NOT_FOUND",
        code: Code::NotFound,
        http: 404,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Create the namespace first (tallystone apply -f FILE), or check its name with tallystone ns ls.",
    },
    ReasonInfo {
        name: "NAMESPACE_EXISTS",
        code: Code::AlreadyExists,
        http: 409,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "A namespace of this name exists with other settings, which the message lists; update it instead.",
    },
    ReasonInfo {
        name: "ETAG_MISMATCH",
        code: Code::Aborted,
        http: 409,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "The namespace changed since it was read: read it again, apply the change to what it is now, and send the new etag.",
    },
    ReasonInfo {
        name: "SETTING_IS_FIXED",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "This setting cannot change on a live namespace: create another namespace with the new setting.",
    },
    ReasonInfo {
        name: "DATASET_DIFFERS",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "All namespaces of a dataset share its settings; use the ones that the message shows, or name another dataset.",
    },
    ReasonInfo {
        name: "NAMESPACE_READ_ONLY",
        code: Code::PermissionDenied,
        http: 403,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "This namespace is kept by the service itself; it can only be read.",
    },
    ReasonInfo {
        name: "WRONG_COUNTER_TYPE",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "The counter type of this namespace does not offer this call: best-effort counters keep no events, tokens, series or rollups.",
    },
    ReasonInfo {
        name: "WRONG_TEMPORALITY",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "A cumulative namespace takes ReportTotals only; a delta namespace takes AddCount, AddAndGetCount, ClearCount and their batch forms only.",
    },
    ReasonInfo {
        name: "SERIES_NOT_KEPT",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Ask for a step that is a multiple of one the namespace keeps; name the steps to keep in the namespace's series setting.",
    },
    ReasonInfo {
        name: "NOT_APPLIED",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Final: this token was not applied and never will be. To make the change after all, make a new token, with the clock corrected by the server_time in the answer.",
    },
    ReasonInfo {
        name: "PENDING",
        code: Code::Aborted,
        http: 409,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "Ask again with the same token after the given delay; the change may or may not be applied yet.",
    },
    ReasonInfo {
        name: "TOO_OLD",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Unknown,
        help: "The token is older than the oldest live slice. It may have been applied long ago; that can no longer be answered. Use a new token only if you know that it was not.",
    },
    ReasonInfo {
        name: "OUTCOME_UNKNOWN",
        code: Code::Unknown,
        http: 500,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "Retry with the same token; the change is applied at most once. CheckToken settles the question.",
    },
    ReasonInfo {
        name: "RETRY_LATER",
        code: Code::ResourceExhausted,
        http: 429,
        retry: Retry::SameToken,
        effect: Effect::Nothing,
        help: "The server is busy and did nothing: retry with the same token after the given delay.",
    },
    ReasonInfo {
        name: "ALREADY_EXISTS",
        code: Code::AlreadyExists,
        http: 409,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "This token already names another change, which the message shows. Make a new token for each change.",
    },
    ReasonInfo {
        name: "SERIAL_BACK",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "The serial is below the newest known one of this source and counter. Raise the serial with each report, and the epoch with each start of the source.",
    },
    ReasonInfo {
        name: "TOO_MANY_SOURCES",
        code: Code::ResourceExhausted,
        http: 429,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "A cumulative counter adds up at most 256 sources. Reuse source names over restarts (raise the epoch instead).",
    },
    ReasonInfo {
        name: "STORAGE_FULL",
        code: Code::ResourceExhausted,
        http: 429,
        retry: Retry::SameToken,
        effect: Effect::Nothing,
        help: "The disk of the store is nearly full (storage.reserve_bytes). Free space; adds are taken again without a restart.",
    },
    ReasonInfo {
        name: "STORE_UNAVAILABLE",
        code: Code::Unavailable,
        http: 503,
        retry: Retry::SameToken,
        effect: Effect::Nothing,
        help: "The store does not answer; nothing was applied. Retry with the same token; the server's log and /readyz tell more.",
    },
    ReasonInfo {
        name: "SHUTTING_DOWN",
        code: Code::Unavailable,
        http: 503,
        retry: Retry::SameToken,
        effect: Effect::Nothing,
        help: "The server is stopping and did nothing: retry with the same token at another server, or when it is back.",
    },
    ReasonInfo {
        name: "DEADLINE_EXCEEDED",
        code: Code::DeadlineExceeded,
        http: 504,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "The deadline passed. A write may have been applied: retry with the same token, with more time.",
    },
    ReasonInfo {
        name: "INTERNAL",
        code: Code::Internal,
        http: 500,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "A defect of the service. A write may have been applied: retry with the same token, and report what the server's log says.",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_finds_itself_by_name() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.info().name), Some(*reason));
            assert_eq!(Reason::from_name(&format!("reason_{}", reason.info().name.to_lowercase())), Some(*reason));
        }
        assert_eq!(Reason::ALL.len(), TABLE.len());
    }

    #[test]
    fn an_unknown_effect_is_never_called_unavailable() {
        for reason in Reason::ALL {
            let info = reason.info();
            assert!(info.effect == Effect::Nothing || info.code != Code::Unavailable, "{reason}");
        }
    }
}
