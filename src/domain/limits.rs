//! Every hard bound of the service, in one place. `limits/queues.rs` has the bounds of queues, `limits/rules.rs` those of
//! counter rules, `limits/history.rs` those of reads of the history, `limits/access.rs` those of API keys, and `limits.rs` of an adapter those of its store.
//! `docs/limits.md` is generated from the doc comments of the constants in these files.

mod access;
mod console;
mod history;
mod queues;
mod rules;

use std::time::Duration;

pub use access::*;
pub use console::*;
pub use history::*;
pub use queues::*;
pub use rules::*;

/// The longest counter name, in bytes.
pub const COUNTER_NAME_BYTES_MAX: usize = 256;
/// The longest namespace, dataset or cluster name, in bytes.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 64;
/// The longest idempotency token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 64;
/// The longest provenance, in bytes.
pub const PROVENANCE_BYTES_MAX: usize = 256;
/// The longest stored provenance, in bytes: a principal, and in brackets what its call claims.
pub const STORED_PROVENANCE_BYTES_MAX: usize = PRINCIPAL_NAME_BYTES_MAX + " ()".len() + PROVENANCE_BYTES_MAX;
/// The longest source of a cumulative report, in bytes.
pub const SOURCE_BYTES_MAX: usize = 40;
/// The most sources one cumulative counter adds up.
pub const SOURCES_MAX: usize = 256;
/// The most epochs of a source, before its newest, whose totals are kept one by one.
pub const SOURCE_EARLIER_EPOCHS_MAX: usize = 3;
/// The longest description or reason of a namespace change, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// The kinds of repeated log lines that are tracked at a time. Lines of further kinds are all shown.
pub const LOG_KINDS_MAX: usize = 4_096;
/// The part of a suppressed log line that its summary shows, in bytes.
pub const LOG_LINE_SHOWN_BYTES_MAX: usize = 1_024;
/// The rows of datasets, and of queues, in a status.
pub const STATUS_ROWS_MAX: usize = 20;
/// The status reports a dataset as a problem when it is staler than its accept limit plus this time.
pub const STATUS_STALENESS_MAX: Duration = Duration::from_secs(30);

