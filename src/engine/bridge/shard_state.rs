//! The reported state of a shard, and the content of its next report.

use std::collections::BTreeSet;

use crate::bridge::totals::{fast_names, fast_totals, signature_totals, slow_names, slow_totals, value_totals};
use crate::counting::{QueueTotal, queue_serial};
use tallystone_domain::counter::{CounterName, ReportSource};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::counter_names::counter_name;
use tallystone_ports::ShardReport;

/// The reported state of a shard.
#[derive(Clone, Debug)]
pub struct ReportedShard {
    source: ReportSource,
    /// The epoch of its totals.
    epoch: u64,
    /// The position of the last report of levels, flows and values.
    position: u64,
    fast: WrittenTotals,
    /// The position of the last report of the other counters.
    slow_position: u64,
    slow: WrittenTotals,
}

/// Totals as they were reported, in the order of their names.
#[derive(Clone, Debug)]
struct WrittenTotals {
    totals: Vec<i64>,
    /// The places of totals of which it is not known whether a later one was written: its write failed. A level may
    /// since have come back to what was reported before. It is then written all the same.
    in_doubt: BTreeSet<usize>,
}

impl WrittenTotals {
    fn new(totals: Vec<i64>) -> Self {
        Self { totals, in_doubt: BTreeSet::new() }
    }

    /// Notes that these were to be written, and may be.
    fn mark_uncertain(&mut self, attempted: &Self) {
        let pairs = self.totals.iter().zip(&attempted.totals).enumerate();
        self.in_doubt.extend(pairs.filter(|(_, (before, after))| before != after).map(|(place, _)| place));
    }

    /// The counters whose totals have to be written, with the present ones.
    fn changed(&self, names: &[String], now: &Self) -> impl Iterator<Item = (String, i64)> {
        let totals = names.iter().zip(self.totals.iter().zip(&now.totals)).enumerate();
        let due = totals.filter(|(place, (_, (before, now)))| before != now || self.in_doubt.contains(place));
        due.map(|(_, (name, (_, now)))| (name.clone(), *now))
    }
}

/// The counters of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportScope {
    /// Levels, flows and counts by value.
    Fast,
    /// All counters.
    All,
}

impl ReportedShard {
    /// A shard of which the log knows everything up to a report.
    pub fn at(number: u32, epoch: u64, report: &ShardReport) -> Self {
        let position = report.position.position;
        let (fast, slow) = (WrittenTotals::new(fast_totals(report)), WrittenTotals::new(slow_totals(report)));
        Self { source: source_of(number), epoch, position, fast, slow_position: position, slow }
    }

    /// The position from which counts by value and by error are missing.
    pub fn since(&self, scope: ReportScope) -> u64 {
        match scope {
            ReportScope::Fast => self.position,
            ReportScope::All => self.position.min(self.slow_position),
        }
    }

    /// Whether counters by attempt, time and error are older than the others.
    pub fn is_slow_behind(&self) -> bool {
        self.slow_position < self.position
    }

    /// Whether a report lies before what was reported: the store went back.
    pub fn is_behind(&self, report: &ShardReport) -> bool {
        report.position.position < self.position
    }

    /// Notes that the totals of a report were to be written and may be, because the write failed.
    pub fn mark_uncertain(&mut self, attempted: &Self) {
        self.fast.mark_uncertain(&attempted.fast);
        self.slow.mark_uncertain(&attempted.slow);
    }

    /// The totals that a report changes, and the shard after they are written. O(counters).
    pub fn next(&self, queue: &QueueName, report: &ShardReport, scope: ReportScope) -> (Self, Vec<QueueTotal>) {
        let position = report.position.position;
        let mut next = Self { position, fast: WrittenTotals::new(fast_totals(report)), ..self.clone() };
        let fast = self.fast.changed(fast_names(), &next.fast).chain(value_totals(report));
        let positions = (self.position + 1, position);
        let mut totals: Vec<_> = fast.map(|(name, total)| self.total(queue, &name, total, report, positions)).collect();
        if scope == ReportScope::All {
            (next.slow_position, next.slow) = (position, WrittenTotals::new(slow_totals(report)));
            let slow = self.slow.changed(slow_names(), &next.slow).chain(signature_totals(report));
            let positions = (self.slow_position + 1, position);
            totals.extend(slow.map(|(name, total)| self.total(queue, &name, total, report, positions)));
        }
        (next, totals)
    }

    fn total(
        &self,
        queue: &QueueName,
        name: &str,
        total: i64,
        report: &ShardReport,
        (first, last): (u64, u64),
    ) -> QueueTotal {
        QueueTotal {
            counter: counter_of(queue, name),
            source: self.source.clone(),
            epoch: self.epoch,
            serial: serial_of(report),
            total,
            positions: (first.min(last), last),
        }
    }
}

/// The counter of a queue with this name.
pub fn counter_of(queue: &QueueName, name: &str) -> CounterName {
    CounterName::new(&counter_name(queue, name)).expect("names of queues and pairs are bounded")
}

/// The source of the totals of a shard.
pub fn source_of(number: u32) -> ReportSource {
    ReportSource::new(&format!("s{number}")).expect("a short name is valid")
}

/// The serial of a report: the epoch of the shard and its position.
pub fn serial_of(report: &ShardReport) -> u64 {
    let epoch = u16::try_from(report.position.epoch).unwrap_or(u16::MAX);
    queue_serial(epoch, report.position.position)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Beside a log that applies each write or loses it, whatever the answer says.
        #[test]
        fn the_log_has_the_present_totals_after_a_write_that_was_answered(
            steps in prop::collection::vec((prop::collection::vec(0_i64..3, 3), any::<bool>(), any::<bool>()), 1..20),
        ) {
            let names = ["a", "b", "c"].map(str::to_owned);
            let mut log = [0; 3];
            let mut reported = WrittenTotals::new(log.to_vec());
            for (now, is_applied, is_answered) in steps {
                let now = WrittenTotals::new(now);
                let written: Vec<_> = reported.changed(&names, &now).collect();
                if is_applied || is_answered {
                    for (name, total) in written {
                        log[names.iter().position(|one| *one == name).expect("a known name")] = total;
                    }
                }
                if is_answered {
                    prop_assert_eq!(&log[..], &now.totals[..]);
                    reported = now;
                } else {
                    reported.mark_uncertain(&now);
                }
            }
        }
    }
}
