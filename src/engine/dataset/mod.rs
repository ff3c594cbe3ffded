//! The datasets of the counters: their state, slices, and the counters that wait for a roll.

pub(super) mod datasets;
pub(super) mod pending;
pub(super) mod slices;