/// The most items of one batch or stream message.
pub const BATCH_ITEMS_MAX: usize = 1_000;
/// The most entries of one map of a request. Lists and maps are decoded up to twice their bound, for a precise error.
pub const MAP_ENTRIES_MAX: usize = 64;
/// The most items of all lists and maps of one request message together, at every depth.
pub const REQUEST_ITEMS_MAX: usize = 10_000;
/// The longest name that an error repeats in full, or that is compared with known ones, in bytes.
pub const SIMILAR_NAME_BYTES_MAX: usize = 256;
/// The largest request body or gRPC message, in bytes.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The bytes of a body beyond the bound that are read and discarded, so that the client receives the error.
pub const BODY_BYTES_DISCARDED_MAX: usize = 32 * 1024 * 1024;
/// The unfinished requests of one connection, in bytes. A further request waits for a second, then gets RETRY_LATER.
pub const CONNECTION_REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The responses of one connection in progress or unread, in bytes. A further call waits before it builds its response.
pub const CONNECTION_ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The requests and responses in flight of a server, half each, in bytes, if the size of the memory is unknown.
pub const BUFFER_BYTES_DEFAULT: usize = 512 * 1024 * 1024;
/// The bytes reserved for a response with payloads before it is built.
pub const ANSWER_PAYLOADS_BYTES: u32 = 4 * 1024 * 1024;
/// The bytes reserved for a response with a list before it is built.
pub const ANSWER_LIST_BYTES: u32 = 256 * 1024;
/// A response of at least this many bytes is sent in chunks of this size, and counted until the client has read it.
pub const ANSWER_PIECE_BYTES: usize = 16 * 1024;
/// A response that the client does not read, and a request that stops arriving, ends after this time.
pub const ANSWER_UNTAKEN_MAX: Duration = Duration::from_secs(30);
/// How long a request waits for buffer space.
pub const REQUEST_ROOM_WITHIN: Duration = Duration::from_secs(1);
/// The longest message of an error, in bytes. It is sent in a header, and clients accept 8 KiB of headers.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 1_024;
/// The longest cursor inside a page token, in bytes. It contains a counter name or the key of an event.
pub const PAGE_CURSOR_BYTES_MAX: usize = 320;
/// The most rows of one page.
pub const PAGE_ROWS_MAX: usize = 1_000;
/// The rows of a page by default.
pub const PAGE_ROWS_DEFAULT: usize = 100;
/// The most counters that TopCounters ranks.
pub const TOP_COUNTERS_MAX: usize = 1_000;
/// The counters that TopCounters returns by default.
pub const TOP_COUNTERS_DEFAULT: usize = 10;
/// The counters that each shard of a ranking keeps. More than a request can ask for, so that small changes need no new scan.
pub const TOP_COUNTERS_KEPT_MAX: usize = 1_250;
/// The age after which a ranking of counters is rebuilt, if other servers roll as well.
pub const SHARED_RANKING_AGE_MAX: Duration = Duration::from_secs(10);
/// The most counters of one watch.
pub const WATCH_COUNTERS_MAX: usize = 100;
/// The watches of counters of one server.
pub const WATCHES_MAX: usize = 16_384;
/// The watches of counters of one caller, by its key or else its address, on one server. Beyond it, RETRY_LATER.
pub const CALLER_WATCHES_MAX: usize = 4_096;
/// The most rows of one series answer.
pub const SERIES_ROWS_MAX: usize = 10_000;
/// The most counters whose series are read in one call. Together they have at most `SERIES_ROWS_MAX` rows.
pub const SERIES_COUNTERS_MAX: usize = 200;
/// The longest name of a time zone of a series, in bytes.
pub const TIME_ZONE_BYTES_MAX: usize = 64;
/// The counters that `counter series` shows. Beyond it, it says that there are more.
pub const SERIES_SHOWN_MAX: usize = 1_000;
/// The most resolutions of series a namespace keeps.
pub const SERIES_RESOLUTIONS_MAX: usize = 8;
/// The most hot counters a namespace names.
pub const HOT_COUNTERS_MAX: usize = 64;
/// The most namespaces of one catalog.
pub const NAMESPACES_MAX: usize = 10_000;
/// The longest name of the author of a change, in bytes.
pub const ACTOR_BYTES_MAX: usize = 256;
/// The deepest nesting of the values of a namespace document.
pub const DOCUMENT_DEPTH_MAX: usize = 32;
/// The most fields of one table of a namespace document.
pub const DOCUMENT_FIELDS_MAX: usize = 256;
/// The longest name of a field of a namespace document, in bytes.
pub const DOCUMENT_KEY_BYTES_MAX: usize = 256;
/// The longest error text of a refused namespace document, in bytes. Longer texts are cut.
pub const DOCUMENT_REFUSAL_BYTES_MAX: usize = 2_048;
/// The most unmapped fields of a namespace document. A document with more is of another kind.
pub const DOCUMENT_UNMAPPED_MAX: usize = 1_000;
/// The attempts of a change of the catalog when other servers change it at the same time.
pub const CATALOG_ATTEMPTS_MAX: u32 = 5;
/// The old versions of namespaces kept in memory.
pub const NAMESPACE_VERSIONS_CACHED: usize = 4_096;

/// The most unrolled events that an UP_TO_DATE read adds one by one. Beyond it, the counter is rolled up first.
pub const TAIL_EVENTS_MAX: usize = 10_000;
/// The exports of one name with different contents. Beyond it, a slice is not exported and is kept.
pub const EXPORTS_OF_A_SLICE_MAX: usize = 100;
/// The events of one page of a log scan.
pub const SCAN_PAGE_EVENTS: usize = 1_000;
/// The events that a fold processes before it yields to other tasks and checks whether its caller still waits.
pub const FOLD_EVENTS_AT_ONCE_MAX: usize = 1_000;
/// The recounts and explanations of one server in flight. Others wait within their deadlines.
pub const RECOUNTS_AT_ONCE_MAX: usize = 4;
/// The rows of the log that an explanation of a counter shows, at most.
pub const EXPLAIN_ROWS_MAX: usize = 100;
/// The rows of the log that an explanation of a counter shows by default.
pub const EXPLAIN_ROWS_DEFAULT: usize = 10;
/// The newest time buckets whose records an explanation of a counter reads, to count the rows that it does not show.
pub const EXPLAIN_BUCKETS_MAX: u32 = 1_000;
/// The watches of counters that begin, read or end before other calls run again.
pub const WATCH_TURNS_AT_ONCE_MAX: usize = 16;
/// The counters that a watch reads before it yields.
pub const WATCH_READS_OF_A_TURN_MAX: usize = 16;
/// The adds of one server that are not durable yet, in bytes. Beyond it, adds get RETRY_LATER.
pub const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The verdicts of one server in flight. Beyond it, RETRY_LATER.
pub const VERDICTS_AT_ONCE_MAX: usize = 256;
/// The bytes of all rollup Sets of one roller.
pub const ROLLUP_SETS_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The counters that one batch or list reads concurrently.
pub const CALL_READS_AT_ONCE_MAX: usize = 16;
/// The late items of one batch that get verdicts concurrently. Few enough that one full stream gets no RETRY_LATER.
pub const CALL_VERDICTS_AT_ONCE_MAX: usize = 16;
/// The partitions that a rollup batch reads concurrently.
pub const ROLLUP_READS_AT_ONCE_MAX: usize = 64;
/// The accepted items of batches and streams of one dataset: the work of the embedded store for about a second. A stream
/// reads no further until its items are accepted.
pub const BATCHED_ITEMS_AT_ONCE_MAX: usize = 256 * 1_024;
/// The batches of a stream that may wait for the store.
pub const STREAM_BATCHES_AT_ONCE_MAX: usize = 16;

