//! Every hard bound of queues. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

/// The longest name of a queue, in bytes.
pub const QUEUE_NAME_BYTES_MAX: usize = 128;
/// The most shards of a queue.
pub const QUEUE_SHARDS_MAX: u32 = 256;
/// The totals that queues report to their counters in one append.
pub const QUEUE_TOTALS_AT_ONCE_MAX: usize = 5_000;
/// The counters of queues whose known totals are read at a time.
pub const KNOWN_TOTALS_PAGE_MAX: usize = 256;
/// The most queues and templates of one catalog.
pub const QUEUES_MAX: usize = 10_000;
/// The queues that templates have made for the first enqueues of one caller since the server started, and that are there.
/// A caller with a key has the quota of its key instead.
pub const CALLER_TEMPLATE_QUEUES_MAX: usize = 5_000;
/// The places for queues that are left to CreateQueue: templates make none in them.
pub const QUEUES_FOR_CREATION_MIN: usize = 1_000;
/// The most priority classes of a queue.
pub const PRIORITY_CLASSES_MAX: usize = 32;
/// The most messages of one batch of enqueues or settlements.
pub const QUEUE_BATCH_ITEMS_MAX: usize = 100;
/// The most a reply with messages holds, in bytes; what is left over is asked for again.
pub const QUEUE_REPLY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// What one message may take in a reply, in bytes.
pub const QUEUE_MESSAGE_BYTES_MAX: usize = 36 * 1024;
/// How often a dequeue that waits for nothing goes on looking where a bound left something over.
pub const DEQUEUE_ROUNDS_MAX: usize = 16;
/// The walks of filters without an index that are remembered for one shard.
pub const SHARD_WALKS_MAX: usize = 64;
/// How long a dequeue with a filter goes by what the same filter got of a shard before.
pub const FILTER_PLACE_KEPT: Duration = Duration::from_secs(1);
/// The longest wait of a dequeue inside the server; a longer one is cut to it, and answered empty then.
pub const DEQUEUE_WAIT_MAX: Duration = Duration::from_secs(20);
/// A dequeue that waits at least this long relies on the news of other servers. News takes milliseconds. Where it was lost, the
/// store is read again within 30 seconds.
pub const DEQUEUE_HEARS_NEWS: Duration = Duration::from_secs(1);
/// The longest type or trace context of a message, in bytes.
pub const MESSAGE_TYPE_BYTES_MAX: usize = 256;
/// The most sessions that one page of a list looks at; a page of a queue may be empty and yet have a next one.
pub const SESSION_LIST_LOOKED_AT_MAX: usize = 10_000;
/// The same where servers share their sessions, whose rows a page reads from the store.
pub const SESSION_ROWS_LOOKED_AT_MAX: usize = 1_000;
/// The longest request token of a deletion, purge, cancel, redrive, discard or update of a message, in bytes.
pub const REQUEST_TOKEN_BYTES_MAX: usize = 64;
/// The commands of each class that wait for one shard; past it, RETRY_LATER. One key may have no more of them than are free.
pub const SHARD_CALLS_WAITING_MAX: usize = 10_000;
/// The commands that one store call brings to a shard.
pub const SHARD_COMMANDS_MAX: usize = 512;
/// A second store call goes out for a shard once so many commands wait for it; fewer travel together after the first.
pub const SHARD_COMMANDS_PILED: usize = 128;
/// The store calls that are out for one shard at once.
pub const SHARD_CALLS_OUT_MAX: usize = 2;
/// How old what the status and the metrics page say of queues may be: one reading serves all who ask meanwhile.
pub const OVERVIEW_AGE_MAX: Duration = Duration::from_secs(1);
/// The shards that are swept in one round.
pub const SWEEPS_OF_A_ROUND_MAX: usize = 1_024;
/// The shards that are swept at once.
pub const SWEEPS_AT_ONCE_MAX: usize = 16;
/// The shards that a peek reads at once, each as many messages as it shows.
pub const PEEK_SHARDS_AT_ONCE_MAX: usize = 8;
/// The shards whose status a dequeue reads at once, where servers share a store and it has found nothing.
pub const DEQUEUE_SHARDS_READ_AT_ONCE_MAX: usize = 16;
/// The messages that one step of a list reads.
pub const LIST_STEP_MESSAGES_MAX: usize = 100;
/// The messages that an explanation looks at to say how many are served before one.
pub const EXPLAIN_POSITION_MAX: usize = 100;
/// The purges, cancels, redrives and discards that a server knows.
pub const OPERATIONS_MAX: usize = 10_000;
/// Those of one caller; its oldest that has ended gives way to a new one. A caller with a key has the quota of its key instead.
pub const CALLER_OPERATIONS_MAX: usize = 5_000;
/// The purges, cancels, redrives and discards with a request token that a store keeps for those who repeat them after a restart.
pub const QUEUE_REQUESTS_KEPT_MAX: usize = 100_000;
/// Those that are kept for one caller since the server started.
pub const CALLER_QUEUE_REQUESTS_KEPT_MAX: usize = 50_000;
/// How long a purge, cancel, redrive or discard is known after its end.
pub const OPERATION_KEPT: Duration = Duration::from_secs(3_600);
/// The watches of queues that one server holds open.
pub const QUEUE_WATCHES_MAX: usize = 20_000;
/// Those of one caller.
pub const CALLER_QUEUE_WATCHES_MAX: usize = 10_000;
/// The work streams that one server holds open.
pub const WORK_STREAMS_MAX: usize = 20_000;
/// Those of one caller.
pub const CALLER_WORK_STREAMS_MAX: usize = 10_000;
/// The least time between two looks of a watch at a queue.
pub const WATCH_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// A watch of a queue that does not change says so after this time.
pub const WATCH_SILENCE_MAX: Duration = Duration::from_secs(10);
/// The requests to cancel running messages that are kept for streams that are slow to hear of them.
pub const CANCEL_NEWS_MAX: usize = 1_024;
/// The credit of one work stream, in leases.
pub const WORK_CREDIT_MAX: u32 = 1_000;
/// The leases that a work stream asks for at once.
pub const WORK_LEASES_AT_ONCE_MAX: usize = 50;
/// The leases of a work stream that are remembered, to be released at its end; older ones end by themselves.
pub const WORK_LEASES_KEPT_MAX: usize = 2_000;
/// The queues that one work stream serves.
pub const WORK_QUEUES_MAX: usize = 16;
/// A work stream whose filter has no index looks through its queues again after this pause.
pub const WORK_WALK_PAUSE: Duration = Duration::from_millis(100);
/// The longest id of a message, in bytes.
pub const MESSAGE_ID_BYTES_MAX: usize = 64;
/// The longest exclusivity value or shard key of a message, in bytes.
pub const ROUTING_BYTES_MAX: usize = 256;
/// The largest payload of a message, in bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 * 1024;
/// The most metadata pairs of a message.
pub const METADATA_PAIRS_MAX: usize = 4;
/// The longest metadata key, in bytes.
pub const METADATA_KEY_BYTES_MAX: usize = 64;
/// The longest metadata value, in bytes.
pub const METADATA_VALUE_BYTES_MAX: usize = 256;
/// The keys and values of a message's metadata together, in bytes: as many as 4 pairs of the longest take.
pub const METADATA_BYTES_MAX: u32 = 1_280;
/// The greatest priority, and with a minus the least: the whole numbers that every store keeps exactly.
pub const PRIORITY_MAX: i64 = 9_007_199_254_740_992;
/// What a priority class adds to now at most, in milliseconds, and with a minus the least: half of the greatest priority, so
/// that the sum is one.
pub const PRIORITY_OFFSET_MAX: i64 = PRIORITY_MAX / 2;
/// The most attempts of a message.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// The releases of a message that give its attempt back.
pub const RELEASES_FREE_MAX: u32 = 10;
/// The updates with a token that a message remembers the answers of.
pub const UPDATES_KEPT_MAX: usize = 8;
/// The longest signature or text of a worker's error, in bytes.
pub const ERROR_TEXT_BYTES_MAX: usize = 1_024;
/// The most messages of one dequeue.
pub const DEQUEUE_MESSAGES_MAX: usize = 100;
/// The most messages of one exclusivity value in flight at once.
pub const VALUE_IN_FLIGHT_MAX: u32 = 10_000;
/// The most exclusivity values of a shard that have a limit of their own.
pub const VALUE_LIMITS_MAX: usize = 10_000;
/// The exclusivity values met at their limit that one dequeue sets aside.
pub const DEQUEUE_PARKINGS_MAX: usize = 64;
/// The exclusivity values that one step of taking up a higher limit looks at.
pub const VALUES_RECHECKED_MAX: usize = 256;
/// The filter shapes of a queue: all subsets of four keys.
pub const SHAPES_MAX: usize = 15;
/// The messages that a filter without a declared shape looks at in one call.
pub const FILTER_WALK_MAX: usize = 256;
/// The due messages and expired leases that every dequeue handles; one of many messages handles two for each.
pub const DEQUEUE_DUE_MIN: usize = 16;
/// The most messages that one step of a sweep, purge, cancel, redrive or discard touches.
pub const BULK_MESSAGES_MAX: usize = 256;
/// What one kept answer to an enqueue counts for, in bytes.
pub const DEDUPE_RECORD_BYTES: usize = 256;
/// The answers to enqueues are kept and dropped in buckets of this width.
pub const DEDUPE_BUCKET: Duration = Duration::from_mins(10);
/// The shortest time for which answers to enqueues are kept: so far may the clock of a caller lie behind.
pub const DEDUPE_WINDOW_MIN: Duration = Duration::from_secs(60);
/// The least that the kept answers of a shard may take, in bytes.
pub const DEDUPE_SHARD_BYTES_MIN: usize = 64 * 1024;
/// The longest time for which answers to enqueues are kept.
pub const DEDUPE_WINDOW_MAX: Duration = Duration::from_secs(24 * 3_600);
/// For how long after its enqueue the same call is a repeat, where ids may come again once their messages are over.
pub const REUSED_ID_REPEATED_MAX: Duration = Duration::from_secs(60);
/// How far the time of a message's token may lie ahead.
pub const TOKEN_AHEAD_MAX: Duration = Duration::from_secs(60);
/// The leases, and the held values, that an explanation names.
pub const EXPLAIN_HOLDERS_MAX: usize = 10;
/// The answers of a session that a shard remembers, and the repeated calls.
pub const SESSION_CALLS_KEPT: usize = 8;
/// How long a shard remembers a session after its last lease has ended.
pub const SESSION_KEPT: Duration = Duration::from_mins(10);
/// The most sessions that a shard remembers.
pub const SESSIONS_MAX: usize = 50_000;
/// The lease of a session that asks for none.
pub const SESSION_LEASE_DEFAULT: Duration = Duration::from_secs(30);
/// The longest label of a session, in bytes.
pub const SESSION_LABEL_BYTES_MAX: usize = 256;
/// The sessions that a server knows.
pub const SERVER_SESSIONS_MAX: usize = 100_000;
/// The sessions of one caller that a server knows, beside those that it found at its start. A caller with a key has the quota of
/// its key instead.
pub const CALLER_SESSIONS_MAX: usize = 50_000;
/// The sessions of all servers that a store knows.
pub const STORE_SESSIONS_MAX: usize = 1_000_000;
/// How often a server asks which sessions have ended at other servers.
pub const SESSION_ENDS_FOLLOWED_EVERY: Duration = Duration::from_millis(500);
/// How late the directory of sessions may hear of a session, beside a quarter of its lease.
pub const SESSION_HEARD_LATE: Duration = Duration::from_secs(1);
/// The last ends of sessions that a store keeps for servers that follow them.
pub const SESSION_ENDS_KEPT_MIN: usize = 10_000;
/// The ends of sessions that one read returns.
pub const SESSION_ENDS_PAGE_MAX: usize = 1_000;
/// The heartbeats of sessions that one write brings to the store.
pub const SESSION_HEARTBEATS_AT_ONCE_MAX: usize = 100;
/// The forgotten sessions that one step removes from the store.
pub const SESSION_ROWS_FORGOTTEN_MAX: usize = 1_000;
/// The end of a session that its server has not finished for so long is finished by others.
pub const SESSION_END_TAKEN_OVER_AFTER: Duration = Duration::from_secs(5);
/// The unfinished ends of sessions that a server takes over at a time.
pub const SESSION_ENDS_TAKEN_OVER_MAX: usize = 64;
/// The numbers of calls that a stream reserves for its session, where several servers share the store.
pub const STREAM_CALLS_RESERVED: u64 = 1 << 32;
/// How often a stream repeats a call of its own whose answer was lost.
pub const STREAM_REPEATS_MAX: usize = 8;
/// How often the server repeats a dequeue without a session whose answer was lost.
pub const LOST_ANSWER_REPEATS_MAX: usize = 12;
/// The longest pause between two repeats of a call whose answer was lost.
pub const LOST_ANSWER_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The shards in which a session may hold leases.
pub const SESSION_SHARDS_MAX: usize = 4_096;
/// The shards that a heartbeat or the end of a session asks at once.
pub const SESSION_SHARDS_AT_ONCE_MAX: usize = 16;
/// The steps of 256 leases that the end of a session waits for in one shard; the rest ends by sweeps.
pub const SESSION_END_STEPS_MAX: usize = 16;
/// The shortest lease of a message or session.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// The longest lease of a message or session.
pub const LEASE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// The longest invisibility of a message: 10 years.
pub const INVISIBILITY_MAX: Duration = Duration::from_secs(3_652 * 86_400);
/// The longest TTL or retention of a message: 10 years.
pub const MESSAGE_TTL_MAX: Duration = Duration::from_secs(3_652 * 86_400);

