//! The sessions that this server knows: their labels, leases and shards.
//!
//! A shard knows only the sessions that have had leases in it. The state of a session over all shards is here. A
//! session is *alive* until its last call plus its lease, and while a call of it waits or a stream of it is open. The
//! upper half of its id is a hash of its label, the lower half the time at which it was opened. So a server that starts
//! learns from the shards which sessions a label has, and which of them is the newest. A session without leases is
//! forgotten at that time. Where several servers share a store, the session directory decides instead, and what is here
//! is a copy of it: see `sessions::across_servers`.

mod directory_copy;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use crate::caller_quota::{CallerId, CallerQuota, QuotaExceeded, QuotaPermit};
use tallystone_domain::Timestamp;
use tallystone_domain::access::KeyQuota;
use tallystone_domain::limits::{
    CALLER_SESSIONS_MAX, SERVER_SESSIONS_MAX, SESSION_KEPT, SESSION_LIST_LOOKED_AT_MAX, SESSION_SHARDS_MAX,
};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_records::{Ending, SessionRecord};
use tallystone_domain::queue::session_rows::CallAttempt;
use tallystone_domain::queue::{QueueId, Refusal, ShardId};

pub use directory_copy::DueHeartbeats;

/// A session and the shards in which it may hold leases.
pub type SessionWithShards = (SessionId, Vec<ShardId>);

/// The sessions of a server. Times are elapsed times.
pub struct SessionRegistry {
    table: Mutex<SessionTable>,
    shares: CallerQuota,
}

impl Default for SessionRegistry {
    fn default() -> Self {
        let shares = CallerQuota::new(SERVER_SESSIONS_MAX, CALLER_SESSIONS_MAX).of_key(KeyQuota::Sessions);
        Self { table: Mutex::default(), shares }
    }
}

#[derive(Default)]
struct SessionTable {
    sessions: BTreeMap<SessionId, SessionEntry>,
    /// The time at which each session is checked for removal: never later than its end.
    expiry_checks: BTreeSet<(Duration, SessionId)>,
    /// All sessions in the order of their arrival, by a number that reveals nothing of their ids.
    in_order: BTreeMap<u64, SessionId>,
    next: u64,
}

/// A live session in a list. Times are elapsed times.
pub struct ListedSession {
    pub id: SessionId,
    /// Its label; empty if it has none or the label is unknown.
    pub label: Box<str>,
    /// The lease of the session: its life after each call.
    pub lease: Duration,
    /// How long ago it was heard; zero while a call of it waits or a stream of it is open.
    pub silent_for: Duration,
    /// The shards in which it may hold leases.
    pub shards: Vec<ShardId>,
}

struct SessionEntry {
    label: Box<str>,
    lease: Duration,
    /// The time of its last call.
    last_heard_at: Duration,
    /// The end of its last message lease, as far as known.
    leased_until: Duration,
    /// The highest sequence of its calls.
    newest: u64,
    /// Waiting calls and open streams.
    in_use: usize,
    shards: BTreeSet<ShardId>,
    /// Its position in the order of all sessions.
    number: u64,
    ended: Option<Ending>,
    /// Cancelled once it has ended.
    end_token: CancellationToken,
    /// The `touched` of its row in the directory when its shards were read.
    touched: u64,
    /// The shards of the session that the directory may not have: it came back with an earlier state of the row.
    unnoted: BTreeSet<ShardId>,
    /// The time of the last heartbeat that the directory was sent.
    signed_at: Duration,
    /// Its quota permit; none for a session that was found at startup when the quota was used up.
    _share: Option<QuotaPermit>,
}

/// The state in which a call of a session was admitted.
#[derive(Clone, Debug)]
pub struct AdmittedCall {
    /// The lease of the session.
    pub lease: Duration,
    /// Whether an earlier attempt of the call may have arrived.
    pub may_be_repeat: bool,
    /// Whether a later call arrived before: then this call gets its earlier result or none.
    pub is_superseded: bool,
    /// Cancelled once the session has ended.
    pub end_token: CancellationToken,
}

/// Stands between a principal and its label where both are kept. Neither may contain it.
pub const LABEL_OWNER_END: char = '\u{1f}';

/// A kept label as it is shown: without its principal.
pub fn shown_label(kept: &str) -> &str {
    kept.split_once(LABEL_OWNER_END).map_or(kept, |(_, label)| label)
}

