//! The bounds of the embedded store. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

/// The queued rolls and other maintenance of one embedded store, in bytes. Beyond it, maintenance is retried later.
pub const UPKEEP_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The attempts to read a row of the embedded store whose counter is written at the same time.
pub const ROW_LOADS_MAX: usize = 64;
/// The longest wait of a commit of the embedded store for more adds, if recent adds came that fast.
pub const COMMIT_GATHER_MAX: Duration = Duration::from_millis(1);
/// The most adds that a commit of the embedded store waits for.
pub const COMMIT_GATHER_ADDS_MAX: usize = 16;
/// The events at which a commit of the embedded store is closed.
pub const COMMIT_EVENTS_MAX: usize = 2_048;
/// The bytes at which a commit of the embedded store is closed.
pub const COMMIT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The journals of the embedded store besides the active one at which it begins to write what they hold to files, in bytes: the
/// least that the library takes. A startup replays all journals.
pub const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The bytes of table files that the embedded store compares with their checksums before it opens, the newest first.
pub const VERIFY_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// The bytes of table files of the history that the embedded store compares with their checksums before it opens, the newest
/// first.
pub const HISTORY_VERIFY_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The rows of one chunk of a backup, in bytes. A longer row is a chunk of its own.
pub const BACKUP_PIECE_BYTES_MAX: usize = 256 * 1024;
/// The bytes of one block of a backup file that is read, far above the longest row.
pub const BACKUP_BLOCK_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The pending notices of memory tables to the thread of the embedded store that frees them.
pub const RETIRED_NEWS_MAX: usize = 1_024;
/// The events of one chunk of the newest events of a counter in memory.
pub const TAIL_CHUNK_EVENTS_MAX: usize = 128;
/// The size of all outboxes together to which their fill is compared, in bytes.
pub const OUTBOX_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The bodies that a call reads by itself; more are left to a thread of the pool for blocking work.
pub const BODIES_AT_ONCE_MAX: usize = 64;
/// The silent counters that one commit of the embedded store looks at and forgets.
pub const FORGOTTEN_COUNTERS_MAX: usize = 16;
/// The messages of dropped queues that one commit removes.
pub const TIDY_MESSAGES_MAX: usize = 1_000;
/// How long a page of finished messages that still changes waits before the embedded store writes it again.
pub const STUB_PAGE_WRITTEN_AFTER: Duration = Duration::from_secs(30);
/// The pages of finished messages of one shard that one commit writes because they waited that long.
pub const STUB_PAGES_AT_ONCE_MAX: usize = 4;
/// The percentage of that size beyond which the largest outbox gives way.
pub const OUTBOX_KEPT_PERCENT: u64 = 60;
/// The periods of the history of the embedded store. Beyond it, the oldest leave.
pub const HISTORY_PERIODS_MAX: usize = 512;
/// The parts of the size of the history. A period that has outgrown one ends early.
pub const HISTORY_PERIOD_PARTS: u64 = 16;
/// The bytes of the history at which a commit has enough of them; more go to the next commit.
pub const HISTORY_PIECE_BYTES_MAX: usize = 64 * 1024;
/// The rows of one message that the history keeps in one stored value.
pub const HISTORY_GROUP_ROWS_MAX: usize = 16;
/// The rows found by one term that the history keeps in one stored value.
pub const HISTORY_HITS_MAX: usize = 64;
/// The attempts to place a row of the history in a period while periods leave.
pub const HISTORY_PLACEMENTS_MAX: usize = 8;
/// What messages of queues may take in memory where the memory of the machine is not known, in bytes.
pub const QUEUE_MEMORY_BYTES_DEFAULT: u64 = 4 * 1024 * 1024 * 1024;
/// The size of the history of the embedded store by default, in bytes. Beyond it, the oldest period leaves.
pub const HISTORY_BYTES_DEFAULT: u64 = 16 * 1024 * 1024 * 1024;
