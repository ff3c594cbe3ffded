//! The data of counters: rows and recent events in memory, slices and series, and reads of them from disk.

pub(super) mod catalog;
pub(super) mod counter_row;
pub(super) mod counter_table;
pub(super) mod entries;
pub(super) mod event_tail;
pub(super) mod read;
pub(super) mod rules;
pub(super) mod series;
pub(super) mod slices;
#[cfg(test)]
pub(super) mod slices_tests;
