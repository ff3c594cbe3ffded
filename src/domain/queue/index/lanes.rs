//! Pending messages of an exclusive queue, a lane for each exclusivity value, and the heads of the lanes.
//!
//! A dequeue looks at heads only, so messages that wait behind their value cost it nothing. A lane is *shown* if its best
//! message is among the heads, else *hidden*. Which lanes are shown is decided by who knows the leases (`values`); what
//! the lanes hold is a function of the messages.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::queue::index::shape_memory::in_tree;
use crate::domain::queue::messages::message::{Rank, RoutingValue};

/// Lanes and their heads.
#[derive(Clone, Default, Debug)]
pub struct ValueLanes {
    lanes: BTreeMap<LaneKey, Lane>,
    /// The best message of each lane that is shown.
    heads: BTreeSet<Rank>,
}

/// A value after its hash: which lane is meant is mostly decided by numbers that lie side by side, not by texts that lie
/// all over memory. The order of the lanes means nothing.
type LaneKey = (u64, RoutingValue);

fn key_of(value: &RoutingValue) -> LaneKey {
    (xxh3_64(value.as_str().as_bytes()), value.clone())
}

/// The pending messages of one value, of which there is always one. Most values have no other.
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

    /// Removes a message; whether another one is left.
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

/// About what a lane of one message takes with its head, in bytes.
pub const LANE_BYTES: usize = in_tree(size_of::<(LaneKey, Lane)>()) + in_tree(size_of::<Rank>());

/// Shown and hidden come and go without a message that changes, so two sets of lanes are equal if they hold the same.
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
    /// Adds a message; its lane shows what it showed. O(log n).
    pub fn add(&mut self, value: &RoutingValue, rank: Rank) {
        match self.lanes.entry(key_of(value)) {
            Entry::Occupied(mut lane) => lane.get_mut().add(rank),
            Entry::Vacant(none) => drop(none.insert(Lane { first: rank, later: BTreeSet::new(), shown: None })),
        }
    }

    /// Removes a message; a lane that showed it is hidden, one without messages is gone. O(log n).
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

    /// The best message of a lane, shown or hidden. O(log n).
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

    /// How many messages a lane has. O(log n).
    pub fn len(&self, value: &RoutingValue) -> usize {
        self.lane(value).map_or(0, |lane| 1 + lane.later.len())
    }

    /// The last message of a lane, shown or hidden. O(log n).
    pub fn last(&self, value: &RoutingValue) -> Option<Rank> {
        let lane = self.lane(value)?;
        Some(lane.later.last().copied().unwrap_or(lane.first))
    }

    /// The first message of a lane after a rank. O(log n).
    pub fn next_in(&self, value: &RoutingValue, after: Rank) -> Option<Rank> {
        let lane = self.lane(value)?;
        let later = || lane.later.range((Bound::Excluded(after), Bound::Unbounded)).next().copied();
        Some(lane.first).filter(|first| *first > after).or_else(later)
    }

    /// The best of the messages that are shown and come after a rank. O(log n).
    pub fn next_head(&self, after: Rank) -> Option<Rank> {
        self.heads.range((Bound::Excluded(after), Bound::Unbounded)).next().copied()
    }

    /// The messages that are shown and come before a rank.
    pub fn heads_before(&self, rank: Rank) -> impl Iterator<Item = &Rank> {
        self.heads.range(..rank)
    }

    /// The best of the messages that are shown. O(log n).
    pub fn best(&self) -> Option<Rank> {
        self.heads.first().copied()
    }
}
