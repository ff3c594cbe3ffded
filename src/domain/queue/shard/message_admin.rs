//! Commands of operators and producers: cancel, update, redrive, purge.

use crate::limits::{INVISIBILITY_MAX, PRIORITY_MAX, UPDATES_KEPT_MAX};
use crate::queue::command::{BulkRequest, MessageUpdate, Refusal, Reply};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{CanceledBy, Lease, MessageHead, MessageRef};
use crate::queue::messages::settlement::{Settlement, UpdateToken};
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::shard::{Shard, check_bulk_size};
use crate::time::Timestamp;

impl Shard {
    /// Cancels a message that is not leased, or requests it from its worker. A repeat returns the present state.
    pub(super) fn cancel_message(
        &mut self,
        message: &MessageRef,
        reason: Box<str>,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        let found = self.message_at(sequence);
        let requested = found.lease.is_some_and(|lease| lease.cancel_requested);
        if !requested && found.state != MessageState::Canceled {
            self.apply_transition(sequence, Trigger::CancelMessage, false, now, |message, _| {
                message.canceled_by = Some(CanceledBy::Request(reason));
                message.lease = message.lease.map(|lease| Lease { cancel_requested: true, ..lease });
            })?;
        }
        Ok(self.settlement(sequence))
    }

    /// Updates a message that is not leased. A repeat of a remembered token gets the same reply.
    pub(super) fn update(
        &mut self,
        message: &MessageRef,
        update: &MessageUpdate,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        let Some(token) = &update.token else { return self.update_at(sequence, update, now) };
        match self.message_at(sequence).updates.iter().find(|(known, _)| known.text == token.text) {
            Some((known, _)) if known.fingerprint != token.fingerprint => return Err(Refusal::TokenReused),
            Some((_, answer)) => return Ok(Reply::Settled(*answer)),
            None => {}
        }
        let reply = self.update_at(sequence, update, now)?;
        if let Reply::Settled(answer) = reply {
            self.record_update(sequence, token.clone(), answer);
        }
        Ok(reply)
    }

    fn record_update(&mut self, sequence: u64, token: UpdateToken, answer: Settlement) {
        let updates = &mut self.messages.get_mut(sequence).expect("it was just updated").updates;
        if updates.len() == UPDATES_KEPT_MAX {
            updates.remove(0);
        }
        updates.push((token, answer));
        self.changes.heads.push(sequence); // an update that changed nothing leaves no record
    }

