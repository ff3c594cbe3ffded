//! Declared filter shapes: for each set of values of some metadata keys, its messages ranked and counted by state.
//!
//! A dequeue or depth query whose filter has exactly the keys of a shape costs O(log n). A shape declared later is
//! filled in steps, by sequence, and used once it has every message. Its contents are a function of the messages and of
//! the fill position. Lanes of exclusive queues are shown and hidden as in `lanes`.

use std::collections::{BTreeMap, BTreeSet};

use crate::queue::allocation::{FIRST_NODE_BYTES, in_tree};
use crate::queue::filter::{Filter, ShapeKeys};
use crate::queue::index::lanes::ValueLanes;
use crate::queue::messages::message::{MessageHead, Metadata, Rank};
use crate::queue::messages::state_machine::MessageState;

/// The number of messages in each state, in the order of `MessageState::ALL`.
pub type StateCounts = [u64; MessageState::ALL.len()];

/// One value for each key of a shape, in the order of the keys.
pub type ValueSet = Box<[u8]>;

/// The index of one declared set of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShapeIndex {
    pub keys: ShapeKeys,
    /// While the shape is being filled: the sequence up to which it has every message.
    pub filled_through: Option<u64>,
    groups: BTreeMap<ValueSet, ShapeGroup>,
}

/// The approximate memory of one set of values without its messages, in bytes: its group, the text of its values, and
/// the first node of its order.
pub const SET_BYTES: usize = in_tree(size_of::<(ValueSet, ShapeGroup)>()) + VALUES_BYTES + FIRST_NODE_BYTES;
const VALUES_BYTES: usize = 32;

/// The messages with one set of values; the group exists while it has messages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShapeGroup {
    counts: StateCounts,
    /// The pending messages of a simple queue.
    pub ready: BTreeSet<Rank>,
    /// The pending messages of an exclusive queue.
    pub lanes: ValueLanes,
}

impl ShapeIndex {
    /// Makes a shape without messages; `filled` is the fill position, `None` for a complete shape.
    pub fn new(keys: ShapeKeys, filled: Option<u64>) -> Self {
        Self { keys, filled_through: filled, groups: BTreeMap::new() }
    }

    /// The bytes of the sets, without the order of their messages. O(1).
    pub fn set_bytes(&self) -> usize {
        self.groups.len() * SET_BYTES
    }

    /// Returns whether the shape has every message.
    pub fn is_complete(&self) -> bool {
        self.filled_through.is_none()
    }

    /// Returns the group of a message, if the shape covers the message. O(keys).
    pub fn values_of(&self, message: &MessageHead) -> Option<ValueSet> {
        let is_filled = self.filled_through.is_none_or(|filled| message.key.sequence <= filled);
        is_filled.then(|| value_set_of(&self.keys, &message.metadata)).flatten()
    }

    /// Returns the group of the messages that match a filter with all keys of the shape. O(log n).
    pub fn values_for(&self, filter: &Filter) -> Option<ValueSet> {
        value_set_of(&self.keys, filter.metadata())
    }

    /// Returns a group. O(log n).
    pub fn group(&self, set: &ValueSet) -> Option<&ShapeGroup> {
        self.groups.get(set)
    }

    /// Returns a group for showing or hiding its lanes. O(log n).
    pub fn group_mut(&mut self, set: &ValueSet) -> Option<&mut ShapeGroup> {
        self.groups.get_mut(set)
    }

    /// Adds a message to its group.
    pub fn enter(&mut self, set: ValueSet, message: &MessageHead, kind: QueueKind) {
        let group = self.groups.entry(set).or_default();
        group.counts[message.state as usize] += 1;
        match (message.state, kind, &message.routing) {
            (MessageState::Pending, QueueKind::Exclusive, Some(value)) => group.lanes.add(value, message.rank()),
            (MessageState::Pending, QueueKind::Simple, _) => drop(group.ready.insert(message.rank())),
            _ => {} // messages that are not pending are only counted
        }
    }

    /// Removes a message from its group, unchanged since it was added.
    pub fn leave(&mut self, set: &ValueSet, message: &MessageHead, kind: QueueKind) {
        let group = self.groups.get_mut(set).expect("a message leaves the group that it entered");
        group.counts[message.state as usize] -= 1;
        match (message.state, kind, &message.routing) {
            (MessageState::Pending, QueueKind::Exclusive, Some(value)) => group.lanes.remove(value, message.rank()),
            (MessageState::Pending, QueueKind::Simple, _) => drop(group.ready.remove(&message.rank())),
            _ => {} // messages that are not pending are only counted
        }
        if group.counts.iter().all(|count| *count == 0) {
            self.groups.remove(set);
        }
    }
}

impl ShapeGroup {
    /// Returns the number of messages in each state. O(1).
    pub fn counts(&self) -> StateCounts {
        self.counts
    }
}

/// Whether exclusivity values hold messages of the queue back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// No value holds messages back.
    Simple,
    /// Exclusivity values hold messages back.
    Exclusive,
}

/// Encodes the values of the keys, each after its length, so that different sets have different encodings.
fn value_set_of(keys: &ShapeKeys, metadata: &Metadata) -> Option<ValueSet> {
    let bytes = keys.iter().map(|key| metadata.get(key).map(|value| 2 + value.len())).sum::<Option<usize>>()?;
    let mut set = Vec::with_capacity(bytes);
    for key in keys.iter() {
        let value = metadata.get(key)?;
        let bytes = u16::try_from(value.len()).expect("a value has at most 256 bytes");
        set.extend(bytes.to_be_bytes());
        set.extend(value.as_bytes());
    }
    Some(set.into())
}
