//! The copy of the session directory in a server, and what the server has to report to the directory.
//!
//! The copy may be old: shards may be missing in it, and a session that lives in it may have ended. So calls are
//! admitted by the directory.

use std::time::Duration;

use crate::caller_quota::{CallerId, QuotaPermit};
use crate::queues::state::session_registry::{AdmittedCall, SessionEntry, SessionRegistry};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::Ending;
use tallystone_domain::queue::session_rows::{CallAttempt, HeartbeatReply, SessionRow};
use tallystone_domain::queue::{Refusal, ShardId};
use tallystone_ports::SessionHeartbeat;

/// Which heartbeats are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueHeartbeats {
    /// The heartbeats that are late.
    Late,
    /// The heartbeats of all sessions, because their ends may have been missed.
    All,
}

impl SessionRegistry {
    /// Adds a session that was opened in the directory, which decided what became of the others of its label.
    pub fn put(&self, id: SessionId, label: &str, lease: Duration, share: QuotaPermit, now: Duration) {
        self.table.lock().insert(id, SessionEntry::new(label, lease, now, Some(share)));
    }

    /// Admits a call that was begun in the directory, which knew calls up to `newest` before.
    pub fn admit_begun(
        &self,
        id: SessionId,
        call: CallAttempt,
        newest: u64,
        now: Duration,
    ) -> Result<AdmittedCall, Refusal> {
        let mut known = self.table.lock();
        let entry = known.sessions.get_mut(&id).ok_or(Refusal::SessionNotFound)?;
        if let Some(how) = entry.ended {
            return Err(Refusal::SessionEnded(how));
        }
        entry.newest = entry.newest.max(newest);
        entry.signed_at = now;
        Ok(entry.admit(call, now))
    }

    /// Takes in the row of a session that the directory has just heard of.
    pub fn adopt(&self, row: &SessionRow, now: Duration) {
        let mut known = self.table.lock();
        known.forget(now);
        if !known.sessions.contains_key(&row.id) {
            // The sessions that other servers opened are within the bound of the directory.
            let share = self.shares.take(&CallerId::nobody()).ok();
            known.insert(row.id, SessionEntry::new(&row.label, row.lease, now, share));
        }
        let Some(entry) = known.sessions.get_mut(&row.id) else { return };
        entry.last_heard_at = entry.last_heard_at.max(now);
        entry.touched = entry.touched.max(row.touched);
        entry.shards.extend(&row.shards);
        entry.unnoted.retain(|shard| !row.shards.contains(shard));
        if let Some((how, _)) = row.ended {
            entry.end(how);
        }
    }

    /// Notes that the directory has heard of a session. Returns whether the shards that it touched are known here. If
    /// the directory knows of less than before, it may have lost shards of the session: each is noted again when it is
    /// touched.
    pub fn note_heartbeat(&self, id: SessionId, reply: HeartbeatReply, now: Duration) -> bool {
        let mut known = self.table.lock();
        let Some(entry) = known.sessions.get_mut(&id) else { return false };
        entry.signed_at = now;
        if reply.touched < entry.touched {
            entry.touched = reply.touched;
            entry.unnoted = entry.shards.clone();
        }
        entry.touched >= reply.touched
    }

    /// Renews a session that the directory has just heard of. Returns its lease.
    pub fn renew_heard(&self, id: SessionId, now: Duration) -> Result<Duration, Refusal> {
        let mut known = self.table.lock();
        let entry = known.sessions.get_mut(&id).ok_or(Refusal::SessionNotFound)?;
        entry.last_heard_at = entry.last_heard_at.max(now);
        entry.ended.map_or(Ok(entry.lease), |how| Err(Refusal::SessionEnded(how)))
    }

    /// The heartbeat of a session.
    pub fn heartbeat_of(&self, id: SessionId, now: Duration) -> SessionHeartbeat {
        let known = self.table.lock();
        let unknown = SessionHeartbeat { id, newest_call: 0, leased_for: Duration::ZERO };
        known.sessions.get(&id).map_or(unknown, |entry| entry.heartbeat(id, now))
    }

    /// The sessions from which this server has heard, and of which the directory has not heard for a quarter of their
    /// lease; or all that have not ended. O(sessions).
    pub fn due_heartbeats(&self, which: DueHeartbeats, now: Duration) -> Vec<SessionHeartbeat> {
        let known = self.table.lock();
        let is_due = |entry: &SessionEntry| match which {
            DueHeartbeats::All => true,
            DueHeartbeats::Late => {
                let is_news = entry.in_use > 0 || entry.last_heard_at > entry.signed_at;
                is_news && now >= entry.signed_at + entry.lease / 4
            }
        };
        let due = known.sessions.iter().filter(|(_, entry)| entry.ended.is_none() && is_due(entry));
        due.map(|(id, entry)| entry.heartbeat(*id, now)).collect()
    }

    /// Numbers the next calls that the server makes for the session from this on.
    pub fn number_calls_from(&self, id: SessionId, first: u64) {
        if let Some(entry) = self.table.lock().sessions.get_mut(&id) {
            entry.newest = entry.newest.max(first.saturating_sub(1));
        }
    }

    /// Whether the directory is known to have noted that a session touched a shard, and the session has not ended.
    pub fn has_touched(&self, id: SessionId, shard: ShardId) -> bool {
        let known = self.table.lock();
        let is_noted = |entry: &SessionEntry| entry.shards.contains(&shard) && !entry.unnoted.contains(&shard);
        known.sessions.get(&id).is_some_and(|entry| entry.ended.is_none() && is_noted(entry))
    }