/// The id of a session with this label that is opened now. Ids of one label grow with time; random bits separate those
/// of one millisecond.
pub fn number_of(label: &str, millis: u64, random: u64) -> SessionId {
    // Labels have odd hashes, and sessions without a label an even number, so that the two never collide.
    let of_label = if label.is_empty() { random.rotate_left(32) & !1 } else { xxh3_64(label.as_bytes()) | 1 };
    let of_time = (millis << 20) | (random & 0xf_ffff);
    SessionId((u128::from(of_label) << 64) | u128::from(of_time))
}

/// The time at which a session was opened, by the server's clock to the millisecond.
pub fn opened_at(id: SessionId) -> Timestamp {
    let of_time = (id.0 & u128::from(u64::MAX)) >> 20;
    Timestamp::from_millis(i64::try_from(of_time).unwrap_or(i64::MAX))
}

/// The range of ids of a label: the lowest id above it, and its lowest id; none without a label.
fn label_range(id: SessionId) -> Option<std::ops::RangeInclusive<SessionId>> {
    let label = id.0 >> 64;
    let lower_half = u128::from(u64::MAX);
    (label & 1 == 1).then_some(SessionId(label << 64)..=SessionId((label << 64) | lower_half))
}

impl SessionRegistry {
    /// The number of known sessions.
    pub fn len(&self) -> usize {
        self.table.lock().sessions.len()
    }

    /// The number of live sessions. O(n).
    pub fn open_count(&self, now: Duration) -> usize {
        self.table.lock().sessions.values().filter(|known| known.lives(now)).count()
    }

    /// The lowest time for which a new session of this label gets a greater id than all known ones, whatever the clock
    /// did. After a restart the session with the greatest id is the newest. O(log n).
    pub fn next_millis(&self, label: &str) -> u64 {
        let Some(numbers) = label_range(number_of(label, 0, 0)) else { return 0 };
        let known = self.table.lock();
        let newest = known.sessions.range(numbers).next_back();
        newest.map_or(0, |(id, _)| (id.0 as u64 >> 20) + 1)
    }

    /// Adds a session of a caller and ends the sessions that had its label. Returns those, to be ended in their shards
    /// as well. Refused if the quota of all or of this caller is used up. O(log n + sessions of the label).
    pub fn open(
        &self,
        id: SessionId,
        caller: &CallerId,
        label: &str,
        lease: Duration,
        now: Duration,
    ) -> Result<Vec<SessionWithShards>, QuotaExceeded> {
        let share = self.reserve(caller, now)?;
        let mut known = self.table.lock();
        let replaced = known.replace(id);
        known.insert(id, SessionEntry::new(label, lease, now, Some(share)));
        Ok(replaced)
    }

    /// Takes the quota permit for a session that is about to be opened.
    pub fn reserve(&self, caller: &CallerId, now: Duration) -> Result<QuotaPermit, QuotaExceeded> {
        self.table.lock().forget(now);
        self.shares.take(caller)
    }

    /// Adds a session that a shard knew at startup. It counts as just called.
    pub fn restore(&self, shard: ShardId, id: SessionId, session: &SessionRecord, now: Duration) {
        let Some(lease) = session.lease else { return };
        let mut known = self.table.lock();
        if !known.sessions.contains_key(&id) {
            // Sessions of the shards are added regardless of the bound; they were within it before.
            known.insert(id, SessionEntry::new("", lease, now, self.shares.take(&CallerId::nobody()).ok()));
        }
        let Some(entry) = known.sessions.get_mut(&id) else { return };
        let newest = [session.answered.last().copied(), session.bars.last_key_value().map(|(call, _)| *call)];
        entry.newest = newest.into_iter().flatten().chain([entry.newest, session.floor]).max().unwrap_or_default();
        if let Some((how, _)) = session.ended {
            entry.end(how);
        }
        entry.shards.insert(shard);
    }

    /// After all shards have reported: ends the sessions whose label a newer session has, and returns them.
    pub fn end_replaced_sessions(&self) -> Vec<SessionWithShards> {
        let mut known = self.table.lock();
        let ids: Vec<SessionId> = known.sessions.keys().copied().collect();
        let is_newest = |at: usize| {
            label_range(ids[at]).is_none_or(|label| ids.get(at + 1).is_none_or(|next| !label.contains(next)))
        };
        (0..ids.len()).filter(|at| is_newest(*at)).flat_map(|at| known.replace(ids[at])).collect()
    }

