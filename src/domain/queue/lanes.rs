//! Pending messages of an exclusive queue, a lane for each exclusivity value, and the heads of the lanes.
//!
//! A dequeue looks at heads only, so messages that wait behind their value cost it nothing. A lane is *shown* if its best
//! message is among the heads, else *hidden*. Which lanes are shown is decided by who knows the leases (`values`); what
//! the lanes hold is a function of the messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::domain::queue::message::{Rank, Routing};

/// Lanes and their heads.
#[derive(Clone, Default, Debug)]
pub struct Lanes {
    lanes: BTreeMap<Routing, Lane>,
    /// The best message of each lane that is shown.
    heads: BTreeSet<Rank>,
}

/// The pending messages of one value.
#[derive(Clone, Default, Debug)]
struct Lane {
    pending: BTreeSet<Rank>,
    shown: Option<Rank>,
}

/// Shown and hidden come and go without a message that changes, so two sets of lanes are equal if they hold the same.
impl PartialEq for Lanes {
    fn eq(&self, other: &Self) -> bool {
        let held = |lanes: &Self| {
            lanes
                .lanes
                .iter()
                .map(|(value, lane)| (value, &lane.pending))
                .eq(other.lanes.iter().map(|(value, lane)| (value, &lane.pending)))
        };
        held(self)
    }
}

impl Eq for Lanes {}

impl Lanes {
    /// Adds a message; its lane shows what it showed. O(log n).
    pub fn add(&mut self, value: &Routing, rank: Rank) {
        match self.lanes.get_mut(value) {
            Some(lane) => lane.pending.insert(rank),
            None => self.lanes.entry(value.clone()).or_default().pending.insert(rank),
        };
    }

    /// Removes a message; a lane that showed it is hidden, one without messages is gone. O(log n).
    pub fn remove(&mut self, value: &Routing, rank: Rank) {
        let lane = self.lanes.get_mut(value).expect("a pending message is in the lane of its value");
        lane.pending.remove(&rank);
        if lane.shown == Some(rank) {
            lane.shown = None;
            self.heads.remove(&rank);
        }
        if lane.pending.is_empty() {
            self.lanes.remove(value);
        }
    }

    /// The best message of a lane, shown or hidden. O(log n).
    pub fn first(&self, value: &Routing) -> Option<Rank> {
        self.lanes.get(value)?.pending.first().copied()
    }

    /// Shows the best message of a lane. O(log n).
    pub fn show(&mut self, value: &Routing) {
        let Some(lane) = self.lanes.get_mut(value) else { return };
        let first = lane.pending.first().copied();
        if lane.shown != first {
            lane.shown.take().inspect(|shown| assert!(self.heads.remove(shown), "what is shown is a head"));
            self.heads.extend(first);
            lane.shown = first;
        }
    }

    /// Hides a lane. O(log n).
    pub fn hide(&mut self, value: &Routing) {
        let Some(lane) = self.lanes.get_mut(value) else { return };
        lane.shown.take().inspect(|shown| assert!(self.heads.remove(shown), "what is shown is a head"));
    }

    /// The last message of a lane, shown or hidden. O(log n).
    pub fn last(&self, value: &Routing) -> Option<Rank> {
        self.lanes.get(value)?.pending.last().copied()
    }

    /// The first message of a lane after a rank. O(log n).
    pub fn next_in(&self, value: &Routing, after: Rank) -> Option<Rank> {
        self.lanes.get(value)?.pending.range((Bound::Excluded(after), Bound::Unbounded)).next().copied()
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
