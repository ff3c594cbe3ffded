//! Counters of queues over kill -9 in the middle of load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    CAUGHT_UP_WITHIN, COUNTERS, NAMESPACE, QUEUE, QUEUES, check_levels, check_series, check_sums, complete_all, count,
    create, number, reported_to, wait_until_reported,
};
use crate::support::harness::{EndsWith, Launch, Server, http};

const PRODUCERS: usize = 3;
const WORKERS: usize = 3;
const ROUNDS: i64 = 6;
/// More values than have counts of their own.
const VALUES: u64 = 9;

/// What is known of one flow of the queue.
#[derive(Default)]
struct FlowLedger {
    /// The calls of the rounds before, which are all known.
    before: AtomicI64,
    /// When calls of this round were acknowledged.
    acknowledged: Mutex<Vec<SystemTime>>,
    /// Calls of this round without an answer. Each may have been taken.
    unknown: AtomicI64,
}

impl FlowLedger {
    /// The least that may be true of all calls that were acknowledged by a time.
    fn least_at(&self, time: SystemTime) -> i64 {
        let acknowledged = self.acknowledged.lock().iter().filter(|at| **at <= time).count();
        self.before.load(Ordering::SeqCst) + i64::try_from(acknowledged).expect("few")
    }

    /// Compares a count with the calls, and takes it as what became of the unknown ones.
    fn settle(&self, name: &str, count: i64) {
        let least = self.least_at(SystemTime::now());
        let most = least + self.unknown.swap(0, Ordering::SeqCst);
        assert!((least..=most).contains(&count), "{name} is {count}, not {least} to {most}");
        self.acknowledged.lock().clear();
        self.before.store(count, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Flows {
    enqueued: FlowLedger,
    dequeued: FlowLedger,
    completed: FlowLedger,
    failed: FlowLedger,
}

impl Flows {
    fn named(&self) -> [(&'static str, &FlowLedger); 4] {
        let Self { enqueued, dequeued, completed, failed } = self;
        [("enqueued", enqueued), ("dequeued", dequeued), ("completed", completed), ("failed", failed)]
    }

    fn acknowledged(&self) -> usize {
        self.named().iter().map(|(_, flow)| flow.acknowledged.lock().len()).sum()
    }
}

/// Calls a method. Its answer if it was taken; none if it got no answer.
fn try_call(server: &Server, service: &str, method: &str, body: &Value) -> Option<Value> {
    let headers = [("content-type", "application/json")];
    let answer = http(server.address, "POST", &format!("{service}/{method}"), &headers, &body.to_string()).ok()?;
    assert!(answer.status != 400, "{method} {body}: {}", answer.body);
    (answer.status == 200).then(|| answer.json())
}

/// One call of a flow. None if it got no answer.
fn counted(server: &Server, flow: &FlowLedger, method: &str, body: &Value) -> Option<Value> {
    let answer = try_call(server, QUEUES, method, body);
    match &answer {
        Some(_) => flow.acknowledged.lock().push(SystemTime::now()),
        None => drop(flow.unknown.fetch_add(1, Ordering::SeqCst)),
    }
    answer
}

fn produce(server: &Server, flows: &Flows) {
    for turn in 0_u64.. {
        let tenant = json!({"tenant": format!("t{}", turn % VALUES)});
        let id = Uuid::now_v7().to_string();
        let message = json!({"message_id": id, "payload": "aGVsbG8=", "max_attempts": 10_000, "metadata": tenant});
        let body = json!({"queue": QUEUE, "message": message});
        if counted(server, &flows.enqueued, "Enqueue", &body).is_none() {
            return;
        }
    }
}

/// Leases one message at a time. Completes three of four, and fails the others.
fn work(server: &Server, flows: &Flows) {
    for turn in 0_u64.. {
        let answer = try_call(server, QUEUES, "Dequeue", &json!({"queue": QUEUE, "wait": "1s"}));
        let Some(answer) = answer else {
            flows.dequeued.unknown.fetch_add(1, Ordering::SeqCst);
            return;
        };
        let Some(lease) = answer["leases"].get(0) else { continue };
        flows.dequeued.acknowledged.lock().push(SystemTime::now());
        let mut body = json!({"queue": QUEUE, "lease_token": lease["leaseToken"]});
        let settled = if turn % 4 == 3 {
            body["error"] = json!({"signature": "timeout", "text": "after 5 s"});
            counted(server, &flows.failed, "Fail", &body)
        } else {
            counted(server, &flows.completed, "Complete", &body)
        };
        if settled.is_none() {
            return;
        }
    }
}

/// Reads a counter while everything moves: it never lacks what `reported_to` promises. Answers how many answers promised
/// something.
fn watch(server: &Server, flows: &Flows, is_over: &AtomicBool) -> u64 {
    let mut promises = 0;
    let body = json!({"namespace": NAMESPACE, "counter_name": format!("{QUEUE}~enqueued")});
    while !is_over.load(Ordering::SeqCst) {
        let Some(reading) = try_call(server, COUNTERS, "GetCount", &body) else { continue };
        let Some(reported_to) = reported_to(&reading) else { continue };
        let (count, least) = (number(&reading["count"]), flows.enqueued.least_at(reported_to));
        assert!(count >= least, "{least} enqueues were acknowledged by {reported_to:?}: {reading}");
        promises += 1;
    }
    promises
}

/// Loads the server until it has acknowledged so many calls, and kills it. Answers how many readings promised something.
fn load_and_kill(server: Server, flows: &Arc<Flows>, acknowledgements: usize) -> u64 {
    let (server, is_over) = (Arc::new(server), Arc::new(AtomicBool::new(false)));
    let mut callers = Vec::new();
    for number in 0..PRODUCERS + WORKERS {
        let (server, flows) = (Arc::clone(&server), Arc::clone(flows));
        callers.push(thread::spawn(
            move || if number < PRODUCERS { produce(&server, &flows) } else { work(&server, &flows) },
        ));
    }
    let reader = {
        let (server, flows, is_over) = (Arc::clone(&server), Arc::clone(flows), Arc::clone(&is_over));
        thread::spawn(move || watch(&server, &flows, &is_over))
    };
    let ends = EndsWith(&is_over);
    let is_enough = || flows.acknowledged() >= acknowledgements;
    assert!(crate::support::harness::eventually(CAUGHT_UP_WITHIN, is_enough), "{}", server.printed());
    server.signal(libc::SIGKILL);
    for caller in callers {
        caller.join().expect("no caller panics");
    }
    drop(ends);
    reader.join().expect("no reading lacks what it promises")
}

#[test]
fn counters_equal_depths_and_ledger_after_kills_in_the_middle_of_load_and_no_step_is_doubled() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on disk");
    let flows = Arc::new(Flows::default());
    let mut promises = 0;
    for round in 0..ROUNDS {
        let server = Launch::dev(data.path()).start();
        if round == 0 {
            let retry = json!({"initial": "1s", "factor_percent": 100, "max": "1s"});
            create(
                &server,
                json!({"shards": 2, "retry_policy": retry, "count_by": ["tenant"],
                "count_by_values_max": 3}),
            );
        }
        wait_until_reported(&server, CAUGHT_UP_WITHIN);
        for (name, flow) in flows.named() {
            flow.settle(name, count(&server, name));
        }
        check_sums(&server, &["tenant"]);
        promises += load_and_kill(server, &flows, 200 + 150 * usize::try_from(round).expect("small"));
    }
    assert!(promises > 0, "readings said how far the queues are reported");

    let server = Launch::dev(data.path()).start();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    flows.named().iter().for_each(|(name, flow)| flow.settle(name, count(&server, name)));
    // Failed messages come back within a second. Then nothing moves any more.
    let none_invisible = || super::depths(&server)["depth.invisible"] == 0;
    assert!(crate::support::harness::eventually(CAUGHT_UP_WITHIN, none_invisible));
    let completed = count(&server, "completed") + complete_all(&server);
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    assert_eq!(count(&server, "completed"), completed);
    let levels = check_levels(&server);
    check_sums(&server, &["tenant"]);
    assert_eq!(levels["depth.completed"], completed);
    for flow in ["enqueued", "dequeued", "completed", "failed", "ready", "attempts"] {
        check_series(&server, flow);
    }
    assert!(server.stop().success(), "an orderly stop");
    let server = Launch::dev(data.path()).start();
    wait_until_reported(&server, CAUGHT_UP_WITHIN);
    assert_eq!(check_levels(&server), levels, "an orderly stop changes nothing");
}
