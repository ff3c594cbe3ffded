//! Every hard bound of the service, in one place; those of queues are in `limits/queues.rs`. `docs/limits.md` shows the same
//! list.

mod queues;

use std::time::Duration;

pub use queues::*;

/// The longest counter name, in bytes.
pub const COUNTER_NAME_BYTES_MAX: usize = 256;
/// The longest namespace, dataset or cluster name, in bytes.
pub const NAMESPACE_NAME_BYTES_MAX: usize = 64;
/// The longest idempotency token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 64;
/// The longest provenance, in bytes.
pub const PROVENANCE_BYTES_MAX: usize = 256;
/// The longest source of a cumulative report, in bytes.
pub const SOURCE_BYTES_MAX: usize = 40;
/// The most sources one cumulative counter adds up.
pub const SOURCES_MAX: usize = 256;
/// The longest description or reason of a namespace change, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 1_024;

/// The kinds of repeated log lines that are told apart at a time; of a further one nothing is left out.
pub const LOG_KINDS_MAX: usize = 4_096;
/// What is shown of a log line that was left out, in bytes.
pub const LOG_LINE_SHOWN_BYTES_MAX: usize = 1_024;
/// The datasets, and the queues, that a status shows one by one.
pub const STATUS_ROWS_MAX: usize = 20;
/// A dataset that is staler than its accept limit and this together is a problem in the status.
pub const STATUS_STALENESS_MAX: Duration = Duration::from_secs(30);

/// The most items of one batch or stream message.
pub const BATCH_ITEMS_MAX: usize = 1_000;
/// The most entries of one map of a request. Of lists and maps, up to twice the bound is decoded, to be refused in detail.
pub const MAP_ENTRIES_MAX: usize = 64;
/// The most items of all lists and maps of one request message together, at every depth.
pub const REQUEST_ITEMS_MAX: usize = 10_000;
/// The longest name that an error repeats in full, or that is compared with known ones, in bytes.
pub const SIMILAR_NAME_BYTES_MAX: usize = 256;
/// The largest request body or gRPC message, in bytes.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What is read and thrown away of a body that is too large, in bytes, so that every client gets to hear why.
pub const BODY_BYTES_DISCARDED_MAX: usize = 32 * 1024 * 1024;
/// The unfinished requests of one connection, in bytes; a further one waits for a second, then it is told RETRY_LATER.
pub const CONNECTION_REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The answers of one connection that are made or not yet taken, in bytes; a further call waits before it makes its own.
pub const CONNECTION_ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The requests and answers of a server under way, half each, in bytes, where nothing says how much memory there is.
pub const BUFFER_BYTES_DEFAULT: usize = 512 * 1024 * 1024;
/// What is set aside for an answer with payloads before it is made, in bytes.
pub const ANSWER_PAYLOADS_BYTES: u32 = 4 * 1024 * 1024;
/// What is set aside for an answer with a list before it is made, in bytes.
pub const ANSWER_LIST_BYTES: u32 = 256 * 1024;
/// An answer of at least so many bytes is handed on in pieces of so many, and counted until it is taken.
pub const ANSWER_PIECE_BYTES: usize = 16 * 1024;
/// An answer of which nothing is taken, and a message of which nothing more comes, ends after this time.
pub const ANSWER_UNTAKEN_MAX: Duration = Duration::from_secs(30);
/// How long a request waits for room for its bytes.
pub const REQUEST_ROOM_WITHIN: Duration = Duration::from_secs(1);
/// The longest message of an error, in bytes; it travels in a header, and clients take 8 KiB of those.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 1_024;
/// The longest cursor inside a page token, in bytes; it holds a counter name, or an event's key.
pub const PAGE_CURSOR_BYTES_MAX: usize = 320;
/// The most rows of one page.
pub const PAGE_ROWS_MAX: usize = 1_000;
/// The rows of a page when none are asked for.
pub const PAGE_ROWS_DEFAULT: usize = 100;
/// The most counters that TopCounters ranks.
pub const TOP_COUNTERS_MAX: usize = 1_000;
/// The counters that TopCounters answers when none are asked for.
pub const TOP_COUNTERS_DEFAULT: usize = 10;
/// The counters that each shard of a ranking keeps; more than are asked for, so that small changes need no new walk.
pub const TOP_COUNTERS_KEPT_MAX: usize = 1_250;
/// How long a ranking of counters is answered where other servers roll as well; then it is built anew.
pub const SHARED_RANKING_AGE_MAX: Duration = Duration::from_secs(10);
/// The most counters of one watch.
pub const WATCH_COUNTERS_MAX: usize = 100;
/// The watches of counters of one server.
pub const WATCHES_MAX: usize = 16_384;
/// The watches of counters that one caller, known by its address, has on one server; past it, RETRY_LATER.
pub const CALLER_WATCHES_MAX: usize = 4_096;
/// The most rows of one series answer.
pub const SERIES_ROWS_MAX: usize = 10_000;
/// The most resolutions of series a namespace keeps.
pub const SERIES_RESOLUTIONS_MAX: usize = 8;
/// The most hot counters a namespace names.
pub const HOT_COUNTERS_MAX: usize = 64;
/// The most namespaces of one catalog.
pub const NAMESPACES_MAX: usize = 10_000;
/// The longest name of who changes a namespace, in bytes.
pub const ACTOR_BYTES_MAX: usize = 256;
/// How deep the values of a namespace document are nested, at most.
pub const DOCUMENT_DEPTH_MAX: usize = 32;
/// The most fields of one table of a namespace document.
pub const DOCUMENT_FIELDS_MAX: usize = 256;
/// The longest name of a field of a namespace document, in bytes.
pub const DOCUMENT_KEY_BYTES_MAX: usize = 256;
/// The longest text that a refused namespace document is answered with, in bytes; what is longer is cut.
pub const DOCUMENT_REFUSAL_BYTES_MAX: usize = 2_048;
/// The most things of a namespace document that cannot be mapped; a document with more is of another kind.
pub const DOCUMENT_UNMAPPED_MAX: usize = 1_000;
/// How often a change of the catalog is tried again when another server changed it in between.
pub const CATALOG_ATTEMPTS_MAX: u32 = 5;
/// The old versions of namespaces kept in memory.
pub const NAMESPACE_VERSIONS_CACHED: usize = 4_096;

