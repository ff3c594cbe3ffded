//! The part of the oracle that does what operators and producers ask for: cancel, update, redrive, discard, purge.

use super::oracle::{Item, Oracle};
use crate::queue::command::{BulkRequest, MessageUpdate, Refusal, Reply, ShardCapacity};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::MessageRef;
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::transition::{Transition, TransitionDetail};
use crate::time::Timestamp;

use MessageState::{Canceled, Completed, Errored, Invisible, Pending, Running};

impl Oracle {
    pub(super) fn cancel(&mut self, message: &MessageRef, now: Timestamp) -> Result<Reply, Refusal> {
        let at = self.find(message, now)?;
        self.cancel_item(at, now)?;
        Ok(self.settlement(at))
    }

    pub(super) fn cancel_item(&mut self, at: usize, now: Timestamp) -> Result<(), Refusal> {
        match self.items[at].state {
            Invisible | Pending => self.set(at, Trigger::CancelMessage, Canceled, now),
            Running if !self.items[at].cancel_requested => {
                self.items[at].cancel_requested = true;
                self.set(at, Trigger::CancelMessage, Running, now);
            }
            Running | Canceled => {}
            state @ (Completed | Errored) => return Err(Refusal::WrongState(state)),
        }
        Ok(())
    }

    pub(super) fn update(
        &mut self,
        message: &MessageRef,
        update: &MessageUpdate,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let at = self.find(message, now)?;
        let kept = self.items[at].updates.iter().rev().take(8);
        let known = kept.clone().find(|(known, _)| Some(&known.text) == update.token.as_ref().map(|token| &token.text));
        if let Some((known, answer)) = known {
            let same = Some(known) == update.token.as_ref();
            return if same { Ok(Reply::Settled(*answer)) } else { Err(Refusal::TokenReused) };
        }
        let reply = self.update_at(at, update, now)?;
        if let (Some(token), Reply::Settled(answer)) = (update.token.clone(), &reply) {
            self.items[at].updates.push((token, *answer));
        }
        Ok(reply)
    }

    fn update_at(&mut self, at: usize, update: &MessageUpdate, now: Timestamp) -> Result<Reply, Refusal> {
        let item = &mut self.items[at];
        if update.expected_version.is_some_and(|version| version != item.version) {
            return Err(Refusal::VersionMismatch(item.version));
        }
        let waits_until = match item.state {
            Invisible => item.visible_at,
            Pending => now,
            state @ (Running | Completed | Canceled | Errored) => return Err(Refusal::WrongState(state)),
        };
        let later = update.invisibility.map(|time| now + time);
        let visible_at = update.visible_at.or(later).unwrap_or(waits_until).max(now);
        if update.only_if_sooner && (update.visible_at.is_some() || later.is_some()) && visible_at >= waits_until {
            return Ok(self.settlement(at));
        }
        let item = &self.items[at];
        if let (Some(rule), Some(metadata)) = (&self.settings.exclusivity, &update.metadata)
            && metadata.get(&rule.key) != item.sent.metadata.get(&rule.key)
        {
            return Err(Refusal::Invalid(InvalidCommandPart::ExclusivityValue));
        }
        if let Some(bytes) = update.payload_bytes.filter(|bytes| *bytes > item.sent.payload_bytes) {
            let others = self.items.iter().filter(|other| other.sequence != item.sequence);
            let others: u64 = others.map(|other| u64::from(other.sent.payload_bytes)).sum();
            if others + u64::from(bytes) > self.settings.quota_bytes {
                return Err(Refusal::Full(ShardCapacity::Bytes));
            }
        }
        let item = &mut self.items[at];
        item.sent.payload_bytes = update.payload_bytes.unwrap_or(item.sent.payload_bytes);
        item.sent.metadata = update.metadata.clone().unwrap_or_else(|| item.sent.metadata.clone());
        item.priority = update.priority.unwrap_or(item.priority);
        let to = if visible_at > now { Invisible } else { Pending };
        if (item.state, to) != (Pending, Pending) {
            item.visible_at = visible_at;
            item.ttl_at = item.ttl_at.map(|ttl_at| visible_at + ttl_at.since(waits_until));
        }
        self.set(at, Trigger::Update, to, now);
        if update.metadata.is_some() && to == Pending {
            self.moved_at = now;
        }
        self.catch_up(at, now);
        Ok(self.settlement(at))
    }

    pub(super) fn redrive(&mut self, at: usize, now: Timestamp) -> Result<(), Refusal> {
        if self.items[at].state != Errored {
            return Err(Refusal::WrongState(self.items[at].state));
        }
        self.items[at].tries = 0;
        self.set(at, Trigger::Redrive, Pending, now);
        self.catch_up(at, now);
        Ok(())
    }

    pub(super) fn discard(&mut self, at: usize, now: Timestamp) -> Result<(), Refusal> {
        match self.items[at].state {
            Errored => self.gone(at, Trigger::Discard, now),
            state => return Err(Refusal::WrongState(state)),
        }
        Ok(())
    }

    pub(super) fn gone(&mut self, at: usize, trigger: Trigger, now: Timestamp) {
        let item = self.items.remove(at);
        let (key, version) = (Self::key(item.sequence), item.version + 1);
        self.out.push(Transition {
            key,
            version,
            trigger,
            from: Some(item.state),
            to: None,
            at: now,
            detail: TransitionDetail::default(),
        });
    }

    pub(super) fn bulk(
        &mut self,
        states: &[MessageState],
        bulk: &BulkRequest,
        now: Timestamp,
        change: impl Fn(&mut Self, usize, Timestamp) -> Result<(), Refusal>,
    ) -> Result<Reply, Refusal> {
        let within = |item: &&Item, after| item.sequence > after && item.sequence <= bulk.through;
        let of_states = self.items.iter().filter(|item| states.contains(&item.state));
        let met: Vec<u64> =
            of_states.filter(|item| within(item, bulk.after)).take(bulk.max).map(|item| item.sequence).collect();
        let mut count = 0;
        for sequence in &met {
            let at = self.items.iter().position(|item| item.sequence == *sequence).expect("just met");
            let item = &self.items[at];
            let is_in_time = bulk.ended_by.is_none_or(|by| item.terminal_since <= by);
            let is_of_signature = bulk.signature.is_none() || bulk.signature == item.error_signature;
            let meets = bulk.filter.matches(&item.sent.metadata) && is_in_time && is_of_signature;
            count += usize::from(meets);
            if meets && !bulk.dry_run {
                change(self, at, now)?;
            }
        }
        let reached = met.last().copied().unwrap_or(bulk.after);
        let mut left = self.items.iter().filter(|item| states.contains(&item.state));
        Ok(Reply::Walked { count, next: left.any(|item| within(&item, reached)).then_some(reached) })
    }
}
