//! What an exclusive queue may serve: lanes of pending messages, shown or hidden by what their values have in flight.
//!
//! The lane of a value is shown when its best message may be leased. It is decided anew whenever a message of the value
//! changes or the value's limit does; a limit lowered for the whole queue is noticed by the dequeue that meets the value,
//! a raised one is taken up in steps.

use std::collections::BTreeMap;

use crate::domain::limits::VALUES_RECHECKED_MAX;
use crate::domain::queue::lanes::Lanes;
use crate::domain::queue::message::{Message, Rank, Routing};
use crate::domain::queue::settings::Exclusivity;
use crate::domain::queue::state::State;
use crate::domain::queue::values::Values;

/// Lanes and values of one shard.
#[derive(Clone, Debug)]
pub struct Exclusive {
    /// What is in flight.
    pub values: Values,
    /// What is pending.
    pub lanes: Lanes,
    /// While a raised limit is taken up: the last value looked at.
    recheck: Option<Option<Routing>>,
}

/// Taking up a limit is no part of what a shard is: a restored one has it behind it.
impl PartialEq for Exclusive {
    fn eq(&self, other: &Self) -> bool {
        (&self.values, &self.lanes) == (&other.values, &other.lanes)
    }
}

impl Eq for Exclusive {}

impl Exclusive {
    /// No messages yet.
    pub fn new(rule: Exclusivity, limits: BTreeMap<Routing, u32>) -> Self {
        Self { values: Values::new(rule, limits), lanes: Lanes::default(), recheck: None }
    }

    /// Takes a message in.
    pub fn enter(&mut self, value: &Routing, message: &Message) {
        self.values.enter(value, message);
        if message.state == State::Pending {
            self.lanes.add(value, message.rank());
        }
    }

    /// Takes a message out, as it was when it entered.
    pub fn leave(&mut self, value: &Routing, message: &Message) {
        self.values.leave(value, message);
        if message.state == State::Pending {
            self.lanes.remove(value, message.rank());
        }
    }

    /// Shows or hides the lane of a value, as its leases say. O(log n).
    pub fn settle(&mut self, value: &Routing) {
        match self.lanes.first(value) {
            Some(first) if self.values.may_serve(value, first) => self.lanes.show(value),
            Some(_) => self.lanes.hide(value),
            None => {}
        }
    }

    /// The best message that is shown. O(log n).
    pub fn best(&self) -> Option<Rank> {
        self.lanes.best()
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

    /// Takes up a raised limit for some more values. O(values log n), at most 256 of them.
    pub fn recheck(&mut self) {
        let Some(after) = self.recheck.take() else { return };
        let more = self.values.busy_after(after.as_ref()).take(VALUES_RECHECKED_MAX);
        let values: Vec<Routing> = more.cloned().collect();
        values.iter().for_each(|value| self.settle(value));
        self.recheck = values.into_iter().nth(VALUES_RECHECKED_MAX - 1).map(Some);
    }
}