    /// How a session ended; none if it lives or is not known.
    pub fn ended(&self, id: SessionId) -> Option<Ending> {
        self.table.lock().sessions.get(&id).and_then(|entry| entry.ended)
    }
}

impl SessionEntry {
    fn heartbeat(&self, id: SessionId, now: Duration) -> SessionHeartbeat {
        SessionHeartbeat { id, newest_call: self.newest, leased_for: self.leased_until.saturating_sub(now) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use tallystone_domain::Timestamp;
    use tallystone_domain::queue::QueueId;

    const LEASE: Duration = Duration::from_secs(40);
    const SECOND: Duration = Duration::from_secs(1);
    const ID: SessionId = SessionId(4);

    fn opened() -> SessionRegistry {
        let registry = SessionRegistry::default();
        let share = registry.reserve(&CallerId::nobody(), Duration::ZERO).expect("room");
        registry.put(ID, "", LEASE, share, Duration::ZERO);
        registry
    }

    fn row(touched: u64, shards: impl IntoIterator<Item = u32>) -> SessionRow {
        let shards = shards.into_iter().map(|number| ShardId { queue: QueueId(1), number });
        let new = SessionRow::new(ID, "worker", LEASE, Timestamp::MIN);
        SessionRow { touched, shards: shards.collect::<BTreeSet<_>>(), newest_call: 7, bars: BTreeMap::new(), ..new }
    }

    #[test]
    fn a_begun_call_may_be_a_repeat_if_the_directory_knew_it_or_its_attempt_says_so() {
        let registry = SessionRegistry::default();
        registry.adopt(&row(1, [2]), SECOND);
        assert_eq!(&*registry.label(ID), "worker");
        assert!(registry.has_touched(ID, ShardId { queue: QueueId(1), number: 2 }));
        let calls = [((8, 1), 7), ((9, 2), 8), ((9, 1), 9), ((12, 1), 11), ((10, 1), 12)];
        let begun = calls.map(|((sequence, attempt), newest)| {
            let begun = registry.admit_begun(ID, CallAttempt { sequence, attempt }, newest, SECOND).expect("alive");
            (begun.may_be_repeat, begun.is_superseded)
        });
        assert_eq!(begun, [(false, false), (true, false), (true, false), (false, false), (true, true)]);
        registry.end(ID, Ending::Closed);
        let refused = registry.admit_begun(ID, CallAttempt { sequence: 13, attempt: 1 }, 12, SECOND).err();
        assert_eq!(refused, Some(Refusal::SessionEnded(Ending::Closed)));
        assert!(!registry.has_touched(ID, ShardId { queue: QueueId(1), number: 2 }));
    }

    #[test]
    fn the_row_is_read_again_when_the_session_has_touched_more() {
        let registry = opened();
        let reply = |touched| HeartbeatReply { newest_call: 0, touched };
        assert!(registry.note_heartbeat(ID, reply(0), SECOND));
        assert!(!registry.note_heartbeat(ID, reply(2), SECOND));
        registry.adopt(&row(2, [1, 3]), SECOND);
        assert!(registry.note_heartbeat(ID, reply(2), SECOND));
        assert_eq!(registry.shards(ID).len(), 2);
        assert!(!registry.note_heartbeat(SessionId(9), reply(0), SECOND), "it is not known");
    }

    #[test]
    fn shards_that_the_directory_lost_are_noted_again_and_stay_known_here() {
        let registry = opened();
        let shard = |number| ShardId { queue: QueueId(1), number };
        let reply = |touched| HeartbeatReply { newest_call: 0, touched };
        registry.adopt(&row(2, [1, 3]), SECOND);
        assert!(registry.note_heartbeat(ID, reply(1), SECOND), "the row has lost a shard, no shard is new");
        assert_eq!([1, 3].map(|number| registry.has_touched(ID, shard(number))), [false, false]);
        assert_eq!(registry.shards(ID).len(), 2, "the session may hold leases there");
        assert_eq!(registry.add_shard(ID, shard(3)), Ok(true));
        registry.adopt(&row(2, [1, 3]), SECOND);
        assert_eq!([1, 3].map(|number| registry.has_touched(ID, shard(number))), [true, true]);
    }

    #[test]
    fn a_sign_of_life_is_due_once_in_a_quarter_of_the_lease_if_there_was_a_call() {
        let registry = opened();
        let due = |which, now| registry.due_heartbeats(which, now).len();
        assert_eq!(due(DueHeartbeats::Late, LEASE), 0, "nothing was heard since it was opened");
        assert_eq!(registry.renew_heard(ID, SECOND), Ok(LEASE));
        assert_eq!([due(DueHeartbeats::Late, LEASE / 4 - SECOND), due(DueHeartbeats::All, SECOND)], [0, 1]);
        assert_eq!(registry.due_heartbeats(DueHeartbeats::Late, LEASE / 4), [registry.heartbeat_of(ID, LEASE / 4)]);
        assert!(registry.note_heartbeat(ID, HeartbeatReply { newest_call: 1, touched: 0 }, LEASE / 4));
        assert_eq!(due(DueHeartbeats::Late, LEASE), 0);
        registry.admit_begun(ID, CallAttempt { sequence: 2, attempt: 1 }, 1, LEASE).expect("alive");
        assert_eq!([due(DueHeartbeats::Late, LEASE), due(DueHeartbeats::Late, LEASE + LEASE / 4)], [0, 1], "it waits");
        registry.end(ID, Ending::Replaced);
        assert_eq!(due(DueHeartbeats::All, 9 * LEASE), 0);
    }
}
