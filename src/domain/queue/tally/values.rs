//! Counts by the values of one metadata key.
//!
//! The value under which a message is counted is fixed at its enqueue. So the depth of a value falls exactly by the
//! messages that raised it, whatever changes in between. A value without messages may yield to a new one. Its flows
//! then go on under `~gone`, and the sums over all values stay equal to those of the shard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::queue::counter_names::CountedValue;
use crate::queue::messages::message::CountedAs;
use crate::queue::messages::state_machine::{MessageState, Trigger};

/// The flows that are counted by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueFlow {
    /// Messages enqueued.
    Enqueued,
    /// Leases given.
    Dequeued,
    /// Messages completed.
    Completed,
    /// Messages out of attempts.
    Errored,
}

impl ValueFlow {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Enqueued, Self::Dequeued, Self::Completed, Self::Errored];
}

/// The states whose depth is counted by value. A completed or canceled message never leaves its state for another.
pub const COUNTED_STATES: [MessageState; 4] =
    [MessageState::Invisible, MessageState::Pending, MessageState::Running, MessageState::Errored];

/// The counts of one value.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ValueCounts {
    /// Messages by state, in the order of `COUNTED_STATES`.
    pub depth: [u64; COUNTED_STATES.len()],
    /// Flows, in the order of `ValueFlow::ALL`.
    pub flows: [u64; ValueFlow::ALL.len()],
}

impl ValueCounts {
    /// The depth of a state; 0 for a state that is not counted by value.
    pub fn depth_of(&self, state: MessageState) -> u64 {
        place(state).map_or(0, |place| self.depth[place])
    }

    /// Adds a message of a state to the depth.
    pub fn add_depth(&mut self, state: MessageState) {
        if let Some(place) = place(state) {
            self.depth[place] += 1;
        }
    }

    /// Whether the depth of a counted state is above 0.
    pub fn has_messages(&self) -> bool {
        self.depth.iter().any(|depth| *depth > 0)
    }

    fn apply(&mut self, trigger: Trigger, from: Option<MessageState>, to: Option<MessageState>) {
        if let Some(place) = from.and_then(place) {
            self.depth[place] = self.depth[place].checked_sub(1).expect("a message leaves the state it entered");
        }
        if let Some(place) = to.and_then(place) {
            self.depth[place] += 1;
        }
        if let Some(flow) = flow_of(trigger, from, to) {
            self.flows[flow as usize] += 1;
        }
    }
}

fn place(state: MessageState) -> Option<usize> {
    COUNTED_STATES.iter().position(|counted| *counted == state)
}

