//! Leases: given by a dequeue, extended, and ended by settlements.
//!
//! Only its fence proves a lease. A fence that differs from that of the stored lease is refused as LEASE_LOST, with two
//! exceptions: the repeat of the last settlement, and a late completion before the next lease.

use std::time::Duration;

use crate::limits::{ERROR_TEXT_BYTES_MAX, INVISIBILITY_MAX, LEASE_MAX, RELEASES_FREE_MAX};
use crate::queue::command::{FailureReport, LeaseGrant, Refusal, Reply};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{
    AttemptError, CanceledBy, Fence, Lease, LeaseSession, LeaseToken, MessageHead, MessageRef,
};
use crate::queue::messages::settlement::{SettleAction, Settlement};
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::shard::Shard;
use crate::time::Timestamp;

impl Shard {
    /// Leases a pending message.
    pub(super) fn lease(
        &mut self,
        sequence: u64,
        asked: Option<Duration>,
        (session, worker): (Option<LeaseSession>, Option<&str>),
        now: Timestamp,
    ) -> Result<LeaseGrant, Refusal> {
        let message = self.message_at(sequence);
        let wanted = asked.or(message.lease_duration).unwrap_or(self.settings.default_lease);
        let expires_in = wanted.min(self.settings.max_run_time);
        let fence = Fence { epoch: self.epoch, serial: self.serial + 1 };
        self.apply_transition(sequence, Trigger::Dequeue, false, now, |message, _| {
            message.attempts_left -= 1;
            message.first_leased_at.get_or_insert(now);
            message.expired_lease = None;
            let expires = now + expires_in;
            message.lease = Some(Lease { fence, since: now, expires, cancel_requested: false, session });
        })?;
        self.serial = fence.serial;
        if let Some(row) = self.journal.last_mut() {
            row.detail.worker = worker.map(Into::into);
        }
        let message = self.message_at(sequence);
        let token = LeaseToken { key: message.key, fence };
        Ok(LeaseGrant { token, attempt_number: message.attempt_number(), expires_in })
    }

    pub(super) fn extend(&mut self, token: LeaseToken, lease: Duration, now: Timestamp) -> Result<Reply, Refusal> {
        if lease > LEASE_MAX {
            return Err(InvalidCommandPart::Lease.into());
        }
        let sequence = self.leased_sequence(token, now)?;
        let held = self.message_at(sequence).lease.ok_or(Refusal::LeaseLost)?;
        let cancel_requested = held.cancel_requested;
        let expires = (now + lease).min(held.since + self.settings.max_run_time);
        if expires <= now {
            self.expire_lease(sequence, now)?;
            self.apply_due_to(sequence, now);
            return Ok(Reply::Extended { expires_in: Duration::ZERO, cancel_requested });
        }
        self.apply_transition(sequence, Trigger::Extend, false, now, |message, _| {
            message.lease = Some(Lease { expires, ..held });
        })?;
        let expires = self.next_due(sequence).map_or(expires, |(at, _)| at);
        Ok(Reply::Extended { expires_in: expires.since(now), cancel_requested })
    }

    pub(super) fn settle(
        &mut self,
        token: LeaseToken,
        verb: SettleAction,
        failure: FailureReport,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let known = self.get(&MessageRef::Key(token.key)).ok_or(Refusal::LeaseLost)?;
        if let Some((fence, settled, answer)) = known.last_settlement
            && (fence, settled) == (token.fence, verb)
        {
            return Ok(Reply::Settled(answer));
        }
        check_failure(&failure)?;
        let sequence = token.key.sequence;
        match (self.leased_sequence(token, now), verb) {
            (Ok(_), SettleAction::Complete) => {
                self.apply_transition(sequence, Trigger::Complete, false, now, |message, _| {
                    message.canceled_by = None; // the worker was asked, and finished before it heard
                })
            }
            (Ok(_), SettleAction::Cancel) => {
                self.apply_transition(sequence, Trigger::Cancel, false, now, |message, _| {
                    // The reason is that of the cancel request; the worker only carries it out.
                    let was_asked = matches!(&message.canceled_by, Some(CanceledBy::Request(_)));
                    if !was_asked {
                        message.canceled_by = Some(CanceledBy::Worker);
                    }
                })
            }
            (Ok(_), SettleAction::Fail) => self.fail(sequence, failure, now),
            (Ok(_), SettleAction::Release) => self.release(sequence, now),
            (Err(_), SettleAction::Complete) if self.message_at(sequence).expired_lease == Some(token.fence) => self
                .apply_transition(sequence, Trigger::LateComplete, false, now, |message, _| {
                    message.expired_lease = None;
                }),
            (Err(lost), SettleAction::Complete | SettleAction::Cancel | SettleAction::Fail | SettleAction::Release) => {
                Err(lost)
            }
        }?;
        self.apply_due_to(sequence, now); // what returns may have outlived its TTL
        let mut message = self.messages.get_mut(sequence).ok_or(Refusal::NotFound)?;
        let answer = Settlement { state: message.state, version: message.version };
        message.last_settlement = Some((token.fence, verb, answer));
        Ok(Reply::Settled(answer))
    }

    fn fail(&mut self, sequence: u64, failure: FailureReport, now: Timestamp) -> Result<MessageState, Refusal> {
        let attempt = self.message_at(sequence).attempt_number();
        let delay = failure.delay.unwrap_or_else(|| self.settings.retry.delay(attempt, failure.draw));
        self.apply_transition(sequence, Trigger::Fail, !delay.is_zero(), now, |message, _| {
            message.visible_at = now + delay;
            message.error = failure.error;
        })
    }

    pub(super) fn release(&mut self, sequence: u64, now: Timestamp) -> Result<MessageState, Refusal> {
        self.apply_transition(sequence, Trigger::Release, false, now, |message: &mut MessageHead, to| {
            if to == MessageState::Pending && message.releases < RELEASES_FREE_MAX {
                message.attempts_left += 1;
                message.releases += 1;
            }
        })
    }

    /// The sequence of the message with this lease, after its due transitions.
    fn leased_sequence(&mut self, token: LeaseToken, now: Timestamp) -> Result<u64, Refusal> {
        let is_held = |message: &MessageHead| message.lease.is_some_and(|lease| lease.fence == token.fence);
        let message = self.get(&MessageRef::Key(token.key)).ok_or(Refusal::LeaseLost)?;
        if !is_held(message) && message.expired_lease != Some(token.fence) {
            return Err(Refusal::LeaseLost);
        }
        let sequence = token.key.sequence;
        self.apply_due_to(sequence, now);
        if is_held(self.message_at(sequence)) { Ok(sequence) } else { Err(Refusal::LeaseLost) }
    }
}

fn check_failure(failure: &FailureReport) -> Result<(), InvalidCommandPart> {
    if failure.delay.is_some_and(|delay| delay > INVISIBILITY_MAX) {
        return Err(InvalidCommandPart::Invisibility);
    }
    let length = |error: &AttemptError| error.text.len().max(error.signature.len());
    let fits = failure.error.as_ref().is_none_or(|error| length(error) <= ERROR_TEXT_BYTES_MAX);
    if fits { Ok(()) } else { Err(InvalidCommandPart::ErrorText) }
}
