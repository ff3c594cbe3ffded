//! The sessions of the oracle: a list of them, and leases that name their session.

use std::time::Duration;

use super::oracle::{Item, Oracle, touched};
use crate::queue::command::{Completeness, LeaseGrant, Refusal, Reply};
use crate::queue::messages::message::{Fence, LeaseToken, SessionId};
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::session_records::{Ending, SessionCall};
use crate::time::Timestamp;

/// The record of a session.
pub struct Known {
    pub id: SessionId,
    lease: Option<Duration>,
    expires: Timestamp,
    ended: Option<(Ending, Timestamp)>,
    answered: Vec<u64>,
    bars: Vec<(u64, u32)>,
    floor: u64,
    pub idle_since: Timestamp,
}

impl Oracle {
    fn known(&self, id: SessionId) -> Option<&Known> {
        self.sessions.iter().find(|known| known.id == id)
    }

    /// The record of a session, for a change.
    fn known_mut(&mut self, id: SessionId, lease: Option<Duration>, now: Timestamp) -> &mut Known {
        self.wrote = true;
        if self.known(id).is_none() {
            let expires = lease.map_or(Timestamp::MAX, |lease| now + lease);
            let (answered, bars) = (Vec::new(), Vec::new());
            self.sessions.push(Known { id, lease, expires, ended: None, answered, bars, floor: 0, idle_since: now });
        }
        self.sessions.iter_mut().find(|known| known.id == id).expect("just made")
    }

    /// The positions of the messages that a session holds.
    pub fn held_by(&self, id: SessionId) -> Vec<usize> {
        let of =
            |item: &Item| item.state == MessageState::Running && item.session.is_some_and(|session| session.id == id);
        (0..self.items.len()).filter(|at| of(&self.items[*at])).collect()
    }

    /// The time and the trigger of a running message's end with its session.
    pub fn end_of(&self, item: &Item) -> Option<(Timestamp, Trigger)> {
        let lease = item.session?;
        let known = self.known(lease.id)?;
        match known.ended {
            Some((Ending::Closed, at)) => Some((at, Trigger::Release)),
            Some((Ending::Replaced, at)) => Some((at, Trigger::LeaseOver)),
            Some((Ending::Expired, at)) => lease.confirmed.then_some((at, Trigger::LeaseOver)),
            None => lease.confirmed.then_some((known.expires, Trigger::LeaseOver)),
        }
    }

    /// Ends a session that was silent while it held confirmed leases.
    pub fn expire(&mut self, id: SessionId, now: Timestamp) {
        let confirmed = |at: &usize| self.items[*at].session.is_some_and(|session| session.confirmed);
        let holds = self.held_by(id).iter().any(confirmed);
        if let Some(known) = self.known(id)
            && known.ended.is_none()
            && known.expires <= now
            && holds
        {
            let at = known.expires;
            self.known_mut(id, None, now).ended = Some((Ending::Expired, at));
        }
    }

    /// Records that a message of a session is no longer running.
    pub fn rest(&mut self, id: SessionId, now: Timestamp) {
        if self.held_by(id).is_empty() && self.known(id).is_some() {
            self.known_mut(id, None, now).idle_since = now;
        }
    }

    fn note_heartbeat(&mut self, id: SessionId, lease: Option<Duration>, now: Timestamp) {
        let known = self.known_mut(id, lease, now);
        (known.lease, known.idle_since) = (lease, now);
        known.expires = lease.map_or(Timestamp::MAX, |lease| now + lease);
    }

    fn alive(&mut self, id: SessionId, now: Timestamp) -> Result<(), Refusal> {
        self.expire(id, now);
        match self.known(id).and_then(|known| known.ended) {
            Some((how, _)) => Err(Refusal::SessionEnded(how)),
            None => Ok(()),
        }
    }

    fn confirm(&mut self, id: SessionId, up_to: u64, now: Timestamp) {
        if self.known(id).is_none_or(|known| known.lease.is_none()) {
            return;
        }
        let mut held = self.held_by(id);
        held.sort_unstable_by_key(|at| self.items[*at].session.map(|session| (session.call, self.items[*at].serial)));
        for at in held {
            let session = self.items[at].session.expect("held by one");
            if session.confirmed || session.call > up_to {
                continue;
            }
            self.catch_up(at, now);
            let item = &mut self.items[at];
            if let Some(session) = &mut item.session {
                session.confirmed = true;
                item.expires = item.leased_at + self.settings.max_run_time;
            }
        }
    }