/// The counters of a LOW namespace that one rollup queue rolls again and again without a signal.
pub const ROLLUP_LOW_CARDINALITY_MAX: usize = 4_096;
/// The share of a commit that each class leaves to each one behind it, one part in this number: settlements and heartbeats,
/// dequeues and adds, batches of adds, enqueues, reads, lists and purges. It holds for the store calls of a shard as well.
pub const COMMIT_LANE_PART: usize = 8;
/// The most shards of the table of best-effort counters.
pub const FAST_SHARDS_MAX: usize = 64;
/// The memcached servers of one cluster, replicas counted one by one.
pub const MEMCACHED_SERVERS_MAX: usize = 64;
/// The longest prefix of keys in memcached, in bytes.
pub const MEMCACHED_PREFIX_BYTES_MAX: usize = 64;
/// The longest timeout of a memcached call, for a permit, a connection and a response each.
pub const MEMCACHED_TIMEOUT_MAX: Duration = Duration::from_millis(10_000);
/// The time after which a clear is visible everywhere, even if its cache could not be reached.
pub const CLEAR_VISIBLE_WITHIN: Duration = Duration::from_secs(10);
/// The counters whose highest served `as_of` one server remembers, if its count cache or its store is shared.
pub const TOLD_COUNTERS_MAX: usize = 262_144;
/// The longest time for which memcached may remember the tokens of best-effort adds: a day.
pub const DEDUPE_SECONDS_MAX: u32 = 86_400;

/// The nodes of one Cassandra cluster in the settings.
pub const CASSANDRA_SERVERS_MAX: usize = 64;
/// The servers that the settings of a cluster of Redis or Valkey list.
pub const REDIS_SERVERS_MAX: usize = 64;
/// The replicas of each Redis that may be asked to have a change before its answer.
pub const REDIS_REPLICAS_MAX: u32 = 5;
/// The lease of a member of a fleet: how long it counts without a new heartbeat.
pub const MEMBER_LEASE: Duration = Duration::from_secs(30);
/// The margin of a lease: a member stops acknowledging this long before its end, and others wait this long after it.
pub const MEMBER_LEASE_MARGIN: Duration = Duration::from_secs(2);
/// How often a member of a fleet writes its heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a member waits for the frontier of a dataset that it joins. Heartbeats wait as well, so it is a fraction of the
/// lease.
pub const FRONTIER_READ_WITHIN: Duration = Duration::from_secs(5);
/// The datasets of one cluster, and then the namespaces, that a server opens concurrently when it follows the catalog.
pub const DATASETS_OPENED_AT_ONCE_MAX: usize = 16;
/// How often a server checks whether another one has changed the catalog.
pub const CATALOG_FOLLOWED_EVERY: Duration = Duration::from_secs(1);
/// The counters with rollup signals that wait to be sent to other servers. Further signals are dropped.
pub const SIGNALS_WAITING_MAX: usize = 65_536;
/// The timeout of a call with rollup signals. Then its signals are dropped.
pub const SIGNAL_CALL_WITHIN: Duration = Duration::from_millis(500);
/// The rollers to which one server keeps connections for its rollup signals.
pub const SIGNAL_ROLLERS_MAX: usize = 256;
/// How often a server checks whether time buckets may be sealed.
pub const SEAL_INTERVAL: Duration = Duration::from_secs(10);
/// The sampling of sealing: one time bucket in this number for namespaces that are not LOW. For LOW ones, every bucket.
pub const SEAL_SAMPLE_EVERY: u64 = 64;
/// The compared time buckets that one pass of sealing remembers.
pub const SEAL_BUCKETS_NOTED_MAX: usize = 65_536;
/// The attempts of the repair of one bucket when its counter is repaired elsewhere at the same time.
pub const REPAIR_ATTEMPTS_MAX: u32 = 8;
/// The longest name of a keyspace; Cassandra takes 48 characters.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 48;
/// The touch shards of a dataset. Fixed, because shard numbers are stored.
pub const TOUCH_SHARDS: u32 = 64;
/// The step of touches, and the unit of buckets and slices. Fixed, because steps are stored.
pub const STEP: Duration = Duration::from_secs(10);
/// The time slices with which a gap is filled. A longer gap becomes one slice.
pub const GAP_SLICES_MAX: u32 = 64;
/// The age at which a hold is given up, if the engine can leave an outcome unknown.
pub const HOLD_AGE_MAX: Duration = Duration::from_secs(30);

