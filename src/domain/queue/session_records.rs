//! Sessions as one shard knows them: what was answered to which of their calls, and when their leases end together.
//!
//! A session is known from its first leases on until some time after its last lease has ended. Its record is small: which
//! leases an answer held is told by the leases themselves. A lease is *confirmed* once its session has said that it
//! received it; from then on it ends with the session. Liveness of sessions across shards and their labels belong to the
//! service.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::domain::limits::{SESSION_CALLS_KEPT, SESSION_KEPT};
use crate::domain::queue::messages::message::MessageHead;
use crate::domain::time::Timestamp;

/// The number of a session, made by the server and never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u128);

/// A call as one of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionCall {
    /// The session.
    pub id: SessionId,
    /// How long the session lives after each of its calls, 1 s to 12 h. A session without only replays: its leases keep
    /// their own durations. That is the server's own.
    pub lease: Option<Duration>,
    /// The number of the call, growing from 1.
    pub sequence: u64,
    /// How often this call was sent, from 1.
    pub attempt: u32,
    /// The last call whose answer the session has; the leases of all up to it end with the session.
    pub received_up_to: Option<u64>,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It said so: its leases are released.
    Closed,
    /// Another session has taken its label: its leases end as expired.
    Replaced,
    /// It was silent while it held confirmed leases: those end as expired.
    Expired,
}

/// What is kept of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRecord {
    /// How long it lives after each call.
    pub lease: Option<Duration>,
    /// When its confirmed leases end unless it is heard again.
    pub expires: Timestamp,
    /// How and when it ended.
    pub ended: Option<(Ending, Timestamp)>,
    /// The last calls that were answered with leases, at most 8.
    pub answered: BTreeSet<u64>,
    /// For the last repeated calls, at most 8: tries below this one are not heard any more.
    pub bars: BTreeMap<u64, u32>,
    /// Calls up to this one are not remembered.
    pub floor: u64,
    /// When it was last heard, or had a lease.
    pub idle_since: Timestamp,
}

impl SessionRecord {
    fn new(lease: Option<Duration>, now: Timestamp) -> Self {
        Self {
            lease,
            expires: lease.map_or(Timestamp::MAX, |lease| now + lease),
            ended: None,
            answered: BTreeSet::new(),
            bars: BTreeMap::new(),
            floor: 0,
            idle_since: now,
        }
    }

    /// Remembers that a call was answered with leases.
    pub fn answer(&mut self, call: u64) {
        self.answered.insert(call);
        if self.answered.len() > SESSION_CALLS_KEPT {
            let dropped = self.answered.pop_first();
            self.forget_up_to(dropped.unwrap_or(0));
        }
    }

    /// Lets no lower try of a call be heard any more.
    pub fn bar(&mut self, call: u64, attempt: u32) {
        let barred = self.bars.entry(call).or_insert(attempt);
        *barred = attempt.max(*barred);
        if self.bars.len() > SESSION_CALLS_KEPT {
            let dropped = self.bars.pop_first();
            self.forget_up_to(dropped.map_or(0, |(call, _)| call));
        }
    }

    fn forget_up_to(&mut self, call: u64) {
        self.floor = self.floor.max(call);
        self.answered.retain(|known| *known > call);
        self.bars.retain(|known, _| *known > call);
    }
}

/// A session and its leases.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TrackedSession {
    session: SessionRecord,
    /// Its running messages, by call and by the serial of the lease.
    leases: BTreeMap<(u64, u64), u64>,
    all: BTreeSet<u64>,
    confirmed: BTreeSet<u64>,
    cancels: BTreeSet<u64>,
    due: Option<(Timestamp, u64)>,
    gone: Option<Timestamp>,
}

/// The sessions of a shard. All but their records is a function of these and of the messages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sessions {
    entries: BTreeMap<SessionId, TrackedSession>,
    /// When each session with leases that end with it does so, and the first of them.
    due: BTreeSet<(Timestamp, u64, SessionId)>,
    /// When each session without leases is forgotten.
    gone: BTreeSet<(Timestamp, SessionId)>,
    /// Whose records have changed.
    changed: BTreeSet<SessionId>,
}

impl Sessions {
    /// How many sessions are known.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// All sessions by their number.
    pub fn all(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.entries.iter().map(|(id, entry)| (*id, &entry.session))
    }

    /// A session. O(log n).
    pub fn get(&self, id: SessionId) -> Option<&SessionRecord> {
        self.entries.get(&id).map(|entry| &entry.session)
    }

    /// How many leases a session has. O(log n).
    pub fn leases(&self, id: SessionId) -> usize {
        self.entries.get(&id).map_or(0, |entry| entry.all.len())
    }

    /// Changes the record of a session, which begins with the change if it is new. O(log n).
    pub fn change(
        &mut self,
        id: SessionId,
        lease: Option<Duration>,
        now: Timestamp,
        change: impl FnOnce(&mut SessionRecord),
    ) {
        let entry = self.entries.entry(id).or_insert_with(|| TrackedSession::of(SessionRecord::new(lease, now)));
        change(&mut entry.session);
        self.changed.insert(id);
        self.refresh_timers(id);
    }

    /// Takes a record back in that was kept before.
    pub fn restore(&mut self, id: SessionId, session: SessionRecord) {
        self.entries.insert(id, TrackedSession::of(session));
        self.refresh_timers(id);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        let known: Vec<SessionId> = self.entries.keys().copied().collect();
        known.into_iter().for_each(|id| self.forget(id));
    }

