//! Counter rules through real sockets: what fires, what is refused, what waits, and what two servers do to one rule. Time is
//! moved by the test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::adapters::system::SystemClock;
use tallystone::domain::Reason;
use tallystone::domain::queue::Command;
use tallystone::ports::{Clock, Stores};

use super::{DRAIN_DEADLINE, Wire};
use crate::support::judging::{Judged, Judging};

const RULES: &str = "/tallystone.rule.v1.RuleService";
/// The longest time of a test's clock until a rule has done what is due: rolls and two rounds.
const DUE_WITHIN_SECONDS: u32 = 60;

impl Wire {
    async fn rule(&self, method: &str, body: &Value) -> (u16, Value) {
        let headers = [("content-type", "application/json")];
        let answer = self.http("POST", &format!("{RULES}/{method}"), &headers, &body.to_string()).await;
        (answer.status, super::json(&answer.body))
    }

    async fn rule_done(&self, method: &str, body: Value) -> Value {
        let (status, answer) = self.rule(method, &body).await;
        assert_eq!(status, 200, "{method} {body}: {answer}");
        answer
    }

    async fn rule_refused(&self, method: &str, body: Value, expected: Reason) -> Value {
        let (status, answer) = self.rule(method, &body).await;
        assert_eq!(answer["details"][0]["reason"], json!(expected.info().name), "{method} {body}: {answer}");
        assert_eq!(status, expected.info().http, "{method} {body}: {answer}");
        answer
    }

