//! Steady load on the queue, with a ledger of the calls that were taken.
//!
//! Nothing here kills the server, so each call has an answer. A call that is refused changed nothing, and its reason is
//! counted. A call whose outcome is unknown would spoil the ledger, so none may miss its deadline.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::histories::{Histories, check_finds_nothing};
use super::{CAUGHT_UP_WITHIN, QUEUE, QUEUES, answer, check_levels, check_sums, count, wait_until_reported};
use crate::support::harness::{EndsWith, Server, eventually};

/// The callers that work at once.
pub const CALLERS: i64 = 3;
/// The mutations that go on in each part of a test.
pub const MEANWHILE: i64 = 300;

/// How hard each caller works.
#[derive(Clone, Copy)]
pub struct Pace {
    /// The messages of one turn. A turn enqueues so many, and takes and settles twice as many.
    pub messages: i64,
    /// The time from one turn to the next, if the server is quick enough.
    pub turn: Duration,
}

impl Pace {
    /// As fast as the server answers.
    pub const FULL: Self = Self { messages: 2, turn: Duration::ZERO };
}

/// What the callers did.
#[derive(Default)]
pub struct Ledger {
    ids: AtomicI64,
    enqueued: AtomicI64,
    dequeued: AtomicI64,
    completed: AtomicI64,
    failed: AtomicI64,
    refused: Mutex<BTreeMap<String, u64>>,
    slowest: Mutex<Duration>,
}

impl Ledger {
    /// The settings of the queue that is loaded.
    pub fn queue() -> Value {
        json!({"shards": 2, "count_by": ["tenant"]})
    }

    fn flows(&self) -> [(&'static str, &'static str, i64); 4] {
        let of = |flow: &AtomicI64| flow.load(Ordering::SeqCst);
        [
            ("enqueued", "ENQUEUE", of(&self.enqueued)),
            ("dequeued", "DEQUEUE", of(&self.dequeued)),
            ("completed", "COMPLETE", of(&self.completed)),
            ("failed", "FAIL", of(&self.failed)),
        ]
    }

    /// All mutations that were taken.
    pub fn mutations(&self) -> i64 {
        self.flows().iter().map(|(_, _, count)| count).sum()
    }

    /// The messages that were enqueued.
    pub fn enqueued(&self) -> i64 {
        self.enqueued.load(Ordering::SeqCst)
    }

    /// How many calls were refused, by their reasons.
    pub fn refused(&self) -> BTreeMap<String, u64> {
        self.refused.lock().clone()
    }

    pub fn check_nothing_refused(&self) {
        let refused = self.refused();
        assert!(refused.is_empty(), "every call is taken: {refused:?}");
    }

    /// The longest that a call took.
    pub fn slowest(&self) -> Duration {
        *self.slowest.lock()
    }

    /// Waits until so many more mutations were taken.
    pub fn wait_for_more(&self, mutations: i64) {
        let goal = self.mutations() + mutations;
        let is_reached = || self.mutations() >= goal;
        assert!(eventually(CAUGHT_UP_WITHIN, is_reached), "the load goes on: {:?}", self.refused());
    }

    /// All that must hold once nothing is wrong any more.
    pub fn check_healed(&self, server: &Server) {
        wait_until_reported(server, CAUGHT_UP_WITHIN);
        self.check_counters(server);
        check_levels(server);
        check_sums(server, &["tenant"]);
        check_finds_nothing(server);
        self.check_rows(&Histories::read(server, 1_000));
    }

    /// Each flow must be what was taken.
    pub fn check_counters(&self, server: &Server) {
        for (counter, _, taken) in self.flows() {
            assert_eq!(count(server, counter), taken, "{counter}; refused: {:?}", self.refused());
        }
    }

    /// The history must have a row for each mutation, once.
    fn check_rows(&self, histories: &Histories) {
        histories.check();
        assert_eq!(histories.gaps, []);
        for (counter, trigger, taken) in self.flows() {
            assert_eq!(histories.count(trigger), taken, "{counter}");
        }
    }