    /// Forgets a session.
    pub fn forget(&mut self, id: SessionId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.unlist(id, entry.due, entry.gone);
            self.changed.insert(id);
        }
    }

    /// The records changed since this was last asked, none for those forgotten.
    pub fn changes(&mut self) -> Vec<(SessionId, Option<SessionRecord>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|id| (id, self.get(id).cloned())).collect()
    }

    /// Takes a running message in; `settle` follows.
    pub fn enter(&mut self, message: &MessageHead) {
        let Some((lease, session)) = message.lease.and_then(|lease| Some((lease, lease.session?))) else { return };
        let Some(entry) = self.entries.get_mut(&session.id) else { return };
        let sequence = message.key.sequence;
        entry.leases.insert((session.call, lease.fence.serial), sequence);
        entry.all.insert(sequence);
        if session.confirmed {
            entry.confirmed.insert(sequence);
        }
        if lease.cancel_requested {
            entry.cancels.insert(sequence);
        }
    }

    /// Takes a running message out, as it was when it entered; `settle` follows.
    pub fn leave(&mut self, message: &MessageHead) {
        let Some((lease, session)) = message.lease.and_then(|lease| Some((lease, lease.session?))) else { return };
        let Some(entry) = self.entries.get_mut(&session.id) else { return };
        entry.leases.remove(&(session.call, lease.fence.serial));
        for of in [&mut entry.all, &mut entry.confirmed, &mut entry.cancels] {
            of.remove(&message.key.sequence);
        }
    }

    /// Notes that a session without leases had one until now. O(log n).
    pub fn rest(&mut self, id: SessionId, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.all.is_empty()
        {
            entry.session.idle_since = now;
            self.changed.insert(id);
        }
        self.refresh_timers(id);
    }

    /// Brings the timers of a session up to its record and leases. O(log n).
    pub fn refresh_timers(&mut self, id: SessionId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let ends = match entry.session.ended {
            Some((Ending::Closed | Ending::Replaced, at)) => entry.all.first().map(|first| (at, *first)),
            Some((Ending::Expired, at)) => entry.confirmed.first().map(|first| (at, *first)),
            None => entry.confirmed.first().map(|first| (entry.session.expires, *first)),
        };
        let forgotten = entry.all.is_empty().then_some(entry.session.idle_since + SESSION_KEPT);
        let due = std::mem::replace(&mut entry.due, ends);
        let gone = std::mem::replace(&mut entry.gone, forgotten);
        self.unlist(id, due, gone);
        self.due.extend(ends.map(|(at, first)| (at, first, id)));
        self.gone.extend(forgotten.map(|at| (at, id)));
    }

    /// Brings all timers up to what was restored. O(n log n).
    pub fn settle_all(&mut self) {
        let known: Vec<SessionId> = self.entries.keys().copied().collect();
        known.into_iter().for_each(|id| self.refresh_timers(id));
    }

    fn unlist(&mut self, id: SessionId, due: Option<(Timestamp, u64)>, gone: Option<Timestamp>) {
        if let Some((at, first)) = due {
            self.due.remove(&(at, first, id));
        }
        if let Some(at) = gone {
            self.gone.remove(&(at, id));
        }
    }

    /// When and how a running message ends with its session. O(log n).
    pub fn end_of(&self, message: &MessageHead) -> Option<(Timestamp, Ending)> {
        let lease = message.lease?.session?;
        let session = self.get(lease.id)?;
        match session.ended {
            Some((how @ (Ending::Closed | Ending::Replaced), at)) => Some((at, how)),
            Some((Ending::Expired, at)) => lease.confirmed.then_some((at, Ending::Expired)),
            None => lease.confirmed.then_some((session.expires, Ending::Expired)),
        }
    }

    /// The first time at which a message ends with its session, and the message.
    pub fn first_due(&self) -> Option<(Timestamp, u64)> {
        self.due.first().map(|(at, first, _)| (*at, *first))
    }

    /// The first session to be forgotten, and when.
    pub fn first_gone(&self) -> Option<(Timestamp, SessionId)> {
        self.gone.first().copied()
    }

    /// The messages that a session holds by one of its calls, in the order of their leases.
    pub fn held_by(&self, id: SessionId, call: u64) -> Vec<u64> {
        let leases = self.entries.get(&id).map(|entry| entry.leases.range((call, 0)..=(call, u64::MAX)));
        leases.into_iter().flatten().map(|(_, sequence)| *sequence).collect()
    }

    /// The messages that a session holds by calls up to one and that are not confirmed.
    pub fn unconfirmed(&self, id: SessionId, up_to: u64) -> Vec<u64> {
        let Some(entry) = self.entries.get(&id) else { return Vec::new() };
        let held = entry.leases.range(..=(up_to, u64::MAX)).map(|(_, sequence)| *sequence);
        held.filter(|sequence| !entry.confirmed.contains(sequence)).collect()
    }

    /// The first of the messages that a session holds.
    pub fn first_held(&self, id: SessionId) -> Option<u64> {
        self.entries.get(&id)?.all.first().copied()
    }

    /// The first of the messages that end with a session.
    pub fn due_of(&self, id: SessionId) -> Option<u64> {
        self.entries.get(&id)?.due.map(|(_, first)| first)
    }

    /// Whether a session holds leases that end with it.
    pub fn has_confirmed(&self, id: SessionId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.confirmed.is_empty())
    }

    /// The messages that a session holds and somebody wants canceled.
    pub fn cancels(&self, id: SessionId) -> impl Iterator<Item = u64> {
        self.entries.get(&id).into_iter().flat_map(|entry| entry.cancels.iter().copied())
    }
}

impl TrackedSession {
    fn of(session: SessionRecord) -> Self {
        let (all, confirmed, cancels) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { session, leases: BTreeMap::new(), all, confirmed, cancels, due: None, gone: None }
    }
}
