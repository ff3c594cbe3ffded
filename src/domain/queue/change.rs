//! What others than the worker do: cancel, update, redrive, purge.

use crate::domain::limits::{INVISIBILITY_MAX, PRIORITY_MAX};
use crate::domain::queue::command::{Completeness, Invalid, MessageRef, Refusal, Reply, Settlement, Update};
use crate::domain::queue::message::{CanceledBy, Lease};
use crate::domain::queue::shard::{Shard, bulk};
use crate::domain::queue::state::{State, Trigger};
use crate::domain::time::Timestamp;

impl Shard {
    /// Cancels a message nobody has, and asks the worker of any other; a repeat answers the state as it is.
    pub(super) fn cancel_message(
        &mut self,
        message: &MessageRef,
        reason: Box<str>,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        let found = self.at(sequence);
        let requested = found.lease.is_some_and(|lease| lease.cancel_requested);
        if !requested && found.state != State::Canceled {
            self.step(sequence, Trigger::CancelMessage, false, now, |message, _| {
                message.canceled_by = Some(CanceledBy::Request(reason));
                message.lease = message.lease.map(|lease| Lease { cancel_requested: true, ..lease });
            })?;
        }
        Ok(self.settlement(sequence))
    }

    pub(super) fn update(&mut self, message: &MessageRef, update: &Update, now: Timestamp) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        let found = self.at(sequence);
        if update.expected_version.is_some_and(|expected| expected != found.version) {
            return Err(Refusal::VersionMismatch(found.version));
        }
        if update.priority.is_some_and(|priority| !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority)) {
            return Err(Invalid::Priority.into());
        }
        if update.visible_at.is_some_and(|at| at > now + INVISIBILITY_MAX) {
            return Err(Invalid::Invisibility.into());
        }
        let visible_at = update.visible_at.unwrap_or(found.visible_at);
        let not_sooner = visible_at.max(now) >= found.visible_at.max(now);
        let may_wait = matches!(found.state, State::Invisible | State::Pending);
        if may_wait && update.only_if_sooner && update.visible_at.is_some() && not_sooner {
            return Ok(self.settlement(sequence));
        }
        self.step(sequence, Trigger::Update, visible_at > now, now, |message, _| {
            message.priority = update.priority.unwrap_or(message.priority);
            message.visible_at = visible_at;
        })?;
        self.catch_up(sequence, now);
        Ok(self.settlement(sequence))
    }

    pub(super) fn redrive(&mut self, message: &MessageRef, now: Timestamp) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        self.redrive_at(sequence, now)?;
        Ok(self.settlement(sequence))
    }

    pub(super) fn redrive_all(&mut self, through: u64, max: usize, now: Timestamp) -> Result<Reply, Refusal> {
        bulk(max)?;
        self.each(&[State::Errored], through, max, |shard, sequence| shard.redrive_at(sequence, now))
    }

    pub(super) fn purge(&mut self, through: u64, max: usize, now: Timestamp) -> Result<Reply, Refusal> {
        bulk(max)?;
        self.each(&[State::Pending, State::Invisible], through, max, |shard, sequence| {
            shard.step(sequence, Trigger::Purge, false, now, |message, _| message.canceled_by = Some(CanceledBy::Purge))
        })
    }

    fn redrive_at(&mut self, sequence: u64, now: Timestamp) -> Result<State, Refusal> {
        self.step(sequence, Trigger::Redrive, false, now, |message, _| message.attempts_left = message.max_attempts)?;
        self.catch_up(sequence, now); // what returns may have outlived its TTL
        Ok(self.at(sequence).state)
    }

    /// Changes up to `max` messages of these states with a sequence of at most `through`. Each change takes its message
    /// out of the state, so that a next call goes on behind it.
    fn each(
        &mut self,
        states: &[State],
        through: u64,
        max: usize,
        change: impl Fn(&mut Self, u64) -> Result<State, Refusal>,
    ) -> Result<Reply, Refusal> {
        let first = |shard: &Self| {
            let firsts = states.iter().filter_map(|state| shard.index.by_state[*state as usize].first().copied());
            firsts.into_iter().find(|sequence| *sequence <= through)
        };
        let mut count = 0;
        while count < max
            && let Some(sequence) = first(self)
        {
            change(self, sequence)?;
            count += 1;
        }
        let completeness = if first(self).is_some() { Completeness::More } else { Completeness::Complete };
        Ok(Reply::Touched { count, completeness })
    }

    fn settlement(&self, sequence: u64) -> Reply {
        let message = self.at(sequence);
        Reply::Settled(Settlement { state: message.state, version: message.version })
    }
}