    async fn add(&self, delta: i64) {
        let body = json!({"namespace": "shop", "counter_name": "sold", "delta": delta.to_string()});
        let (status, answer) = self.post("AddCount", &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
    }

    /// Waits until the rule of this name is as it should be.
    async fn rule_where(&self, clock: &ManualClock, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut rule = Value::Null;
        for _ in 0..DUE_WITHIN_SECONDS {
            rule = self.rule_done("GetRule", json!({"name": "sales"})).await["rule"].clone();
            if is_so(&rule) {
                return rule;
            }
            pass(clock, 1).await;
        }
        panic!("{what} within {DUE_WITHIN_SECONDS} s: {rule}");
    }

    async fn rule_fired_through(&self, clock: &ManualClock, crossing: u64) -> Value {
        let wanted = json!(crossing.to_string());
        self.rule_where(clock, &format!("fires through {crossing}"), |rule| rule["firedThrough"] == wanted).await
    }

    /// The pending messages of the queue `mail`: id, crossed_from, crossing.
    async fn messages(&self) -> Vec<(String, u64, u64)> {
        let listed = self.done("ListMessages", json!({"queue": "mail"})).await;
        let number = |message: &Value, key: &str| message["metadata"][key].as_str()?.parse().ok();
        let read = |message: &Value| {
            let id = message["messageId"].as_str()?.to_owned();
            Some((id, number(message, "crossed_from")?, number(message, "crossing")?))
        };
        let messages = listed["messages"].as_array().expect("messages").iter();
        messages.map(|message| read(message).unwrap_or_else(|| panic!("no crossings: {message}"))).collect()
    }
}

/// Moves the clock in small steps, and lets every task come to rest after each.
async fn pass(clock: &ManualClock, seconds: u32) {
    for _ in 0..seconds * 10 {
        clock.advance(Duration::from_millis(100));
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

fn clock() -> ManualClock {
    ManualClock::at(SystemClock.now())
}

/// A server with the queue `mail`.
async fn with_mail(clock: &ManualClock) -> Wire {
    let server = Wire::with_clock(clock).await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    server
}

/// The rule `sales`: at each 100 of the counter `sold`.
fn sales() -> Value {
    json!({"name": "sales", "namespace": "shop", "counter_name": "sold", "every": "100", "queue": "mail"})
}

fn with(field: &str, value: Value) -> Value {
    let mut rule = sales();
    rule[field] = value;
    json!({"rule": rule})
}

fn sent(id: &str, from: u64, through: u64) -> (String, u64, u64) {
    (id.to_owned(), from, through)
}

#[tokio::test]
async fn a_message_covers_the_crossings_that_are_found_together() {
    let clock = clock();
    let server = with_mail(&clock).await;
    let message = json!({"payload": "aGk=", "metadata": {"team": "a"}, "priority": "-5", "type": "alert"});
    let made = server.rule_done("CreateRule", with("message", message.clone())).await;
    assert_eq!((&made["rule"]["firedThrough"], &made["rule"]["generation"]), (&json!("0"), &json!(1)));
    assert_eq!(server.rule_done("CreateRule", with("message", message)).await, made, "a repeat changes nothing");
    server.add(99).await;
    pass(&clock, DUE_WITHIN_SECONDS).await;
    assert_eq!(server.messages().await, [], "below the first multiple");
    server.add(251).await;
    let rule = server.rule_fired_through(&clock, 3).await;
    assert_eq!((&rule["lastMessageId"], &rule["pending"]), (&json!("rule-sales-1-3"), &Value::Null));
    assert!(rule["lastFiredTime"].is_string() && rule["uncertain"] == json!("0"), "{rule}");
    server.add(50).await;
    server.rule_fired_through(&clock, 4).await;
    assert_eq!(server.messages().await, [sent("rule-sales-1-3", 0, 3), sent("rule-sales-1-4", 3, 4)]);
    let listed = server.done("ListMessages", json!({"queue": "mail"})).await;
    let first = &listed["messages"][0];
    assert_eq!(
        (&first["payload"], &first["priority"], &first["type"]),
        (&json!("aGk="), &json!("-5"), &json!("alert"))
    );
    assert_eq!(first["metadata"]["team"], json!("a"));
}

#[tokio::test]
async fn a_rule_with_one_threshold_fires_once() {
    let clock = clock();
    let server = with_mail(&clock).await;
    let mut rule = sales();
    rule.as_object_mut().expect("an object").remove("every");
    rule["at"] = json!("150");
    server.rule_done("CreateRule", json!({"rule": rule})).await;
    for (delta, messages) in [(149, 0), (1, 1), (1_000, 1), (-1_100, 1), (1_100, 1)] {
        server.add(delta).await;
        pass(&clock, DUE_WITHIN_SECONDS).await;
        assert_eq!(server.messages().await.len(), messages, "after {delta}");
    }
    assert_eq!(server.messages().await, [sent("rule-sales-1-1", 0, 1)]);
}

#[tokio::test]
async fn a_cleared_counter_begins_anew() {
    let clock = clock();
    let server = with_mail(&clock).await;
    server.rule_done("CreateRule", json!({"rule": sales()})).await;
    server.add(500).await;
    server.rule_fired_through(&clock, 5).await;
    let (status, answer) = server.post("ClearCount", r#"{"namespace": "shop", "counter_name": "sold"}"#).await;
    assert_eq!(status, 200, "{answer}");
    pass(&clock, 1).await;
    server.add(720).await;
    let rule = server.rule_fired_through(&clock, 7).await;
    assert_eq!(rule["generation"], json!(2), "{rule}");
    assert_eq!(server.messages().await, [sent("rule-sales-1-5", 0, 5), sent("rule-sales-2-7", 0, 7)]);
    server.rule_done("DeleteRule", json!({"name": "sales"})).await;
    server.rule_done("CreateRule", json!({"rule": sales()})).await;
    let rule = server.rule_fired_through(&clock, 7).await;
    assert_eq!(rule["generation"], json!(3), "no generation is given twice: {rule}");
    assert_eq!(server.messages().await.len(), 3);
}

#[tokio::test]
async fn a_refused_message_waits_and_says_why() {
    let clock = clock();
    let server = with_mail(&clock).await;
    server.rule_done("CreateRule", json!({"rule": sales()})).await;
    let block = |blocked: bool| json!({"queue": {"name": "mail", "enqueue_blocked": blocked, "enqueue_blocked_reason": "on purpose"}});
    server.done("UpdateQueue", block(true)).await;
    server.add(350).await;
    let rule = server.rule_where(&clock, "a problem", |rule| rule["problem"] != json!("")).await;
    assert!(rule["problem"].as_str().is_some_and(|text| text.starts_with("ENQUEUE_BLOCKED: ")), "{rule}");
    let pending = &rule["pending"];
    assert_eq!((&pending["crossing"], &pending["crossedFrom"]), (&json!("3"), &json!("0")), "{rule}");
    assert_eq!((&pending["messageId"], &rule["firedThrough"]), (&json!("rule-sales-1-3"), &json!("0")));
    server.add(100).await;
    pass(&clock, DUE_WITHIN_SECONDS).await;
    server.done("UpdateQueue", block(false)).await;
    let rule = server.rule_fired_through(&clock, 4).await;
    assert_eq!((&rule["problem"], &rule["pending"]), (&json!(""), &Value::Null));
    assert_eq!(server.messages().await, [sent("rule-sales-1-3", 0, 3), sent("rule-sales-1-4", 3, 4)]);
}

#[tokio::test]
async fn a_rule_that_is_refused_for_two_dedupe_windows_fires_once() {
    for quota in [None, Some("1")] {
        let clock = clock();
        let server = with_mail(&clock).await;
        server.rule_done("CreateRule", json!({"rule": sales()})).await;
        // Blocked, or full.
        let refuse = |refuses: bool| match quota {
            None => json!({"queue": {"name": "mail", "enqueue_blocked": refuses, "enqueue_blocked_reason": "long"}}),
            Some(quota) => json!({"queue": {"name": "mail", "quota_messages": if refuses { quota } else { "9" }}}),
        };
        server.done("UpdateQueue", refuse(true)).await;
        if quota.is_some() {
            server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "first"}})).await;
        }
        server.add(350).await;
        server.rule_where(&clock, "a claim", |rule| rule["pending"]["crossing"] == json!("3")).await;
        for _ in 0..130 {
            clock.advance(Duration::from_secs(60));
            pass(&clock, 1).await;
        }
        server.done("UpdateQueue", refuse(false)).await;
        let rule = server.rule_fired_through(&clock, 3).await;
        assert_eq!((&rule["uncertain"], &rule["problem"]), (&json!("0"), &json!("")), "{rule}");
        assert_eq!(rule["lastMessageId"], json!("rule-sales-1-3"));
        server.add(100).await;
        server.rule_fired_through(&clock, 4).await;
        if quota.is_some() {
            let first = server.done("Dequeue", json!({"queue": "mail", "message_id": "first"})).await;
            let token = first["leases"][0]["leaseToken"].clone();
            server.done("Complete", json!({"queue": "mail", "lease_token": token})).await;
        }
        assert_eq!(server.messages().await, [sent("rule-sales-1-3", 0, 3), sent("rule-sales-1-4", 3, 4)]);
    }
}

