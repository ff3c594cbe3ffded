//! Declared filter shapes: for each set of values of some metadata keys, its messages counted by state and ranked.
//!
//! A dequeue or depth whose filter has exactly the keys of a shape costs O(log n). A shape declared later is filled in
//! steps, by sequence, and used once it has every message. What a shape holds is a function of the messages and of how
//! far it is filled; lanes of exclusive queues are shown and hidden as in `lanes`.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::queue::filter::{Filter, ShapeKeys};
use crate::domain::queue::index::lanes::ValueLanes;
use crate::domain::queue::index::shape_memory::in_tree;
use crate::domain::queue::messages::message::{MessageHead, Metadata, Rank};
use crate::domain::queue::messages::state_machine::MessageState;

/// How many messages there are of each state, in the order of `State::ALL`.
pub type StateCounts = [u64; MessageState::ALL.len()];

/// One value of each key of a shape, in the order of the keys.
pub type ValueSet = Box<[u8]>;

/// One declared set of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShapeIndex {
    /// The keys.
    pub keys: ShapeKeys,
    /// While it is being filled: the sequence up to which it has every message.
    pub filled_through: Option<u64>,
    groups: BTreeMap<ValueSet, ShapeGroup>,
}

/// About what one set of values takes before its messages, in bytes: its group, the text of its values, and the first node
/// of its order.
pub const SET_BYTES: usize = in_tree(size_of::<(ValueSet, ShapeGroup)>()) + VALUES_BYTES + FIRST_NODE_BYTES;
const VALUES_BYTES: usize = 32;
const FIRST_NODE_BYTES: usize = 192;

/// The messages of one set of values; it exists while there are any.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ShapeGroup {
    counts: StateCounts,
    /// Of a simple queue, the pending messages.
    pub ready: BTreeSet<Rank>,
    /// Of an exclusive queue, the pending messages.
    pub lanes: ValueLanes,
}

impl ShapeIndex {
    /// A shape without messages, which has all of them or none.
    pub fn new(keys: ShapeKeys, filled: Option<u64>) -> Self {
        Self { keys, filled_through: filled, groups: BTreeMap::new() }
    }

    /// Whether it has every message.
    pub fn is_complete(&self) -> bool {
        self.filled_through.is_none()
    }

    /// The values that put a message into a group, if the message is one of the shape's. O(keys).
    pub fn values_of(&self, message: &MessageHead) -> Option<ValueSet> {
        let is_filled = self.filled_through.is_none_or(|filled| message.key.sequence <= filled);
        is_filled.then(|| value_set_of(&self.keys, &message.metadata)).flatten()
    }

    /// The group that holds what meets a filter which has all keys of the shape. O(log n).
    pub fn values_for(&self, filter: &Filter) -> Option<ValueSet> {
        value_set_of(&self.keys, filter.metadata())
    }

    /// A group. O(log n).
    pub fn group(&self, set: &ValueSet) -> Option<&ShapeGroup> {
        self.groups.get(set)
    }

    /// A group, to offer or withdraw its lanes. O(log n).
    pub fn group_mut(&mut self, set: &ValueSet) -> Option<&mut ShapeGroup> {
        self.groups.get_mut(set)
    }

    /// Takes a message into its group.
    pub fn enter(&mut self, set: ValueSet, message: &MessageHead, kind: QueueKind) {
        let group = self.groups.entry(set).or_default();
        group.counts[message.state as usize] += 1;
        match (message.state, kind, &message.routing) {
            (MessageState::Pending, QueueKind::Exclusive, Some(value)) => group.lanes.add(value, message.rank()),
            (MessageState::Pending, QueueKind::Simple, _) => drop(group.ready.insert(message.rank())),
            _ => {} // what is not pending is counted only
        }
    }

    /// Takes a message out of its group, as it was when it entered.
    pub fn leave(&mut self, set: &ValueSet, message: &MessageHead, kind: QueueKind) {
        let group = self.groups.get_mut(set).expect("a message leaves the group that it entered");
        group.counts[message.state as usize] -= 1;
        match (message.state, kind, &message.routing) {
            (MessageState::Pending, QueueKind::Exclusive, Some(value)) => group.lanes.remove(value, message.rank()),
            (MessageState::Pending, QueueKind::Simple, _) => drop(group.ready.remove(&message.rank())),
            _ => {} // what is not pending is counted only
        }
        if group.counts.iter().all(|count| *count == 0) {
            self.groups.remove(set);
        }
    }
}

impl ShapeGroup {
    /// How many messages there are of each state. O(1).
    pub fn counts(&self) -> StateCounts {
        self.counts
    }
}

/// Whether messages of a queue are held back by their exclusivity values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// They are not.
    Simple,
    /// They are.
    Exclusive,
}

/// The values of the keys, each after its length, so that no two sets are written alike.
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
