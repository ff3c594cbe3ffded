//! Every mutation is found again: traces have a row for each position, and each total in the log of the counters says the
//! positions that it covers. The rows at these positions are what the total grew by.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use uuid::Uuid;

use super::histories::{Histories, TracedRow, check_finds_nothing};
use super::{
    CAUGHT_UP_WITHIN, QUEUE, QUEUES, Report, STATES, answer, check_levels, counts_of, create, queue_call, reports,
    wait_until_reported,
};
use crate::crash::Rng;
use crate::support::harness::{Launch, Server, eventually};

const SHARDS: u64 = 2;

/// The flows that count the rows of one trigger, which is theirs alone.
const FLOWS: [(&str, &str); 9] = [
    ("enqueued", "ENQUEUE"),
    ("dequeued", "DEQUEUE"),
    ("extended", "EXTEND"),
    ("failed", "FAIL"),
    ("released", "RELEASE"),
    ("lease_expired", "LEASE_OVER"),
    ("canceled.purge", "PURGE"),
    ("redriven", "REDRIVE"),
    ("expired", "DISCARD"),
];
/// What is reported with them, beside the depths.
const OTHERS: [&str; 9] = [
    "bytes",
    "enqueued_bytes",
    "ready",
    "attempts",
    "completed",
    "completed_late",
    "canceled",
    "canceled.ttl",
    "errored",
];

/// One kind of call in the mix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Enqueue,
    Dequeue,
    Complete,
    Fail,
    Cancel,
    Release,
    Extend,
    /// Ends the lease; now and then its worker completes the message after all.
    EndLease,
    CancelMessage,
    Update,
    Redrive,
    Purge,
    Discard,
}

const STEPS: [(Step, usize); 13] = [
    (Step::Enqueue, 70),
    (Step::Dequeue, 60),
    (Step::Complete, 20),
    (Step::Fail, 45),
    (Step::Cancel, 8),
    (Step::Release, 15),
    (Step::Extend, 15),
    (Step::EndLease, 10),
    (Step::CancelMessage, 12),
    (Step::Update, 25),
    (Step::Redrive, 5),
    (Step::Purge, 2),
    (Step::Discard, 2),
];

/// Callers that do anything at random to the queue.
struct Mix<'a> {
    server: &'a Server,
    rng: Rng,
    ids: Vec<String>,
    leases: Vec<String>,
    operations: Vec<String>,
}

impl Mix<'_> {
    /// Calls a method. It may be refused, where a message is in another state by now.
    fn tried(&self, method: &str, mut body: Value) -> Option<Value> {
        body["queue"] = json!(QUEUE);
        let answer = answer(self.server, QUEUES, method, &body);
        assert!(answer.status < 500, "{method} {body}: {}", answer.body);
        (answer.status == 200).then(|| answer.json())
    }

    fn enqueue(&mut self, max_attempts: u64) -> String {
        let id = format!("m{}", self.ids.len());
        self.ids.push(id.clone());
        let mut message = json!({"message_id": id, "payload": "aGVsbG8=", "max_attempts": max_attempts});
        if self.rng.below(6) == 0 {
            message["invisibility"] = json!("3600s");
        }
        self.tried("Enqueue", json!({"message": message})).expect("it is new");
        id
    }

    fn dequeue(&mut self, max_messages: u64) {
        let answer = self.tried("Dequeue", json!({"max_messages": max_messages})).expect("a dequeue is taken");
        let leases = answer["leases"].as_array().expect("leases");
        self.leases.extend(leases.iter().map(|lease| lease["leaseToken"].as_str().expect("a token").to_owned()));
    }

    /// Settles a lease in one way; a lease that was extended stays.
    fn settle(&mut self, method: &str, with: Value) -> Option<String> {
        let token = one_of(&mut self.rng, &self.leases)?;
        let mut body = with;
        body["lease_token"] = json!(token);
        self.tried(method, body);
        if method != "ExtendLease" {
            self.leases.retain(|lease| *lease != token);
        }
        Some(token)
    }

    fn begin(&mut self, method: &str, with: Value) {
        let answer = self.tried(method, with).expect("an operation begins");
        self.operations.push(answer["operation"]["operationId"].as_str().expect("an id").to_owned());
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Enqueue => {
                let attempts = 1 + self.rng.below(3);
                drop(self.enqueue(attempts));
            }
            Step::Dequeue => {
                let most = 1 + self.rng.below(3);
                self.dequeue(most);
            }
            Step::Complete => drop(self.settle("Complete", json!({}))),
            Step::Fail => {
                let delay = ["0s", "0s", "3600s"][self.rng.index(3)];
                let error = json!({"signature": "timeout", "text": "after 5 s"});
                self.settle("Fail", json!({"delay": delay, "error": error}));
            }
            Step::Cancel => drop(self.settle("Cancel", json!({}))),
            Step::Release => drop(self.settle("Release", json!({}))),
            Step::Extend => drop(self.settle("ExtendLease", json!({"lease_duration": "7200s"}))),
            Step::EndLease => {
                if let Some(token) = self.settle("ExtendLease", json!({"lease_duration": "0s"})) {
                    self.leases.retain(|lease| *lease != token);
                    if self.rng.below(2) == 0 {
                        self.tried("Complete", json!({"lease_token": token}));
                    }
                }
            }
            Step::CancelMessage => {
                let id = one_of(&mut self.rng, &self.ids);
                self.tried("CancelMessage", json!({"message_id": id, "reason": "not needed"}));
            }
            Step::Update => {
                let id = one_of(&mut self.rng, &self.ids);
                let change =
                    [json!({"priority": "7"}), json!({"invisibility": "3600s"}), json!({"invisibility": "0s"})];
                let mut body = change[self.rng.index(change.len())].clone();
                body["message_id"] = json!(id);
                self.tried("UpdateMessage", body);
            }
            Step::Redrive => self.begin("RedriveMessages", json!({})),
            Step::Purge => self.begin("PurgeQueue", json!({})),
            Step::Discard => self.begin("DiscardMessages", json!({"all": true})),
        }
    }

    /// Waits until all operations are over.
    fn wait_for_operations(&mut self) {
        for id in std::mem::take(&mut self.operations) {
            let is_over = || {
                let operation = queue_call(self.server, "GetOperation", json!({"operation_id": id}));
                operation["operation"]["state"] == json!("OPERATION_STATE_DONE")
            };
            assert!(eventually(CAUGHT_UP_WITHIN, is_over), "operation {id} ends");
        }
    }

    /// All kinds of calls in a random order, and then once more the rare ones where they certainly find a message.
    fn run(&mut self) {
        let mut steps: Vec<Step> = STEPS.iter().flat_map(|(step, times)| vec![*step; *times]).collect();
        for last in (1..steps.len()).rev() {
            steps.swap(last, self.rng.index(last + 1));
        }
        for step in steps {
            self.step(step);
        }
        self.wait_for_operations();
        for end in [Step::Redrive, Step::Discard] {
            self.step(Step::Purge);
            self.wait_for_operations();
            self.enqueue_ready(1);
            self.leases.clear();
            self.dequeue(1);
            self.settle("Fail", json!({"delay": "0s", "error": {"signature": "refused"}}));
            self.step(end);
            self.wait_for_operations();
        }
        self.enqueue_ready(3);
        self.step(Step::Purge);
        self.wait_for_operations();
    }

    fn enqueue_ready(&mut self, max_attempts: u64) {
        let id = self.enqueue(max_attempts);
        self.tried("UpdateMessage", json!({"message_id": id, "invisibility": "0s"}));
    }
}