#[tokio::test]
async fn a_rule_whose_queue_has_no_room_for_two_dedupe_windows_fires_once() {
    let clock = clock();
    let is_full = Arc::new(AtomicBool::new(true));
    let judge = {
        let is_full = Arc::clone(&is_full);
        move |command: &Command| match command {
            Command::Enqueue(_) if is_full.load(Ordering::SeqCst) => Judged::Full,
            _ => Judged::Taken,
        }
    };
    let queues = Judging::before(memory::queue_stores(Arc::new(clock.clone())), judge);
    let mut server = Wire::bind_to(memory::stores(), queues, DRAIN_DEADLINE, Arc::new(clock.clone())).await;
    server.open().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    server.rule_done("CreateRule", json!({"rule": sales()})).await;
    server.add(350).await;
    let rule = server.rule_where(&clock, "a problem", |rule| rule["problem"] != json!("")).await;
    assert!(rule["problem"].as_str().is_some_and(|text| text.starts_with("STORAGE_FULL: ")), "{rule}");
    for _ in 0..130 {
        clock.advance(Duration::from_secs(60));
        pass(&clock, 1).await;
    }
    is_full.store(false, Ordering::SeqCst);
    let rule = server.rule_fired_through(&clock, 3).await;
    assert_eq!((&rule["uncertain"], &rule["problem"]), (&json!("0"), &json!("")), "{rule}");
    assert_eq!(server.messages().await, [sent("rule-sales-1-3", 0, 3)]);
}

