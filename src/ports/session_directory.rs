//! The session directory: the sessions of workers, as all servers of a queue store share them.

use std::time::Duration;

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::{CallAttempt, HeartbeatReply, SessionRow};
use tallystone_domain::queue::{Refusal, ShardId};
use tallystone_domain::time::Timestamp;

/// The answer to a step that a session may refuse.
pub type SessionStep<T> = Result<Result<T, Refusal>, StoreError>;

/// A session to open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewSession {
    /// Its id, which no other session has.
    pub id: SessionId,
    /// Its label, at most 256 bytes; empty if it has none.
    pub label: Box<str>,
    /// How long it lives after each heartbeat, 1 s to 12 h.
    pub lease: Duration,
}

/// A session that has ended, and the shards in which its leases may not have been ended yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedSession {
    /// Its id.
    pub id: SessionId,
    /// How it ended first.
    pub how: Ending,
    /// The shards that it touched and that were not removed.
    pub shards: Vec<ShardId>,
}

/// A heartbeat of a session, as its server sends it to the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionHeartbeat {
    /// The session.
    pub id: SessionId,
    /// The highest sequence of its calls at the server; 0 if there was none.
    pub newest_call: u64,
    /// How long its last lease lasts, as far as the server knows.
    pub leased_for: Duration,
}

/// Ended sessions in the order of their ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionEnds {
    /// The sessions, with how they ended.
    pub ends: Vec<(SessionId, Ending)>,
    /// The position after the last of them, for the next read.
    pub next: u64,
    /// Whether no end between the asked position and these is missing.
    pub is_complete: bool,
}

/// A page of the sessions that are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRowPage {
    /// The rows.
    pub rows: Vec<SessionRow>,
    /// The place where the next page begins; none after the last.
    pub next: Option<u64>,
    /// The directory's time of the read.
    pub at: Timestamp,
}

/// The sessions of all servers of a store.
///
/// `domain::queue::session_rows` defines what a step does to a row. Laws:
/// 1. Each method is one atomic step, at a time of the directory that never goes back, and durable when it is answered.
///    A step on one session costs O(1) round trips and reads no other session, except `open`, which also ends the one
///    of its label.
/// 2. Of the sessions of one label at most one has not ended. `open` ends the earlier one as replaced in the same step,
///    and answers it with its shards. A repeat of an `open` changes nothing and answers none.
/// 3. `begin_call`, `reserve_calls` and `heartbeat` extend the life of a session. They refuse a session that has ended.
///    A session that was silent for longer than its lease, a quarter of it and `SESSION_HEARD_LATE` ends as expired
///    instead.
/// 4. `begin_call` answers the highest call that the row knew before. It refuses an attempt below one that began
///    before, as a shard does. `reserve_calls` gives each number once.
/// 5. `add_shard` answers `false` for a shard beyond `SESSION_SHARDS_MAX`. It refuses an ended session, and a call of
///    which a later attempt has begun. So a recall that reads the row after its `begin_call` knows every shard in which
///    an earlier attempt can get leases.
/// 6. An ended session stays ended in the way in which it ended first. `end` answers that way and the shards that are
///    left.
/// 7. `ended_since` answers every end after a position in the order of the ends, or says that some are missing. Without
///    a position it answers none and the present position. At least the last `SESSION_ENDS_KEPT_MIN` ends are kept.
/// 8. `unfinished` answers sessions that were closed or replaced at least `for_at_least` ago and have shards left, the
///    earliest end first. `remove_shards` removes shards of a row; the last one ends that.
/// 9. A row is kept for its lease, or for `leased_for` where that is longer, and `SESSION_KEPT` after the last
///    heartbeat; a closed or replaced one for `SESSION_KEPT` after its end, and while it has shards left. `forget`
///    removes rows whose time is over, at most `limit`. A row that is gone is `SessionNotFound`.
/// 10. A directory that has no room for another row refuses `open` with `Full` and `NotApplied`.
/// 11. `list` answers rows in the order of their `open`, each once, over any number of pages.
#[async_trait]
pub trait SessionDirectory: Send + Sync + 'static {
    /// Opens a session. Returns the session that had its label.
    async fn open(&self, session: NewSession) -> Result<Option<EndedSession>, StoreError>;

    /// Reads the row of a session.
    async fn get(&self, id: SessionId) -> Result<Option<SessionRow>, StoreError>;

    /// Begins an attempt of a call.
    async fn begin_call(&self, id: SessionId, call: CallAttempt) -> SessionStep<HeartbeatReply>;

    /// Reserves numbers for calls that a server makes for the session. Returns the first.
    async fn reserve_calls(&self, id: SessionId, count: u64) -> SessionStep<u64>;

    /// Notes that a call is about to take leases in a shard. Returns whether there was room for the shard.
    async fn add_shard(&self, id: SessionId, shard: ShardId, call: CallAttempt) -> SessionStep<bool>;

    /// Removes shards in which the session holds no leases.
    async fn remove_shards(&self, id: SessionId, shards: &[ShardId]) -> Result<(), StoreError>;

    /// Notes heartbeats, at most `SESSION_HEARTBEATS_AT_ONCE_MAX`. Each answer is at the index of its heartbeat.
    async fn heartbeat(
        &self,
        heartbeats: &[SessionHeartbeat],
    ) -> Result<Vec<Result<HeartbeatReply, Refusal>>, StoreError>;

    /// Ends a session; none if there is no such session.
    async fn end(&self, id: SessionId, how: Ending) -> Result<Option<EndedSession>, StoreError>;

    /// Reads the ends after a position, at most `limit`.
    async fn ended_since(&self, after: Option<u64>, limit: usize) -> Result<SessionEnds, StoreError>;

    /// Reads sessions whose end is not finished in all shards, at most `limit`.
    async fn unfinished(&self, for_at_least: Duration, limit: usize) -> Result<Vec<EndedSession>, StoreError>;

    /// Removes rows whose time is over. Returns their number.
    async fn forget(&self, limit: usize) -> Result<usize, StoreError>;

    /// Reads rows after a position in the order of their opening, at most `limit`.
    async fn list(&self, after: u64, limit: usize) -> Result<SessionRowPage, StoreError>;
}
