//! The totals of a shard, by the names of their counters.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::counter_names::{CountedValue, pair_text};
use tallystone_domain::queue::tally::errors::SignatureCounts;
use tallystone_domain::queue::tally::flows::Flow;
use tallystone_domain::queue::tally::steps::{ATTEMPT_STEPS, TIME_STEPS};
use tallystone_domain::queue::tally::values::{ValueCounts, ValueFlow};
use tallystone_ports::ShardReport;

/// The key of error signatures in the names of counters.
const ERROR_KEY: &str = "error";

/// The counters of levels and flows, which are reported at each step.
static FAST_NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let levels = MessageState::ALL.map(|state| format!("depth.{state}"));
    let flows = Flow::ALL.map(|flow| flow.name().to_owned());
    levels.into_iter().chain(["bytes".to_owned()]).chain(flows).collect()
});

/// The counters by attempt number and by time, which are reported every few seconds.
static SLOW_NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let steps =
        |kind: &'static str, steps: &'static [&'static str]| steps.iter().map(move |step| format!("{kind}.{step}"));
    let attempts = ["leased_at", "completed_at", "errored_at"].into_iter().flat_map(|kind| steps(kind, &ATTEMPT_STEPS));
    attempts.chain(["wait", "run"].into_iter().flat_map(|kind| steps(kind, &TIME_STEPS))).collect()
});

/// Levels and flows, in the order of `fast_names`.
pub fn fast_totals(report: &ShardReport) -> Vec<i64> {
    let levels = MessageState::ALL.map(|state| report.totals.of(state).messages);
    let bytes = report.totals.all().bytes;
    let flows = Flow::ALL.map(|flow| report.counts.flow(flow));
    levels.into_iter().chain([bytes]).chain(flows).map(total).collect()
}

/// Counts by attempt number and by time, in the order of `slow_names`.
pub fn slow_totals(report: &ShardReport) -> Vec<i64> {
    let counts = &report.counts;
    let attempts = [&counts.leased_at, &counts.completed_at, &counts.errored_at].into_iter().flatten();
    attempts.chain([&counts.wait, &counts.run].into_iter().flatten()).copied().map(total).collect()
}

/// The names of the counters of levels and flows.
pub fn fast_names() -> &'static [String] {
    &FAST_NAMES
}

/// The names of the counters by attempt number and by time.
pub fn slow_names() -> &'static [String] {
    &SLOW_NAMES
}

/// Counts by value, with the names of their counters.
pub fn value_totals(report: &ShardReport) -> impl Iterator<Item = (String, i64)> {
    report.values.iter().flat_map(|(key, value, counts)| {
        let pair = pair_text(key, value);
        of_value(counts).map(move |(counter, count)| (format!("{counter}~{pair}"), total(count)))
    })
}

/// Counts by error signature, with the names of their counters.
pub fn signature_totals(report: &ShardReport) -> impl Iterator<Item = (String, i64)> {
    report.signatures.iter().flat_map(|(signature, counts)| of_signature(signature, *counts))
}

/// Every total of a full report that is not 0, by the name of its counter.
pub fn all_totals(report: &ShardReport) -> BTreeMap<String, i64> {
    let fast = fast_names().iter().cloned().zip(fast_totals(report));
    let slow = slow_names().iter().cloned().zip(slow_totals(report));
    let others = value_totals(report).chain(signature_totals(report));
    fast.chain(slow).chain(others).filter(|(_, total)| *total != 0).collect()
}

fn of_value(counts: &ValueCounts) -> impl Iterator<Item = (&'static str, u64)> {
    let depth = |state| counts.depth_of(state);
    let flow = |flow: ValueFlow| counts.flows[flow as usize];
    [
        ("depth.pending", depth(MessageState::Pending)),
        ("depth.running", depth(MessageState::Running)),
        ("depth.errored", depth(MessageState::Errored)),
        (Flow::Enqueued.name(), flow(ValueFlow::Enqueued)),
        (Flow::Dequeued.name(), flow(ValueFlow::Dequeued)),
        (Flow::Completed.name(), flow(ValueFlow::Completed)),
        (Flow::Errored.name(), flow(ValueFlow::Errored)),
    ]
    .into_iter()
}

fn of_signature(signature: &CountedValue, counts: SignatureCounts) -> [(String, i64); 2] {
    let pair = pair_text(ERROR_KEY, signature);
    [(Flow::Failed, counts.failed), (Flow::Errored, counts.errored)]
        .map(|(flow, count)| (format!("{}~{pair}", flow.name()), total(count)))
}

/// A count as a total of a counter.
fn total(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_a_queue_has_its_name() {
        let fast: Vec<&str> = fast_names().iter().map(String::as_str).collect();
        let expected = "depth.invisible depth.pending depth.running depth.completed depth.canceled depth.errored bytes \
                        enqueued enqueued_bytes ready dequeued attempts extended completed completed_late failed \
                        released lease_expired canceled canceled.ttl canceled.purge errored redriven expired";
        assert_eq!(fast.join(" "), expected);
        let slow = slow_names().join(" ");
        assert!(slow.starts_with("leased_at.1 leased_at.2 leased_at.3 leased_at.4 leased_at.5 leased_at.6-10"));
        assert!(slow.ends_with("run.15m run.1h run.6h run.1d run.7d run.more"));
        assert_eq!(slow_names().len(), 3 * 8 + 2 * 16);
    }
}