#[tokio::test]
async fn crossings_beyond_the_rate_share_the_next_message() {
    let clock = clock();
    let server = with_mail(&clock).await;
    server.rule_done("CreateRule", with("max_per_minute", json!(1))).await;
    server.add(100).await;
    server.rule_fired_through(&clock, 1).await;
    for _ in 0..3 {
        server.add(100).await;
        pass(&clock, 12).await;
    }
    assert_eq!(server.messages().await.len(), 1, "36 s later");
    server.rule_fired_through(&clock, 4).await;
    assert_eq!(server.messages().await, [sent("rule-sales-1-1", 0, 1), sent("rule-sales-1-4", 1, 4)]);
}

#[tokio::test]
async fn two_servers_send_each_crossing_once() {
    let clock = clock();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let (stores, queues): (Stores, _) =
        (memory::stores_on(Arc::clone(&shared)), memory::queue_stores(Arc::clone(&shared)));
    let start = async || {
        let mut server = Wire::bind_to(stores.clone(), queues.clone(), DRAIN_DEADLINE, Arc::clone(&shared)).await;
        server.open().await;
        server
    };
    let first = start().await;
    first.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    first.rule_done("CreateRule", json!({"rule": sales()})).await;
    // It reads the queue with the catalog, as a restart would.
    let second = start().await;
    for _ in 0..20 {
        first.add(50).await;
        pass(&clock, 7).await;
    }
    second.rule_fired_through(&clock, 10).await;
    let mut covered = BTreeMap::new();
    for (_, from, through) in first.messages().await {
        (from + 1..=through).for_each(|crossing| *covered.entry(crossing).or_insert(0) += 1);
    }
    assert_eq!(covered, (1..=10).map(|crossing| (crossing, 1)).collect());
    let (one, other) = (first.engine.stats(), second.engine.stats());
    assert!(one.rules.evaluated.get() > 0 && other.rules.evaluated.get() > 0, "both of them evaluate the rule");
    let fired = one.rules.fired.get() + other.rules.fired.get();
    assert_eq!(fired, first.messages().await.len() as u64);
}