    pub fn renew(&self, id: SessionId, now: Duration) -> Result<Duration, Refusal> {
        Ok(self.table.lock().alive(id, now)?.lease)
    }

    /// The highest sequence of its calls, as far as known.
    pub fn newest_call(&self, id: SessionId) -> u64 {
        self.table.lock().sessions.get(&id).map_or(0, |entry| entry.newest)
    }

    /// Admits a call, and keeps the session alive until `release_call`.
    pub fn admit(&self, id: SessionId, sequence: u64, attempt: u32, now: Duration) -> Result<AdmittedCall, Refusal> {
        let mut known = self.table.lock();
        let entry = known.alive(id, now)?;
        Ok(entry.admit(CallAttempt { sequence, attempt }, now))
    }

    /// Ends a call that `admit` admitted.
    pub fn release_call(&self, id: SessionId, now: Duration) {
        if let Some(entry) = self.table.lock().sessions.get_mut(&id) {
            entry.in_use = entry.in_use.saturating_sub(1);
            entry.last_heard_at = entry.last_heard_at.max(now);
        }
    }

    /// A sequence for a call that the server makes for the session: higher than all before.
    pub fn next_call(&self, id: SessionId) -> u64 {
        let mut known = self.table.lock();
        known.sessions.get_mut(&id).map_or(1, |entry| {
            entry.newest += 1;
            entry.newest
        })
    }

    /// Notes that a live session may hold leases in a shard from now on. Returns whether the list of its shards has
    /// space for it.
    pub fn add_shard(&self, id: SessionId, shard: ShardId) -> Result<bool, Refusal> {
        let mut known = self.table.lock();
        let entry = known.sessions.get_mut(&id).ok_or(Refusal::SessionNotFound)?;
        if let Some(how) = entry.ended {
            return Err(Refusal::SessionEnded(how));
        }
        let has_room = entry.shards.len() < SESSION_SHARDS_MAX || entry.shards.contains(&shard);
        if has_room {
            entry.shards.insert(shard);
            entry.unnoted.remove(&shard);
        }
        Ok(has_room)
    }

    /// Notes the end of a message lease of a session.
    pub fn leased(&self, id: SessionId, until: Duration) {
        if let Some(entry) = self.table.lock().sessions.get_mut(&id) {
            entry.leased_until = entry.leased_until.max(until);
        }
    }

    /// Notes that a session holds no leases in a shard.
    pub fn remove_shard(&self, id: SessionId, shard: ShardId) {
        if let Some(entry) = self.table.lock().sessions.get_mut(&id) {
            entry.shards.remove(&shard);
        }
    }

    /// The shards in which a session may hold leases.
    pub fn shards(&self, id: SessionId) -> Vec<ShardId> {
        self.table.lock().sessions.get(&id).map(|entry| entry.shards.iter().copied().collect()).unwrap_or_default()
    }

    /// Ends a session unless it has ended. Returns how it ended, if it is known.
    pub fn end(&self, id: SessionId, how: Ending) -> Option<Ending> {
        let mut known = self.table.lock();
        known.sessions.get_mut(&id).map(|entry| entry.end(how))
    }

    /// The live sessions after a position in the list, for one queue those that may hold leases there: up to a maximum,
    /// with the next position. O(examined sessions), at most 10,000.
    pub fn list(
        &self,
        after: u64,
        rows: usize,
        of: Option<QueueId>,
        now: Duration,
    ) -> (Vec<ListedSession>, Option<u64>) {
        let known = self.table.lock();
        let (mut listed, mut looked) = (Vec::new(), 0);
        for (number, id) in known.in_order.range(after.saturating_add(1)..) {
            if listed.len() == rows || looked == SESSION_LIST_LOOKED_AT_MAX {
                return (listed, Some(number - 1));
            }
            looked += 1;
            let Some(entry) = known.sessions.get(id).filter(|entry| entry.lives(now)) else { continue };
            let shards = entry.shards.iter().filter(|shard| of.is_none_or(|queue| shard.queue == queue));
            let shards: Vec<ShardId> = shards.copied().collect();
            if of.is_none() || !shards.is_empty() {
                let (label, lease, silent_for) = (entry.label.clone(), entry.lease, entry.silent_for(now));
                listed.push(ListedSession { id: *id, label, lease, silent_for, shards });
            }
        }
        (listed, None)
    }

