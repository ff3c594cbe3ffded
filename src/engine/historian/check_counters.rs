//! The part of a full check that compares the newest totals in the log of the counters with the shards.
//!
//! Reports follow the shards with a delay. So a shard is compared while it rests: its position is the same before and
//! after the counters were read. Where it never rests, its flows are at least not beyond the shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;

use super::check::CheckRun;
use crate::queues::{CheckedQueue, QueueError};
use tallystone_domain::history::audit::{Finding, FindingKind};
use tallystone_domain::queue::{QueueName, ShardId};
use tallystone_ports::ShardReport;

/// The reads of the counters until they must equal the shards. Reports of times and errors come every 10 s.
const ATTEMPTS: u32 = 60;
/// The pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(500);

/// Totals by counter, without the name of the queue: for example `depth.pending` or `enqueued~tenant=acme`.
pub type TotalsByCounter = BTreeMap<String, i64>;

/// Totals by source: `s` and the number of the shard.
pub type TotalsBySource = BTreeMap<String, TotalsByCounter>;

/// The counters that queues report to.
#[async_trait]
pub trait CounterTotals: Send + Sync + 'static {
    /// The newest totals of a queue, of all its counters and shards. Counters without a total may be left out.
    async fn known(&self, queue: &QueueName) -> Result<TotalsBySource, QueueError>;

    /// The totals that a report of a shard states, by counter. Totals of 0 may be left out.
    fn stated(&self, report: &ShardReport) -> TotalsByCounter;
}

impl CheckRun {
    pub(super) async fn check_counters(&self, queue: &CheckedQueue) -> Result<(), QueueError> {
        let counters = self.context.counters.lock().clone();
        let Some(counters) = counters else { return Ok(()) };
        for attempt in 1..=ATTEMPTS {
            if self.running.is_cancelled() {
                return Ok(());
            }
            let before = self.reports(queue).await?;
            let mut known = counters.known(&queue.name).await?;
            let after = self.reports(queue).await?;
            let mut findings = Vec::new();
            for ((number, before), after) in (0..).zip(&before).zip(&after) {
                let shard = ShardId { queue: queue.id, number };
                let known = known.remove(&format!("s{number}")).unwrap_or_default();
                let stated = counters.stated(after);
                let rests = before.position == after.position;
                findings.extend(differences(shard, &known, &stated, rests));
            }
            if findings.is_empty() || attempt == ATTEMPTS {
                self.found_all(queue, findings);
                return Ok(());
            }
            self.context.engine.clock.sleep(ATTEMPT_PAUSE).await;
        }
        Ok(())
    }

    async fn reports(&self, queue: &CheckedQueue) -> Result<Vec<ShardReport>, QueueError> {
        let mut reports = Vec::new();
        for number in 0..queue.shards {
            reports.push(self.context.sources.outbox.report(ShardId { queue: queue.id, number }, None).await?);
        }
        Ok(reports)
    }
}

fn differences(shard: ShardId, known: &TotalsByCounter, stated: &TotalsByCounter, rests: bool) -> Vec<Finding> {
    let names: BTreeSet<&String> = known.keys().chain(stated.keys()).collect();
    let mut findings = Vec::new();
    for name in names {
        let of = |totals: &TotalsByCounter| totals.get(name).copied().unwrap_or(0);
        let (found, expected) = (of(known), of(stated));
        let is_wrong = if rests { found != expected } else { is_flow(name) && found > expected };
        if is_wrong {
            let text = format!("the newest total of {name} in the log is {found}; the shard has {expected}");
            let finding = Finding::of_shard(FindingKind::Counter, shard, (0, 0), text);
            findings.push(Finding { expected, found, ..finding });
        }
    }
    findings
}

/// Whether a counter only grows.
fn is_flow(counter: &str) -> bool {
    !counter.starts_with("depth.") && counter != "bytes"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::QueueId;

    #[test]
    fn a_shard_at_rest_must_equal_and_one_under_load_must_not_be_below() {
        let shard = ShardId { queue: QueueId(1), number: 2 };
        let totals = |totals: &[(&str, i64)]| totals.iter().map(|(name, total)| ((*name).to_owned(), *total)).collect();
        let known: TotalsByCounter = totals(&[("enqueued", 5), ("depth.pending", 9), ("completed", 1)]);
        let stated: TotalsByCounter = totals(&[("enqueued", 4), ("depth.pending", 4), ("completed", 1), ("failed", 3)]);
        let texts = |rests| -> Vec<String> {
            differences(shard, &known, &stated, rests).into_iter().map(|finding| finding.text).collect()
        };
        assert_eq!(texts(false), ["the newest total of enqueued in the log is 5; the shard has 4"]);
        assert_eq!(texts(true).len(), 3);
        assert!(texts(true)[2].contains("failed in the log is 0; the shard has 3"), "{:?}", texts(true));
    }
}
