//! Light rollup events between servers: "this counter was written, up to this time". Fire and forget.

use std::sync::Arc;

use crate::domain::counter::Counter;
use crate::domain::time::Timestamp;

/// One rollup event; it carries no delta.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterSignal {
    /// The counter.
    pub counter: Counter,
    /// The oldest event time that it stands for.
    pub oldest: Timestamp,
    /// The newest event time that it stands for.
    pub newest: Timestamp,
}

impl CounterSignal {
    /// Takes in what another signal of the same counter stands for.
    pub fn merge(&mut self, other: &Self) {
        self.oldest = self.oldest.min(other.oldest);
        self.newest = self.newest.max(other.newest);
    }
}

/// What became of the signals that were sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SignalCounts {
    /// Signals that a roller has taken; those of one counter that went together are one.
    pub sent: u64,
    /// Signals that were dropped: there was no room, or the roller did not answer.
    pub dropped: u64,
}

/// The way to the rollers of other servers.
///
/// Laws:
/// 1. `send` never waits and never fails a write; a signal may be lost, which the touches repair.
/// 2. A signal may arrive late, twice, out of order, or as one with others of its counter.
/// 3. What waits to be sent is bounded, and so is the time for which it waits for a roller; what is dropped is counted.
pub trait RollupSignal: Send + Sync + 'static {
    /// Sends a signal to the server at an address, HOST:PORT, as its heartbeat tells it.
    fn send(&self, roller: &Arc<str>, signal: CounterSignal);

    /// What was sent and dropped so far.
    fn counts(&self) -> SignalCounts;
}
