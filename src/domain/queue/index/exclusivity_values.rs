//! Exclusivity values: the number of messages in flight, the limits, and the messages that block others.
//!
//! Everything except the limits is a function of the messages. Netflix's Timestone leases one message per value. A
//! limit above one, for all values or for single values, is specific to this service.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::allocation::{FIRST_NODE_BYTES, in_tree};
use crate::queue::messages::message::{MessageHead, Rank, RoutingValue};
use crate::queue::messages::state_machine::MessageState;
use crate::queue::setup::settings::Exclusivity;

/// The values of an exclusive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExclusivityValues {
    /// The default limit of a value, and whether order within a value is strict.
    pub rule: Exclusivity,
    /// The own limits of single values.
    pub limits: BTreeMap<RoutingValue, u32>,
    values: BTreeMap<RoutingValue, ValueInFlight>,
}

/// The messages that hold back others of one value; only values with such messages have an entry.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct ValueInFlight {
    running: BTreeSet<u64>,
    /// With strict order: the ranks of running and invisible messages, which block later ones.
    blocking: BTreeSet<Rank>,
}

impl ExclusivityValues {
    /// Makes an index without messages.
    pub fn new(rule: Exclusivity, limits: BTreeMap<RoutingValue, u32>) -> Self {
        Self { rule, limits, values: BTreeMap::new() }
    }

    /// The bytes of the values in flight and of own limits. A value mostly has one message in flight, and sets begin
    /// with a node. O(1).
    pub fn memory_bytes(&self) -> usize {
        const IN_FLIGHT: usize = in_tree(size_of::<(RoutingValue, ValueInFlight)>()) + FIRST_NODE_BYTES;
        let limits = self.limits.len() * in_tree(size_of::<(RoutingValue, u32)>());
        self.values.len() * IN_FLIGHT + limits
    }

    /// Adds a message.
    pub fn enter(&mut self, value: &RoutingValue, message: &MessageHead) {
        let ahead = self.blocks_later(message.state);
        if message.state != MessageState::Running && !ahead {
            return;
        }
        let entry = self.values.entry(value.clone()).or_default();
        if message.state == MessageState::Running {
            entry.running.insert(message.key.sequence);
        }
        if ahead {
            entry.blocking.insert(message.rank());
        }
    }

    /// Removes a message, unchanged since it was added.
    pub fn leave(&mut self, value: &RoutingValue, message: &MessageHead) {
        let Some(entry) = self.values.get_mut(value) else { return };
        entry.running.remove(&message.key.sequence);
        entry.blocking.remove(&message.rank());
        if entry.running.is_empty() && entry.blocking.is_empty() {
            self.values.remove(value);
        }
    }

    /// Returns the number of messages of a value that may be in flight. O(log n).
    pub fn limit(&self, value: &RoutingValue) -> u32 {
        self.limits.get(value).copied().unwrap_or(self.rule.max_in_flight_per_value)
    }

    /// Returns the running messages of a value, by sequence. O(log n).
    pub fn running(&self, value: &RoutingValue) -> impl Iterator<Item = u64> {
        self.values.get(value).into_iter().flat_map(|entry| entry.running.iter().copied())
    }

    /// Returns the first rank that blocks other messages of the value, if its order is strict. O(log n).
    pub fn first_blocking(&self, value: &RoutingValue) -> Option<Rank> {
        self.values.get(value)?.blocking.first().copied()
    }

    /// Returns whether the value is below its limit of messages in flight. O(log n).
    pub fn has_room(&self, value: &RoutingValue) -> bool {
        self.values.get(value).map_or(0, |entry| entry.running.len()) < self.limit(value) as usize
    }

    /// Returns whether a pending message of a value may be leased. O(log n).
    pub fn may_serve(&self, value: &RoutingValue, rank: Rank) -> bool {
        let ahead = self.values.get(value).and_then(|entry| entry.blocking.first());
        self.has_room(value) && ahead.is_none_or(|ahead| rank < *ahead)
    }

    /// Returns the values after the given one, by name, that have running or blocking messages.
    pub fn busy_after(&self, after: Option<&RoutingValue>) -> impl Iterator<Item = &RoutingValue> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.values.range::<RoutingValue, _>((from, std::ops::Bound::Unbounded)).map(|(value, _)| value)
    }

    fn blocks_later(&self, state: MessageState) -> bool {
        self.rule.strict_order_per_value && matches!(state, MessageState::Running | MessageState::Invisible)
    }
}
