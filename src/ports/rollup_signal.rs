//! Light rollup events: "this counter was written, up to this time". Fire and forget.

use crate::domain::counter::{Counter, NamespaceId};
use crate::domain::time::Timestamp;

/// One rollup event; it carries no delta.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signal {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The counter.
    pub counter: Counter,
    /// The oldest event time that it stands for.
    pub oldest: Timestamp,
    /// The newest event time that it stands for.
    pub newest: Timestamp,
}

/// The way to the roller of a counter.
///
/// Laws:
/// 1. `send` never waits and never fails a write; a signal may be lost, which the touches repair.
/// 2. A signal may arrive twice or out of order.
pub trait RollupSignal: Send + Sync + 'static {
    /// Sends a signal.
    fn send(&self, signal: Signal);
}