/// The most unrolled events an UP_TO_DATE read adds up one by one; past it, it rolls first.
pub const TAIL_EVENTS_MAX: usize = 10_000;
/// The exports of one name that stand beside each other; a store that has yet another one to write keeps its slice.
pub const EXPORTS_OF_A_SLICE_MAX: usize = 100;
/// The events of one page of a log scan.
pub const SCAN_PAGE_EVENTS: usize = 1_000;
/// The events that a fold takes before it lets others have their turn, and looks whether its caller still waits.
pub const FOLD_EVENTS_AT_ONCE_MAX: usize = 1_000;
/// The counters that one server recounts, or explains, at once for its callers; others wait for their turn within their deadlines.
pub const RECOUNTS_AT_ONCE_MAX: usize = 4;
/// The rows of the log that an explanation of a counter shows, at most.
pub const EXPLAIN_ROWS_MAX: usize = 100;
/// The rows of the log that an explanation of a counter shows when none are asked for.
pub const EXPLAIN_ROWS_DEFAULT: usize = 10;
/// The newest time buckets whose records an explanation of a counter reads, to say how many rows it does not show.
pub const EXPLAIN_BUCKETS_MAX: u32 = 1_000;
/// The watches of counters that begin, read or end before calls have their turn again.
pub const WATCH_TURNS_AT_ONCE_MAX: usize = 16;
/// The counters that a watch reads in one turn.
pub const WATCH_READS_OF_A_TURN_MAX: usize = 16;
/// The adds one server holds before they are durable, in bytes; past it, adds are told RETRY_LATER.
pub const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The rolls and other upkeep that one embedded store has lined up, in bytes; past it, upkeep is tried again later.
pub const UPKEEP_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The verdicts one server works on at once; past it, RETRY_LATER.
pub const VERDICTS_AT_ONCE_MAX: usize = 256;
/// The bytes of all rollup Sets of one roller.
pub const ROLLUP_SETS_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The counters one batch or list reads at once.
pub const CALL_READS_AT_ONCE_MAX: usize = 16;
/// The late items of one batch that are settled at once; few enough that one full stream leaves no verdict to RETRY_LATER.
pub const CALL_VERDICTS_AT_ONCE_MAX: usize = 16;
/// The partitions a rollup batch reads at once, at most.
pub const ROLLUP_READS_AT_ONCE_MAX: usize = 64;
/// The items of batches and streams that one dataset has taken in at once: what the embedded store writes in about a second.
/// A stream reads no further until its items are taken in.
pub const BATCHED_ITEMS_AT_ONCE_MAX: usize = 256 * 1_024;
/// The batches of a stream that may wait for the store at once.
pub const STREAM_BATCHES_AT_ONCE_MAX: usize = 16;

