//! What an exclusive queue may serve: lanes of pending messages, shown or hidden by what their values have in flight.
//!
//! The lane of a value is shown when its best message may be leased. It is decided anew whenever a message of the value
//! changes or the value's limit does; a limit lowered for the whole queue is noticed by the dequeue that meets the value,
//! a raised one is taken up in steps. A value may have lanes in many groups of shapes: those that no change of a message
//! touches stay shown until a dequeue meets them; it parks them, and they return when something of the value ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::limits::VALUES_RECHECKED_MAX;
use crate::domain::queue::index::exclusivity_values::ExclusivityValues;
use crate::domain::queue::index::lanes::ValueLanes;
use crate::domain::queue::index::shape_index::ValueSet;
use crate::domain::queue::messages::message::{MessageHead, RoutingValue};
use crate::domain::queue::messages::state_machine::MessageState;
use crate::domain::queue::setup::settings::Exclusivity;

/// A group of a shape: the number of the shape, and the values.
pub type ShapeGroupKey = (usize, ValueSet);

/// Lanes and values of one shard.
#[derive(Clone, Debug)]
pub struct ExclusiveIndex {
    /// What is in flight.
    pub values: ExclusivityValues,
    /// What is pending.
    pub lanes: ValueLanes,
    /// Where lanes of groups are hidden, to be offered again when something of their value ends.
    parked: BTreeMap<RoutingValue, BTreeSet<ShapeGroupKey>>,
    /// While a raised limit is taken up: the last value looked at.
    recheck: Option<Option<RoutingValue>>,
}

/// What is parked and whether a limit is being taken up are no part of what a shard is: a restored one has it behind it.
impl PartialEq for ExclusiveIndex {
    fn eq(&self, other: &Self) -> bool {
        (&self.values, &self.lanes) == (&other.values, &other.lanes)
    }
}

impl Eq for ExclusiveIndex {}

impl ExclusiveIndex {
    /// No messages yet.
    pub fn new(rule: Exclusivity, limits: BTreeMap<RoutingValue, u32>) -> Self {
        Self {
            values: ExclusivityValues::new(rule, limits),
            lanes: ValueLanes::default(),
            parked: BTreeMap::new(),
            recheck: None,
        }
    }

    /// Takes a message in.
    pub fn enter(&mut self, value: &RoutingValue, message: &MessageHead) {
        self.values.enter(value, message);
        if message.state == MessageState::Pending {
            self.lanes.add(value, message.rank());
        }
    }

    /// Takes a message out, as it was when it entered.
    pub fn leave(&mut self, value: &RoutingValue, message: &MessageHead) {
        self.values.leave(value, message);
        if message.state == MessageState::Pending {
            self.lanes.remove(value, message.rank());
        }
    }

    /// Shows or hides the lane of a value, as its leases say. O(log n).
    pub fn refresh_lane(&mut self, value: &RoutingValue) {
        refresh_visibility(&self.values, &mut self.lanes, value);
    }

    /// Shows or hides the lane of a value in a group of a shape, and notes a hidden one as parked there. O(log n).
    pub fn refresh_group_lane(&mut self, place: &ShapeGroupKey, lanes: &mut ValueLanes, value: &RoutingValue) {
        match refresh_visibility(&self.values, lanes, value) {
            LaneVisibility::Hidden => drop(self.parked.entry(value.clone()).or_default().insert(place.clone())),
            LaneVisibility::Shown | LaneVisibility::Nothing => self.unpark(place, value),
        }
    }

    /// The groups in which a value is parked that may be served again. O(1) if it may not.
    pub fn unblocked_groups(&self, value: &RoutingValue) -> Vec<ShapeGroupKey> {
        let parked = self.parked.get(value).filter(|_| self.values.has_room(value));
        parked.map(|places| places.iter().cloned().collect()).unwrap_or_default()
    }

    /// Forgets that a value is parked in a group.
    pub fn unpark(&mut self, place: &ShapeGroupKey, value: &RoutingValue) {
        if let Some(places) = self.parked.get_mut(value) {
            places.remove(place);
            if places.is_empty() {
                self.parked.remove(value);
            }
        }
    }

    /// Follows shapes that got other numbers, or none.
    pub fn renumber(&mut self, numbers: &[Option<usize>]) {
        for places in self.parked.values_mut() {
            let kept = std::mem::take(places).into_iter();
            *places = kept.filter_map(|(shape, set)| Some((numbers[shape]?, set))).collect();
        }
        self.parked.retain(|_, places| !places.is_empty());
    }

    /// Changes the limit of the queue. A higher one is taken up by `recheck`.
    pub fn set_limit(&mut self, max_in_flight_per_value: u32) {
        let raised = max_in_flight_per_value > self.values.rule.max_in_flight_per_value;
        self.values.rule.max_in_flight_per_value = max_in_flight_per_value;
        if raised {
            self.recheck = Some(None);
        }
    }

    /// Whether a raised limit is not taken up everywhere yet.
    pub fn is_rechecking(&self) -> bool {
        self.recheck.is_some()
    }

    /// The next values, at most 256, for which a raised limit is to be taken up. O(values).
    pub fn recheck(&mut self) -> Vec<RoutingValue> {
        let Some(after) = self.recheck.take() else { return Vec::new() };
        let more = self.values.busy_after(after.as_ref()).take(VALUES_RECHECKED_MAX);
        let values: Vec<RoutingValue> = more.cloned().collect();
        self.recheck = values.get(VALUES_RECHECKED_MAX - 1).cloned().map(Some);
        values
    }
}

/// What became of a lane.
enum LaneVisibility {
    Shown,
    Hidden,
    Nothing,
}

fn refresh_visibility(values: &ExclusivityValues, lanes: &mut ValueLanes, value: &RoutingValue) -> LaneVisibility {
    match lanes.first(value) {
        Some(first) if values.may_serve(value, first) => {
            lanes.show(value);
            LaneVisibility::Shown
        }
        Some(_) => {
            lanes.hide(value);
            LaneVisibility::Hidden
        }
        None => LaneVisibility::Nothing,
    }
}