    /// Calls a method; none if it is refused.
    fn call(&self, server: &Server, method: &str, body: &Value) -> Option<Value> {
        let begun = Instant::now();
        let answer = answer(server, QUEUES, method, body);
        let mut slowest = self.slowest.lock();
        *slowest = begun.elapsed().max(*slowest);
        drop(slowest);
        if answer.status == 200 {
            return Some(answer.json());
        }
        self.note_refusal(&answer.json()["details"][0]["reason"], &answer.body);
        None
    }

    fn note_refusal(&self, reason: &Value, answer: &str) {
        let reason = reason.as_str().unwrap_or_else(|| panic!("no reason: {answer}")).to_owned();
        assert!(!["DEADLINE_EXCEEDED", "OUTCOME_UNKNOWN"].contains(&&*reason), "the ledger is spoiled: {answer}");
        *self.refused.lock().entry(reason).or_default() += 1;
    }

    /// Counts the results of a batch that were taken.
    fn count(&self, flow: &AtomicI64, results: &[&Value]) {
        for result in results {
            if result["error"].is_null() {
                flow.fetch_add(1, Ordering::SeqCst);
            } else {
                self.note_refusal(&result["error"]["reason"], &result.to_string());
            }
        }
    }

    fn enqueue(&self, server: &Server, messages: i64) {
        let from = self.ids.fetch_add(messages, Ordering::SeqCst);
        let message = |number: i64| {
            let tenant = format!("t{}", number % 5);
            json!({"message_id": format!("m{number}"), "payload": "aGVsbG8=", "metadata": {"tenant": tenant}})
        };
        let messages: Vec<Value> = (from..from + messages).map(message).collect();
        let Some(answer) = self.call(server, "BatchEnqueue", &json!({"queue": QUEUE, "messages": messages})) else {
            return;
        };
        self.count(&self.enqueued, &answer["results"].as_array().expect("results").iter().collect::<Vec<_>>());
    }

    /// Takes messages. Fails the first attempt of each, and completes the second.
    fn work(&self, server: &Server, messages: i64) {
        let ask = json!({"queue": QUEUE, "max_messages": messages});
        let Some(answer) = self.call(server, "Dequeue", &ask) else { return };
        let leases = answer["leases"].as_array().expect("leases");
        self.dequeued.fetch_add(i64::try_from(leases.len()).expect("few"), Ordering::SeqCst);
        if leases.is_empty() {
            return;
        }
        let is_first = |lease: &Value| lease["attemptNumber"] == json!(1);
        let settlement = |lease: &Value| {
            let token = &lease["leaseToken"];
            if is_first(lease) {
                let error = json!({"signature": "timeout", "text": "after 5 s"});
                json!({"lease_token": token, "verb": "VERB_FAIL", "delay": "0s", "error": error})
            } else {
                json!({"lease_token": token, "verb": "VERB_COMPLETE"})
            }
        };
        let items: Vec<Value> = leases.iter().map(settlement).collect();
        let Some(answer) = self.call(server, "SettleMessages", &json!({"queue": QUEUE, "items": items})) else {
            return;
        };
        let results = leases.iter().zip(answer["results"].as_array().expect("results"));
        let (first, second): (Vec<_>, Vec<_>) = results.partition(|(lease, _)| is_first(lease));
        self.count(&self.failed, &first.into_iter().map(|(_, result)| result).collect::<Vec<_>>());
        self.count(&self.completed, &second.into_iter().map(|(_, result)| result).collect::<Vec<_>>());
    }
}

/// Loads the server while something happens, and answers what that answers.
pub fn under_load<T>(server: &Server, ledger: &Ledger, pace: Pace, meanwhile: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let caller = || {
        let begun = Instant::now();
        for turn in 0.. {
            let is_time = || is_over.load(Ordering::SeqCst) || begun.elapsed() >= pace.turn * turn;
            assert!(eventually(CAUGHT_UP_WITHIN, is_time), "turns are short");
            if is_over.load(Ordering::SeqCst) {
                return;
            }
            ledger.enqueue(server, pace.messages);
            ledger.work(server, 2 * pace.messages);
        }
    };
    thread::scope(|scope| {
        let ends = EndsWith(&is_over);
        (0..CALLERS).for_each(|_| drop(scope.spawn(caller)));
        let answer = meanwhile();
        drop(ends);
        answer
    })
}