/// The counters of a LOW namespace that circulate in one rollup queue although nothing new is known of them.
pub const ROLLUP_CIRCULATING_MAX: usize = 4_096;
/// How often a row of the embedded store is read again when its counter was written meanwhile.
pub const ROW_LOADS_MAX: usize = 64;
/// The longest time for which a commit of the embedded store waits for more adds, where more have lately come in so much.
pub const COMMIT_GATHER_MAX: Duration = Duration::from_millis(1);
/// The most adds that a commit of the embedded store waits for.
pub const COMMIT_GATHER_ADDS_MAX: usize = 16;
/// A commit of the embedded store is closed once it holds so many events.
pub const COMMIT_EVENTS_MAX: usize = 2_048;
/// A commit of the embedded store is closed once it holds so many bytes.
pub const COMMIT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Of what fills a commit, settlements leave one part in so many to dequeues and adds, and these to enqueues and reads; in
/// what one store call brings to a shard as well.
pub const COMMIT_LANE_PART: usize = 8;
/// What the journals of the embedded store may take beside the one in use, in bytes; a start replays both.
pub const JOURNAL_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// The bytes of table files that the embedded store compares with their checksums before it opens, the newest first.
pub const VERIFY_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// The rows of one piece of a backup, in bytes; a row that is longer is a piece of its own.
pub const BACKUP_PIECE_BYTES_MAX: usize = 256 * 1024;
/// The bytes of one block of a backup file that is read, far above the longest row.
pub const BACKUP_BLOCK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Memory tables of the embedded store of which the thread that frees them was not told yet.
pub const RETIRED_NEWS_MAX: usize = 1_024;
/// The newest events of a counter lie in memory in chunks of at most this many.
pub const TAIL_CHUNK_EVENTS_MAX: usize = 128;
/// The most shards of the table of best-effort counters.
pub const FAST_SHARDS_MAX: usize = 64;
/// The memcached servers of one cluster, replicas counted one by one.
pub const MEMCACHED_SERVERS_MAX: usize = 64;
/// The longest key that is sent to memcached as it is, in bytes; the name in a longer one is replaced by its hash.
pub const MEMCACHED_KEY_BYTES_MAX: usize = 200;
/// The longest prefix of keys in memcached, in bytes.
pub const MEMCACHED_PREFIX_BYTES_MAX: usize = 64;
/// The longest lifetime that memcached reads as a number of seconds from now; a greater number is a date to it.
pub const MEMCACHED_LIFETIME_SECONDS_MAX: u32 = 30 * 24 * 3_600;
/// The calls of one memcached server that wait or are under way; further ones wait for a place.
pub const MEMCACHED_CALLS_AT_ONCE_MAX: usize = 64;
/// The shared round trips under way to one memcached server; calls that come meanwhile share the next.
pub const MEMCACHED_TRIPS_AT_ONCE: usize = 1;
/// So many calls of one memcached server go alone after it refused what a shared round trip asked of a key.
pub const MEMCACHED_ALONE_AFTER_REFUSAL: u32 = 10_000;
/// The longest time that a call of memcached may be told to wait for a place, a connection and an answer, each.
pub const MEMCACHED_TIMEOUT_MAX: Duration = Duration::from_millis(10_000);
/// A memcached server that answered nothing for so long may have closed its connections: that is looked up before a call.
pub const MEMCACHED_QUIET_MAX: Duration = Duration::from_millis(1);
/// How long a value of the count cache lasts in memcached, in whole seconds of its clock. So does the right to fill a key
/// that holds none: whatever was read before a clear is gone after twice this time.
pub const CACHE_ENTRY_SECONDS: u32 = 4;
/// A count that was read longer ago is not put into the count cache any more.
pub const CACHE_LEASE_MAX: Duration = Duration::from_secs(1);
/// A clear whose cache could not be reached is visible everywhere after this time.
pub const CLEAR_VISIBLE_WITHIN: Duration = Duration::from_secs(10);
/// The counters whose newest told `as_of` one server remembers where its count cache or its store is shared
/// with others.
pub const TOLD_COUNTERS_MAX: usize = 262_144;
/// The longest time for which memcached may be told to remember the tokens of best-effort adds: a day.
pub const DEDUPE_SECONDS_MAX: u32 = 86_400;
/// How often one call is sent to one memcached server, where sending it again cannot count twice.
pub const MEMCACHED_ATTEMPTS_MAX: u32 = 2;
/// After so many failures in a row, a memcached server is paused: calls of it fail at once. One that was late counts for all.
pub const MEMCACHED_FAILURES_MAX: u32 = 3;
/// The first pause of a memcached server; each further one is twice as long.
pub const MEMCACHED_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause of a memcached server.
pub const MEMCACHED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a start waits for the memcached servers of a cluster.
pub const MEMCACHED_START_WITHIN: Duration = Duration::from_secs(3);

