//! The table of reasons. One row makes the variant of the enum, its place in `Reason::ALL` and everything that the reason
//! means. The order is that of the proto. A row names what differs from its base row.

use super::{Code, Effect, ReasonInfo, Retry};

/// Makes the enum and the table from the rows, so that no reason stands in one and not in the other.
macro_rules! reasons {
    ($($variant:ident => $info:expr,)*) => {
        /// Why a call was refused. `ReasonInfo::name` is the name on the wire.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs, reason = "the row of each variant says what it means")]
        pub enum Reason {
            $($variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the proto.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        /// One row for each reason, in the order of the enum.
        pub(super) const TABLE: &[ReasonInfo] = &[$($info,)*];
    };
}

/// The base of all rows.
const ROW: ReasonInfo = ReasonInfo {
    name: "",
    code: Code::Unknown,
    http: 500,
    retry: Retry::Never,
    effect: Effect::Nothing,
    field: None,
    advice: None,
    help: "",
};
const INVALID: ReasonInfo = ReasonInfo { code: Code::InvalidArgument, http: 400, ..ROW };
const PRECONDITION: ReasonInfo = ReasonInfo { code: Code::FailedPrecondition, http: 412, ..ROW };
const NOT_FOUND: ReasonInfo = ReasonInfo { code: Code::NotFound, http: 404, ..ROW };
const EXISTS: ReasonInfo = ReasonInfo { code: Code::AlreadyExists, http: 409, ..ROW };
const DENIED: ReasonInfo = ReasonInfo { code: Code::PermissionDenied, http: 403, ..ROW };
const EXHAUSTED: ReasonInfo = ReasonInfo { code: Code::ResourceExhausted, http: 429, retry: Retry::SameToken, ..ROW };
const UNAVAILABLE: ReasonInfo = ReasonInfo { code: Code::Unavailable, http: 503, retry: Retry::SameToken, ..ROW };

reasons! {
    InvalidNamespace => ReasonInfo {
        name: "INVALID_NAMESPACE",
        field: Some("namespace"),
        help: "Use a namespace name of 1 to 64 bytes that begins with a letter or digit and holds only letters, digits and . _ : / = ~ % @ + -.",
        ..INVALID
    },
    InvalidCounterName => ReasonInfo {
        name: "INVALID_COUNTER_NAME",
        field: Some("counter_name"),
        help: "Use a counter name of 1 to 256 bytes that begins with a letter or digit and holds only letters, digits and . _ : / = ~ % @ + -.",
        ..INVALID
    },
    InvalidToken => ReasonInfo {
        name: "INVALID_TOKEN",
        field: Some("idempotency_token.token"),
        help: "Send a token of 1 to 64 bytes, best a UUIDv7 made once per change and kept over retries; or leave idempotency_token out and give up safe retries.",
        ..INVALID
    },
    InvalidGenerationTime => ReasonInfo {
        name: "INVALID_GENERATION_TIME",
        field: Some("idempotency_token.generation_time"),
        help: "A UUIDv7 token carries its own time: leave generation_time out, or send one inside the same millisecond. Any other token needs a generation_time, the same on every retry.",
        ..INVALID
    },
    InvalidFutureTime => ReasonInfo {
        name: "INVALID_FUTURE_TIME",
        field: Some("idempotency_token.generation_time"),
        advice: Some("correct the client's clock by the server_time of this answer"),
        help: "The time lies further ahead of the server's clock than is taken: that of a counter's token than the namespace's future_limit, that of a message's id than 60 s. Correct the client's clock; the answer carries the server_time to compare with.",
        ..INVALID
    },
    InvalidBatchSize => ReasonInfo {
        name: "INVALID_BATCH_SIZE",
        field: Some("items"),
        help: "Send 1 to 1,000 items in one call; split larger batches.",
        ..INVALID
    },
    InvalidPageSize => ReasonInfo {
        name: "INVALID_PAGE_SIZE",
        field: Some("page_size"),
        help: "Send a page_size of 0 (the default) or more.",
        ..INVALID
    },
    InvalidPageToken => ReasonInfo {
        name: "INVALID_PAGE_TOKEN",
        field: Some("page_token"),
        help: "Send the next_page_token of the page before, unchanged and with the same request; or leave it out to begin anew.",
        ..INVALID
    },
    InvalidRange => ReasonInfo {
        name: "INVALID_RANGE",
        help: "Correct the field that the answer names. Of counters, from must lie before to, a step must be a multiple of 10 s. Of queues, leases and sessions last 1 s to 12 h, invisibility, delays and TTL at most 10 years; a call takes 1 to 100 messages; the calls of a session and their tries are numbered from 1. Nothing may be negative.",
        ..INVALID
    },
    InvalidProvenance => ReasonInfo {
        name: "INVALID_PROVENANCE",
        field: Some("provenance"),
        help: "Send at most 256 bytes of provenance.",
        ..INVALID
    },
    InvalidReport => ReasonInfo {
        name: "INVALID_REPORT",
        help: "Send a source of 1 to 40 bytes, an epoch that grows with each start of the source and a serial that grows with each report.",
        ..INVALID
    },
    InvalidSettings => ReasonInfo {
        name: "INVALID_SETTINGS",
        help: "Correct the setting that the message names; docs/configuration.md lists the settings of a namespace with their ranges, docs/queues.md those of a queue.",
        ..INVALID
    },
    InvalidDocument => ReasonInfo {
        name: "INVALID_DOCUMENT",
        field: Some("document"),
        help: "Correct the document at the place that the message names; docs/configuration.md shows the TOML, the JSON and the published form.",
        ..INVALID
    },
    InvalidJson => ReasonInfo {
        name: "INVALID_JSON",
        help: "Send one JSON object in canonical protobuf JSON: 64-bit numbers as strings or numbers, times as RFC 3339, durations as \"5s\".",
        ..INVALID
    },
    InvalidField => ReasonInfo {
        name: "INVALID_FIELD",
        help: "Remove or correct the field that the message names; field names may be written in snake_case or camelCase.",
        ..INVALID
    },
    InvalidContentType => ReasonInfo {
        name: "INVALID_CONTENT_TYPE",
        help: "Send content-type application/json for JSON, application/grpc for gRPC, or application/grpc-web for gRPC-Web.",
        ..INVALID
    },
    InvalidBodyTooLarge => ReasonInfo {
        name: "INVALID_BODY_TOO_LARGE",
        advice: Some("split the batch"),
        help: "Send at most 4 MiB in one call; split larger batches.",
        ..INVALID
    },
    InvalidArgument => ReasonInfo {
        name: "INVALID_ARGUMENT",
        help: "Correct the argument that the message names, of a counter or a queue: a word of an enum, a name or id that is missing or too long, fields that go together.",
        ..INVALID
    },
    UnknownMethod => ReasonInfo {
        name: "UNKNOWN_METHOD",
        code: Code::Unimplemented,
        http: 404,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Check the path: POST /package.Service/Method, for example /tallystone.counter.v1.CounterService/GetCount. Server reflection lists all methods.",
        ..ROW
    },
    MethodNotAllowed => ReasonInfo {
        name: "METHOD_NOT_ALLOWED",
        code: Code::Unimplemented,
        http: 405,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "Call the path with POST.",
        ..ROW
    },
    NamespaceNotFound => ReasonInfo {
        name: "NAMESPACE_NOT_FOUND",
        help: "Create the namespace first (tallystone apply -f FILE), or check its name with tallystone ns ls.",
        ..NOT_FOUND
    },
    NamespaceExists => ReasonInfo {
        name: "NAMESPACE_EXISTS",
        advice: Some("update it instead, or choose another name"),
        help: "A namespace of this name exists with other settings, which the message lists; update it instead.",
        ..EXISTS
    },
    EtagMismatch => ReasonInfo {
        name: "ETAG_MISMATCH",
        code: Code::Aborted,
        http: 409,
        retry: Retry::Never,
        effect: Effect::Nothing,
        advice: Some("read it again, and send the change for what it is now"),
        help: "The namespace, queue or message changed since it was read: read it again, apply the change to what it is now, and send the new etag, or of a message the new version.",
        ..ROW
    },
    SettingIsFixed => ReasonInfo {
        name: "SETTING_IS_FIXED",
        advice: Some("create another one with the new setting"),
        help: "This setting cannot change on a live namespace or queue, or on a queue only while it holds no message: create another one with the new setting.",
        ..PRECONDITION
    },
    DatasetDiffers => ReasonInfo {
        name: "DATASET_DIFFERS",
        advice: Some("use the settings of the dataset, or name another dataset"),
        help: "All namespaces of a dataset share its settings; use the ones that the message shows, or name another dataset.",
        ..PRECONDITION
    },
    NamespaceReadOnly => ReasonInfo {
        name: "NAMESPACE_READ_ONLY",
        help: "This namespace is kept by the service itself; it can only be read.",
        ..DENIED
    },
    WrongCounterType => ReasonInfo {
        name: "WRONG_COUNTER_TYPE",
        help: "The counter type of this namespace does not offer this call: best-effort counters keep no events, tokens, series or rollups.",
        ..PRECONDITION
    },
    WrongTemporality => ReasonInfo {
        name: "WRONG_TEMPORALITY",
        help: "A cumulative namespace takes ReportTotals only; a delta namespace takes AddCount, AddAndGetCount, ClearCount and their batch forms only.",
        ..PRECONDITION
    },
    SeriesNotKept => ReasonInfo {
        name: "SERIES_NOT_KEPT",
        help: "Ask for a step that is a multiple of one the namespace keeps; name the steps to keep in the namespace's series setting.",
        ..PRECONDITION
    },
    NotApplied => ReasonInfo {
        name: "NOT_APPLIED",
        help: "Final: this token was not applied and never will be. To make the change after all, make a new token, with the clock corrected by the server_time in the answer.",
        ..PRECONDITION
    },
    Pending => ReasonInfo {
        name: "PENDING",
        code: Code::Aborted,
        http: 409,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "Ask again with the same token after the given delay; the change may or may not be applied yet.",
        ..ROW
    },
    TooOld => ReasonInfo {
        name: "TOO_OLD",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Unknown,
        advice: Some("make a new token only if you know that it was not"),
        help: "The token is older than the oldest live slice. It may have been applied long ago; that can no longer be answered. Use a new token only if you know that it was not.",
        ..ROW
    },
    OutcomeUnknown => ReasonInfo {
        name: "OUTCOME_UNKNOWN",
        code: Code::Unknown,
        http: 500,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        advice: Some("the change may have been applied: retry with the same token"),
        help: "Retry with the same token; the change is applied at most once. CheckToken settles the question.",
        ..ROW
    },
    RetryLater => ReasonInfo {
        name: "RETRY_LATER",
        help: "The server is busy and did nothing: retry with the same token after the given delay.",
        ..EXHAUSTED
    },
    AlreadyExists => ReasonInfo {
        name: "ALREADY_EXISTS",
        help: "This token already names another change, which the message shows. Make a new token for each change. In a report of totals the serial is the name: raise it with each report.",
        ..EXISTS
    },
    SerialBack => ReasonInfo {
        name: "SERIAL_BACK",
        advice: Some("raise the serial with each report, and the epoch with each start of the source"),
        help: "The serial is below the newest known one of this source and counter. Raise the serial with each report, and the epoch with each start of the source.",
        ..PRECONDITION
    },
    TooManySources => ReasonInfo {
        name: "TOO_MANY_SOURCES",
        code: Code::ResourceExhausted,
        http: 429,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "A cumulative counter adds up at most 256 sources. Reuse source names over restarts (raise the epoch instead).",
        ..ROW
    },
    StorageFull => ReasonInfo {
        name: "STORAGE_FULL",
        advice: Some("nothing was applied: free space, adds are taken again without a restart"),
        help: "The disk of the store is nearly full (storage.reserve_bytes). Free space; adds are taken again without a restart.",
        ..EXHAUSTED
    },
    StoreUnavailable => ReasonInfo {
        name: "STORE_UNAVAILABLE",
        advice: Some("nothing was applied: try again, a write with its token"),
        help: "The store does not answer; nothing was applied. Retry with the same token; the server's log and /readyz tell more.",
        ..UNAVAILABLE
    },
    ShuttingDown => ReasonInfo {
        name: "SHUTTING_DOWN",
        advice: Some("try again when it is back, or at another server, a write with its token"),
        help: "The server is stopping and did nothing: retry with the same token at another server, or when it is back.",
        ..UNAVAILABLE
    },
    DeadlineExceeded => ReasonInfo {
        name: "DEADLINE_EXCEEDED",
        code: Code::DeadlineExceeded,
        http: 504,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "The deadline passed. A write may have been applied, unless the answer's effect says nothing: retry with the same token, with more time.",
        ..ROW
    },
    Internal => ReasonInfo {
        name: "INTERNAL",
        code: Code::Internal,
        http: 500,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        advice: Some("a write may have been applied: retry with the same token, and report this"),
        help: "A defect of the service. A write may have been applied: retry with the same token, and report what the server's log says.",
        ..ROW
    },
    InvalidQueueName => ReasonInfo {
        name: "INVALID_QUEUE_NAME",
        field: Some("queue"),
        help: "Use a queue name of 1 to 128 bytes that begins with a letter or digit and holds only letters, digits and . _ : / -.",
        ..INVALID
    },
    InvalidMessageId => ReasonInfo {
        name: "INVALID_MESSAGE_ID",
        field: Some("message_id"),
        help: "Use an id of 1 to 64 bytes that does not begin with m., best a UUIDv7; send a message key, which begins with m., as it was received.",
        ..INVALID
    },
    InvalidMessage => ReasonInfo {
        name: "INVALID_MESSAGE",
        help: "Check the field that the answer names: payload up to 32,768 bytes; at most 4 metadata pairs with keys of 1 to 64 and values of up to 256 bytes; priority within 2^53 of 0; 1 to 10,000 attempts; a shard key on simple queues only, the exclusivity key in the metadata on exclusive ones.",
        ..INVALID
    },
    InvalidLeaseToken => ReasonInfo {
        name: "INVALID_LEASE_TOKEN",
        field: Some("lease_token"),
        help: "Send the lease_token of the lease unchanged, to the queue that gave it.",
        ..INVALID
    },
    InvalidFilter => ReasonInfo {
        name: "INVALID_FILTER",
        field: Some("filter"),
        help: "Send at most 4 pairs; a key has 1 to 64 bytes, a value at most 256.",
        ..INVALID
    },
    QueueNotFound => ReasonInfo {
        name: "QUEUE_NOT_FOUND",
        help: "Create the queue first, or a template whose prefix its name begins with; tallystone queue ls shows what there is.",
        ..NOT_FOUND
    },
    QueueExists => ReasonInfo {
        name: "QUEUE_EXISTS",
        help: "The message shows the differences. Update the queue instead, send its settings, or choose another name.",
        ..EXISTS
    },
    MessageNotFound => ReasonInfo {
        name: "MESSAGE_NOT_FOUND",
        advice: Some("check its id, or send its key"),
        help: "The id was never enqueued, or its retention is over. With shard_key, only a message is found that this shard key or exclusivity value has routed; leave it out to look everywhere.",
        ..NOT_FOUND
    },
    OperationNotFound => ReasonInfo {
        name: "OPERATION_NOT_FOUND",
        help: "Operations are known to their server for an hour after their end, and until it stops. Ask for the purge, redrive or discard again: it touches only what is left.",
        ..NOT_FOUND
    },
    WrongMessageState => ReasonInfo {
        name: "WRONG_MESSAGE_STATE",
        help: "The message and the answer's state say where the message stands; docs/queues.md has the table of what may follow.",
        ..PRECONDITION
    },
    ValueHeld => ReasonInfo {
        name: "VALUE_HELD",
        help: "Wait until the leases of the value have ended, which ExplainMessage names, or raise its limit with SetValueLimit.",
        ..PRECONDITION
    },
    LeaseLost => ReasonInfo {
        name: "LEASE_LOST",
        advice: Some("stop working on it"),
        help: "The message may be leased to another worker by now: stop working on it. Ask for longer leases, or extend them earlier.",
        ..PRECONDITION
    },
    TokenReused => ReasonInfo {
        name: "TOKEN_REUSED",
        advice: Some("make a new one"),
        help: "This id was enqueued with other content, or this request token was used for another request. Make a new one for each message or request.",
        ..EXISTS
    },
    TokenExpired => ReasonInfo {
        name: "TOKEN_EXPIRED",
        advice: Some("look for the message before you enqueue it with a new id"),
        help: "An enqueue this late cannot be told from a repeat. Look for the message with GetMessage; enqueue it with a new id only if you know that it was not taken in. If ids that are made now are refused so, the clock of the server was ahead before: ResetQueueClock (queue reset-clock) takes them again.",
        ..PRECONDITION
    },
    EnqueueBlocked => ReasonInfo {
        name: "ENQUEUE_BLOCKED",
        help: "The message shows the reason that was given. Retry with the same id when the queue is unblocked.",
        ..PRECONDITION
    },
    DequeueBlocked => ReasonInfo {
        name: "DEQUEUE_BLOCKED",
        help: "The message shows the reason that was given. Leases that were given before can be settled. Try again when the queue is unblocked.",
        ..PRECONDITION
    },
    QueueFull => ReasonInfo {
        name: "QUEUE_FULL",
        advice: Some("nothing was applied"),
        help: "The queue holds as many messages, bytes or kept answers as its quota_messages, quota_bytes and dedupe_max_bytes allow, or the catalog as many queues. Let workers catch up, shorten the retention, or raise the quota.",
        ..EXHAUSTED
    },
    FilterNotDeclared => ReasonInfo {
        name: "FILTER_NOT_DECLARED",
        help: "Declare the keys in filter_shapes of the queue, or ask with the shape that the message names, whose keys the error also has as nearest, joined by commas; a shape that was declared just now is used when it is filled.",
        ..PRECONDITION
    },
    SessionNotFound => ReasonInfo {
        name: "SESSION_NOT_FOUND",
        field: Some("session_id"),
        help: "The session was never opened, has ended long ago, or held no lease when its server was started anew. Open a new one; leases that are still held can be settled with their tokens.",
        ..NOT_FOUND
    },
    SessionReplaced => ReasonInfo {
        name: "SESSION_REPLACED",
        field: Some("session_id"),
        help: "Another session was opened with the label of this one, so this one is over and its leases have ended. If that was another worker, give each worker a label of its own; then open a new session.",
        ..PRECONDITION
    },
    SessionEnded => ReasonInfo {
        name: "SESSION_ENDED",
        field: Some("session_id"),
        help: "The session was closed, which released its leases, or was silent for longer than its own lease, which ended those that it had confirmed: stop working on them and open a new one. Leases that it never confirmed end by themselves. Send heartbeats at a third of the session's lease.",
        ..PRECONDITION
    },
    SequenceTooOld => ReasonInfo {
        name: "SEQUENCE_TOO_OLD",
        field: Some("sequence"),
        help: "A shard remembers the last 8 calls of a session that it answered with leases, and once a later call was heard, one that was given nothing is given nothing any more: the session might confirm what it never saw. Nothing was leased, and leases of this call that nobody settles end by themselves. Go on with a new, higher sequence.",
        ..PRECONDITION
    },
    TryBarred => ReasonInfo {
        name: "TRY_BARRED",
        field: Some("try"),
        help: "A later try of this call was heard, and answers for it. Ignore this answer; number the tries of a call 1, 2, 3.",
        ..PRECONDITION
    },
    QueuesNotKept => ReasonInfo {
        name: "QUEUES_NOT_KEPT",
        advice: Some("nothing was applied: ask a server that has it; queues.engine \"embedded\" keeps queues, and offers SAFE"),
        help: "This server has no queues (queues.engine = \"none\"); repeating the call changes nothing. Send it to a server that has queues, or give this one queues with queues.engine = \"embedded\".",
        ..PRECONDITION
    },
    DurabilityNotOffered => ReasonInfo {
        name: "DURABILITY_NOT_OFFERED",
        advice: Some("nothing was applied: ask a server that has it; queues.engine \"embedded\" keeps queues, and offers SAFE"),
        help: "The message says what the store of this server offers. Send the call to a server whose store offers more: queues.engine embedded offers SAFE, a server with --memory nothing. Or require less, with required_durability.",
        ..PRECONDITION
    },
    HostNotAllowed => ReasonInfo {
        name: "HOST_NOT_ALLOWED",
        advice: Some("nothing was applied"),
        help: "A web page may have a browser send requests to a server on its own machine, under the name of the page's host. So the development server answers JSON, gRPC-Web and pages only under an address, localhost, or a name in the setting server.hosts. Use one of these, or add the name to server.hosts.",
        ..DENIED
    },
    NotAMember => ReasonInfo {
        name: "NOT_A_MEMBER",
        advice: Some("nothing was applied"),
        help: "Servers that share a store tell each other which counters were written. They take that from each other only, by a secret that each has in its heartbeat. Applications have no use for the call. A server is refused for a moment after its start, and for as long as it runs a build from before there were secrets: counters that it writes are then rolled up some ten seconds later, and no count is wrong.",
        ..DENIED
    },
}
