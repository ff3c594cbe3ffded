//! Bounds of reads of the history of messages and of the counters of queues.

/// The most rows that a trace reads from the outbox of a shard: those that the history does not have yet.
pub const TRACE_OUTBOX_ROWS_MAX: usize = 20_000;
/// The most lives of one message id that a trace shows, the newest ones.
pub const TRACE_LIVES_MAX: usize = 100;
/// The most epochs of one message that a trace tells apart.
pub const TRACE_EPOCHS_MAX: usize = 64;
/// The most gaps of the history that one answer shows, the newest ones.
pub const HISTORY_GAPS_SHOWN_MAX: usize = 1_000;
/// The rows of the history at which one search stops, and then answers PARTIAL. Of one message it reads no more than these.
pub const SEARCH_ROWS_MAX: usize = 10_000;
/// The most rows that a search finds in one step.
pub const SEARCH_STEP_ROWS_MAX: usize = 256;
/// The messages that a search judges concurrently.
pub const SEARCH_JUDGED_AT_ONCE_MAX: usize = 16;
/// The most counters of one kind, such as those of error signatures, that `queue stats` lists to find the greatest.
pub const STATS_NAMES_LISTED_MAX: usize = 10_000;
/// The most error signatures, and values of a key, that `queue stats` shows: those with the greatest counts.
pub const STATS_ROWS_SHOWN_MAX: usize = 10;