/// The nodes of one Cassandra cluster that are named.
pub const CASSANDRA_SERVERS_MAX: usize = 64;
/// How often one request of Cassandra is sent by itself, where sending it again cannot count twice.
pub const CASSANDRA_ATTEMPTS_MAX: u32 = 4;
/// The first pause before a request of Cassandra is sent again; each further one is twice as long, up to 32 times.
pub const CASSANDRA_PAUSE_MIN: Duration = Duration::from_millis(50);
/// After this time the caller of an append on Cassandra is told that its outcome is unknown; the write goes on.
pub const CASSANDRA_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a start on Cassandra goes on that gets no further: all its clusters and steps together, memcached among them. A
/// change of a schema that was made lets it begin anew.
pub const CASSANDRA_START_WITHIN: Duration = Duration::from_secs(9);
/// How long one change of a Cassandra schema may take.
pub const CASSANDRA_DEFINE_WITHIN: Duration = Duration::from_secs(30);
/// How often one step of looking at a schema or changing it is sent by itself; with the pauses, over about five seconds.
pub const CASSANDRA_DEFINE_ATTEMPTS_MAX: u32 = 8;
/// The rows of one batch of a partition.
pub const PARTITION_BATCH_ROWS_MAX: usize = 500;
/// The partitions whose rows go in one request; from eleven on Cassandra logs a warning.
pub const GATHERED_PARTITIONS_MAX: usize = 10;
/// The bytes of the rows of several partitions in one request; Cassandra warns from 5 KiB on and refuses from 50.
pub const GATHERED_BYTES_MAX: usize = 4 * 1024;
/// Requests under way to one replica from which on rows wait for others, to be written with them.
pub const GATHERED_REQUESTS_AT_ONCE: usize = 4;
/// How long rows wait so.
pub const GATHERED_WAIT_MAX: Duration = Duration::from_millis(10);
/// The partitions one call writes at once.
pub const PARTITION_WRITES_AT_ONCE_MAX: usize = 128;
/// The partitions one call reads at once.
pub const PARTITION_READS_AT_ONCE_MAX: usize = 16;
/// The time buckets of one scan that are read at once.
pub const TIME_BUCKETS_AT_ONCE_MAX: usize = 4;
/// The counters of a slice that its export lists at once.
pub const SLICE_COUNTERS_LISTED_MAX: usize = 100_000;
/// The touches that one process remembers to have stored, so that it need not store them again.
pub const TOUCHES_REMEMBERED_MAX: usize = 262_144;
/// The names of counters that one process remembers to have stored.
pub const NAMES_REMEMBERED_MAX: usize = 262_144;
/// The checkpoints whose time one process remembers.
pub const HEADS_REMEMBERED_MAX: usize = 262_144;
/// The tokens that one process remembers to have written, on stores that do not see reuse.
pub const TOKENS_REMEMBERED_MAX: usize = 262_144;
/// The longest lifetime of a series row on Cassandra: ten years. What is kept longer does not expire by itself.
pub const SERIES_TTL_SECONDS_MAX: i32 = 10 * 366 * 86_400;
/// How long a member of a fleet counts without a new heartbeat.
pub const MEMBER_LEASE: Duration = Duration::from_secs(30);
/// What a member stops acknowledging before its lease ends, and others wait beyond it.
pub const MEMBER_LEASE_MARGIN: Duration = Duration::from_secs(2);
/// How often a member of a fleet writes its heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// The statements that are prepared on a Cassandra cluster at once.
pub const PREPARED_AT_ONCE_MAX: usize = 16;
/// How long a member waits for the frontier of a dataset that it joins; heartbeats wait that long, so it is a fraction of
/// the lease.
pub const FRONTIER_READ_WITHIN: Duration = Duration::from_secs(5);
/// How long a write of events that stays in doubt is sent again; then limits may pass it, and whoever finds its row later
/// has the bucket compared.
pub const HOLD_GIVEN_UP_AFTER: Duration = Duration::from_secs(30);
/// The datasets of one cluster, and then the namespaces, that a server opens at once when it follows the catalog.
pub const DATASETS_FOLLOWED_AT_ONCE_MAX: usize = 16;
/// How often a server looks whether another one has changed the catalog.
pub const CATALOG_FOLLOWED_EVERY: Duration = Duration::from_secs(1);
/// The counters whose rollup signals wait to be sent to other servers; further ones are dropped.
pub const SIGNALS_WAITING_MAX: usize = 65_536;
/// How long a call with rollup signals may take; then its signals are dropped.
pub const SIGNAL_CALL_WITHIN: Duration = Duration::from_millis(500);
/// The rollers to which one server keeps connections for its rollup signals.
pub const SIGNAL_ROLLERS_MAX: usize = 256;
/// How often it is looked whether time buckets may be sealed.
pub const SEAL_INTERVAL: Duration = Duration::from_secs(10);
/// Of namespaces whose cardinality is not LOW, one time bucket in so many is sealed; of those that are LOW, every one.
pub const SEAL_SAMPLE_EVERY: u64 = 64;
/// The time buckets that one pass of sealing remembers to have compared.
pub const SEAL_BUCKETS_NOTED_MAX: usize = 65_536;
/// How often the repair of one bucket is tried again when another repair of its counter came in between.
pub const REPAIR_ATTEMPTS_MAX: u32 = 8;
/// The longest name of a keyspace; Cassandra takes 48 characters.
pub const KEYSPACE_NAME_BYTES_MAX: usize = 48;
/// The touch shards of a dataset; fixed for ever, because shard numbers are stored.
pub const TOUCH_SHARDS: u32 = 64;
/// The step of touches and the grain of buckets and slices; fixed for ever, because steps are stored.
pub const STEP: Duration = Duration::from_secs(10);
/// The time slices that a gap between others is filled with one by one; a longer gap becomes one slice.
pub const GAP_SLICES_MAX: u32 = 64;
/// A hold older than this is given up alone, where the engine can leave an outcome unknown.
pub const HOLD_AGE_MAX: Duration = Duration::from_secs(30);