    /// How long ago this server heard from a session; none if it does not know it.
    pub fn silent_for(&self, id: SessionId, now: Duration) -> Option<Duration> {
        self.table.lock().sessions.get(&id).map(|entry| entry.silent_for(now))
    }

    /// The label of a session for display; empty if it has none, or was opened before the server started.
    pub fn label(&self, id: SessionId) -> Box<str> {
        self.table.lock().sessions.get(&id).map(|entry| shown_label(&entry.label).into()).unwrap_or_default()
    }
}

impl SessionTable {
    fn insert(&mut self, id: SessionId, mut entry: SessionEntry) {
        self.next += 1;
        entry.number = self.next;
        self.in_order.insert(self.next, id);
        self.expiry_checks.insert((entry.kept_until(), id));
        self.sessions.insert(id, entry);
    }

    /// A session that has not ended, renewed.
    fn alive(&mut self, id: SessionId, now: Duration) -> Result<&mut SessionEntry, Refusal> {
        let entry = self.sessions.get_mut(&id).ok_or(Refusal::SessionNotFound)?;
        if entry.in_use == 0 && now > entry.last_heard_at + entry.lease {
            entry.end(Ending::Expired);
        }
        match entry.ended {
            Some(how) => Err(Refusal::SessionEnded(how)),
            None => {
                entry.last_heard_at = entry.last_heard_at.max(now);
                Ok(entry)
            }
        }
    }

    /// Ends the other sessions of a label. Returns those that may hold leases.
    fn replace(&mut self, by: SessionId) -> Vec<SessionWithShards> {
        let Some(label) = label_range(by) else { return Vec::new() };
        let others = self.sessions.range_mut(label).filter(|(id, _)| **id != by);
        let ended = others.map(|(id, entry)| {
            entry.end(Ending::Replaced);
            (*id, entry.shards.iter().copied().collect::<Vec<_>>())
        });
        ended.filter(|(_, shards)| !shards.is_empty()).collect()
    }

    /// Removes the sessions whose time is over.
    fn forget(&mut self, now: Duration) {
        while let Some(&(at, id)) = self.expiry_checks.first()
            && at <= now
        {
            self.expiry_checks.pop_first();
            let Some(entry) = self.sessions.get(&id) else { continue };
            let until = entry.kept_until();
            if entry.in_use == 0 && until <= now {
                self.in_order.remove(&entry.number);
                self.sessions.remove(&id);
            } else {
                self.expiry_checks.insert((until.max(now + SESSION_KEPT), id));
            }
        }
    }
}

impl SessionEntry {
    /// Admits a call, and keeps the session alive until it is released.
    fn admit(&mut self, call: CallAttempt, now: Duration) -> AdmittedCall {
        let CallAttempt { sequence, attempt } = call;
        let may_be_repeat = attempt > 1 || sequence <= self.newest;
        let is_superseded = sequence < self.newest;
        self.newest = self.newest.max(sequence);
        self.last_heard_at = self.last_heard_at.max(now);
        self.in_use += 1;
        AdmittedCall { lease: self.lease, may_be_repeat, is_superseded, end_token: self.end_token.clone() }
    }

    fn new(label: &str, lease: Duration, now: Duration, share: Option<QuotaPermit>) -> Self {
        Self {
            label: label.into(),
            lease,
            last_heard_at: now,
            leased_until: now,
            newest: 0,
            in_use: 0,
            shards: BTreeSet::new(),
            number: 0,
            ended: None,
            end_token: CancellationToken::new(),
            touched: 0,
            unnoted: BTreeSet::new(),
            signed_at: now,
            _share: share,
        }
    }

    /// Whether it has neither ended nor been silent for too long.
    fn lives(&self, now: Duration) -> bool {
        self.ended.is_none() && (self.in_use > 0 || now <= self.last_heard_at + self.lease)
    }

    /// How long ago it was heard; a call that waits and an open stream are heard all the time.
    fn silent_for(&self, now: Duration) -> Duration {
        if self.in_use > 0 { Duration::ZERO } else { now.saturating_sub(self.last_heard_at) }
    }

    /// Ends it unless it has ended. Returns how it ended.
    fn end(&mut self, how: Ending) -> Ending {
        self.end_token.cancel();
        *self.ended.get_or_insert(how)
    }

