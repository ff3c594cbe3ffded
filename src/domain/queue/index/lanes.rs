//! The pending messages of an exclusive queue: a lane for each exclusivity value, and the heads of the lanes.
//!
//! A dequeue examines heads only, so messages that wait behind their value cost it nothing. A lane is *shown* if its
//! best message is among the heads, otherwise *hidden*. `exclusivity_values`, which knows the leases, determines which
//! lanes are shown. The contents of the lanes are a function of the messages.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use xxhash_rust::xxh3::xxh3_64;

use crate::queue::allocation::{FIRST_NODE_BYTES, in_shuffled_tree, in_tree};
use crate::queue::messages::message::{Rank, RoutingValue};

/// Lanes and their heads.
#[derive(Clone, Default, Debug)]
pub struct ValueLanes {
    lanes: BTreeMap<LaneKey, Lane>,
    /// The best message of each shown lane.
    heads: BTreeSet<Rank>,
}

/// A value preceded by its hash. Comparing hashes, which are stored side by side, avoids most reads of texts, which are
/// scattered in memory. The order of lanes has no meaning.
type LaneKey = (u64, RoutingValue);

fn key_of(value: &RoutingValue) -> LaneKey {
    (xxh3_64(value.as_str().as_bytes()), value.clone())
}

/// The pending messages of one value, at least one. Most values have exactly one.
#[derive(Clone, Debug)]
struct Lane {
    first: Rank,
    later: BTreeSet<Rank>,
    shown: Option<Rank>,
}

impl Lane {
    fn add(&mut self, rank: Rank) {
        self.later.insert(rank.max(self.first));
        self.first = rank.min(self.first);
    }

    /// Removes a message; returns whether another one is left.
    fn remove(&mut self, rank: Rank) -> bool {
        if rank != self.first {
            self.later.remove(&rank);
            return true;
        }
        let next = self.later.pop_first();
        self.first = next.unwrap_or(self.first);
        next.is_some()
    }
}

/// The approximate memory of a lane of one message with its head, in bytes.
pub const LANE_BYTES: usize = in_shuffled_tree(size_of::<(LaneKey, Lane)>()) + in_tree(size_of::<Rank>());

/// Visibility can change without a change of a message, so equality compares only the contents of the lanes.
impl PartialEq for ValueLanes {
    fn eq(&self, other: &Self) -> bool {
        fn held(lanes: &ValueLanes) -> impl Iterator<Item = (&LaneKey, Rank, &BTreeSet<Rank>)> {
            lanes.lanes.iter().map(|(key, lane)| (key, lane.first, &lane.later))
        }
        held(self).eq(held(other))
    }
}

impl Eq for ValueLanes {}

impl ValueLanes {
    /// The bytes of the lanes of so many pending messages. O(1).
    pub fn memory_bytes(&self, pending: usize) -> usize {
        let lanes = self.lanes.len();
        let later = pending.saturating_sub(lanes);
        let in_nodes = (lanes.min(later) * FIRST_NODE_BYTES).max(later * in_tree(size_of::<Rank>()));
        lanes * LANE_BYTES + in_nodes
    }

    /// Adds a message. A shown lane keeps its head until the next `show`, even if the new message is better. O(log n).
    pub fn add(&mut self, value: &RoutingValue, rank: Rank) {
        match self.lanes.entry(key_of(value)) {
            Entry::Occupied(mut lane) => lane.get_mut().add(rank),
            Entry::Vacant(none) => drop(none.insert(Lane { first: rank, later: BTreeSet::new(), shown: None })),
        }
    }

    /// Removes a message. Hides the lane if that message was its head, and removes an empty lane. O(log n).
    pub fn remove(&mut self, value: &RoutingValue, rank: Rank) {
        let Entry::Occupied(mut entry) = self.lanes.entry(key_of(value)) else {
            unreachable!("a pending message is in the lane of its value")
        };
        let lane = entry.get_mut();
        if lane.shown == Some(rank) {
            lane.shown = None;
            self.heads.remove(&rank);
        }
        if !lane.remove(rank) {
            entry.remove();
        }
    }

    fn lane(&self, value: &RoutingValue) -> Option<&Lane> {
        self.lanes.get(&key_of(value))
    }

    /// Returns the best message of a lane, shown or hidden. O(log n).
    pub fn first(&self, value: &RoutingValue) -> Option<Rank> {
        Some(self.lane(value)?.first)
    }

    /// Shows the best message of a lane. O(log n).
    pub fn show(&mut self, value: &RoutingValue) {
        let Some(lane) = self.lanes.get_mut(&key_of(value)) else { return };
        let first = Some(lane.first);
        if lane.shown != first {
            lane.shown.take().inspect(|shown| assert!(self.heads.remove(shown), "what is shown is a head"));
            self.heads.extend(first);
            lane.shown = first;
        }
    }

    /// Hides a lane. O(log n).
    pub fn hide(&mut self, value: &RoutingValue) {
        let Some(lane) = self.lanes.get_mut(&key_of(value)) else { return };
        lane.shown.take().inspect(|shown| assert!(self.heads.remove(shown), "what is shown is a head"));
    }

    /// Counts the messages of a lane. O(log n).
    pub fn len(&self, value: &RoutingValue) -> usize {
        self.lane(value).map_or(0, |lane| 1 + lane.later.len())
    }

    /// Returns the last message of a lane, shown or hidden. O(log n).
    pub fn last(&self, value: &RoutingValue) -> Option<Rank> {
        let lane = self.lane(value)?;
        Some(lane.later.last().copied().unwrap_or(lane.first))
    }

    /// Returns the first message of a lane after a rank. O(log n).
    pub fn next_in(&self, value: &RoutingValue, after: Rank) -> Option<Rank> {
        let lane = self.lane(value)?;
        let later = || lane.later.range((Bound::Excluded(after), Bound::Unbounded)).next().copied();
        Some(lane.first).filter(|first| *first > after).or_else(later)
    }

    /// Returns the best head after a rank. O(log n).
    pub fn next_head(&self, after: Rank) -> Option<Rank> {
        self.heads.range((Bound::Excluded(after), Bound::Unbounded)).next().copied()
    }

    pub fn heads_before(&self, rank: Rank) -> impl Iterator<Item = &Rank> {
        self.heads.range(..rank)
    }

    /// Returns the best head. O(log n).
    pub fn best(&self) -> Option<Rank> {
        self.heads.first().copied()
    }
}
