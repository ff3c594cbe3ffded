//! The bounds of Redis and Valkey servers. `docs/limits.md` is generated from the doc comments of the constants.

use std::time::Duration;

/// The commands of one call of a Redis server.
pub const REDIS_COMMANDS_A_CALL_MAX: usize = 64;
/// The bytes of the commands of one call of a Redis server.
pub const REDIS_CALL_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The calls of one Redis node that wait or are in flight. Further calls wait for a permit.
pub const REDIS_CALLS_AT_ONCE_MAX: usize = 256;
/// The bytes of the commands in flight to one Redis node. Further calls wait.
pub const REDIS_BYTES_AT_ONCE_MAX: usize = 32 * 1024 * 1024;
/// The connections for calls to each Redis node.
pub const REDIS_CONNECTIONS: usize = 2;
/// How long one attempt to connect to a Redis node may take, its log-in included.
pub const REDIS_CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// How long a start waits for Redis.
pub const REDIS_START_WITHIN: Duration = Duration::from_secs(3);
/// The first pause after a Redis node could not be reached. Each further pause is twice as long.
pub const REDIS_PAUSE_MIN: Duration = Duration::from_millis(20);
/// The longest pause before the next attempt to reach a Redis node.
pub const REDIS_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long calls wait for a Redis node that cannot be reached. Afterwards they fail at once, until it is back.
pub const REDIS_ABSENCE_WAITED_MAX: Duration = Duration::from_secs(2);
/// The silence of a connection to a Redis node, with calls in flight, after which a late call replaces it.
pub const REDIS_SILENCE_MAX: Duration = Duration::from_secs(2);
/// The first pause before a command is sent again that a Redis node refused for the moment. Further ones grow.
pub const REDIS_MOVING_PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause before a command is sent again that a Redis node refused for the moment.
pub const REDIS_MOVING_PAUSE_MAX: Duration = Duration::from_millis(100);
/// The time that a call keeps for the answer to its last attempt; at most a quarter of its deadline.
pub const REDIS_ANSWER_RESERVE: Duration = Duration::from_millis(200);
/// The shortest time between two readings of where the slots or the primary are.
pub const REDIS_LOOK_UP_EVERY: Duration = Duration::from_millis(50);
/// How long one node or Sentinel has to say where the slots or the primary are.
pub const REDIS_LOOK_UP_WITHIN: Duration = Duration::from_millis(500);
/// How often each Sentinel, and a cluster, is asked where the primaries are. One small request each, for each process.
pub const REDIS_PRIMARY_ASKED_EVERY: Duration = Duration::from_secs(1);
/// How long the last word of a Sentinel counts.
pub const REDIS_SENTINEL_WORD_COUNTS: Duration = Duration::from_secs(5);
/// How long nobody may have named a primary before an answer with an older config epoch counts, because Sentinels or a cluster
/// were made anew.
pub const REDIS_OLDER_VIEW_AFTER: Duration = Duration::from_secs(10);
/// The nodes or Sentinels that are asked at a time for the slots or the primary.
pub const REDIS_ASKED_AT_ONCE_MAX: usize = 3;
/// The nodes of a Redis cluster that are known at a time.
pub const REDIS_NODES_MAX: usize = 1_000;
/// The channels that one process subscribes to. Further ones are not subscribed and count as lost.
pub const REDIS_CHANNELS_MAX: usize = 100_000;
/// The channels that one request subscribes to or leaves.
pub const REDIS_CHANNELS_A_REQUEST_MAX: usize = 256;
/// How often a connection with subscriptions is checked.
pub const REDIS_PING_EVERY: Duration = Duration::from_millis(250);
/// How late the answer to the check of a subscription may be. Later, its channels count as lost.
pub const REDIS_PING_WITHIN: Duration = Duration::from_secs(1);
/// The round trips in flight to one Redis node that wait for replicas. Callers that come meanwhile share the next one.
pub const REDIS_WAITS_AT_ONCE: usize = 2;
/// The calls that wait for replicas of one Redis node. Further ones fail.
pub const REDIS_WAITERS_MAX: usize = 10_000;
/// The longest time that one such round trip waits for replicas.
pub const REDIS_WAIT_MAX: Duration = Duration::from_secs(1);
/// The messages or steps of one call of a function on Redis. More are done in several calls, so none holds up the node.
pub const REDIS_FUNCTION_ITEMS_MAX: usize = 64;
/// How often a call of a function on Redis is made again because the settings of its shard had changed.
pub const REDIS_STALE_RETRIES_MAX: usize = 5;
/// The messages that one read of a shard on Redis returns. More are read in pages.
pub const REDIS_READ_MESSAGES_MAX: usize = 64;
/// How long the deletion of a queue on Redis waits for the removal of its messages, which then goes on by itself.
pub const REDIS_REMOVAL_AWAITED: Duration = Duration::from_secs(1);
/// The deleted queues on Redis whose messages one server removes at a time. Others wait, or another server removes them.
pub const REDIS_REMOVALS_AT_ONCE_MAX: usize = 2;
/// How long no other server takes over the removal of the messages of a deleted queue on Redis.
pub const REDIS_REMOVAL_CLAIMED: Duration = Duration::from_mins(1);
/// How often the server that removes the messages of a deleted queue on Redis says so.
pub const REDIS_REMOVAL_CLAIMED_EVERY: Duration = Duration::from_secs(20);
/// The entries of an outbox that one read on Redis returns.
pub const REDIS_OUTBOX_ENTRIES_READ_MAX: usize = 128;
/// The leases that one heartbeat confirms on Redis. The others keep their own ends until the next one.
pub const REDIS_HEARTBEAT_LEASES_MAX: usize = 256;
/// How exactly the age of the oldest ready message is known on Redis.
pub const REDIS_READY_AGE_PRECISION: Duration = Duration::from_mins(1);
/// The lowest major version of Redis that serves queues; every version of Valkey does.
pub const REDIS_VERSION_MIN: u32 = 7;
/// The rows of what servers share on Redis that one call reads or removes. More are read in pages.
pub const REDIS_ROWS_A_CALL_MAX: usize = 64;
/// The newest changes of a queue among which a server on Redis looks for its own, after the answer to it was lost.
pub const REDIS_CHANGES_LOOKED_AT_MAX: usize = 64;
/// The ends of sessions that one call reads on Redis.
pub const REDIS_SESSION_ENDS_A_CALL_MAX: usize = 1_000;
/// The entries of the outbox of a shard on Redis that wait for the history. Beyond it the oldest leave, and the history has a gap.
pub const REDIS_OUTBOX_ENTRIES_MAX: u64 = 10_000;
/// How far the clock of a server may lie behind that of Redis before the earlier of the two counts.
pub const REDIS_CLOCK_SLACK: Duration = Duration::from_secs(2);
/// How often it is read what the Redis servers are and which durability they offer.
pub const REDIS_CHECKED_EVERY: Duration = Duration::from_mins(1);
/// How long the servers of a Redis can read how far a shard was when it came back with another life of the store.
pub const REDIS_RETURN_KEPT: Duration = Duration::from_hours(24);
/// How long a key exists that is written only because a connection that wrote nothing waits for no replica.
pub const REDIS_WAIT_KEY_KEPT: Duration = Duration::from_mins(1);
/// The calls of functions on Redis that are sent together, if their commands came together.
pub const REDIS_RUNS_AT_ONCE_MAX: usize = 8;
/// The pages of counted values that one report of a shard on Redis reads.
pub const REDIS_REPORT_PAGES_MAX: usize = 1_000;
/// How often a report of a shard on Redis is read anew because counted values gave way to new ones.
pub const REDIS_REPORT_RETRIES_MAX: usize = 8;
/// How long nothing expires after Redis was restarted or another server took its place.
pub const REDIS_QUIET_TIME: Duration = Duration::from_secs(15);
/// The lives of Redis processes for which one server remembers that it raised the epoch.
pub const REDIS_LIVES_KEPT: usize = 10_000;
/// The longest time that an exclusive queue gives out nothing after Redis lost work.
pub const REDIS_REST_MAX: Duration = Duration::from_secs(15);
/// How much later each server in turn wakes dequeues by news of another one on Redis.
pub const REDIS_NEWS_STEP: Duration = Duration::from_millis(2);
/// How late news of another server on Redis wakes dequeues at most.
pub const REDIS_NEWS_LATE_MAX: Duration = Duration::from_millis(10);
/// How often shards on Redis are read again in case news was lost, each in its turn.
pub const REDIS_POLL_TICK: Duration = Duration::from_secs(1);
/// How often a shard on Redis is read again while dequeues wait for it, in case news was lost.
pub const REDIS_POLLED_EVERY: Duration = Duration::from_secs(30);
/// How often a shard on Redis is read again for which no dequeue waits.
pub const REDIS_LOOKED_FOR_EVERY: Duration = Duration::from_mins(20);
/// The shards on Redis that are read at once in case news was lost.
pub const REDIS_POLLS_AT_ONCE_MAX: usize = 16;
/// How long every arrival in a shard on Redis is told after a server asked for it.
pub const REDIS_WANTED_FOR: Duration = Duration::from_mins(1);
/// How often a server asks for it, while its dequeues wait although messages are ready.
pub const REDIS_WANTED_AGAIN: Duration = Duration::from_secs(20);
/// The lost shards on Redis that one server looks for every second, until they are back or given up.
pub const REDIS_LOST_SHARDS_MAX: usize = 16;
/// The shards on Redis from which one of each primary is chosen, to look every second whether it is still there.
pub const REDIS_SHARDS_SAMPLED_MAX: usize = 256;
/// How often the memory of the Redis servers is read, by which enqueues are refused and operators are told.
pub const REDIS_MEMORY_READ_EVERY: Duration = Duration::from_secs(5);
