//! Commands of sessions: repeats that return the same leases, heartbeats, ends.

use std::time::Duration;

use crate::limits::{BULK_MESSAGES_MAX, LEASE_MAX, LEASE_MIN, SESSIONS_MAX};
use crate::queue::command::{Completeness, Dequeue, LeaseGrant, Refusal, Reply, ShardCapacity};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{Lease, LeaseSession, LeaseToken, SessionId};
use crate::queue::messages::state_machine::Trigger;
use crate::queue::session_records::{Ending, SessionCall, SessionRecord};
use crate::queue::shard::{Shard, check_bulk_size};
use crate::time::Timestamp;

impl Shard {
    /// Registers a call and returns the reply of an earlier attempt; `None` if no earlier attempt got leases.
    pub(super) fn replay(&mut self, call: &SessionCall, now: Timestamp) -> Result<Option<Reply>, Refusal> {
        check_call(call)?;
        self.check_alive(call.id, now)?;
        let known = self.sessions.get(call.id);
        let answered = known.is_some_and(|session| session.answered.contains(&call.sequence));
        match known {
            Some(session) if call.sequence <= session.floor => return Err(Refusal::SequenceTooOld),
            Some(session) if session.bars.get(&call.sequence).is_some_and(|barred| call.attempt < *barred) => {
                return Err(Refusal::TryBarred);
            }
            None if self.sessions.count() >= SESSIONS_MAX => return Err(Refusal::Full(ShardCapacity::Sessions)),
            Some(_) | None => {}
        }
        if call.lease.is_some() && self.sessions.first_held(call.id).is_some() {
            self.renew_session(call.id, call.lease, now);
        }
        if call.attempt > 1 {
            self.sessions.change(call.id, call.lease, now, |session| session.bar(call.sequence, call.attempt));
        }
        if let Some(received) = call.received_up_to {
            self.confirm(call.id, received, now);
        }
        Ok(answered.then(|| self.leases_of(call, now)))
    }

