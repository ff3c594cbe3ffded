//! The record of what the demo did, next to what the server counts of it.

use serde_json::{Value, json};

use crate::Failure;
use tallystone_proto::queue::v1::GetDepthResponse;

/// The record of what a scenario did.
#[derive(Default)]
pub struct DemoLedger {
    queues: Vec<Value>,
    experiments: Vec<Value>,
    removed: Vec<String>,
    /// The differences between this record and the counts of the server.
    differences: Vec<String>,
}

/// Messages of a queue by their state, as the demo left them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DemoDepth {
    pub pending: i64,
    pub invisible: i64,
    pub running: i64,
    pub errored: i64,
    pub completed: i64,
    pub canceled: i64,
}

impl DemoDepth {
    /// As the server counts them.
    pub fn of(depth: &GetDepthResponse) -> Self {
        let GetDepthResponse { pending, invisible, running, errored, completed, canceled, .. } = *depth;
        Self { pending, invisible, running, errored, completed, canceled }
    }
}

impl DemoLedger {
    /// Adds a queue: its name, the messages that were enqueued, the attempts that failed, what was left and what the
    /// server counts. `seen` is what the scenario showed.
    pub fn add_queue(&mut self, queue: &str, moved: (i64, i64), left: DemoDepth, counted: DemoDepth, seen: Value) {
        let (enqueued, failed_attempts) = moved;
        if left != counted {
            self.differences.push(format!("queue {queue}: the demo left {left:?}, the server counts {counted:?}"));
        }
        self.queues.push(json!({
            "queue": queue,
            "enqueued": enqueued,
            "failed_attempts": failed_attempts,
            "pending": left.pending,
            "invisible": left.invisible,
            "running": left.running,
            "errored": left.errored,
            "completed": left.completed,
            "canceled": left.canceled,
            "seen": seen,
        }));
    }

    /// Adds an experiment: its name, the verdict with what was expected, and its counters with what was added and what
    /// the server counts.
    pub fn add_experiment(&mut self, name: &str, verdict: &str, expected: &str, counters: &[(String, i64, i64)]) {
        for (counter, added, counted) in counters.iter().filter(|(_, added, counted)| added != counted) {
            self.differences.push(format!("counter {counter}: the demo added {added}, the server counts {counted}"));
        }
        let counters: serde_json::Map<String, Value> =
            counters.iter().map(|(counter, added, _)| (counter.clone(), json!(added))).collect();
        self.experiments.push(json!({
            "experiment": name,
            "verdict": verdict,
            "expected": expected,
            "counters": counters,
        }));
    }

    /// Adds something that was removed.
    pub fn add_removed(&mut self, what: String) {
        self.removed.push(what);
    }

    /// Adds what another scenario did.
    pub fn append(&mut self, mut other: Self) {
        self.queues.append(&mut other.queues);
        self.experiments.append(&mut other.experiments);
        self.removed.append(&mut other.removed);
        self.differences.append(&mut other.differences);
    }

    /// The ledger as JSON.
    pub fn json(&self, scenario: &str, seed: u64) -> Value {
        json!({
            "scenario": scenario,
            "seed": seed,
            "agrees": self.differences.is_empty(),
            "queues": self.queues,
            "experiments": self.experiments,
            "removed": self.removed,
        })
    }

    /// Fails if the server counts something else.
    pub fn check(&self) -> Result<(), Failure> {
        match self.differences.as_slice() {
            [] => Ok(()),
            differences => Err(Failure::other(format!("the ledger is wrong: {}", differences.join("; ")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_named_and_fails() {
        let left = DemoDepth { completed: 3, ..DemoDepth::default() };
        let mut ledger = DemoLedger::default();
        ledger.add_queue("demo/a", (3, 0), left, left, Value::Null);
        ledger.add_experiment("demo-a", "HIGHER", "HIGHER", &[("exp/demo-a/A/exposures".to_owned(), 5, 5)]);
        assert!(ledger.check().is_ok());
        assert_eq!(ledger.json("busy", 1)["agrees"], true);
        let mut other = DemoLedger::default();
        other.add_queue("demo/b", (3, 0), left, DemoDepth { completed: 2, ..left }, Value::Null);
        ledger.append(other);
        assert!(ledger.check().is_err());
        let whole = ledger.json("busy", 1);
        assert_eq!((&whole["agrees"], &whole["queues"][1]["completed"]), (&json!(false), &json!(3)));
    }
}
