//! Sessions as one shard sees them: the replies to their calls, and the common end of their leases.
//!
//! The shard knows a session from its first leases until some time after its last lease has ended. The record of a
//! session is small, because the leases themselves say to which call they belong. A lease is *confirmed* once its
//! session has said that it received the lease; from then on it ends with the session. The service manages labels and
//! the liveness of sessions across shards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::limits::{SESSION_CALLS_KEPT, SESSION_KEPT};
use crate::queue::allocation::{in_shuffled_tree, small_tree};
use crate::queue::messages::message::{MessageHead, SessionId};
use crate::time::Timestamp;

impl SessionId {
    /// Set in the ids of sessions of servers only: in those of workers the time of opening leaves this bit 0.
    const OF_SERVER: u128 = 1 << 63;

    /// A session of a server itself, which only replays its calls.
    pub fn of_server(random: u128, number: u16) -> Self {
        Self(((random >> 16) << 16) | Self::OF_SERVER | u128::from(number))
    }

    /// Whether it is a session of a server, not of a worker.
    pub fn is_of_server(self) -> bool {
        self.0 & Self::OF_SERVER != 0
    }
}

/// The session's part of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionCall {
    pub id: SessionId,
    /// The lifetime of the session after each of its calls, 1 s to 12 h. A session without a lifetime only replays: its
    /// leases keep their own durations. The server itself uses such sessions.
    pub lease: Option<Duration>,
    /// The number of the call, increasing from 1.
    pub sequence: u64,
    /// The number of this attempt of the call, counted from 1.
    pub attempt: u32,
    /// The last call whose reply the session has received; the leases of all calls up to it end with the session.
    pub received_up_to: Option<u64>,
}

/// The kind of a session's ending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The session closed itself: its leases are released.
    Closed,
    /// Another session took over its label: its leases end as expired.
    Replaced,
    /// The session was silent while it held confirmed leases: those end as expired.
    Expired,
}

/// The stored record of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionRecord {
    /// The lifetime of the session after each call.
    pub lease: Option<Duration>,
    /// The time at which its confirmed leases end unless a call renews the session.
    pub expires: Timestamp,
    /// The kind and the time of the ending.
    pub ended: Option<(Ending, Timestamp)>,
    /// The last calls that got leases, at most 8.
    pub answered: BTreeSet<u64>,
    /// For the last repeated calls, at most 8: the lowest attempt that is still accepted.
    pub bars: BTreeMap<u64, u32>,
    /// Calls up to this number are forgotten.
    pub floor: u64,
    /// The time of the last call or of the end of the last lease.
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

    /// Records that a call got leases.
    pub fn answer(&mut self, call: u64) {
        self.answered.insert(call);
        if self.answered.len() > SESSION_CALLS_KEPT {
            let dropped = self.answered.pop_first();
            self.forget_up_to(dropped.unwrap_or(0));
        }
    }

    /// Refuses lower attempts of a call from now on.
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
    /// The session's running messages, by call and by the serial of the lease.
    leases: BTreeMap<(u64, u64), u64>,
    all: BTreeSet<u64>,
    confirmed: BTreeSet<u64>,
    cancels: BTreeSet<u64>,
    due: Option<(Timestamp, u64)>,
    gone: Option<Timestamp>,
}

/// The sessions of a shard. Everything except their records is a function of these and of the messages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sessions {
    entries: BTreeMap<SessionId, TrackedSession>,
    /// For each session with confirmed leases, its end and the first of the messages.
    due: BTreeSet<(Timestamp, u64, SessionId)>,
    /// The time at which each session without leases is forgotten.
    gone: BTreeSet<(Timestamp, SessionId)>,
    /// The sessions whose records have changed.
    changed: BTreeSet<SessionId>,
    /// The bytes of the sets of all sessions.
    set_bytes: usize,
}