/// The longest duration of a setting: a century, far from where sums with times overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);
/// The least accept limit.
pub const ACCEPT_LIMIT_MIN: Duration = Duration::from_millis(500);
/// The least future limit by default; the default is the greater of this and the accept limit.
pub const FUTURE_LIMIT_FLOOR: Duration = Duration::from_secs(5);
/// How long one call that reads may wait for limits and inline rolls, all its counters together.
pub const INLINE_ROLL_BUDGET: Duration = Duration::from_millis(20);
/// The deadline of a call that brings none.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(2);
/// The longest deadline of a call that is no stream; a longer one is cut to it.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3_600);
/// A call that brings a deadline nearer than this is refused at once: no work can be finished in it.
pub const DEADLINE_LEAST: Duration = Duration::from_millis(1);
/// The connections of one server, where the limit of descriptors leaves so many; half of them from one address.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Connections beside these, from which one page such as `/healthz` can be read however many there are.
pub const SPARE_CONNECTIONS_MAX: usize = 8;
/// How long such a connection may take in all.
pub const SPARE_CONNECTION_TIME: Duration = Duration::from_secs(1);
/// The descriptors that are left to the store and to outgoing connections, whatever the limit of the system is.
pub const DESCRIPTORS_RESERVED: usize = 256;
/// The calls under way on one HTTP/2 connection.
pub const CONNECTION_CALLS_MAX: u32 = 1_024;
/// The calls of one HTTP/2 connection that begin at once; the others wait until these wait or have ended.
pub const CONNECTION_BEGINS_MAX: usize = 4;
/// What one HTTP/2 stream may send before it is read, in bytes.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// What one HTTP/2 connection may send before it is read, in bytes.
pub const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// The headers of one request, in bytes.
pub const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// A connection must send its first byte, and an HTTP/1.1 request its headers, within this time.
pub const HEADERS_TIMEOUT: Duration = Duration::from_secs(30);
/// An HTTP/2 connection that was silent for this long is asked whether it is still there.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// A connection that does not answer that question within this time is closed.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a running server asks each of its stores whether it answers.
pub const STORE_ASKED_EVERY: Duration = Duration::from_secs(1);
/// How long a store may take to answer that.
pub const STORE_ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// A store that has answered nothing for this long is away: what it keeps is not served, and the server says so.
pub const STORE_SILENCE_MAX: Duration = Duration::from_secs(8);
/// How often a server judges anew whether it is ready.
pub const READINESS_JUDGED_EVERY: Duration = Duration::from_millis(250);
/// What the time between two judgements counts for at most: a server that was stopped itself has not asked meanwhile.
pub const JUDGED_STEP_MAX: Duration = Duration::from_secs(1);
/// How often a limit is published, at most.
pub const LIMIT_PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// How often watermarks are written, at most.
pub const WATERMARK_INTERVAL: Duration = Duration::from_secs(10);

