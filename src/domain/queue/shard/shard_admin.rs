//! Commands on a shard as a whole: new settings, deletion.

use std::collections::BTreeMap;

use crate::limits::{VALUE_IN_FLIGHT_MAX, VALUE_LIMITS_MAX};
use crate::queue::command::{Refusal, Reply, ShardCapacity};
use crate::queue::index::dedupe_index::DedupeRecord;
use crate::queue::index::id_index::IdIndex;
use crate::queue::index::sequence_pages::MessagesBySequence;
use crate::queue::index::shard_index::ShardIndex;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::RoutingValue;
use crate::queue::messages::state_machine::MessageState;
use crate::queue::setup::settings::{Settings, ShardSettings};
use crate::queue::shard::Shard;
use crate::time::Timestamp;

impl Shard {
    /// Accepts tokens from this time on, and refuses all earlier ones as too old, whatever the previous floor.
    /// O(answers forgotten).
    pub fn accept_tokens_from(&mut self, time: Timestamp) {
        self.dedupe.reset_floor(time, &self.messages, self.sequence);
    }

    /// Returns the time before which tokens are always refused as too old; `None` if no reply was dropped. O(1).
    pub fn tokens_refused_before(&self) -> Option<Timestamp> {
        self.dedupe.floor()
    }

    /// Servers push the settings of their catalog in any order, so an older version must not undo a newer one.
    pub(super) fn configure(&mut self, new: ShardSettings, judged_by: Timestamp) -> Result<Reply, Refusal> {
        if new.version <= self.settings_version {
            return Ok(Reply::Configured);
        }
        let settings = &new.settings;
        settings.check()?;
        let fixed = |settings: &Settings| {
            settings.exclusivity.as_ref().map(|rule| (rule.key.clone(), rule.strict_order_per_value))
        };
        let changes_kind = fixed(settings) != fixed(&self.settings);
        if changes_kind && !self.messages.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        let is_used = |set| {
            self.messages.iter().any(|message| message.counted.key_set == set)
                || self.messages.stubs().any(|stub| stub.key_set == set)
        };
        if !self.tally.declare_keys(&settings.count_by, is_used) {
            return Err(InvalidCommandPart::CountedKeySets.into());
        }
        // A token refused for its age was promised never to be applied: a longer window must not accept it again.
        self.dedupe.drop_before(judged_by - self.settings.dedupe_window, &self.messages);
        match (&mut self.index.exclusive, &settings.exclusivity) {
            (Some(exclusive), Some(rule)) if !changes_kind => {
                exclusive.set_limit(rule.max_in_flight_per_value);
            }
            _ if changes_kind => {
                let limits = self.index.exclusive.iter().flat_map(|exclusive| exclusive.values.limits.keys());
                self.changes.value_limits.extend(limits.map(|value| (value.clone(), None)));
                self.index = ShardIndex::new(settings, BTreeMap::new()); // the kind changes only without messages
            }
            _ => {} // a simple queue stays simple
        }
        if settings.retention.is_shorter_than(&self.settings.retention) {
            self.shortened_through = self.first_terminal_after(0).map(|_| 0);
        }
        self.index.replace_shapes(&settings.shapes);
        self.index.recheck();
        self.changes.settings = Some(Box::new(new.clone()));
        let ShardSettings { version, settings, enqueue_blocked, dequeue_blocked } = new;
        (self.settings, self.settings_version) = (settings, version);
        (self.enqueue_blocked, self.dequeue_blocked) = (enqueue_blocked, dequeue_blocked);
        Ok(Reply::Configured)
    }

    pub(super) fn set_value_limit(&mut self, value: RoutingValue, limit: Option<u32>) -> Result<Reply, Refusal> {
        let Some(exclusive) = &mut self.index.exclusive else { return Err(InvalidCommandPart::NotExclusive.into()) };
        if limit.is_some_and(|limit| limit > VALUE_IN_FLIGHT_MAX) {
            return Err(InvalidCommandPart::ValueLimit.into());
        }
        let limits = &mut exclusive.values.limits;
        match limit {
            Some(_) if limits.len() == VALUE_LIMITS_MAX && !limits.contains_key(&value) => {
                return Err(Refusal::Full(ShardCapacity::ValueLimits));
            }
            Some(limit) => limits.insert(value.clone(), limit),
            None => limits.remove(&value),
        };
        self.index.refresh_value(&value);
        self.changes.value_limits.push((value, limit));
        Ok(Reply::ValueLimitSet)
    }

    /// Leaves a tombstone: the replies to tokens, which outlive their messages, and the message count for a repeat.
    pub(super) fn delete(&mut self) -> Reply {
        let messages = *self.deleted.get_or_insert(self.index.totals.all().messages);
        // The store makes the records of these replies from the heads that it removes.
        let key = *self.id_index.key();
        for message in self.messages.iter() {
            self.dedupe.detach_message(message.key.sequence, DedupeRecord::of(message, &key));
        }
        for stub in self.messages.stubs() {
            self.dedupe.detach_message(stub.key.sequence, DedupeRecord::of_stub(&stub));
        }
        (self.messages, self.id_index) = (MessagesBySequence::default(), IdIndex::new(key));
        self.ended.clear();
        self.index = ShardIndex::new(&self.settings, BTreeMap::new());
        self.sessions.clear();
        self.shortened_through = None;
        Reply::Deleted { messages }
    }

    /// Applies a shorter retention to up to `max` more messages that are over. Returns how many it went through.
    pub(super) fn shorten_retentions(&mut self, max: usize) -> usize {
        let mut count = 0;
        while let Some(through) = self.shortened_through {
            match self.first_terminal_after(through) {
                Some(_) if count == max => break,
                Some(sequence) => {
                    self.shorten_retention(sequence);
                    self.shortened_through = Some(sequence);
                    count += 1;
                }
                None => self.shortened_through = None,
            }
        }
        count
    }

    /// Drops the answers to tokens that are older than the dedupe window, which no caller is given any more. Returns
    /// whether there were any. Enqueues drop them once their whole bucket is older. From then on messages with such
    /// tokens leave no answer. O(answers in the buckets that are partly older).
    pub fn drop_outlived_answers(&mut self, token_age_clock: Timestamp) -> bool {
        self.dedupe.drop_all_outlived(token_age_clock, self.settings.dedupe_window)
    }

    pub(super) fn first_terminal_after(&self, after: u64) -> Option<u64> {
        let terminal = MessageState::ALL.into_iter().filter(|state| state.is_terminal());
        terminal.filter_map(|state| self.index.by_state[state as usize].after(after).next()).min()
    }

    fn shorten_retention(&mut self, sequence: u64) {
        let mut message = self.messages.get_mut(sequence).expect("an indexed message exists");
        let Some((ended_at, kept)) = message.ended_at.get().zip(self.settings.retention.of(message.state)) else {
            return; // its end was not recorded
        };
        if ended_at + kept < message.delete_at {
            let due = message.next_due();
            message.delete_at = ended_at + kept;
            self.index.reschedule(due, &message);
            self.changes.heads.push(sequence);
        }
    }
}