fn flow_of(trigger: Trigger, from: Option<MessageState>, to: Option<MessageState>) -> Option<ValueFlow> {
    match (trigger, to) {
        (Trigger::Enqueue, _) => Some(ValueFlow::Enqueued),
        (Trigger::Dequeue, _) => Some(ValueFlow::Dequeued),
        (_, Some(MessageState::Completed)) => Some(ValueFlow::Completed),
        (_, Some(MessageState::Errored)) if from != to => Some(ValueFlow::Errored),
        _ => None, // no flow that is counted by value
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct ValueEntry {
    counts: ValueCounts,
    changed_at: u64,
}

/// The counts by value of one metadata key.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct KeyTally {
    own: BTreeMap<Arc<str>, ValueEntry>,
    /// Values without messages, the longest unchanged first.
    idle: BTreeSet<(u64, Arc<str>)>,
    /// The counts of `~none`, `~other` and `~gone`, with the position of their last change.
    none: (ValueCounts, u64),
    other: (ValueCounts, u64),
    gone: (ValueCounts, u64),
}

impl KeyTally {
    /// The number of values with counts of their own.
    pub fn own_values(&self) -> usize {
        self.own.len()
    }

    /// Returns under what a new message with this value is counted. Makes room for the value where possible:
    /// `values_max` is the most values with counts of their own. Also returns the value that yielded, if one did.
    /// O(log n).
    pub fn admit(&mut self, value: Option<&str>, values_max: usize, position: u64) -> (CountedAs, Option<Arc<str>>) {
        let Some(value) = value else { return (CountedAs::None, None) };
        if self.own.contains_key(value) {
            return (CountedAs::Own, None);
        }
        let gave_way = if self.own.len() >= values_max { self.evict(position) } else { None };
        if self.own.len() >= values_max {
            return (CountedAs::Other, gave_way);
        }
        let value: Arc<str> = value.into();
        self.idle.insert((position, Arc::clone(&value)));
        self.own.insert(value, ValueEntry { counts: ValueCounts::default(), changed_at: position });
        (CountedAs::Own, gave_way)
    }

    /// Moves the flows of the longest idle value to `~gone`.
    fn evict(&mut self, position: u64) -> Option<Arc<str>> {
        let (_, value) = self.idle.pop_first()?;
        let entry = self.own.remove(&value).expect("an idle value has its counts");
        let (gone, changed_at) = &mut self.gone;
        gone.flows.iter_mut().zip(entry.counts.flows).for_each(|(gone, flow)| *gone += flow);
        *changed_at = position;
        Some(value)
    }

    /// Counts one row of a message. Returns whether it changed a count: a value of which only completed and canceled
    /// messages are left may be gone, and their removal changes nothing. O(log n).
    pub fn count(
        &mut self,
        under: CountedAs,
        value: Option<&str>,
        (trigger, from, to): (Trigger, Option<MessageState>, Option<MessageState>),
        position: u64,
    ) -> bool {
        let moves = from.and_then(place) != to.and_then(place);
        if !moves && flow_of(trigger, from, to).is_none() {
            return false;
        }
        let (counts, changed_at) = match under {
            CountedAs::None => (&mut self.none.0, &mut self.none.1),
            CountedAs::Other => (&mut self.other.0, &mut self.other.1),
            CountedAs::Own => {
                let value = value.expect("a message that is counted under its own value has one");
                let (name, _) = self.own.get_key_value(value).expect("a value with messages keeps its counts");
                let name = Arc::clone(name);
                let entry = self.own.get_mut(value).expect("it was just found");
                if !entry.counts.has_messages() {
                    self.idle.remove(&(entry.changed_at, Arc::clone(&name)));
                }
                entry.counts.apply(trigger, from, to);
                entry.changed_at = position;
                if !entry.counts.has_messages() {
                    self.idle.insert((position, name));
                }
                return true;
            }
        };
        counts.apply(trigger, from, to);
        *changed_at = position;
        true
    }

    /// The counts that changed after a position, or all, by value. O(values).
    pub fn changed_after(&self, position: Option<u64>) -> impl Iterator<Item = (CountedValue, ValueCounts)> {
        let own = self.own.iter().filter(move |(_, entry)| position.is_none_or(|position| entry.changed_at > position));
        let own = own.map(|(value, entry)| (CountedValue::Own((&**value).into()), entry.counts));
        let marks =
            [(CountedValue::None, self.none), (CountedValue::Other, self.other), (CountedValue::Gone, self.gone)];
        let marks = marks.into_iter().filter(move |(_, (_, changed_at))| *changed_at > position.unwrap_or(0));
        own.chain(marks.map(|(value, (counts, _))| (value, counts)))
    }

    /// The counts of a value and the position of their last change, as a store keeps them; none for a value that has
    /// none.
    pub fn stored(&self, value: &CountedValue) -> Option<(ValueCounts, u64)> {
        match value {
            CountedValue::Own(own) => self.own.get(&**own).map(|entry| (entry.counts, entry.changed_at)),
            CountedValue::None => Some(self.none),
            CountedValue::Other => Some(self.other),
            CountedValue::Gone => Some(self.gone),
        }
    }

    /// The counts of a value, zero for one without counts of its own. O(log n).
    pub fn of(&self, value: &CountedValue) -> ValueCounts {
        self.stored(value).map(|(counts, _)| counts).unwrap_or_default()
    }

    /// Takes back stored counts. O(log n).
    pub fn restore(&mut self, value: CountedValue, counts: ValueCounts, changed_at: u64) {
        match value {
            CountedValue::Own(own) => {
                let value: Arc<str> = own.into();
                if !counts.has_messages() {
                    self.idle.insert((changed_at, Arc::clone(&value)));
                }
                self.own.insert(value, ValueEntry { counts, changed_at });
            }
            CountedValue::None => self.none = (counts, changed_at),
            CountedValue::Other => self.other = (counts, changed_at),
            CountedValue::Gone => self.gone = (counts, changed_at),
        }
    }
}
