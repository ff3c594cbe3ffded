//! What happened to messages, from the command line: traces, searches, and the counters of a queue.

use std::time::Duration;

use serde_json::Value;

use super::{Desk, Ran};
use crate::support::harness::eventually;

/// Longer than the history and the counters need on a busy machine.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

fn json(desk: &Desk, line: &str) -> Value {
    serde_json::from_str(&desk.shell(&format!("tallystone {line} -o json")).ok()).expect("one JSON document")
}

fn check(ran: &Ran, code: i32, words: &str) {
    assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains(words), "{words:?} is missing of {:?}", ran.err);
}

/// A queue counted by tenant. Message `a` failed and was completed, `b` failed twice and ran out of attempts, `c` waits.
fn desk_with_orders() -> Desk {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders", "--count-by", "tenant", "--max-attempts", "2"]).ok();
    let line = |line: &str| desk.shell(&format!("tallystone {line}")).ok();
    let lease = || line("msg pull -q orders --tokens").trim().to_owned();
    line("msg push -q orders 1 --id a --meta tenant=acme");
    line(&format!("msg fail -q orders {} --signature timeout --error slow --delay 0s", lease()));
    line(&format!("msg complete -q orders {}", lease()));
    line("msg push -q orders 2 --id b --meta tenant=beta");
    for _ in 0..2 {
        line(&format!("msg fail -q orders {} --signature timeout --delay 0s", lease()));
    }
    line("msg push -q orders 3 --id c --meta tenant=acme");
    desk
}

#[test]
fn a_trace_shows_the_changes_and_the_attempts_of_a_message() {
    let desk = desk_with_orders();
    let text = desk.run(&["msg", "trace", "-q", "orders", "a"]).ok();
    assert!(text.starts_with("message a (m.0.1.1), tenant=acme, complete\n"), "{text}");
    for words in ["ENQUEUE", "DEQUEUE", "timeout: slow", "FAILED", "COMPLETED", "+"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let trace = json(&desk, "msg trace -q orders a");
    let life = &trace["lives"][0];
    assert_eq!(
        (life["transitions"].as_array().map(Vec::len), life["attempts"].as_array().map(Vec::len)),
        (Some(5), Some(2))
    );
    assert_eq!(life["attempts"][0]["error"]["signature"], "timeout");
    let rows = desk.run(&["msg", "trace", "-q", "orders", "m.0.1.1", "-o", "csv"]).ok();
    assert_eq!(rows.lines().count(), 6, "a header and five changes: {rows}");
    assert!(rows.lines().nth(3).is_some_and(|row| row.contains(",FAIL,RUNNING,PENDING,")), "{rows}");
    check(
        &desk.run(&["msg", "trace", "-q", "orders", "a", "--limit", "2"]),
        0,
        "there are more; show them with --limit",
    );
    check(&desk.run(&["msg", "trace", "-q", "orders", "absent"]), 0, "the history knows no such message");
    check(&desk.run(&["msg", "trace", "-q", "absent", "a"]), 3, "QUEUE_NOT_FOUND");
}

#[test]
fn a_search_finds_messages_by_state_error_and_metadata() {
    let desk = desk_with_orders();
    let ids = |flags: &str| -> Vec<String> {
        let found = json(&desk, &format!("msg search -q orders {flags}"));
        let found = found["messages"].as_array().expect("messages").clone();
        found.iter().map(|found| found["messageId"].as_str().expect("an id").to_owned()).collect()
    };
    assert!(eventually(TOLD_WITHIN, || ids("--state pending") == ["c"]), "{:?}", ids("--state pending"));
    assert_eq!(ids("--state errored --error timeout --meta tenant=beta"), ["b"]);
    assert_eq!(ids("--state errored --error timeout --meta tenant=acme"), [""; 0]);
    assert_eq!(ids("--error timeout --ever"), ["b", "a"]);
    check(&desk.run(&["msg", "search", "-q", "orders", "--error", ""]), 2, "an empty text is no signature");
    assert_eq!(ids("--meta tenant=acme"), ["c", "a"]);
    assert_eq!(ids("--since 1h"), ["c", "b", "a"]);
    assert_eq!(ids("--until 1h"), [""; 0]);
    let text = desk.run(&["msg", "search", "-q", "orders", "--limit", "1"]);
    check(&text, 0, "there are more; show them with --limit");
    assert!(text.out.contains("MESSAGE ID") && text.out.contains("PENDING"), "{}", text.out);
}

#[test]
fn the_stats_of_a_queue_are_its_counters() {
    let desk = desk_with_orders();
    let count = |name: &str| {
        let readings = json(&desk, "queue stats orders");
        let results = readings["results"].as_array().expect("results").clone();
        let found = results.iter().find(|result| result["counterName"] == format!("orders~{name}"));
        found.map(|result| result["reading"]["count"].as_str().expect("a count").to_owned())
    };
    let is_told = || count("failed~error=timeout").as_deref() == Some("3") && count("enqueued").as_deref() == Some("3");
    assert!(eventually(TOLD_WITHIN, is_told), "{}", json(&desk, "queue stats orders"));
    for (name, expected) in [
        ("depth.pending", "1"),
        ("depth.completed", "1"),
        ("depth.errored", "1"),
        ("dequeued", "4"),
        ("leased_at.2", "2"),
        ("completed_at.2", "1"),
        ("depth.pending~tenant=acme", "1"),
        ("errored~tenant=beta", "1"),
    ] {
        assert_eq!(count(name).as_deref(), Some(expected), "{name}");
    }
    let text = desk.run(&["queue", "stats", "orders"]).ok();
    for words in ["queue orders: all changes up to", "PER SECOND", "timeout", "by tenant, most pending first", "acme"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    check(&desk.run(&["queue", "stats", "absent"]), 3, "QUEUE_NOT_FOUND");
}