    /// The time until which the shards may know it.
    fn kept_until(&self) -> Duration {
        (self.last_heard_at + self.lease).max(self.leased_until) + SESSION_KEPT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LEASE: Duration = Duration::from_secs(30);

    fn shard(number: u32) -> ShardId {
        ShardId { queue: QueueId(1), number }
    }

    fn opened(registry: &SessionRegistry, label: &str, millis: u64) -> SessionId {
        let id = number_of(label, millis, 7);
        registry.open(id, &CallerId::nobody(), label, LEASE, Duration::ZERO).expect("room");
        id
    }

    #[test]
    fn a_label_that_is_opened_again_has_the_greater_number_whatever_the_clock_did() {
        let registry = SessionRegistry::default();
        let first = opened(&registry, "worker", 9_000);
        let next = ["worker", "other", ""].map(|label| registry.next_millis(label));
        assert_eq!(next, [9_001, 0, 0]);
        assert!(number_of("worker", next[0], 0) > first);
    }

    #[test]
    fn a_session_lives_until_it_was_silent_for_its_lease() {
        let registry = SessionRegistry::default();
        let id = opened(&registry, "", 1);
        assert_eq!(registry.renew(id, LEASE), Ok(LEASE));
        assert_eq!(registry.renew(id, 2 * LEASE), Ok(LEASE), "heard again a lease ago");
        assert_eq!(registry.renew(id, 3 * LEASE + SECOND), Err(Refusal::SessionEnded(Ending::Expired)));
        assert_eq!(registry.renew(id, 2 * LEASE), Err(Refusal::SessionEnded(Ending::Expired)), "it stays so");
        assert_eq!(registry.renew(SessionId(4), LEASE), Err(Refusal::SessionNotFound));
    }

    #[test]
    fn a_call_that_waits_keeps_its_session() {
        let registry = SessionRegistry::default();
        let id = opened(&registry, "", 1);
        registry.admit(id, 1, 1, Duration::ZERO).expect("alive");
        assert_eq!(registry.renew(id, 9 * LEASE), Ok(LEASE));
        registry.release_call(id, 10 * LEASE);
        assert_eq!(registry.renew(id, 11 * LEASE), Ok(LEASE));
        assert!(registry.renew(id, 12 * LEASE + SECOND).is_err());
    }

    #[test]
    fn a_label_has_one_session_and_only_labels_are_replaced() {
        let registry = SessionRegistry::default();
        let (first, other, plain) = (opened(&registry, "w", 1), opened(&registry, "v", 1), opened(&registry, "", 1));
        assert_eq!([first, plain].map(|id| registry.add_shard(id, shard(1))), [Ok(true), Ok(true)]);
        let second = number_of("w", 2, 9);
        assert_eq!(registry.open(second, &CallerId::nobody(), "w", LEASE, SECOND), Ok(vec![(first, vec![shard(1)])]));
        assert_eq!(registry.renew(first, SECOND), Err(Refusal::SessionEnded(Ending::Replaced)));
        assert_eq!(
            registry.add_shard(first, shard(3)),
            Err(Refusal::SessionEnded(Ending::Replaced)),
            "and leases no more"
        );
        for alive in [second, other, plain] {
            assert_eq!(registry.renew(alive, SECOND), Ok(LEASE));
        }
        assert_eq!(registry.open(number_of("", 3, 9), &CallerId::nobody(), "", LEASE, SECOND), Ok(Vec::new()));
        assert_eq!(registry.renew(plain, SECOND), Ok(LEASE), "no label is not a label");
    }

    #[test]
    fn a_call_may_be_a_repeat_if_its_number_or_a_higher_one_was_heard() {
        let registry = SessionRegistry::default();
        let id = opened(&registry, "", 1);
        let repeats = [(1, 1), (1, 1), (3, 1), (2, 1), (4, 2), (5, 1)];
        let repeats =
            repeats.map(|(call, attempt)| registry.admit(id, call, attempt, SECOND).map(|call| call.may_be_repeat));
        assert_eq!(repeats, [Ok(false), Ok(true), Ok(false), Ok(true), Ok(true), Ok(false)]);
        let behind = [(5, 1), (4, 3)].map(|(call, attempt)| registry.admit(id, call, attempt, SECOND));
        assert_eq!(
            behind.map(|call| call.map(|call| call.is_superseded)),
            [Ok(false), Ok(true)],
            "the last may be repeated"
        );
        assert_eq!(registry.next_call(id), 6);
    }

    #[test]
    fn what_shards_knew_is_known_again_and_the_newest_of_a_label_lives() {
        let registry = SessionRegistry::default();
        let session = |answered: u64| SessionRecord {
            lease: Some(LEASE),
            expires: tallystone_domain::Timestamp::MAX,
            ended: None,
            answered: [answered].into(),
            bars: BTreeMap::new(),
            floor: 0,
            idle_since: tallystone_domain::Timestamp::MIN,
        };
        let (old, new) = (number_of("w", 1, 1), number_of("w", 2, 0));
        registry.restore(shard(0), old, &session(3), SECOND);
        registry.restore(shard(1), new, &session(8), SECOND);
        registry.restore(shard(2), new, &session(5), SECOND);
        assert_eq!(registry.end_replaced_sessions(), [(old, vec![shard(0)])]);
        assert_eq!(registry.renew(old, SECOND), Err(Refusal::SessionEnded(Ending::Replaced)));
        assert_eq!(registry.shards(new), [shard(1), shard(2)]);
        assert_eq!(registry.admit(new, 8, 1, SECOND).map(|call| call.may_be_repeat), Ok(true));
    }

    #[test]
    fn one_caller_leaves_sessions_for_others_and_gets_those_back_that_are_forgotten() {
        let registry = SessionRegistry::default();
        let caller = |last: u8| CallerId::of_address([10, 0, 0, last].into());
        let open = |caller: &CallerId, number: u64, now: Duration| {
            registry.open(number_of("", number, 0), caller, "", LEASE, now).map(drop)
        };
        let greedy = caller(1);
        for number in 0..CALLER_SESSIONS_MAX as u64 {
            assert_eq!(open(&greedy, number, Duration::ZERO), Ok(()));
        }
        let (next, later) = (CALLER_SESSIONS_MAX as u64, LEASE + SESSION_KEPT);
        assert_eq!(open(&greedy, next, SECOND), Err(QuotaExceeded::Own(CALLER_SESSIONS_MAX)));
        assert_eq!(open(&caller(2), next, SECOND), Ok(()), "others have their own");
        assert_eq!(open(&greedy, next + 1, later), Ok(()), "what is forgotten gives way");
    }

    #[test]
    fn a_session_is_forgotten_once_no_shard_can_know_it() {
        let registry = SessionRegistry::default();
        let id = opened(&registry, "", 1);
        registry.leased(id, 4 * LEASE);
        let later = |after: Duration| {
            registry.open(number_of("", 5, after.as_secs()), &CallerId::nobody(), "", LEASE, after).expect("room");
            registry.renew(id, after)
        };
        assert_eq!(later(4 * LEASE), Err(Refusal::SessionEnded(Ending::Expired)));
        assert_eq!(later(4 * LEASE + SESSION_KEPT), Err(Refusal::SessionNotFound));
        assert_eq!(registry.len(), 2, "the two that were opened since");
    }

    #[test]
    fn a_list_shows_those_that_live_page_by_page_and_of_a_queue_those_that_hold_something_there() {
        let registry = SessionRegistry::default();
        let ids = ["a", "b", "c"].map(|label| opened(&registry, label, 1));
        let labels = |after, rows, of, now| {
            let (listed, next) = registry.list(after, rows, of, now);
            (listed.into_iter().map(|one| one.label.to_string()).collect::<Vec<_>>().concat(), next)
        };
        assert_eq!(labels(0, 2, None, SECOND), ("ab".to_owned(), Some(2)));
        assert_eq!(labels(2, 2, None, SECOND), ("c".to_owned(), None));
        assert_eq!(registry.add_shard(ids[1], shard(0)), Ok(true));
        assert_eq!(labels(0, 9, Some(QueueId(1)), SECOND), ("b".to_owned(), None));
        assert_eq!(labels(0, 9, Some(QueueId(2)), SECOND), (String::new(), None));
        registry.end(ids[0], Ending::Closed);
        assert_eq!(registry.renew(ids[2], LEASE), Ok(LEASE));
        assert_eq!(labels(0, 9, None, LEASE + SECOND), ("c".to_owned(), None), "one was closed, one was silent");
    }
}
