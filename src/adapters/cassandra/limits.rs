//! The bounds of Cassandra. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

/// The attempts of one request of Cassandra, if a retry cannot count twice.
pub const CASSANDRA_ATTEMPTS_MAX: u32 = 4;
/// The first backoff of a request of Cassandra. Each further one is twice as long, up to 32 times.
pub const CASSANDRA_PAUSE_MIN: Duration = Duration::from_millis(50);
/// The time after which an append on Cassandra returns an unknown outcome. The write continues.
pub const CASSANDRA_ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The startup deadline on Cassandra, for all clusters and steps together, memcached included. Each completed change of a
/// schema restarts it.
pub const CASSANDRA_START_WITHIN: Duration = Duration::from_secs(9);
/// How long one change of a Cassandra schema may take.
pub const CASSANDRA_DEFINE_WITHIN: Duration = Duration::from_secs(30);
/// The attempts of one step of a schema migration; with the pauses, over about five seconds.
pub const CASSANDRA_DEFINE_ATTEMPTS_MAX: u32 = 8;
/// The rows of one batch of a partition.
pub const PARTITION_BATCH_ROWS_MAX: usize = 500;
/// The partitions whose rows share one request. Cassandra logs a warning from eleven on.
pub const GATHERED_PARTITIONS_MAX: usize = 10;
/// The bytes of the rows of several partitions in one request. Cassandra warns from 5 KiB on and refuses 50 KiB.
pub const GATHERED_BYTES_MAX: usize = 4 * 1024;
/// The requests in flight to one replica from which on rows wait to share a request.
pub const GATHERED_REQUESTS_AT_ONCE: usize = 4;
/// How long rows wait to share a request.
pub const GATHERED_WAIT_MAX: Duration = Duration::from_millis(10);
/// The partitions that one call writes concurrently.
pub const PARTITION_WRITES_AT_ONCE_MAX: usize = 128;
/// The partitions that one call reads concurrently.
pub const PARTITION_READS_AT_ONCE_MAX: usize = 16;
/// The time buckets that one scan reads concurrently.
pub const TIME_BUCKETS_AT_ONCE_MAX: usize = 4;
/// The counters of a slice that its export lists in one step.
pub const SLICE_COUNTERS_LISTED_MAX: usize = 100_000;
/// The stored touches that one process remembers, to avoid writing them again.
pub const TOUCHES_REMEMBERED_MAX: usize = 262_144;
/// The stored counter names that one process remembers.
pub const NAMES_REMEMBERED_MAX: usize = 262_144;
/// The checkpoints whose time one process remembers.
pub const HEADS_REMEMBERED_MAX: usize = 262_144;
/// The written tokens that one process remembers, on stores that do not report duplicates.
pub const TOKENS_REMEMBERED_MAX: usize = 262_144;
/// The longest lifetime of a series row on Cassandra: ten years. Rows that are kept longer do not expire by themselves.
pub const SERIES_TTL_SECONDS_MAX: i32 = 10 * 366 * 86_400;
/// The statements that are prepared on a Cassandra cluster concurrently.
pub const PREPARED_AT_ONCE_MAX: usize = 16;
/// How long a write of events with an unknown outcome is retried. Then limits may pass it, and a row found later has its
/// bucket compared.
pub const HOLD_GIVEN_UP_AFTER: Duration = Duration::from_secs(30);
/// The counters with larger partitions whose warning one process remembers.
pub const WIDE_COUNTERS_TOLD_MAX: usize = 4_096;
/// The time of the rows in one partition of a term of the history. Stored keys depend on it.
pub const HISTORY_PERIOD: Duration = Duration::from_secs(600);
/// The positions of a shard in one partition of a term of the history. Stored keys depend on it.
pub const HISTORY_CHUNK_POSITIONS: u64 = 16_384;
/// How much longer than `bridge.history_retention_days` rows of the history live on Cassandra: clocks may err by as much.
pub const HISTORY_TTL_SPARE: Duration = Duration::from_secs(6 * 3_600);
/// The longest lifetime of rows of the history on Cassandra: ten years.
pub const HISTORY_TTL_SECONDS_MAX: i32 = 10 * 366 * 86_400;
/// The rows of a batch of the history that are written before the next ones.
pub const HISTORY_STEP_ROWS_MAX: usize = 1_000;
/// The shards whose history one call writes concurrently.
pub const HISTORY_SHARDS_AT_ONCE_MAX: usize = 8;
/// The partitions of one shard's history that one call writes concurrently.
pub const HISTORY_WRITES_AT_ONCE_MAX: usize = 64;
/// The partitions with rows of a term that one process remembers, to avoid writing them again.
pub const HISTORY_CHUNKS_REMEMBERED_MAX: usize = 131_072;
/// The rows of a message that one request reads.
pub const TRACE_PAGE_ROWS_MAX: usize = 100;
/// The keys of rows that one request of a search reads, at most.
pub const FOUND_PAGE_ROWS_MAX: usize = 500;
/// The keys of rows that one request of a search reads, at least.
pub const FOUND_PAGE_ROWS_MIN: usize = 16;
/// The partitions with few rows that a search reads ahead in one shard.
pub const FOUND_CHUNKS_AHEAD_MAX: usize = 8;