    /// Iterates over the sessions known to this shard, for a server startup. O(1), and O(1) for each.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.sessions.all()
    }

    /// Counts the leases of each of these sessions. O(log n) each.
    pub fn lease_counts(&self, sessions: &[SessionId]) -> Vec<usize> {
        sessions.iter().map(|id| self.sessions.leases(*id)).collect()
    }

    /// Returns the leases of an earlier attempt without leasing more messages.
    pub(super) fn recall(&mut self, call: &SessionCall, now: Timestamp) -> Result<Reply, Refusal> {
        Ok(self.replay(call, now)?.unwrap_or(Reply::Unanswered))
    }

    /// Returns the still valid leases of a call, in order.
    fn leases_of(&mut self, call: &SessionCall, now: Timestamp) -> Reply {
        let mut leases = Vec::new();
        for sequence in self.sessions.held_by(call.id, call.sequence) {
            self.apply_due_to(sequence, now);
            let (message, expires) = (self.message_at(sequence), self.next_due(sequence).map(|(at, _)| at));
            let of_call = |lease: &Lease| lease.session.is_some_and(|session| session.call == call.sequence);
            if let Some((lease, expires)) = message.lease.filter(of_call).zip(expires) {
                let token = LeaseToken { key: message.key, fence: lease.fence };
                let attempt_number = message.attempt_number();
                leases.push(LeaseGrant { token, attempt_number, expires_in: expires.since(now) });
            }
        }
        Reply::Leases { leases, completeness: Completeness::Complete, cursor: None }
    }

    /// Records that a call got leases.
    pub(super) fn record(&mut self, asked: &Dequeue, leases: &[LeaseGrant], now: Timestamp) {
        let Some(call) = asked.session.filter(|_| !leases.is_empty()) else { return };
        self.renew_session(call.id, call.lease, now);
        self.sessions.change(call.id, call.lease, now, |session| session.answer(call.sequence));
        for leased in leases {
            // When the message was leased, the session may not have existed yet.
            let message = self.messages.get(leased.token.key.sequence).expect("it was just leased");
            self.sessions.enter(message);
        }
        self.sessions.refresh_timers(call.id);
    }

    pub(super) fn heartbeat(
        &mut self,
        id: SessionId,
        received_up_to: Option<u64>,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        self.check_alive(id, now)?;
        let lease = self.sessions.get(id).ok_or(Refusal::SessionNotFound)?.lease;
        let lease = lease.ok_or(Refusal::Invalid(InvalidCommandPart::Session))?;
        if self.sessions.first_held(id).is_some() {
            self.renew_session(id, Some(lease), now);
        }
        if let Some(received) = received_up_to {
            self.confirm(id, received, now);
        }
        let token = |sequence: u64| {
            let message = self.message_at(sequence);
            message.lease.map(|lease| LeaseToken { key: message.key, fence: lease.fence })
        };
        let cancel_requested = self.sessions.cancels(id).take(BULK_MESSAGES_MAX).filter_map(token).collect();
        Ok(Reply::Beaten { expires_in: lease, cancel_requested })
    }

    /// Ends a session, then up to `max` of its leases. A repeat continues; the kind of the first ending stays.
    pub(super) fn end_session(
        &mut self,
        id: SessionId,
        ending: Ending,
        max: usize,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        check_bulk_size(max)?;
        self.expire(id, now);
        if self.sessions.get(id).is_none_or(|session| session.ended.is_none()) {
            self.sessions.change(id, None, now, |session| session.ended = Some((ending, now)));
        }
        let mut count = 0;
        while count < max
            && let Some(sequence) = self.sessions.due_of(id)
        {
            self.apply_due_transition(sequence, now);
            count += 1;
        }
        let more = self.sessions.due_of(id).is_some();
        let completeness = if more { Completeness::More } else { Completeness::Complete };
        Ok(Reply::Touched { count, completeness })
    }

    fn renew_session(&mut self, id: SessionId, lease: Option<Duration>, now: Timestamp) {
        self.sessions.change(id, lease, now, |session| {
            session.lease = lease;
            session.expires = lease.map_or(Timestamp::MAX, |lease| now + lease);
            session.idle_since = now;
        });
    }

    /// Ends a session that was silent for too long while it held confirmed leases.
    pub(super) fn expire(&mut self, id: SessionId, now: Timestamp) {
        let Some(session) = self.sessions.get(id) else { return };
        let at = session.expires;
        if session.ended.is_none() && at <= now && self.sessions.has_confirmed(id) {
            self.sessions.change(id, None, now, |session| session.ended = Some((Ending::Expired, at)));
        }
    }

    fn check_alive(&mut self, id: SessionId, now: Timestamp) -> Result<(), Refusal> {
        self.expire(id, now);
        match self.sessions.get(id).and_then(|session| session.ended) {
            Some((how, _)) => Err(Refusal::SessionEnded(how)),
            None => Ok(()),
        }
    }

    /// Confirms the leases of calls up to one: they end with their session, or after `max_run_time`.
    fn confirm(&mut self, id: SessionId, up_to: u64, now: Timestamp) {
        if self.sessions.get(id).is_none_or(|session| session.lease.is_none()) {
            return;
        }
        for sequence in self.sessions.unconfirmed(id, up_to) {
            self.apply_due_to(sequence, now);
            let max_run_time = self.settings.max_run_time;
            let Some(lease) = self.message_at(sequence).lease else { continue };
            let session = lease.session.map(|session| LeaseSession { confirmed: true, ..session });
            self.update_lease(sequence, |held| *held = Lease { expires: lease.since + max_run_time, session, ..lease });
        }
    }

    /// Returns the next timer of a message: its own, or the end of its session if that is earlier.
    pub(super) fn next_due(&self, sequence: u64) -> Option<(Timestamp, Trigger)> {
        let message = self.message_at(sequence);
        let own = message.next_due();
        let ends = self.sessions.end_of(message).map(|(at, how)| match how {
            Ending::Closed => (at, Trigger::Release),
            Ending::Replaced | Ending::Expired => (at, Trigger::LeaseOver),
        });
        match (own, ends) {
            (Some(own), Some(ends)) if own.0 <= ends.0 => Some(own),
            (own, ends) => ends.or(own),
        }
    }
}

fn check_call(call: &SessionCall) -> Result<(), InvalidCommandPart> {
    let lease_fits = call.lease.is_none_or(|lease| (LEASE_MIN..=LEASE_MAX).contains(&lease));
    let checks = [
        (lease_fits, InvalidCommandPart::SessionLease),
        (call.sequence > 0, InvalidCommandPart::Sequence),
        (call.attempt > 0, InvalidCommandPart::Try),
    ];
    checks.into_iter().find(|(fits, _)| !fits).map_or(Ok(()), |(_, invalid)| Err(invalid))
}
