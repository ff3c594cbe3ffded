//! The bridge: it reports the counts of queues to their counters, as totals.
//!
//! A report holds the totals of one shard at one position. So a repeat, a second reporter and a reporter that starts
//! from nothing cannot count twice, and an outage of the counters accumulates nothing. The design follows Netflix's
//! Distributed Counter for the counters and Timestone for the queues; that each mutation reaches the counters is ours.
//!
//! ```text
//! shard --change--> DirtyShards --each step--> ShardOutbox.report --changed totals--> Counting.report_queue_totals
//! ```
//!
//! The counters belong to one queue store: `pairing` is the mark that says to which, `mark_watch` looks at it and gives
//! or takes this server's right to report.

mod dirty;
mod known_totals;
mod mark_watch;
mod orphan_cleanup;
mod other_servers;
pub mod pairing;
mod reporter;
mod shard_state;
mod takeover;
mod totals;

use std::time::Duration;

pub use known_totals::ReportedTotals;
pub(super) use mark_watch::MarkWatch;
pub use reporter::Bridge;

/// How the bridge reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BridgeSettings {
    /// The pause between reports: 250 ms where one process owns the counters, 1 s where servers share them.
    pub step: Duration,
    /// The most totals in a second, over all queues. The shards that wait longest come first.
    pub totals_per_second: u32,
    /// How long rows of the history are kept.
    pub history_retention: Duration,
}
