//! Commands of operators and producers: cancel, update, redrive, purge.

use crate::limits::{INVISIBILITY_MAX, PAYLOAD_BYTES_MAX, PRIORITY_MAX, UPDATES_KEPT_MAX};
use crate::queue::bulk_operation::BulkOperation;
use crate::queue::command::{BulkRequest, MessageUpdate, Refusal, Reply, ShardCapacity};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{CanceledBy, Lease, MessageHead, MessageRef, RoutingValue};
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
        self.cancel_at(sequence, reason, now)?;
        Ok(self.settlement(sequence))
    }

    fn cancel_at(&mut self, sequence: u64, reason: Box<str>, now: Timestamp) -> Result<(), Refusal> {
        let found = self.message_at(sequence);
        let requested = found.lease.is_some_and(|lease| lease.cancel_requested);
        if !requested && found.state != MessageState::Canceled {
            self.apply_transition(sequence, Trigger::CancelMessage, false, now, |message, _| {
                message.canceled_by = Some(CanceledBy::Request(reason));
                message.lease = message.lease.map(|lease| Lease { cancel_requested: true, ..lease });
            })?;
        }
        Ok(())
    }

    /// A message whose worker is asked already counts: it reached what the operation promises.
    pub(super) fn cancel_all(&mut self, bulk: &BulkRequest, reason: &str, now: Timestamp) -> Result<Reply, Refusal> {
        self.apply_bulk(&BulkOperation::CANCELED_STATES, bulk, |shard, sequence| {
            shard.cancel_at(sequence, reason.into(), now).map(|()| true)
        })
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
        let mut message = self.messages.get_mut(sequence).expect("it was just updated");
        let updates = &mut message.updates;
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
        self.check_ranges(update)?;
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
        if may_wait {
            self.check_content(found, update)?;
        }
        let before = update.metadata.is_some().then(|| found.clone());
        let to = self.apply_transition(sequence, Trigger::Update, visible_at > now, now, |message, to| {
            message.priority = update.priority.unwrap_or(message.priority);
            message.payload_bytes = update.payload_bytes.unwrap_or(message.payload_bytes);
            if let Some(metadata) = &update.metadata {
                message.replace_metadata(metadata.clone());
            }
            message.move_ttl(message.visible_at.max(now), visible_at.max(now));
            message.visible_at = match (message.state, to) {
                (MessageState::Pending, MessageState::Pending) => message.visible_at, // it has been ready since then
                (_, MessageState::Pending) => now,
                _ => visible_at, // the only other state that an update leads to is invisible
            };
        })?;
        // The lanes of the groups that it left have other heads now.
        before.inspect(|before| self.index.refresh_lanes(before));
        if update.metadata.is_some() && to == MessageState::Pending {
            self.last_moved_ahead_at = now; // a walk that has passed it may look for what it has become
        }
        self.apply_due_to(sequence, now);
        Ok(self.settlement(sequence))
    }

    /// Checks the values that an update sets, whatever message it meets.
    fn check_ranges(&self, update: &MessageUpdate) -> Result<(), InvalidCommandPart> {
        let settings = &self.settings;
        let (payload_max, metadata_max) = (settings.payload_max_bytes, settings.metadata_max_bytes);
        let (payload, metadata) = (update.payload_bytes.unwrap_or(0), update.metadata.as_ref());
        let checks = [
            (
                update.priority.is_none_or(|priority| (-PRIORITY_MAX..=PRIORITY_MAX).contains(&priority)),
                InvalidCommandPart::Priority,
            ),
            (payload <= PAYLOAD_BYTES_MAX, InvalidCommandPart::Payload),
            (payload <= payload_max, InvalidCommandPart::PayloadOfQueue(payload_max)),
            (
                metadata.is_none_or(|metadata| metadata.bytes() <= metadata_max as usize),
                InvalidCommandPart::MetadataOfQueue(metadata_max),
            ),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map_or(Ok(()), |(_, invalid)| Err(invalid))
    }

    /// Whether a waiting message may get this payload and these metadata: a message keeps its exclusivity value, and
    /// what it grows by has to fit into the quota.
    fn check_content(&self, found: &MessageHead, update: &MessageUpdate) -> Result<(), Refusal> {
        if let Some((rule, metadata)) = self.settings.exclusivity.as_ref().zip(update.metadata.as_ref())
            && metadata.get(&rule.key) != found.routing.as_ref().map(RoutingValue::as_str)
        {
            return Err(InvalidCommandPart::ExclusivityValue.into());
        }
        let added = update.payload_bytes.unwrap_or(0).saturating_sub(found.payload_bytes);
        let bytes = self.index.totals.all().bytes.saturating_add(u64::from(added));
        let fits = added == 0 || bytes <= self.settings.quota_bytes;
        if fits { Ok(()) } else { Err(Refusal::Full(ShardCapacity::Bytes)) }
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

    /// Changes the messages of these states that meet the filter, by sequence: a message that comes back into one of
    /// the states is behind the cursor and is not met again. `change` says whether a message reached the state that the
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
