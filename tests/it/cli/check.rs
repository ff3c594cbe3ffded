//! `check`: what it says of sound queues, and how it exits.

use std::time::Duration;

use serde_json::{Value, json};

use super::Desk;
use crate::support::harness::eventually;

/// Longer than a check takes on a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn sound_queues_have_no_findings_and_a_check_tells_so() {
    let desk = Desk::set();
    desk.shell("tallystone queue create orders --count-by tenant").ok();
    for number in 0..5 {
        let send = format!("tallystone msg push -q orders --id o-{number} --meta tenant=acme '{{}}'");
        desk.shell(&send).ok();
    }
    for line in ["check", "check -q orders", "check --full", "check -q orders --full"] {
        let ran = desk.shell(&format!("tallystone {line}"));
        assert_eq!(ran.code, 0, "{line}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("nothing differs"), "{line}: {}", ran.err);
    }
    let json: Value = serde_json::from_str(&desk.shell("tallystone check --full -o json").ok()).expect("JSON");
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(0), "{json}");
}

#[test]
fn a_check_of_an_unknown_queue_is_refused() {
    let desk = Desk::set();
    let ran = desk.shell("tallystone check -q nobody");
    assert_eq!(ran.code, 3, "{}{}", ran.out, ran.err);
}

#[test]
fn a_check_is_an_operation_that_a_repeat_finds() {
    let desk = Desk::set();
    desk.shell("tallystone queue create orders").ok();
    desk.shell("tallystone msg push -q orders --id one hi").ok();
    let call = |service: &str, method: &str, body: &Value| {
        let answer = desk.server.post(&format!("/tallystone.{service}/{method}"), &body.to_string());
        (answer.status, answer.json())
    };
    let history = |method: &str, body: Value| call("history.v1.HistoryService", method, &body);
    let ask = json!({"queue": "orders", "request_token": "t"});
    let begun = history("CheckQueues", ask.clone()).1["operation"].clone();
    assert_eq!((&begun["kind"], &begun["queue"], &begun["total"]), (&json!("check"), &json!("orders"), &json!("1")));
    let id = &begun["operationId"];
    let state = || call("queue.v1.QueueService", "GetOperation", &json!({"operation_id": id})).1["operation"].clone();
    let is_done = || state()["state"].as_str().is_some_and(|state| state.ends_with("DONE"));
    assert!(eventually(ENDS_WITHIN, is_done), "{}", state());
    assert_eq!(history("CheckQueues", ask).1["operation"]["operationId"], *id);
    let found = history("ListFindings", json!({"operation_id": id})).1;
    assert_eq!((&found["findings"], &found["nextPageToken"]), (&json!([]), &json!("")), "{found}");
    for (method, body, reason) in [
        ("CheckQueues", json!({"queue": "orders", "full": true, "request_token": "t"}), "TOKEN_REUSED"),
        ("CheckQueues", json!({"request_token": "x".repeat(200)}), "INVALID_TOKEN"),
        ("ListFindings", json!({"operation_id": "unknown"}), "OPERATION_NOT_FOUND"),
        ("ListFindings", json!({"operation_id": id, "page_token": "AAAA"}), "INVALID_PAGE_TOKEN"),
    ] {
        let (_, refused) = history(method, body);
        assert_eq!(refused["details"][0]["reason"], reason, "{method}: {refused}");
    }
}
