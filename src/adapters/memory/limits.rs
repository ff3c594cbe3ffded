//! Bounds of the stores in memory.

/// The most rows of all outboxes together, before the largest gives way.
pub const OUTBOX_ROWS_MAX: usize = 500_000;
