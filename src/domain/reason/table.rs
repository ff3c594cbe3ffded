//! The table of reasons. One row makes the variant of the enum, its place in `Reason::ALL` and everything that the
//! reason means. The order is that of the proto. A row names what differs from its base row.

use super::base_rows::{
    DENIED, EXHAUSTED, EXISTS, INVALID, NOT_FOUND, PRECONDITION, ROW, UNAUTHENTICATED, UNAVAILABLE, reasons,
};
use super::{Code, Effect, ReasonInfo, Retry};

reasons! {
    InvalidNamespace => ReasonInfo {
        name: "INVALID_NAMESPACE",
        field: Some("namespace"),
        help: "Use a namespace name of 1 to 64 bytes that begins with a letter or digit (A-Z, a-z, 0-9) and contains only letters, digits and . _ : / = ~ % @ + -.",
        ..INVALID
    },
    InvalidCounterName => ReasonInfo {
        name: "INVALID_COUNTER_NAME",
        field: Some("counter_name"),
        help: "Use a counter name of 1 to 256 bytes that begins with a letter or digit (A-Z, a-z, 0-9) and contains only letters, digits and . _ : / = ~ % @ + -.",
        ..INVALID
    },
    InvalidToken => ReasonInfo {
        name: "INVALID_TOKEN",
        field: Some("idempotency_token.token"),
        help: "Send a token of 1 to 64 bytes. Prefer a UUIDv7, made once per change and reused in its retries. Without idempotency_token, retries are not safe.",
        ..INVALID
    },
    InvalidGenerationTime => ReasonInfo {
        name: "INVALID_GENERATION_TIME",
        field: Some("idempotency_token.generation_time"),
        help: "A UUIDv7 token contains its time: omit generation_time, or send one in the same millisecond. Any other token needs a generation_time, the same on every retry.",
        ..INVALID
    },
    InvalidFutureTime => ReasonInfo {
        name: "INVALID_FUTURE_TIME",
        field: Some("idempotency_token.generation_time"),
        advice: Some("correct the client's clock with the server_time of this response"),
        help: "The time is too far ahead of the server's clock. A counter token may be ahead by the future_limit of the namespace, a message id by 60 s. Correct the client's clock with the server_time in the response.",
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
        help: "Send the next_page_token of the previous page unchanged, with the same request. To start over, omit it.",
        ..INVALID
    },
    InvalidRange => ReasonInfo {
        name: "INVALID_RANGE",
        help: "Correct the field named in the response. Counters: from must be before to, and a step is a multiple of 10 s, or 1d, 1w or 1mo. Queues: leases and sessions last 1 s to 12 h; invisibility, delays and TTL at most 10 years. A call takes 1 to 100 messages. The calls of a session and their tries are numbered from 1. Negative values are not allowed.",
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
        help: "Send a source of 1 to 40 bytes. Raise the epoch at each start of the source, and the serial with each report.",
        ..INVALID
    },
    InvalidSettings => ReasonInfo {
        name: "INVALID_SETTINGS",
        help: "Correct the setting named in the message. The ranges are in docs/configuration.md for namespaces, and in docs/queues.md for queues.",
        ..INVALID
    },
    InvalidDocument => ReasonInfo {
        name: "INVALID_DOCUMENT",
        field: Some("document"),
        help: "Correct the document at the place named in the message. docs/configuration.md shows the TOML, JSON and published forms.",
        ..INVALID
    },
    InvalidJson => ReasonInfo {
        name: "INVALID_JSON",
        help: "Send one JSON object in canonical protobuf JSON: 64-bit numbers as strings or numbers, times as RFC 3339, durations as \"5s\".",
        ..INVALID
    },
    InvalidField => ReasonInfo {
        name: "INVALID_FIELD",
        help: "Remove or correct the field named in the message. Field names may be in snake_case or camelCase.",
        ..INVALID
    },
    InvalidContentType => ReasonInfo {
        name: "INVALID_CONTENT_TYPE",
        help: "Send content-type application/json for JSON, application/grpc for gRPC, or application/grpc-web for gRPC-Web. Messages of gRPC come as they are, or compressed by gzip.",
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
        help: "Correct the argument named in the message. Typical causes: an unknown enum value, a name or id that is missing or too long, or fields that must be sent together.",
        ..INVALID
    },
    InvalidHeadersTooLarge => ReasonInfo {
        name: "INVALID_HEADERS_TOO_LARGE",
        http: 431,
        advice: Some("send fewer headers"),
        help: "Send a path and headers of at most 16 KiB together, with 32 bytes for each header. Cookies and tokens are the usual causes.",
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
        help: "A namespace of this name exists with other settings; the message lists them. Update it instead.",
        ..EXISTS
    },
    EtagMismatch => ReasonInfo {
        name: "ETAG_MISMATCH",
        code: Code::Aborted,
        http: 409,
        retry: Retry::Never,
        effect: Effect::Nothing,
        advice: Some("read it again, and apply the change to the current version"),
        help: "The namespace, queue or message changed since it was read. Read it again, apply the change to the current version, and send its etag; for a message, send its version.",
        ..ROW
    },
    SettingIsFixed => ReasonInfo {
        name: "SETTING_IS_FIXED",
        advice: Some("create another namespace, queue or experiment with the new setting"),
        help: "This setting is fixed on a live namespace, queue or experiment; a few queue settings may change while the queue is empty. Create another one with the new setting.",
        ..PRECONDITION
    },
    DatasetDiffers => ReasonInfo {
        name: "DATASET_DIFFERS",
        advice: Some("use the settings of the dataset, or name another dataset"),
        help: "All namespaces of a dataset share its settings. Use the settings in the message, or name another dataset.",
        ..PRECONDITION
    },
    NamespaceReadOnly => ReasonInfo {
        name: "NAMESPACE_READ_ONLY",
        help: "The service maintains this namespace; callers can only read it.",
        ..DENIED
    },
    WrongCounterType => ReasonInfo {
        name: "WRONG_COUNTER_TYPE",
        help: "The counter type of this namespace does not support this call: BEST_EFFORT counters keep no events, tokens, series or rollups.",
        ..PRECONDITION
    },
    WrongTemporality => ReasonInfo {
        name: "WRONG_TEMPORALITY",
        help: "A cumulative namespace accepts only ReportTotals. A delta namespace accepts only AddCount, AddAndGetCount, ClearCount and their batch forms.",
        ..PRECONDITION
    },
    SeriesNotKept => ReasonInfo {
        name: "SERIES_NOT_KEPT",
        help: "Request a multiple of a step that the namespace keeps, or add the step to the series setting of the namespace.",
        ..PRECONDITION
    },
    NotApplied => ReasonInfo {
        name: "NOT_APPLIED",
        help: "This token was not applied and never will be. To make the change, correct the clock with the server_time in the response and create a new token.",
        ..PRECONDITION
    },
    Pending => ReasonInfo {
        name: "PENDING",
        code: Code::Aborted,
        http: 409,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "Retry with the same token after the given delay. The change may have been applied.",
        ..ROW
    },
    TooOld => ReasonInfo {
        name: "TOO_OLD",
        code: Code::FailedPrecondition,
        http: 412,
        retry: Retry::Never,
        effect: Effect::Unknown,
        advice: Some("create a new token only if you know that the change was not applied"),
        help: "The token is older than the oldest live slice. The service can no longer tell whether it was applied. Create a new token only if you know that the change was not applied.",
        ..ROW
    },
    OutcomeUnknown => ReasonInfo {
        name: "OUTCOME_UNKNOWN",
        code: Code::Unknown,
        http: 500,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        advice: Some("the change may have been applied: retry with the same token"),
        help: "Retry with the same token; the change is applied at most once. CheckToken tells whether it was applied.",
        ..ROW
    },
    RetryLater => ReasonInfo {
        name: "RETRY_LATER",
        help: "The server is busy, or the caller has used up a quota; nothing was applied. Retry with the same token after the given delay. The metadata has the name of the `quota`; or the `limit`, with the `class` of the call, if calls take too long.",
        ..EXHAUSTED
    },
    AlreadyExists => ReasonInfo {
        name: "ALREADY_EXISTS",
        help: "This token was already used for another change; the message shows it. Create a new token for each change. A report of totals is identified by its serial: raise it with each report.",
        ..EXISTS
    },
    SerialBack => ReasonInfo {
        name: "SERIAL_BACK",
        advice: Some("raise the serial with each report, and the epoch at each start of the source"),
        help: "The serial is below the newest known serial of this source and counter. Raise the serial with each report, and the epoch at each start of the source.",
        ..PRECONDITION
    },
    TooManySources => ReasonInfo {
        name: "TOO_MANY_SOURCES",
        code: Code::ResourceExhausted,
        http: 429,
        retry: Retry::Never,
        effect: Effect::Nothing,
        help: "A cumulative counter has at most 256 sources. Keep the source name at a restart, and raise the epoch instead.",
        ..ROW
    },
    TotalBack => ReasonInfo {
        name: "TOTAL_BACK",
        advice: Some("if the source began again, raise its epoch; within an epoch totals only rise"),
        help: "The total is below the newest one of its source and epoch, or below 0. Raise the epoch when the source begins again; what it counted before stays counted. A value that may fall, such as a level, belongs into a namespace with on_new_epoch REPLACE.",
        ..PRECONDITION
    },
    StorageFull => ReasonInfo {
        name: "STORAGE_FULL",
        advice: Some("nothing was applied; send it again once there is room"),
        help: "The disk of the store is nearly full (storage.reserve_bytes), or the memory of queues: on the embedded engine queues.memory_bytes, or less where the whole process nears the memory of its machine or control group, on Redis 95 % of its maxmemory. Nothing was applied. The text says which. Free some space, drain or purge queues, or raise the bound; space that is freed counts without a restart.",
        ..EXHAUSTED
    },
    StoreUnavailable => ReasonInfo {
        name: "STORE_UNAVAILABLE",
        advice: Some("nothing was applied: retry, a write with the same token"),
        help: "The store does not answer, refuses the server, or has lost what it had; nothing was applied. Retry with the same token. The server's log and /readyz show the cause and what to do. STORE_LOST there means that Redis or Cassandra came back without data that it had: restore a backup, or accept the loss; docs/runbook/store-away.md says how.",
        ..UNAVAILABLE
    },
    ShuttingDown => ReasonInfo {
        name: "SHUTTING_DOWN",
        advice: Some("retry at another server, or after the restart; a write with the same token"),
        help: "The server is stopping; nothing was applied. Retry with the same token at another server, or after the restart.",
        ..UNAVAILABLE
    },
    DeadlineExceeded => ReasonInfo {
        name: "DEADLINE_EXCEEDED",
        code: Code::DeadlineExceeded,
        http: 504,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        help: "The deadline passed. A write may have been applied, unless the effect in the response is nothing. Retry with the same token and a longer deadline.",
        ..ROW
    },
    Internal => ReasonInfo {
        name: "INTERNAL",
        code: Code::Internal,
        http: 500,
        retry: Retry::SameToken,
        effect: Effect::Unknown,
        advice: Some("a write may have been applied: retry with the same token, and report this defect"),
        help: "The service has a defect, or what a store holds is damaged. A write may have been applied: retry with the same token, and read the server's log. INCONSISTENT there is a word of queues on Redis: docs/runbook/redis.md says what to do. Report everything else.",
        ..ROW
    },
    InvalidQueueName => ReasonInfo {
        name: "INVALID_QUEUE_NAME",
        field: Some("queue"),
        help: "Use a queue name of 1 to 128 bytes that begins with a letter or digit (A-Z, a-z, 0-9) and contains only letters, digits and . _ : / -.",
        ..INVALID
    },
    InvalidMessageId => ReasonInfo {
        name: "INVALID_MESSAGE_ID",
        field: Some("message_id"),
        help: "Use an id of 1 to 64 bytes that does not begin with m.; prefer a UUIDv7. Send a message key, which begins with m., unchanged.",
        ..INVALID
    },
    InvalidMessage => ReasonInfo {
        name: "INVALID_MESSAGE",
        help: "Correct the field named in the response. A payload has up to 32,768 bytes. Metadata has at most 4 pairs, with keys of 1 to 64 and values of up to 256 bytes. A priority is -2^53 to 2^53; attempts are 1 to 10,000. Simple queues accept a shard key; exclusive queues need the exclusivity key in the metadata.",
        ..INVALID
    },
    InvalidLeaseToken => ReasonInfo {
        name: "INVALID_LEASE_TOKEN",
        field: Some("lease_token"),
        help: "Send the lease_token unchanged, to the queue that issued it.",
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
        help: "Create the queue first, or a template with a prefix of its name. tallystone queue ls lists all queues.",
        ..NOT_FOUND
    },
    QueueExists => ReasonInfo {
        name: "QUEUE_EXISTS",
        help: "A queue of this name exists with other settings; the message lists them. Update the queue, send its settings, or choose another name.",
        ..EXISTS
    },
    MessageNotFound => ReasonInfo {
        name: "MESSAGE_NOT_FOUND",
        advice: Some("check its id, or send its key"),
        help: "The id was never enqueued, or its message is gone: its retention is over, or it was purged or discarded. GetMessageTrace (msg trace) says which, as far as the history of the queue goes back. With shard_key, only the shard of that shard key or exclusivity value is searched; omit it to search all shards.",
        ..NOT_FOUND
    },
    OperationNotFound => ReasonInfo {
        name: "OPERATION_NOT_FOUND",
        help: "A server forgets an operation an hour after its end, and at a restart. Repeat the purge, cancel, redrive or discard; it processes only the remaining messages.",
        ..NOT_FOUND
    },
    WrongMessageState => ReasonInfo {
        name: "WRONG_MESSAGE_STATE",
        help: "The message and the state in the response show the current state; docs/queues.md lists the allowed transitions.",
        ..PRECONDITION
    },
    ValueHeld => ReasonInfo {
        name: "VALUE_HELD",
        help: "Wait for the end of the leases of the exclusivity value; ExplainMessage lists them. Or raise its limit with SetValueLimit.",
        ..PRECONDITION
    },
    LeaseLost => ReasonInfo {
        name: "LEASE_LOST",
        advice: Some("stop working on the message"),
        help: "The message may already be leased to another worker: stop working on it. Request longer leases, or extend them earlier.",
        ..PRECONDITION
    },
    TokenReused => ReasonInfo {
        name: "TOKEN_REUSED",
        advice: Some("create a new id or token"),
        help: "This id was enqueued with other content, or this request token was used for another request. Create a new id for each message, and a new token for each request.",
        ..EXISTS
    },
    TokenExpired => ReasonInfo {
        name: "TOKEN_EXPIRED",
        advice: Some("check for the message before you enqueue it with a new id"),
        help: "The time of the id is older than the dedupe window, so the service cannot tell a repeat from a new message. The time is generation_time, or else that of the UUIDv7 that the id is. A business id in the form of a UUIDv7 becomes a plain id, which has no time, with a prefix such as order-. Check with GetMessage; enqueue it with a new id only if the message was not enqueued. If new ids get this error, the server's clock was ahead earlier: correct that with ResetQueueClock (queue reset-clock).",
        ..PRECONDITION
    },
    EnqueueBlocked => ReasonInfo {
        name: "ENQUEUE_BLOCKED",
        help: "The message shows the reason of the block. Retry with the same id after the queue is unblocked.",
        ..PRECONDITION
    },
    DequeueBlocked => ReasonInfo {
        name: "DEQUEUE_BLOCKED",
        help: "The message shows the reason of the block. Existing leases can be settled. Retry after the queue is unblocked.",
        ..PRECONDITION
    },
    QueueFull => ReasonInfo {
        name: "QUEUE_FULL",
        advice: Some("nothing was applied"),
        help: "The queue reached its quota_messages, quota_bytes or dedupe_max_bytes, or the catalog its maximum number of queues. Messages that are over keep their places until their retention ends, so finished work alone makes no room. ExplainQueue says what fills the queue. Remove what is over (queue purge --state completed), shorten the retention, or raise the quota. Dedupe records outlive their messages: only a larger dedupe_max_bytes or a shorter dedupe_window makes room for them.",
        ..EXHAUSTED
    },
    FilterNotDeclared => ReasonInfo {
        name: "FILTER_NOT_DECLARED",
        help: "Declare the keys in filter_shapes of the queue, or filter by the shape named in the message and in the metadata nearest (its keys, joined by commas). A new shape is usable once its index is complete.",
        ..PRECONDITION
    },
    SessionNotFound => ReasonInfo {
        name: "SESSION_NOT_FOUND",
        field: Some("session_id"),
        help: "The session was never opened, ended long ago, or held no lease when its server restarted. Open a new session. Live leases can still be settled with their tokens.",
        ..NOT_FOUND
    },
    SessionReplaced => ReasonInfo {
        name: "SESSION_REPLACED",
        field: Some("session_id"),
        help: "Another session was opened with the same label, which ended this session and its leases. If another worker opened it, give each worker its own label. Then open a new session.",
        ..PRECONDITION
    },
    SessionEnded => ReasonInfo {
        name: "SESSION_ENDED",
        field: Some("session_id"),
        help: "The session was closed, or sent nothing for longer than its lease. Its confirmed leases have ended: stop working on their messages and open a new session. Unconfirmed leases expire on their own. Send heartbeats at a third of the session's lease.",
        ..PRECONDITION
    },
    SequenceTooOld => ReasonInfo {
        name: "SEQUENCE_TOO_OLD",
        field: Some("sequence"),
        help: "A later call of the session has arrived, and the response of this call is no longer stored. A shard remembers the last 8 calls of a session that returned leases. Nothing was leased now; earlier leases of this call expire unless they are settled. Continue with a new, higher sequence.",
        ..PRECONDITION
    },
    TryBarred => ReasonInfo {
        name: "TRY_BARRED",
        field: Some("try"),
        help: "A later try of this call has arrived, and its response counts. Ignore this response. Number the tries of a call 1, 2, 3.",
        ..PRECONDITION
    },
    QueuesNotKept => ReasonInfo {
        name: "QUEUES_NOT_KEPT",
        advice: Some("nothing was applied: send the call to another server, or set queues.engine of this one"),
        help: "This server has no queues (queues.engine = \"none\"), so a retry fails too. Send the call to a server with queues, or set queues.engine = \"embedded\" on this server.",
        ..PRECONDITION
    },
    DurabilityNotOffered => ReasonInfo {
        name: "DURABILITY_NOT_OFFERED",
        advice: Some("nothing was applied: let the store offer it, or require less"),
        help: "The message shows the durability of this server's store. Send the call to a server whose store offers more, or lower required_durability. queues.engine embedded offers SAFE; a server with --memory offers none. Redis offers SAFE with appendfsync always, and REPLICATED with clusters.NAME.replicas and min-replicas-to-write as well; after a change of its settings it takes a minute until servers see it.",
        ..PRECONDITION
    },
    HostNotAllowed => ReasonInfo {
        name: "HOST_NOT_ALLOWED",
        advice: Some("nothing was applied"),
        help: "A foreign web page can make a browser send requests to a server on the same machine, under the page's host name. So the development server answers JSON, gRPC-Web and pages only under an IP address, localhost, or a name in the setting server.hosts. Use one of these, or add the name to server.hosts.",
        ..DENIED
    },
    NotAMember => ReasonInfo {
        name: "NOT_A_MEMBER",
        advice: Some("nothing was applied"),
        help: "This call is for servers that share a store, not for applications. The servers authenticate with the secret in their heartbeats. A server is refused for a moment after its start, and always if its release is older than these secrets. The counters that it writes are then rolled up about ten seconds later; no count is wrong.",
        ..DENIED
    },
    RuleNotFound => ReasonInfo {
        name: "RULE_NOT_FOUND",
        advice: Some("check its name, for example with tallystone rule ls"),
        help: "No rule has this name. List the rules with ListRules (rule ls).",
        ..NOT_FOUND
    },
    RuleExists => ReasonInfo {
        name: "RULE_EXISTS",
        advice: Some("delete it first, or choose another name"),
        help: "A rule of this name exists with other settings. A rule is never changed: delete it and create it again, or choose another name. A rule that is created again begins with crossing 1. One that differs in nothing but its queue store belongs to another store: if that store is lost, AdoptStore (tallystone bridge adopt) gives its rules to the present one.",
        ..EXISTS
    },
    Unauthenticated => ReasonInfo {
        name: "UNAUTHENTICATED",
        advice: Some("send a valid key or token as authorization: Bearer ts_ID_SECRET"),
        help: "Every call needs an API key, in the metadata or header `authorization: Bearer ts_ID_SECRET`, or a token of an identity provider in its place. The command line takes either from --key-file, --key, TALLYSTONE_KEY or TALLYSTONE_KEY_FILE. The key is missing or not valid: it was mistyped, deleted or rotated, or has expired. `tallystone key ls` shows the keys with their expiry. The message says what is wrong with a token; docs/security.md has what a token needs. A call also ends with this reason if its key or token ends during the call; the message then says whether a write may have been applied.",
        ..UNAUTHENTICATED
    },
    KeyNotFound => ReasonInfo {
        name: "KEY_NOT_FOUND",
        advice: Some("check its name, for example with tallystone key ls"),
        help: "No API key has this name. List the keys with ListKeys (key ls).",
        ..NOT_FOUND
    },
    KeyExists => ReasonInfo {
        name: "KEY_EXISTS",
        advice: Some("rotate it for a new secret, or choose another name"),
        help: "An API key of this name exists. A secret is shown only once, so the call cannot repeat it. Rotate the key for a new secret with RotateKey (key rotate), or choose another name. If an earlier CreateKey of yours lost its answer, rotate the key.",
        ..EXISTS
    },
    RoleMissing => ReasonInfo {
        name: "ROLE_MISSING",
        advice: Some("nothing was applied"),
        help: "The API key or token of the call is valid, but no grant of it allows this method, or not on what the call names. The message names the role that is needed; docs/roles.md has the role of each method. Use another key, or give this one a grant with UpdateKey (key update).",
        ..DENIED
    },
    CounterNotFound => ReasonInfo {
        name: "COUNTER_NOT_FOUND",
        field: Some("counter_name"),
        advice: Some("check its name and the grants of the key"),
        help: "No grant of the API key allows anything on this counter, so for this key it does not exist. Check the name, use another key, or give this one a grant with UpdateKey (key update). Without this reason a counter always exists: before its first add it is 0.",
        ..NOT_FOUND
    },
    ExperimentNotFound => ReasonInfo {
        name: "EXPERIMENT_NOT_FOUND",
        advice: Some("check its name, for example with tallystone exp ls"),
        help: "No experiment has this name. List the experiments with ListExperiments (exp ls).",
        ..NOT_FOUND
    },
    ExperimentExists => ReasonInfo {
        name: "EXPERIMENT_EXISTS",
        advice: Some("choose another name, also for its counters"),
        help: "An experiment of this name exists with other settings, or was stopped. Arms, weights, metric, unit, alpha, planned size and mode are fixed at the start. Choose another name: its counters then begin at 0.",
        ..EXISTS
    },
}