/// The longest duration of a setting: a century. Sums with times cannot overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);
/// The least accept limit.
pub const ACCEPT_LIMIT_MIN: Duration = Duration::from_millis(500);
/// The least future limit by default; the default is the greater of this and the accept limit.
pub const FUTURE_LIMIT_FLOOR: Duration = Duration::from_secs(5);
/// The time that one read may wait for limits and inline rolls, for all its counters together.
pub const INLINE_ROLL_BUDGET: Duration = Duration::from_millis(20);
/// The deadline of a call by default.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(2);
/// The longest deadline of a unary call. A longer one is cut to it.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3_600);
/// The shortest deadline of a call. A shorter one is refused at once, because no work can be finished in it.
pub const DEADLINE_LEAST: Duration = Duration::from_millis(1);
/// The connections of one server, if the limit of descriptors allows them. One address may have half of them.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Spare connections, on which a page such as `/healthz` can be read when all others are in use.
pub const SPARE_CONNECTIONS_MAX: usize = 8;
/// The lifetime of a spare connection.
pub const SPARE_CONNECTION_TIME: Duration = Duration::from_secs(1);
/// The descriptors reserved for the store and for outgoing connections.
pub const DESCRIPTORS_RESERVED: usize = 256;
/// The delay that a refusal names because calls take too long, for each class before that of the call.
pub const CALL_REFUSAL_STEP: Duration = Duration::from_millis(250);
/// How many times `limits.call_time_ms` most calls may take, if the store is so slow that few calls take half of that.
pub const CALL_TARGET_TIMES_MAX: u32 = 8;
/// The calls in flight on one HTTP/2 connection.
pub const CONNECTION_CALLS_MAX: u32 = 1_024;
/// The calls of one HTTP/2 connection that begin concurrently. Others wait until these wait or have ended.
pub const CONNECTION_BEGINS_MAX: usize = 4;
/// The flow-control window of one HTTP/2 stream, in bytes.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// The flow-control window of one HTTP/2 connection, in bytes.
pub const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// The path and the headers of one request, in bytes, with 32 for each header. Beyond it, INVALID_HEADERS_TOO_LARGE.
pub const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// The headers of one request that are read, so that it can be refused with a reason, in bytes.
pub const HEADERS_WIRE_BYTES_MAX: u32 = 64 * 1024;
/// A connection must send its first byte, and an HTTP/1.1 request its headers, within this time.
pub const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection to a port with TLS must finish its handshake within this time.
pub const TLS_HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How often a server looks at the files of its certificate. A SIGHUP makes it look at once.
pub const TLS_FILES_LOOKED_EVERY: Duration = Duration::from_secs(10);
/// The largest file with certificates or a private key that a server reads, in bytes.
pub const TLS_FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The idle time after which an HTTP/2 connection gets a keep-alive ping.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The time within which a connection must answer a keep-alive ping. Else it is closed.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a server probes each of its stores.
pub const STORE_ASKED_EVERY: Duration = Duration::from_secs(1);
/// The timeout of such a probe.
pub const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// The time without an answer after which a store counts as away. The server then reports its services as not served.
pub const STORE_SILENCE_MAX: Duration = Duration::from_secs(8);
/// How often a server evaluates its readiness.
pub const READINESS_JUDGED_EVERY: Duration = Duration::from_millis(250);
/// The most time that counts between two evaluations. A process that was paused did not probe its stores meanwhile.
pub const JUDGED_STEP_MAX: Duration = Duration::from_secs(1);
/// How often a limit is published, at most.
pub const LIMIT_PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// How often watermarks are written, at most.
pub const WATERMARK_INTERVAL: Duration = Duration::from_secs(10);