    pub fn replay(&mut self, call: &SessionCall, now: Timestamp) -> Result<Option<Reply>, Refusal> {
        let SessionCall { id, lease, sequence, attempt, received_up_to } = *call;
        self.alive(id, now)?;
        let mut answered = false;
        if let Some(known) = self.known(id) {
            answered = known.answered.contains(&sequence);
            if sequence <= known.floor {
                return Err(Refusal::SequenceTooOld);
            }
            if known.bars.iter().any(|(barred, least)| *barred == sequence && attempt < *least) {
                return Err(Refusal::TryBarred);
            }
        }
        if lease.is_some() && !self.held_by(id).is_empty() {
            self.note_heartbeat(id, lease, now);
        }
        if attempt > 1 {
            let known = self.known_mut(id, lease, now);
            let least = known.bars.iter().find(|(barred, _)| *barred == sequence).map_or(attempt, |(_, least)| *least);
            known.bars.retain(|(barred, _)| *barred != sequence);
            known.bars.push((sequence, least.max(attempt)));
            known.bars.sort_unstable();
            if known.bars.len() > 8 {
                known.floor = known.floor.max(known.bars[0].0);
            }
            known.forget();
        }
        if let Some(received) = received_up_to {
            self.confirm(id, received, now);
        }
        if !answered {
            return Ok(None);
        }
        let mut held = self.held_by(id);
        held.sort_unstable_by_key(|at| self.items[*at].serial);
        held.retain(|at| self.items[*at].session.is_some_and(|session| session.call == sequence));
        let mut leases = Vec::new();
        for at in held {
            self.catch_up(at, now);
            let item = &self.items[at];
            if item.session.is_some_and(|session| session.call == sequence) {
                let ends = self.end_of(item).map_or(item.expires, |(ends, _)| ends.min(item.expires));
                let fence = Fence { epoch: 1, serial: item.serial };
                let token = LeaseToken { key: Self::key(item.sequence), fence };
                leases.push(LeaseGrant { token, attempt_number: item.tries, expires_in: ends.since(now) });
            }
        }
        Ok(Some(Reply::Leases { leases, completeness: Completeness::Complete, cursor: None }))
    }

    /// Records that a call got leases.
    pub fn record(&mut self, call: &SessionCall, now: Timestamp) {
        self.note_heartbeat(call.id, call.lease, now);
        let known = self.known_mut(call.id, call.lease, now);
        known.answered.push(call.sequence);
        known.answered.sort_unstable();
        if known.answered.len() > 8 {
            known.floor = known.floor.max(known.answered[0]);
        }
        known.forget();
    }

    pub fn heartbeat(&mut self, id: SessionId, received: Option<u64>, now: Timestamp) -> Result<Reply, Refusal> {
        self.alive(id, now)?;
        let lease = self.known(id).ok_or(Refusal::SessionNotFound)?.lease;
        let expires_in = lease.ok_or(Refusal::Invalid(super::super::InvalidCommandPart::Session))?;
        if !self.held_by(id).is_empty() {
            self.note_heartbeat(id, lease, now);
        }
        if let Some(received) = received {
            self.confirm(id, received, now);
        }
        let held = self.held_by(id).into_iter().map(|at| &self.items[at]).filter(|item| item.cancel_requested);
        let fence = |serial| Fence { epoch: 1, serial };
        let token = |item: &Item| LeaseToken { key: Self::key(item.sequence), fence: fence(item.serial) };
        Ok(Reply::Beaten { expires_in, cancel_requested: held.map(token).collect() })
    }

    pub fn end_session(&mut self, id: SessionId, ending: Ending, max: usize, now: Timestamp) -> Reply {
        self.expire(id, now);
        if self.known(id).is_none_or(|known| known.ended.is_none()) {
            self.known_mut(id, None, now).ended = Some((ending, now));
        }
        let over = |oracle: &Self, id| {
            let held = oracle.held_by(id).into_iter();
            held.filter(|at| oracle.end_of(&oracle.items[*at]).is_some()).collect::<Vec<_>>()
        };
        let ending = over(self, id);
        let count = ending.into_iter().take(max).filter(|at| self.by_time(*at, now)).count();
        touched(count, !over(self, id).is_empty())
    }

    /// The next session to be forgotten, and the time.
    pub fn first_forgotten(&self) -> Option<(Timestamp, SessionId)> {
        let running = self.items.iter().filter(|item| item.state == MessageState::Running);
        let busy: Vec<SessionId> = running.filter_map(|item| item.session.map(|session| session.id)).collect();
        let idle = self.sessions.iter().filter(|known| !busy.contains(&known.id));
        idle.map(|known| (known.idle_since + Duration::from_secs(600), known.id)).min()
    }
}

impl Known {
    fn forget(&mut self) {
        self.answered.retain(|call| *call > self.floor);
        self.bars.retain(|(call, _)| *call > self.floor);
    }
}
