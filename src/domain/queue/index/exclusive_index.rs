//! The servable messages of an exclusive queue: lanes of pending messages, shown or hidden by their value's messages in
//! flight.
//!
//! The lane of a value is shown when its best message may be leased. This is decided again whenever a message of the
//! value or the value's limit changes. If the limit of the whole queue is lowered, the dequeue that meets a value
//! notices it; a raised limit is applied in steps. A value may have lanes in many groups of shapes. A lane in a group
//! that a change does not touch stays shown until a dequeue meets it. The dequeue parks such a lane, and the lane
//! returns when a lease or blocking message of the value ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::VALUES_RECHECKED_MAX;
use crate::queue::allocation::{FIRST_NODE_BYTES, in_tree};
use crate::queue::index::exclusivity_values::ExclusivityValues;
use crate::queue::index::lanes::ValueLanes;
use crate::queue::index::shape_index::ValueSet;
use crate::queue::messages::message::{MessageHead, RoutingValue};
use crate::queue::messages::state_machine::MessageState;
use crate::queue::setup::settings::Exclusivity;

/// The key of a shape's group: the number of the shape, and the values.
pub type ShapeGroupKey = (usize, ValueSet);

/// The lanes and values of one shard.
#[derive(Clone, Debug)]
pub struct ExclusiveIndex {
    /// The messages in flight, by value.
    pub values: ExclusivityValues,
    /// The pending messages, by value.
    pub lanes: ValueLanes,
    /// The groups in which a value's lane is hidden, to be shown again when a message of the value stops holding it
    /// back.
    parked: BTreeMap<RoutingValue, BTreeSet<ShapeGroupKey>>,
    /// While a raised limit is being applied: the last value processed.
    recheck: Option<Option<RoutingValue>>,
}

/// Parked lanes and the progress of applying a limit are not part of a shard's identity: a restored shard has none.
impl PartialEq for ExclusiveIndex {
    fn eq(&self, other: &Self) -> bool {
        (&self.values, &self.lanes) == (&other.values, &other.lanes)
    }
}

impl Eq for ExclusiveIndex {}

impl ExclusiveIndex {
    /// Makes an index without messages.
    pub fn new(rule: Exclusivity, limits: BTreeMap<RoutingValue, u32>) -> Self {
        Self {
            values: ExclusivityValues::new(rule, limits),
            lanes: ValueLanes::default(),
            parked: BTreeMap::new(),
            recheck: None,
        }
    }

    /// The bytes of lanes and values, for so many pending messages. O(1).
    pub fn memory_bytes(&self, pending: usize) -> usize {
        const PARKED: usize = in_tree(size_of::<(RoutingValue, BTreeSet<ShapeGroupKey>)>()) + FIRST_NODE_BYTES;
        self.values.memory_bytes() + self.lanes.memory_bytes(pending) + self.parked.len() * PARKED
    }

    /// Adds a message.
    pub fn enter(&mut self, value: &RoutingValue, message: &MessageHead) {
        self.values.enter(value, message);
        if message.state == MessageState::Pending {
            self.lanes.add(value, message.rank());
        }
    }

    /// Removes a message, unchanged since it was added.
    pub fn leave(&mut self, value: &RoutingValue, message: &MessageHead) {
        self.values.leave(value, message);
        if message.state == MessageState::Pending {
            self.lanes.remove(value, message.rank());
        }
    }

    /// Shows or hides the lane of a value according to its leases. O(log n).
    pub fn refresh_lane(&mut self, value: &RoutingValue) {
        refresh_visibility(&self.values, &mut self.lanes, value);
    }

    /// Shows or hides the lane of a value in a group of a shape, and parks a hidden lane there. O(log n).
    pub fn refresh_group_lane(&mut self, place: &ShapeGroupKey, lanes: &mut ValueLanes, value: &RoutingValue) {
        match refresh_visibility(&self.values, lanes, value) {
            LaneVisibility::Hidden => drop(self.parked.entry(value.clone()).or_default().insert(place.clone())),
            LaneVisibility::Shown | LaneVisibility::Nothing => self.unpark(place, value),
        }
    }

    /// Returns the groups in which a now servable value is parked. O(1) if the value is not servable.
    pub fn unblocked_groups(&self, value: &RoutingValue) -> Vec<ShapeGroupKey> {
        let parked = self.parked.get(value).filter(|_| self.values.has_room(value));
        parked.map(|places| places.iter().cloned().collect()).unwrap_or_default()
    }

    /// Removes a value's parking entry for a group.
    pub fn unpark(&mut self, place: &ShapeGroupKey, value: &RoutingValue) {
        if let Some(places) = self.parked.get_mut(value) {
            places.remove(place);
            if places.is_empty() {
                self.parked.remove(value);
            }
        }
    }

    /// Renumbers the parking entries after shapes got new numbers or were removed.
    pub fn renumber(&mut self, numbers: &[Option<usize>]) {
        for places in self.parked.values_mut() {
            let kept = std::mem::take(places).into_iter();
            *places = kept.filter_map(|(shape, set)| Some((numbers[shape]?, set))).collect();
        }
        self.parked.retain(|_, places| !places.is_empty());
    }

    /// Changes the limit of the queue. `recheck` applies a higher one.
    pub fn set_limit(&mut self, max_in_flight_per_value: u32) {
        let raised = max_in_flight_per_value > self.values.rule.max_in_flight_per_value;
        self.values.rule.max_in_flight_per_value = max_in_flight_per_value;
        if raised {
            self.recheck = Some(None);
        }
    }

    /// Returns whether a raised limit still has to be applied to some values.
    pub fn is_rechecking(&self) -> bool {
        self.recheck.is_some()
    }

    /// Returns the next values, at most 256, to which a raised limit has to be applied. O(values).
    pub fn recheck(&mut self) -> Vec<RoutingValue> {
        let Some(after) = self.recheck.take() else { return Vec::new() };
        let more = self.values.busy_after(after.as_ref()).take(VALUES_RECHECKED_MAX);
        let values: Vec<RoutingValue> = more.cloned().collect();
        self.recheck = values.get(VALUES_RECHECKED_MAX - 1).cloned().map(Some);
        values
    }
}

/// The visibility of a lane after a refresh.
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
