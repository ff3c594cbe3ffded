//! Exclusivity values: how many messages of each are in flight, how many may be, and what waits behind what.
//!
//! All of it but the limits is a function of the messages. Netflix's Timestone leases one message per value; a limit
//! above one, for all values or for single ones, is this service's own.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::queue::messages::message::{MessageHead, Rank, RoutingValue};
use crate::domain::queue::messages::state_machine::MessageState;
use crate::domain::queue::setup::settings::Exclusivity;

/// The values of an exclusive queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExclusivityValues {
    /// The limit of a value without its own, and whether order within a value is strict.
    pub rule: Exclusivity,
    /// Limits of single values.
    pub limits: BTreeMap<RoutingValue, u32>,
    values: BTreeMap<RoutingValue, ValueInFlight>,
}

/// What holds back the messages of one value; only values with something of it have an entry.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct ValueInFlight {
    running: BTreeSet<u64>,
    /// With strict order: running and invisible messages, behind which later ones wait.
    blocking: BTreeSet<Rank>,
}

impl ExclusivityValues {
    /// No messages yet.
    pub fn new(rule: Exclusivity, limits: BTreeMap<RoutingValue, u32>) -> Self {
        Self { rule, limits, values: BTreeMap::new() }
    }

    /// Takes a message in.
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

    /// Takes a message out, as it was when it entered.
    pub fn leave(&mut self, value: &RoutingValue, message: &MessageHead) {
        let Some(entry) = self.values.get_mut(value) else { return };
        entry.running.remove(&message.key.sequence);
        entry.blocking.remove(&message.rank());
        if entry.running.is_empty() && entry.blocking.is_empty() {
            self.values.remove(value);
        }
    }

    /// How many messages of a value may be in flight at once. O(log n).
    pub fn limit(&self, value: &RoutingValue) -> u32 {
        self.limits.get(value).copied().unwrap_or(self.rule.max_in_flight_per_value)
    }

    /// The running messages of a value, by sequence. O(log n).
    pub fn running(&self, value: &RoutingValue) -> impl Iterator<Item = u64> {
        self.values.get(value).into_iter().flat_map(|entry| entry.running.iter().copied())
    }

    /// The first message behind which others of the value wait, if its order is strict. O(log n).
    pub fn first_blocking(&self, value: &RoutingValue) -> Option<Rank> {
        self.values.get(value)?.blocking.first().copied()
    }

    /// Whether fewer messages of a value are in flight than may be. O(log n).
    pub fn has_room(&self, value: &RoutingValue) -> bool {
        self.values.get(value).map_or(0, |entry| entry.running.len()) < self.limit(value) as usize
    }

    /// Whether a pending message of a value may be leased. O(log n).
    pub fn may_serve(&self, value: &RoutingValue, rank: Rank) -> bool {
        let ahead = self.values.get(value).and_then(|entry| entry.blocking.first());
        self.has_room(value) && ahead.is_none_or(|ahead| rank < *ahead)
    }

    /// The values that hold anything back, after one, by name.
    pub fn busy_after(&self, after: Option<&RoutingValue>) -> impl Iterator<Item = &RoutingValue> {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        self.values.range::<RoutingValue, _>((from, std::ops::Bound::Unbounded)).map(|(value, _)| value)
    }

    fn blocks_later(&self, state: MessageState) -> bool {
        self.rule.strict_order_per_value && matches!(state, MessageState::Running | MessageState::Invisible)
    }
}
