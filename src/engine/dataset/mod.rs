//! The datasets of the counters: their state, slices, closed timestamps and watermarks.

pub(super) mod closed_timestamp;
pub(super) mod datasets;
pub(super) mod slices;
pub(super) mod watermark;