impl Sessions {
    /// Counts the known sessions.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The bytes of all sessions and their leases. O(1).
    pub fn memory_bytes(&self) -> usize {
        const SESSION: usize = in_shuffled_tree(size_of::<(SessionId, TrackedSession)>());
        const DUE: usize = in_shuffled_tree(size_of::<(Timestamp, u64, SessionId)>());
        const GONE: usize = in_shuffled_tree(size_of::<(Timestamp, SessionId)>());
        self.entries.len() * SESSION + self.due.len() * DUE + self.gone.len() * GONE + self.set_bytes
    }

    /// Iterates over all sessions in the order of their numbers.
    pub fn all(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.entries.iter().map(|(id, entry)| (*id, &entry.session))
    }

    /// Returns the record of a session. O(log n).
    pub fn get(&self, id: SessionId) -> Option<&SessionRecord> {
        self.entries.get(&id).map(|entry| &entry.session)
    }

    /// Counts the leases of a session. O(log n).
    pub fn leases(&self, id: SessionId) -> usize {
        self.entries.get(&id).map_or(0, |entry| entry.all.len())
    }

    /// Changes the record of a session, and creates it if the session is new. O(log n).
    pub fn change(
        &mut self,
        id: SessionId,
        lease: Option<Duration>,
        now: Timestamp,
        change: impl FnOnce(&mut SessionRecord),
    ) {
        self.entries.entry(id).or_insert_with(|| {
            let entry = TrackedSession::of(SessionRecord::new(lease, now));
            self.set_bytes += entry.set_bytes();
            entry
        });
        self.alter(id, |entry| change(&mut entry.session));
        self.changed.insert(id);
        self.refresh_timers(id);
    }

    /// Restores a stored record.
    pub fn restore(&mut self, id: SessionId, session: SessionRecord) {
        let entry = TrackedSession::of(session);
        self.set_bytes += entry.set_bytes();
        if let Some(earlier) = self.entries.insert(id, entry) {
            self.set_bytes -= earlier.set_bytes();
        }
        self.refresh_timers(id);
    }

    /// Forgets all sessions.
    pub fn clear(&mut self) {
        let known: Vec<SessionId> = self.entries.keys().copied().collect();
        known.into_iter().for_each(|id| self.forget(id));
    }

