//! Rollup signals between servers: "this counter was written, up to this time". They are sent without acknowledgement.

use std::sync::Arc;

use tallystone_domain::counter::Counter;
use tallystone_domain::time::Timestamp;

/// One rollup signal. It carries no delta.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterSignal {
    /// The counter.
    pub counter: Counter,
    /// The oldest event time that it covers.
    pub oldest: Timestamp,
    /// The newest event time that it covers.
    pub newest: Timestamp,
}

impl CounterSignal {
    /// Merges another signal of the same counter.
    pub fn merge(&mut self, other: &Self) {
        self.oldest = self.oldest.min(other.oldest);
        self.newest = self.newest.max(other.newest);
    }
}

/// Counts of the signals sent so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SignalCounts {
    /// Signals that a roller accepted. Merged signals of one counter count once.
    pub sent: u64,
    /// Dropped signals: the buffer was full, or the roller did not answer.
    pub dropped: u64,
}

/// The sender of rollup signals to other servers.
///
/// Laws:
/// 1. `send` never waits and never fails a write. A signal may be lost; the touch index repairs that.
/// 2. A signal may arrive late, twice, out of order, or merged with others of its counter.
/// 3. The number of waiting signals and their waiting time are bounded. Dropped signals are counted.
pub trait RollupSignal: Send + Sync + 'static {
    /// Sends a signal to the server at an address, HOST:PORT, from its heartbeat.
    fn send(&self, roller: &Arc<str>, signal: CounterSignal);

    /// Counts of sent and dropped signals.
    fn counts(&self) -> SignalCounts;
}