#[tokio::test]
async fn a_rule_that_can_never_work_is_refused() {
    let clock = clock();
    let server = with_mail(&clock).await;
    let own = |counter: &str| {
        let mut rule = sales();
        (rule["namespace"], rule["counter_name"]) = (json!("tallystone.queues"), json!(counter));
        json!({"rule": rule})
    };
    let no_threshold = {
        let mut rule = sales();
        rule.as_object_mut().expect("an object").remove("every");
        json!({"rule": rule})
    };
    let metadata = |pairs: Value| with("message", json!({"metadata": pairs}));
    let payload = "A".repeat(4 * 1_366);
    let cases = [
        (json!({}), Reason::InvalidArgument, "rule is missing"),
        (with("name", json!("")), Reason::InvalidArgument, "rule name is missing"),
        (with("name", json!("r".repeat(29))), Reason::InvalidArgument, "at most 28"),
        (with("name", json!("a~b")), Reason::InvalidArgument, "its byte 1"),
        (with("namespace", json!("")), Reason::InvalidNamespace, "namespace"),
        (with("counter_name", json!(" ")), Reason::InvalidCounterName, "counter name"),
        (with("queue", json!("a b")), Reason::InvalidQueueName, "queue name"),
        (no_threshold, Reason::InvalidArgument, "at or every"),
        (with("every", json!("0")), Reason::InvalidArgument, "at least 1"),
        (with("every", json!("-5")), Reason::InvalidArgument, "at least 1"),
        (with("max_per_minute", json!(-1)), Reason::InvalidArgument, "1 to 600"),
        (with("max_per_minute", json!(601)), Reason::InvalidArgument, "1 to 600"),
        (with("message", json!({"payload": payload})), Reason::InvalidArgument, "at most 4096"),
        (metadata(json!({"a": "1", "b": "2", "c": "3"})), Reason::InvalidArgument, "at most 2 pairs"),
        (metadata(json!({"crossing": "1"})), Reason::InvalidArgument, "crossing itself"),
        (metadata(json!({"": "1"})), Reason::InvalidArgument, "1 to 64 bytes"),
        (with("message", json!({"priority": "9007199254740993"})), Reason::InvalidMessage, "priority"),
        (with("message", json!({"shard_key": "k".repeat(257)})), Reason::InvalidMessage, "shard key"),
        (with("namespace", json!("nowhere")), Reason::NamespaceNotFound, "nowhere"),
        (with("namespace", json!("fast")), Reason::WrongCounterType, "BEST_EFFORT"),
        (with("queue", json!("nowhere")), Reason::QueueNotFound, "nowhere"),
        (own("mail~enqueued"), Reason::InvalidArgument, "belongs to queue mail"),
    ];
    for (body, reason, words) in cases {
        let answer = server.rule_refused("CreateRule", body.clone(), reason).await;
        assert!(answer["message"].as_str().is_some_and(|text| text.contains(words)), "{words:?}: {body}: {answer}");
    }
    assert_eq!(server.rule_done("ListRules", json!({})).await["rules"], json!([]));
    server.done("CreateQueue", json!({"queue": {"name": "small", "payload_max_bytes": 10}})).await;
    let mut large = with("message", json!({"payload": "QUFBQUFBQUFBQUFBQUFB"}));
    large["rule"]["queue"] = json!("small");
    server.rule_refused("CreateRule", large, Reason::InvalidMessage).await;
}

#[tokio::test]
async fn rules_are_listed_in_pages_and_deleted_by_name() {
    let clock = clock();
    let server = with_mail(&clock).await;
    for name in ["b", "a", "a/1", "c"] {
        server.rule_done("CreateRule", with("name", json!(name))).await;
    }
    let names = |answer: &Value| {
        let rules = answer["rules"].as_array().expect("rules").iter();
        rules.map(|rule| rule["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    let page = server.rule_done("ListRules", json!({"page_size": 3})).await;
    assert_eq!(names(&page), ["a", "a/1", "b"]);
    let token = page["nextPageToken"].clone();
    let rest = server.rule_done("ListRules", json!({"page_size": 3, "page_token": token})).await;
    assert_eq!((names(&rest), &rest["nextPageToken"]), (vec!["c".to_owned()], &json!("")));
    let other = json!({"page_size": 3, "page_token": token, "prefix": "a"});
    server.rule_refused("ListRules", other, Reason::InvalidPageToken).await;
    assert_eq!(names(&server.rule_done("ListRules", json!({"prefix": "a"})).await), ["a", "a/1"]);
    let mut changed = with("name", json!("a"));
    changed["rule"]["every"] = json!("7");
    let exists = server.rule_refused("CreateRule", changed, Reason::RuleExists).await;
    assert!(exists["message"].as_str().is_some_and(|text| text.contains("another threshold")), "{exists}");
    server.rule_done("DeleteRule", json!({"name": "a"})).await;
    for method in ["GetRule", "DeleteRule"] {
        server.rule_refused(method, json!({"name": "a"}), Reason::RuleNotFound).await;
    }
    assert_eq!(names(&server.rule_done("ListRules", json!({})).await), ["a/1", "b", "c"]);
}