    pub fn forget(&mut self, id: SessionId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.set_bytes -= entry.set_bytes();
            self.unlist(id, entry.due, entry.gone);
            self.changed.insert(id);
        }
    }

    /// Returns the records that changed since the previous call; `None` for forgotten sessions.
    pub fn changes(&mut self) -> Vec<(SessionId, Option<SessionRecord>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|id| (id, self.get(id).cloned())).collect()
    }

    /// Adds a running message; the caller must call `refresh_timers` afterwards.
    pub fn enter(&mut self, message: &MessageHead) {
        let Some((lease, session)) = message.lease.and_then(|lease| Some((lease, lease.session?))) else { return };
        let sequence = message.key.sequence;
        self.alter(session.id, |entry| {
            entry.leases.insert((session.call, lease.fence.serial), sequence);
            entry.all.insert(sequence);
            if session.confirmed {
                entry.confirmed.insert(sequence);
            }
            if lease.cancel_requested {
                entry.cancels.insert(sequence);
            }
        });
    }

    /// Removes a running message, unchanged since it was added; the caller must call `refresh_timers` afterwards.
    pub fn leave(&mut self, message: &MessageHead) {
        let Some((lease, session)) = message.lease.and_then(|lease| Some((lease, lease.session?))) else { return };
        self.alter(session.id, |entry| {
            entry.leases.remove(&(session.call, lease.fence.serial));
            for of in [&mut entry.all, &mut entry.confirmed, &mut entry.cancels] {
                of.remove(&message.key.sequence);
            }
        });
    }

    /// Changes a session, and counts its sets again.
    fn alter(&mut self, id: SessionId, change: impl FnOnce(&mut TrackedSession)) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        self.set_bytes -= entry.set_bytes();
        change(entry);
        entry.release_empty_sets();
        self.set_bytes += entry.set_bytes();
    }

    /// Records that the last lease of a session ended at `now`. O(log n).
    pub fn rest(&mut self, id: SessionId, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(&id)
            && entry.all.is_empty()
        {
            entry.session.idle_since = now;
            self.changed.insert(id);
        }
        self.refresh_timers(id);
    }

    /// Updates the timers of a session to its record and leases. O(log n).
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

    /// Updates all timers after a restoration. O(n log n).
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

    /// Returns the time and the kind of a running message's end with its session. O(log n).
    pub fn end_of(&self, message: &MessageHead) -> Option<(Timestamp, Ending)> {
        let lease = message.lease?.session?;
        let session = self.get(lease.id)?;
        match session.ended {
            Some((how @ (Ending::Closed | Ending::Replaced), at)) => Some((at, how)),
            Some((Ending::Expired, at)) => lease.confirmed.then_some((at, Ending::Expired)),
            None => lease.confirmed.then_some((session.expires, Ending::Expired)),
        }
    }

    /// Returns the earliest time at which a message ends with its session, and the message.
    pub fn first_due(&self) -> Option<(Timestamp, u64)> {
        self.due.first().map(|(at, first, _)| (*at, *first))
    }

    /// Returns the next session to be forgotten, and the time.
    pub fn first_to_forget(&self) -> Option<(Timestamp, SessionId)> {
        self.gone.first().copied()
    }

    /// Returns the messages that a session holds through one of its calls, in the order of their leases.
    pub fn held_by(&self, id: SessionId, call: u64) -> Vec<u64> {
        let leases = self.entries.get(&id).map(|entry| entry.leases.range((call, 0)..=(call, u64::MAX)));
        leases.into_iter().flatten().map(|(_, sequence)| *sequence).collect()
    }

    /// Returns the messages that a session holds unconfirmed through calls up to one.
    pub fn unconfirmed(&self, id: SessionId, up_to: u64) -> Vec<u64> {
        let Some(entry) = self.entries.get(&id) else { return Vec::new() };
        let held = entry.leases.range(..=(up_to, u64::MAX)).map(|(_, sequence)| *sequence);
        held.filter(|sequence| !entry.confirmed.contains(sequence)).collect()
    }

    /// Returns the first message that a session holds.
    pub fn first_held(&self, id: SessionId) -> Option<u64> {
        self.entries.get(&id)?.all.first().copied()
    }

    /// Returns the first message that ends with a session.
    pub fn due_of(&self, id: SessionId) -> Option<u64> {
        self.entries.get(&id)?.due.map(|(_, first)| first)
    }

    /// Returns whether a session holds confirmed leases.
    pub fn has_confirmed(&self, id: SessionId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.confirmed.is_empty())
    }

    /// Returns the messages of a session for which cancellation was requested.
    pub fn cancels(&self, id: SessionId) -> impl Iterator<Item = u64> {
        self.entries.get(&id).into_iter().flat_map(|entry| entry.cancels.iter().copied())
    }
}

impl TrackedSession {
    /// Gives back the nodes that sets keep when they become empty, which are not counted.
    fn release_empty_sets(&mut self) {
        let Self { session, leases, all, confirmed, cancels, .. } = self;
        for set in [all, confirmed, cancels, &mut session.answered] {
            if set.is_empty() {
                *set = BTreeSet::new();
            }
        }
        if leases.is_empty() {
            *leases = BTreeMap::new();
        }
        if session.bars.is_empty() {
            session.bars = BTreeMap::new();
        }
    }

    /// The bytes of its sets. O(1).
    fn set_bytes(&self) -> usize {
        let of_sequences = |set: &BTreeSet<u64>| small_tree(size_of::<u64>(), set.len());
        let sets = [&self.all, &self.confirmed, &self.cancels, &self.session.answered].map(of_sequences);
        let leases = small_tree(size_of::<((u64, u64), u64)>(), self.leases.len());
        let bars = small_tree(size_of::<(u64, u32)>(), self.session.bars.len());
        sets.into_iter().sum::<usize>() + leases + bars
    }

    fn of(session: SessionRecord) -> Self {
        let (all, confirmed, cancels) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { session, leases: BTreeMap::new(), all, confirmed, cancels, due: None, gone: None }
    }
}