/// The datasets that the metrics page shows one by one, the oldest first; the rest is shown as one.
pub const METRIC_DATASETS_MAX: usize = 100;
/// The queues that the metrics page shows one by one, by name; the rest is shown as one.
pub const METRIC_QUEUES_MAX: usize = 100;
/// The namespaces whose writes and reads the metrics page shows one by one, as they come; the rest is shown as one.
pub const METRIC_NAMESPACES_MAX: usize = 100;
/// The filters without an index that the metrics page shows one by one, by their keys; the rest is shown as one.
pub const METRIC_SHAPES_MAX: usize = 20;
/// The counters that `ns rm` counts before it asks; beyond it, it says "more than".
pub const NS_DELETE_COUNTED_MAX: usize = 100_000;

/// All calls, in thousandths: the most that can be traced.
pub const SAMPLE_PER_MILLE_MAX: u32 = 1_000;
/// The rollup queues of a namespace, at most.
pub const NUM_QUEUES_MAX: u32 = 256;
/// The least coalescing time of a rollup queue, in milliseconds.
pub const COALESCE_MS_MIN: u32 = 10;
/// The greatest coalescing time of a rollup queue, in milliseconds.
pub const COALESCE_MS_MAX: u32 = 600_000;
/// The most counters of a rollup batch.
pub const ROLLUP_BATCH_COUNT_MAX: u32 = 1_024;
/// The largest partition of a counter that a plan allows, in bytes; Cassandra reads larger ones badly.
pub const PARTITION_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// The counters with larger partitions that one process remembers having warned of.
pub const WIDE_COUNTERS_TOLD_MAX: usize = 4_096;
/// The most event buckets of a time bucket.
pub const BUCKETS_PER_ID_MAX: u32 = 256;

const _: () = assert!(BATCH_ITEMS_MAX <= BATCHED_ITEMS_AT_ONCE_MAX, "a batch waits for no more room than there is");

const _: () = assert!(
    CALL_VERDICTS_AT_ONCE_MAX * STREAM_BATCHES_AT_ONCE_MAX <= VERDICTS_AT_ONCE_MAX,
    "the batches of one stream may ask for more verdicts than a server gives at once"
);

const _: () = assert!(
    2 * (CACHE_ENTRY_SECONDS as u64 + 1) <= CLEAR_VISIBLE_WITHIN.as_secs(),
    "a value read before a clear is filled within one life of an entry and lasts one more; memcached's clock adds a second"
);

const _: () = assert!(PAGE_CURSOR_BYTES_MAX >= COUNTER_NAME_BYTES_MAX + 64, "a cursor is a name or an event's key");

const _: () = assert!(TOP_COUNTERS_KEPT_MAX > TOP_COUNTERS_MAX, "a ranking keeps more than is asked for");
