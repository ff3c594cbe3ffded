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
/// The longest register beside a cursor of the history, in bytes.
pub const REGISTER_BYTES_MAX: usize = 4_096;
/// The shards whose rows are carried to the history in one round.
pub const RELAY_SHARDS_OF_A_ROUND_MAX: usize = 256;
/// The outboxes that a round reads at once.
pub const RELAY_READS_AT_ONCE_MAX: usize = 16;
/// The appends to the history at once, each of other shards.
pub const RELAY_APPENDS_AT_ONCE_MAX: usize = 4;
/// The shards whose cursors the relay keeps in memory between rounds.
pub const RELAY_SHARDS_KEPT_MAX: usize = 65_536;
/// The pages of an outbox that are compared with the history to find where a shard went back.
pub const RELAY_COMPARED_PAGES_MAX: usize = 256;
/// The findings that a check keeps; more are counted only.
pub const CHECK_FINDINGS_MAX: usize = 10_000;
/// The messages of a check whose versions are read again once the history has caught up.
pub const CHECK_SUSPECTS_MAX: usize = 10_000;
/// The messages that a check compares with the history at once.
pub const CHECK_TRACES_AT_ONCE_MAX: usize = 16;
/// The messages of one page of a check, and the rows of one page of a trace.
pub const CHECK_PAGE_MAX: usize = 500;
/// The gaps of a queue that a check takes into account.
pub const CHECK_GAPS_MAX: usize = 10_000;
/// The attempts of a step of the relay that other relays overtake.
pub const RELAY_OVERTAKEN_MAX: usize = 4;
