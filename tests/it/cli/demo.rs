//! The demo against a real server: what its ledger says is what the server counts.

use std::time::Duration;

use serde_json::{Value, json};

use super::Desk;
use crate::console::{get, text_of};
use crate::support::harness::eventually;

/// The states whose depths the overview shows.
const DEPTHS: [&str; 4] = ["pending", "invisible", "running", "errored"];

/// Plays a scenario, and returns its ledger and what it told people.
fn played(desk: &Desk, arguments: &[&str]) -> (Value, String) {
    let ran = desk.run(&[&["demo"][..], arguments].concat());
    assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
    let ledger: Value = serde_json::from_str(&ran.out).expect("the ledger is JSON");
    assert_eq!(ledger["agrees"], true, "{ledger:#}");
    (ledger, ran.err)
}

/// A call of the server as JSON.
fn called(desk: &Desk, method: &str, body: &Value) -> Value {
    let answer = desk.server.post(&format!("/tallystone.{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

/// The depths of a queue of the ledger, as its row of the overview shows them.
fn depths_on(page: &str, queue: &Value) -> [String; 4] {
    let name = queue["queue"].as_str().expect("a name");
    let row = page.split(&format!("data-queue=\"{name}\"")).nth(1).and_then(|rest| rest.split("</tr>").next());
    let row = row.unwrap_or_else(|| panic!("no row of {name} in {page}"));
    DEPTHS.map(|state| text_of(row, &format!("depth-{state}")).replace(',', ""))
}

#[test]
fn the_ledger_of_the_demo_and_the_activity_of_its_queues_agree() {
    let desk = Desk::set();
    let (ledger, told) = played(&desk, &["busy", "--hold", "0s", "--lasts", "1s", "--seed", "7"]);
    let queues = ledger["queues"].as_array().expect("queues");
    assert_eq!(queues.len(), 3, "{ledger:#}");
    let states = ["pending", "invisible", "running", "errored", "completed", "canceled"];
    let counted = |queue: &Value| states.map(|state| queue[state].to_string());
    let shown = || {
        let listed = called(&desk, "queue.v1.QueueService/ListQueueActivity", &json!({"prefix": "demo/"}));
        let rows = listed["queues"].as_array().cloned().unwrap_or_default();
        let row = |name: &Value| rows.iter().find(|row| row["queue"] == *name).cloned().unwrap_or_default();
        let numbers = |queue: &Value| {
            let row = row(&queue["queue"]);
            states.map(|state| row[state].as_str().unwrap_or("unknown").to_owned())
        };
        queues.iter().map(numbers).collect::<Vec<_>>()
    };
    let expected: Vec<_> = queues.iter().map(counted).collect();
    let is_shown = eventually(Duration::from_secs(60), || shown() == expected);
    assert!(is_shown, "{:?}\n{expected:?}", shown());
    let on_page = || {
        let page = get(&desk.server, "/console/?filter=demo%2F", &[]).body;
        queues.iter().map(|queue| depths_on(&page, queue)).collect::<Vec<_>>()
    };
    let expected: Vec<_> = queues.iter().map(|queue| DEPTHS.map(|state| queue[state].to_string())).collect();
    let is_on_page = eventually(Duration::from_secs(60), || on_page() == expected);
    assert!(is_on_page, "the page: {:?}\n{expected:?}", on_page());
    for experiment in ledger["experiments"].as_array().expect("experiments") {
        for (counter, added) in experiment["counters"].as_object().expect("counters") {
            let read = json!({"namespace": "default", "counter_name": counter, "freshness": "FRESHNESS_UP_TO_DATE"});
            let count = called(&desk, "counter.v1.CounterService/GetCount", &read);
            assert_eq!(count["count"], added.to_string(), "{counter}");
        }
    }
    for scenario in ["demo/backlog", "demo/hot-key", "demo/poison", "demo-button", "demo-same", "demo-redirect"] {
        let hint = told.lines().find(|line| line.contains(scenario) && line.contains("Look at: ")).expect(scenario);
        assert!(hint.ends_with(&format!(" --server {}", desk.server.address)), "{hint}");
    }
    let (clean, _) = played(&desk, &["clean"]);
    assert_eq!(clean["removed"].as_array().map(Vec::len), Some(6), "{clean:#}");
    let (again, _) = played(&desk, &["clean", "-o", "jsonl"]);
    assert_eq!(again["removed"], json!([]), "{again:#}");
}

#[test]
fn a_hot_key_is_named_and_a_raised_limit_cures_it() {
    let desk = Desk::set();
    let (ledger, _) = played(&desk, &["hot-key"]);
    let queue = &ledger["queues"][0];
    assert_eq!((&queue["enqueued"], &queue["completed"]), (&json!(200), &json!(200)), "{ledger:#}");
    assert!(queue["seen"]["named"].as_str().is_some_and(|text| text.contains("\"account-7\"")), "{ledger:#}");
    assert!(queue["seen"]["leased_at_once"].as_i64().is_some_and(|leased| leased > 1), "{ledger:#}");
}

#[test]
fn poison_ends_in_three_groups_and_a_dry_run_equals_its_redrive() {
    let desk = Desk::set();
    let (ledger, _) = played(&desk, &["poison", "--seed", "3"]);
    let queue = &ledger["queues"][0];
    assert_eq!((&queue["errored"], &queue["completed"]), (&json!(24), &json!(36)), "{ledger:#}");
    assert_eq!(queue["failed_attempts"], 108, "three attempts of 36 messages: {ledger:#}");
    assert_eq!((&queue["seen"]["dry_run"], &queue["seen"]["redriven"]), (&json!(12), &json!(12)), "{ledger:#}");
    let groups = desk.run(&["dlq", "ls", "-q", "demo/poison", "-o", "csv"]).ok();
    assert_eq!(groups.lines().count(), 3, "a header and the two groups that were not redriven: {groups}");
}

#[test]
fn a_backlog_needs_attention_and_is_calm_again() {
    let desk = Desk::set();
    let (ledger, told) = played(&desk, &["backlog", "--hold", "0s", "--lasts", "1s"]);
    assert_eq!(ledger["queues"][0]["completed"], 2_000, "{ledger:#}");
    let attention = ledger["queues"][0]["seen"]["attention"].as_str().unwrap_or_default();
    assert!(!attention.is_empty() && told.contains(attention), "{told}");
    assert!(told.contains("calm again"), "{told}");
}

#[test]
fn the_experiments_show_each_verdict_and_the_same_seed_the_same_users() {
    let desk = Desk::set();
    let (ledger, _) = played(&desk, &["ab-test", "--lasts", "0s"]);
    let verdicts: Vec<_> =
        ledger["experiments"].as_array().expect("experiments").iter().map(|one| &one["verdict"]).collect();
    assert_eq!(verdicts, ["HIGHER", "NO_DIFFERENCE_YET", "NOT_TRUSTED"], "{ledger:#}");
    let (again, _) = played(&desk, &["ab-test", "--lasts", "0s"]);
    assert_eq!(again, ledger, "the counters were cleared before");
    let (other, _) = played(&desk, &["ab-test", "--lasts", "0s", "--seed", "2"]);
    assert_ne!(other["experiments"], ledger["experiments"]);
}

#[test]
fn the_demo_touches_nothing_that_is_not_its_own() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "demo/poison", "--description", "ours"]).ok();
    let refused = desk.run(&["demo", "poison"]);
    assert_eq!(refused.code, 4, "{}", refused.err);
    assert!(refused.err.contains("the demo did not make it"), "{}", refused.err);
    let declared = ["--arm", "A", "--arm", "B", "--metric", "bought", "--planned", "20000"];
    desk.run(&[&["exp", "create", "demo-same"][..], &declared[..]].concat()).ok();
    assert_eq!(desk.run(&["demo", "ab-test", "--lasts", "0s"]).code, 4);
    desk.run(&["queue", "describe", "demo/poison"]).ok();
    desk.run(&["exp", "describe", "demo-same"]).ok();
    let csv = desk.run(&["demo", "hot-key", "-o", "csv"]);
    assert_eq!(csv.code, 2, "a ledger has no rows: {}", csv.err);
}