    fn update_at(&mut self, sequence: u64, update: &MessageUpdate, now: Timestamp) -> Result<Reply, Refusal> {
        let found = self.message_at(sequence);
        if update.expected_version.is_some_and(|expected| expected != found.version) {
            return Err(Refusal::VersionMismatch(found.version));
        }
        if update.priority.is_some_and(|priority| !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority)) {
            return Err(InvalidCommandPart::Priority.into());
        }
        let asked = update.visible_at.or_else(|| update.invisibility.map(|time| now + time));
        if asked.is_some_and(|at| at > now + INVISIBILITY_MAX) {
            return Err(InvalidCommandPart::Invisibility.into());
        }
        let visible_at = asked.unwrap_or(found.visible_at);
        let not_sooner = visible_at.max(now) >= found.visible_at.max(now);
        let may_wait = matches!(found.state, MessageState::Invisible | MessageState::Pending);
        if may_wait && update.only_if_sooner && asked.is_some() && not_sooner {
            return Ok(self.settlement(sequence));
        }
        self.apply_transition(sequence, Trigger::Update, visible_at > now, now, |message, to| {
            message.priority = update.priority.unwrap_or(message.priority);
            message.move_ttl(message.visible_at.max(now), visible_at.max(now));
            message.visible_at = match (message.state, to) {
                (MessageState::Pending, MessageState::Pending) => message.visible_at, // it has been ready since then
                (_, MessageState::Pending) => now,
                _ => visible_at, // the only other state that an update leads to is invisible
            };
        })?;
        self.apply_due_to(sequence, now);
        Ok(self.settlement(sequence))
    }

    pub(super) fn redrive(&mut self, message: &MessageRef, now: Timestamp) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        self.redrive_at(sequence, now)?;
        Ok(self.settlement(sequence))
    }

    pub(super) fn redrive_all(&mut self, bulk: &BulkRequest, now: Timestamp) -> Result<Reply, Refusal> {
        self.apply_bulk(&[MessageState::Errored], bulk, |shard, sequence| {
            shard.redrive_at(sequence, now).map(|state| state == MessageState::Pending)
        })
    }

    pub(super) fn discard(&mut self, message: &MessageRef, now: Timestamp) -> Result<Reply, Refusal> {
        let sequence = self.find(message, now)?;
        self.remove_message(sequence, Trigger::Discard, now)?;
        Ok(Reply::Walked { count: 1, next: None })
    }

    pub(super) fn discard_all(&mut self, bulk: &BulkRequest, now: Timestamp) -> Result<Reply, Refusal> {
        self.apply_bulk(&[MessageState::Errored], bulk, |shard, sequence| {
            shard.remove_message(sequence, Trigger::Discard, now).map(|()| true)
        })
    }

    pub(super) fn purge(&mut self, bulk: &BulkRequest, now: Timestamp) -> Result<Reply, Refusal> {
        let states: Vec<MessageState> = bulk.states.iter().collect();
        self.apply_bulk(&states, bulk, |shard, sequence| {
            if shard.message_at(sequence).state.is_terminal() {
                return shard.remove_message(sequence, Trigger::Purge, now).map(|()| true);
            }
            let purged = |message: &mut MessageHead, _| message.canceled_by = Some(CanceledBy::Purge);
            shard.apply_transition(sequence, Trigger::Purge, false, now, purged).map(|to| to == MessageState::Canceled)
        })
    }

    fn redrive_at(&mut self, sequence: u64, now: Timestamp) -> Result<MessageState, Refusal> {
        self.apply_transition(sequence, Trigger::Redrive, false, now, |message, _| {
            message.attempts_left = message.max_attempts;
        })
    }

    /// Changes the messages of these states that meet the filter, by sequence: a message that comes back into one of the
    /// states is behind the cursor and is not met again. `change` says whether a message reached the state that the
    /// operation promises; only those are counted.
    fn apply_bulk(
        &mut self,
        states: &[MessageState],
        bulk: &BulkRequest,
        change: impl Fn(&mut Self, u64) -> Result<bool, Refusal>,
    ) -> Result<Reply, Refusal> {
        check_bulk_size(bulk.max)?;
        let first_after = |shard: &Self, after: u64| {
            let firsts = states.iter().filter_map(|state| shard.index.by_state[*state as usize].after(after).next());
            firsts.min().filter(|sequence| *sequence <= bulk.through)
        };
        let (mut reached, mut count) = (bulk.after, 0);
        for _ in 0..bulk.max {
            let Some(sequence) = first_after(self, reached) else { break };
            reached = sequence;
            if bulk.matches(self.message_at(sequence)) {
                count += usize::from(bulk.dry_run || change(self, sequence)?);
            }
        }
        Ok(Reply::Walked { count, next: first_after(self, reached).map(|_| reached) })
    }

    fn settlement(&self, sequence: u64) -> Reply {
        let message = self.message_at(sequence);
        Reply::Settled(Settlement { state: message.state, version: message.version })
    }
}

impl BulkRequest {
    /// Whether a message of the right state and sequence is meant.
    fn matches(&self, message: &MessageHead) -> bool {
        let of_signature = |signature: &str| message.error.as_ref().is_some_and(|error| *error.signature == *signature);
        self.filter.matches(&message.metadata)
            && self.signature.as_deref().is_none_or(of_signature)
            && self.ended_by.is_none_or(|by| message.ended_at.get().is_none_or(|ended| ended <= by))
    }
}