const _: () = assert!(
    METADATA_BYTES_MAX as usize == METADATA_PAIRS_MAX * (METADATA_KEY_BYTES_MAX + METADATA_VALUE_BYTES_MAX),
    "a queue that lowers nothing takes whatever metadata the service takes"
);

/// The longest pair of a metadata key and its value that the name of a counter shows whole, in escaped bytes.
pub const COUNTED_PAIR_BYTES_MAX: usize = 100;
/// The bytes of a longer pair that the name of a counter shows, before its hash.
pub const COUNTED_PAIR_HEAD_BYTES: usize = 60;
/// The most metadata keys by whose values a queue counts.
pub const COUNT_BY_KEYS_MAX: usize = 4;
/// The most values of one key with counts of their own, in one shard.
pub const COUNT_BY_VALUES_MAX: u32 = 10_000;
/// The most values with counts of their own in all shards of a store.
pub const COUNTED_VALUES_MAX: usize = 1_000_000;
/// The most different sets of counted keys that the messages of a shard may have.
pub const COUNTED_KEY_SETS_MAX: usize = 64;
/// The most error signatures with counts of their own, in one shard.
pub const TALLIED_SIGNATURES_MAX: usize = 1_000;
/// The most rows of one batch of the history.
pub const HISTORY_BATCH_ROWS_MAX: usize = 10_000;
/// How long rows of the history are kept, unless `bridge.history_retention_days` says otherwise.
pub const HISTORY_RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 86_400);
/// The most rows that one read of an outbox returns.
pub const OUTBOX_PAGE_ROWS_MAX: usize = 5_000;
/// The most shards whose counts the bridge reads at once.
pub const BRIDGE_READS_AT_ONCE_MAX: usize = 64;
/// The most queues that the bridge takes over at once.
pub const BRIDGE_TAKEOVERS_AT_ONCE_MAX: usize = 16;
/// The most queues whose counters the bridge reads back in one step.
pub const BRIDGE_READ_BACKS_MAX: usize = 16;
/// The longest pause before the bridge tries a failed report again.
pub const BRIDGE_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The most rows of all outboxes of queues in memory, before the largest gives way.
pub const MEMORY_OUTBOX_ROWS_MAX: usize = 500_000;
