//! Counters in the embedded store: implementations of the ports, and the rows and recent events in memory.

pub(super) mod catalog;
pub(super) mod counter_row;
pub(super) mod counter_table;
pub(super) mod event_log;
pub(super) mod event_tail;
pub(super) mod rollups;
pub(super) mod series;
pub(super) mod slices;
#[cfg(test)]
pub(super) mod slices_tests;
