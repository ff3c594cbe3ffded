//! What queues do now, from the command line: the numbers of the call, and what needs attention also in the status.

use std::time::Duration;

use serde_json::Value;

use super::Desk;
use crate::support::harness::eventually;

#[test]
fn the_activity_of_queues_is_that_of_the_call_and_the_status_names_what_needs_attention() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "mail", "--max-attempts", "1"]).ok();
    desk.run(&["queue", "create", "other"]).ok();
    for number in 0..3 {
        desk.run(&["msg", "push", "-q", "mail", "--id", &format!("m{number}"), "hello"]).ok();
    }
    let lease = desk.run(&["msg", "pull", "-q", "mail", "--tokens"]).ok();
    desk.run(&["msg", "fail", "-q", "mail", lease.trim()]).ok();
    let path = "/tallystone.queue.v1.QueueService/ListQueueActivity";
    let called = || desk.server.post(path, r#"{"prefix": "mail"}"#).json();
    let is_read = || {
        let row = &called()["queues"][0];
        (&row["pending"], &row["errored"]) == (&"2".into(), &"1".into())
    };
    assert!(eventually(Duration::from_secs(20), is_read), "{}", called());

    let rows = desk.run(&["queue", "activity", "mail", "-o", "csv"]).ok();
    let rows: Vec<&str> = rows.lines().collect();
    assert!(rows[0].starts_with("queue,pending,invisible,running,errored,in_per_second,"), "{}", rows[0]);
    assert!(rows[1].starts_with("mail,2,0,0,1,") && rows[1].ends_with(",MESSAGES_ERRORED"), "{}", rows[1]);
    let whole: Value =
        serde_json::from_str(&desk.run(&["queue", "activity", "mail", "-o", "json"]).ok()).expect("JSON");
    assert_eq!((&whole["queues"][0]["errored"], &whole["totals"]["queues"]), (&"1".into(), &"1".into()), "{whole}");
    let people = desk.run(&["queue", "activity", "--order", "name", "--limit", "1"]);
    assert!(people.out.contains("mail") && people.err.contains("--limit"), "{}{}", people.out, people.err);

    // A reader needs no milliseconds of an age of seconds; a program gets what was measured.
    let age = || {
        let table = desk.run(&["queue", "activity", "mail"]).ok();
        let row = table.lines().find(|line| line.contains("mail")).unwrap_or_default().to_owned();
        row.split_whitespace().nth(8).unwrap_or_default().to_owned()
    };
    let is_seconds = |age: String| age.strip_suffix('s').is_some_and(|seconds| seconds.parse::<u64>().is_ok());
    assert!(eventually(Duration::from_secs(20), || is_seconds(age())), "{:?}", age());
    assert!(is_seconds(age()), "from then on always: {:?}", age());

    let text = called()["queues"][0]["attention"][0]["text"].as_str().expect("a sentence").to_owned();
    for shown in [desk.run(&["queue", "activity", "mail"]).ok(), desk.run(&["status"]).ok()] {
        assert!(shown.contains(&text), "{text:?} is missing of\n{shown}");
    }
}