fn one_of(rng: &mut Rng, known: &[String]) -> Option<String> {
    (!known.is_empty()).then(|| known[rng.index(known.len())].clone())
}

#[test]
fn traces_hold_every_position_once_and_the_totals_are_the_rows_at_their_positions() {
    let seed = std::env::var("TALLYSTONE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| Uuid::now_v7().as_u64_pair().1);
    println!("to replay: TALLYSTONE_SEED={seed} (what runs in the background is not replayed)");
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": SHARDS}));
    let rng = Rng::new(seed);
    let mut mix = Mix { server: &server, rng, ids: Vec::new(), leases: Vec::new(), operations: Vec::new() };
    mix.run();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    check_levels(&server);
    check_finds_nothing(&server);

    let histories = Histories::read(&server, 7);
    histories.check();
    assert_eq!((histories.messages.len(), &histories.gaps), (mix.ids.len(), &vec![]), "every message is found");
    for (flow, trigger) in FLOWS {
        let counted = counts_of(&server, [flow])[flow];
        assert_eq!(histories.count(trigger), counted, "{flow} counts {trigger}");
        assert!(counted > 0, "{flow} was tested");
    }
    let mut known = BTreeMap::new();
    let depths = STATES.map(|state| format!("depth.{state}"));
    let counters = FLOWS.iter().map(|(flow, _)| *flow).chain(OTHERS).chain(depths.iter().map(String::as_str));
    counters.for_each(|counter| drop(known.insert(counter, reports(&server, counter))));
    for shard in 0..SHARDS {
        let rows = histories.of_shard(shard);
        assert!(rows.len() > 50, "shard {shard} has rows: {}", rows.len());
        check_flows(shard, &rows, &known);
        check_reports(shard, &rows, &known);
    }
}

/// What a flow grows by from one total to the next is the number of its rows at the positions of the latter.
fn check_flows(shard: u64, rows: &BTreeMap<u64, &TracedRow>, known: &BTreeMap<&str, Vec<Report>>) {
    for (flow, trigger) in FLOWS {
        let (mut before, mut covered) = (0, 0);
        for report in known[flow].iter().filter(|report| report.shard == shard) {
            assert!(report.first > covered && report.first <= report.last, "{flow}: {report:?} after {covered}");
            let of_flow = rows.range(report.first..=report.last).filter(|(_, row)| row.trigger == trigger).count();
            let grown = usize::try_from(report.total - before);
            assert_eq!(grown, Ok(of_flow), "{flow} of shard {shard} in {report:?} after {before}");
            (before, covered) = (report.total, report.last);
        }
        let of_flow = rows.values().filter(|row| row.trigger == trigger).count();
        assert_eq!(usize::try_from(before), Ok(of_flow), "{flow} of shard {shard}: all its rows are covered");
    }
}

/// The reports of a shard follow each other: what lies between two of them are rows that change no counter.
fn check_reports(shard: u64, rows: &BTreeMap<u64, &TracedRow>, known: &BTreeMap<&str, Vec<Report>>) {
    let of_shard = known.values().flatten().filter(|report| report.shard == shard);
    let covered: BTreeSet<(u64, u64)> = of_shard.map(|report| (report.first, report.last)).collect();
    let changes_nothing = |row: &TracedRow| row.from == row.to && ["UPDATE", "CANCEL_MESSAGE"].contains(&&*row.trigger);
    let mut next = 1;
    for (first, last) in covered {
        assert!(first >= next, "two reports cover {first} of shard {shard}");
        let between = rows.range(next..first).find(|(_, row)| !changes_nothing(row));
        assert_eq!(between, None, "no report covers a row of shard {shard} before {first}");
        next = last + 1;
    }
    let behind = rows.range(next..).find(|(_, row)| !changes_nothing(row));
    assert_eq!(behind, None, "no report covers a row of shard {shard} from {next} on");
}
