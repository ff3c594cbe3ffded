//! The question of a read and its answer.

use std::time::Duration;

use crate::time::Timestamp;

/// The freshness that a caller asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Freshness {
    /// The freshness of the counter type.
    #[default]
    ByType,
    /// The last checkpoint.
    RolledUp,
    /// The checkpoint and every acknowledged event after it.
    UpToDate,
}

/// The kind of number that a count is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exactness {
    /// Exactly the events up to `as_of`.
    ExactAsOf,
    /// Every event acknowledged before the read began.
    UpToDate,
    /// An estimate from the state of this server.
    Estimate,
    /// The checkpoint and the oldest events after it; more are waiting.
    Partial,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// Roll up first if the count is behind by more.
    pub max_staleness: Option<Duration>,
    /// Roll up first if `as_of` is below this.
    pub at_least_as_of: Option<Timestamp>,
    /// How new the count has to be.
    pub freshness: Freshness,
}

/// A count, with the time up to which it is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountReading {
    /// The count, clamped to 64 bits.
    pub count: i64,
    /// Whether it had to be clamped.
    pub saturated: bool,
    /// The rolled-up part contains every event up to this time.
    pub as_of: Timestamp,
    /// When `last_write_time` was read from the store.
    pub checked_at: Timestamp,
    /// The time of the newest mutation, if there is one.
    pub last_write_time: Option<Timestamp>,
    /// Whether mutations newer than `as_of` exist.
    pub behind: bool,
    /// The kind of number that it is.
    pub exactness: Exactness,
    /// For a counter of queues: all their mutations up to this time are in the log. None for all other counters, and
    /// while the time is not known.
    pub reported_to: Option<Timestamp>,
}

impl CountReading {
    /// Whether no mutation of the counter was ever kept, as of `checked_at`; false where the counter's type cannot
    /// tell.
    pub fn never_written(&self) -> bool {
        // A best-effort count is always an estimate, and knows of no write.
        self.last_write_time.is_none() && self.exactness != Exactness::Estimate
    }
}
