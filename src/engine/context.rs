//! The context of every use case and loop: time, random bytes, tasks that outlive their caller, and counts for the
//! metrics.

use std::sync::Arc;

use crate::driver::Driver;
use crate::queue_report_frontier::QueueReportFrontier;
use crate::stats::Stats;
use tallystone_domain::Timestamp;
use tallystone_ports::{Clock, Entropy};

/// Shared by the whole engine.
pub struct EngineContext {
    pub clock: Arc<dyn Clock>,
    /// Random bytes.
    pub entropy: Arc<dyn Entropy>,
    /// Runs loops, and tasks that outlive their caller.
    pub driver: Driver,
    /// Counts for the metrics.
    pub stats: Arc<Stats>,
    /// How far the queues of this server are reported to their counters.
    pub queue_reports: QueueReportFrontier,
}

impl EngineContext {
    /// Wall time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// How far the queues of this server are reported to their counters. `None`: it reports for no queue.
    /// `Timestamp::MIN`: it does, and does not know yet how far.
    pub fn queues_reported_to(&self) -> Option<Timestamp> {
        self.queue_reports.own(&*self.clock)
    }

    pub fn random<const BYTES: usize>(&self) -> [u8; BYTES] {
        let mut random = [0; BYTES];
        self.entropy.fill(&mut random);
        random
    }
}
