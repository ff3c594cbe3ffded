//! Leases: given to a message that a dequeue has found, moved by extend, ended by settlements.
//!
//! A lease is proved by its fence alone. A fence that is not the stored lease's is refused as LEASE_LOST, with two
//! exceptions: the repeat of the last settlement, and a completion that comes late but before anyone else's lease.

use std::time::Duration;

use crate::domain::limits::{ERROR_TEXT_BYTES_MAX, INVISIBILITY_MAX, LEASE_MAX, RELEASES_FREE_MAX};
use crate::domain::queue::command::{Failure, Invalid, Leased, MessageRef, Refusal, Reply, Settlement, Verb};
use crate::domain::queue::message::{CanceledBy, Fence, Lease, LeaseSession, LeaseToken, Message, WorkError};
use crate::domain::queue::shard::Shard;
use crate::domain::queue::state::{State, Trigger};
use crate::domain::time::Timestamp;

impl Shard {
    /// Leases a pending message.
    pub(super) fn lease(
        &mut self,
        sequence: u64,
        asked: Option<Duration>,
        session: Option<LeaseSession>,
        now: Timestamp,
    ) -> Result<Leased, Refusal> {
        let message = self.at(sequence);
        let wanted = asked.or(message.lease_duration).unwrap_or(self.settings.default_lease);
        let expires_in = wanted.min(self.settings.max_run_time);
        let fence = Fence { epoch: self.epoch, serial: self.serial + 1 };
        self.step(sequence, Trigger::Dequeue, false, now, |message, _| {
            message.attempts_left -= 1;
            message.first_leased_at.get_or_insert(now);
            message.lapsed = None;
            let expires = now + expires_in;
            message.lease = Some(Lease { fence, since: now, expires, cancel_requested: false, session });
        })?;
        self.serial = fence.serial;
        let message = self.at(sequence);
        let token = LeaseToken { key: message.key, fence };
        Ok(Leased { token, attempt_number: message.attempt_number(), expires_in })
    }

    pub(super) fn extend(&mut self, token: LeaseToken, lease: Duration, now: Timestamp) -> Result<Reply, Refusal> {
        if lease > LEASE_MAX {
            return Err(Invalid::Lease.into());
        }
        let sequence = self.held(token, now)?;
        let held = self.at(sequence).lease.ok_or(Refusal::LeaseLost)?;
        let cancel_requested = held.cancel_requested;
        let expires = (now + lease).min(held.since + self.settings.max_run_time);
        if expires <= now {
            self.lease_over(sequence, now)?;
            self.catch_up(sequence, now);
            return Ok(Reply::Extended { expires_in: Duration::ZERO, cancel_requested });
        }
        self.step(sequence, Trigger::Extend, false, now, |message, _| {
            message.lease = Some(Lease { expires, ..held });
        })?;
        let expires = self.next_due(sequence).map_or(expires, |(at, _)| at);
        Ok(Reply::Extended { expires_in: expires.since(now), cancel_requested })
    }

    pub(super) fn settle(
        &mut self,
        token: LeaseToken,
        verb: Verb,
        failure: Failure,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let known = self.get(&MessageRef::Key(token.key)).ok_or(Refusal::LeaseLost)?;
        if let Some((fence, settled, answer)) = known.settled
            && (fence, settled) == (token.fence, verb)
        {
            return Ok(Reply::Settled(answer));
        }
        check_failure(&failure)?;
        let sequence = token.key.sequence;
        match (self.held(token, now), verb) {
            (Ok(_), Verb::Complete) => self.step(sequence, Trigger::Complete, false, now, |message, _| {
                message.canceled_by = None; // the worker was asked, and finished before it heard
            }),
            (Ok(_), Verb::Cancel) => self.step(sequence, Trigger::Cancel, false, now, |message, _| {
                // Whoever asked for it said why; the worker only obeys.
                let was_asked = matches!(&message.canceled_by, Some(CanceledBy::Request(why)) if !why.is_empty());
                if !was_asked {
                    message.canceled_by = Some(CanceledBy::Worker);
                }
            }),
            (Ok(_), Verb::Fail) => self.fail(sequence, failure, now),
            (Ok(_), Verb::Release) => self.release(sequence, now),
            (Err(_), Verb::Complete) if self.at(sequence).lapsed == Some(token.fence) => {
                self.step(sequence, Trigger::LateComplete, false, now, |message, _| message.lapsed = None)
            }
            (Err(lost), Verb::Complete | Verb::Cancel | Verb::Fail | Verb::Release) => Err(lost),
        }?;
        self.catch_up(sequence, now); // what returns may have outlived its TTL
        let message = self.messages.get_mut(sequence).ok_or(Refusal::NotFound)?;
        let answer = Settlement { state: message.state, version: message.version };
        message.settled = Some((token.fence, verb, answer));
        Ok(Reply::Settled(answer))
    }

    fn fail(&mut self, sequence: u64, failure: Failure, now: Timestamp) -> Result<State, Refusal> {
        let attempt = self.at(sequence).attempt_number();
        let delay = failure.delay.unwrap_or_else(|| self.settings.retry.delay(attempt, failure.draw));
        self.step(sequence, Trigger::Fail, !delay.is_zero(), now, |message, _| {
            message.visible_at = now + delay;
            message.error = failure.error;
        })
    }

    pub(super) fn release(&mut self, sequence: u64, now: Timestamp) -> Result<State, Refusal> {
        self.step(sequence, Trigger::Release, false, now, |message: &mut Message, to| {
            if to == State::Pending && message.releases < RELEASES_FREE_MAX {
                message.attempts_left += 1;
                message.releases += 1;
            }
        })
    }

    /// The sequence of the message that holds this lease by now.
    fn held(&mut self, token: LeaseToken, now: Timestamp) -> Result<u64, Refusal> {
        let is_held = |message: &Message| message.lease.is_some_and(|lease| lease.fence == token.fence);
        let message = self.get(&MessageRef::Key(token.key)).ok_or(Refusal::LeaseLost)?;
        if !is_held(message) && message.lapsed != Some(token.fence) {
            return Err(Refusal::LeaseLost);
        }
        let sequence = token.key.sequence;
        self.catch_up(sequence, now);
        if is_held(self.at(sequence)) { Ok(sequence) } else { Err(Refusal::LeaseLost) }
    }
}

fn check_failure(failure: &Failure) -> Result<(), Invalid> {
    if failure.delay.is_some_and(|delay| delay > INVISIBILITY_MAX) {
        return Err(Invalid::Invisibility);
    }
    let length = |error: &WorkError| error.text.len().max(error.signature.len());
    let fits = failure.error.as_ref().is_none_or(|error| length(error) <= ERROR_TEXT_BYTES_MAX);
    if fits { Ok(()) } else { Err(Invalid::ErrorText) }
}