/// The datasets with a label of their own in the metrics, the oldest first. The others share one.
pub const METRIC_DATASETS_MAX: usize = 100;
/// The shortest interval at which metrics are sent to a collector, in milliseconds.
pub const METRICS_INTERVAL_MS_MIN: u64 = 1_000;
/// The longest interval at which metrics are sent to a collector, in milliseconds.
pub const METRICS_INTERVAL_MS_MAX: u64 = 3_600_000;
/// The queues with a label of their own in the metrics, by name. The others share one.
pub const METRIC_QUEUES_MAX: usize = 100;
/// The queues with a label of their own in the histograms of the metrics, in the order of their first lease. The others share one.
pub const METRIC_QUEUE_TIMES_MAX: usize = 10;
/// The namespaces with a label of their own in the metrics, in the order of their first use. The others share one.
pub const METRIC_NAMESPACES_MAX: usize = 100;
/// The filters without an index with a label of their own in the metrics, by their keys. The others share one.
pub const METRIC_SHAPES_MAX: usize = 20;
/// The counters that `ns rm` counts before it asks. Beyond it, it says "more than".
pub const NS_DELETE_COUNTED_MAX: usize = 100_000;

/// The highest sampling rate of traces, in thousandths: all calls.
pub const SAMPLE_PER_MILLE_MAX: u32 = 1_000;
/// The rollup queues of a namespace, at most.
pub const NUM_QUEUES_MAX: u32 = 256;
/// The least coalescing time of a rollup queue, in milliseconds.
pub const COALESCE_MS_MIN: u32 = 10;
/// The greatest coalescing time of a rollup queue, in milliseconds.
pub const COALESCE_MS_MAX: u32 = 600_000;
/// The most counters of a rollup batch.
pub const ROLLUP_BATCH_COUNT_MAX: u32 = 1_024;
/// The largest partition of a counter that a plan allows, in bytes. Cassandra reads larger partitions slowly.
pub const PARTITION_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// The most event buckets of a time bucket.
pub const BUCKETS_PER_ID_MAX: u32 = 256;
/// The longest name of an experiment, an arm or a metric, in bytes. A counter's name has three of them.
pub const EXPERIMENT_WORD_BYTES_MAX: usize = 64;
/// The most metrics of an experiment, the primary one included.
pub const EXPERIMENT_METRICS_MAX: usize = 16;
/// The most arms of an experiment, the control included.
pub const EXPERIMENT_ARMS_MAX: usize = 8;
/// The most exposures of an arm that are planned: up to here a float tells whole numbers apart.
pub const PLANNED_EXPOSURES_MAX: u64 = 1 << 53;
/// The experiments that are kept, at most.
pub const EXPERIMENTS_MAX: usize = 10_000;
/// How often the totals of a running experiment are written down.
pub const EXPERIMENT_SAMPLED_EVERY: Duration = Duration::from_secs(60);
/// The `alpha` of an experiment that names none.
pub const EXPERIMENT_ALPHA: f64 = 0.05;
/// The `power` of a plan of an experiment that names none.
pub const EXPERIMENT_POWER: f64 = 0.8;

const _: () = assert!(BATCH_ITEMS_MAX <= BATCHED_ITEMS_AT_ONCE_MAX, "a batch waits for no more room than there is");

const _: () = assert!(
    CALL_VERDICTS_AT_ONCE_MAX * STREAM_BATCHES_AT_ONCE_MAX <= VERDICTS_AT_ONCE_MAX,
    "the batches of one stream may ask for more verdicts than a server gives at once"
);

const _: () = assert!(PAGE_CURSOR_BYTES_MAX >= COUNTER_NAME_BYTES_MAX + 64, "a cursor is a name or an event's key");

const _: () = assert!(TOP_COUNTERS_KEPT_MAX > TOP_COUNTERS_MAX, "a ranking keeps more than is asked for");
