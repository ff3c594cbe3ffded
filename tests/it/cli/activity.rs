//! What queues do now, from the command line: the numbers of the call, and what needs attention also in the status.

use serde_json::Value;

use super::Desk;
use crate::support::harness::{PATIENCE, eventually};

/// The activity of the queue as the call answers it.
fn called(desk: &Desk) -> Value {
    let path = "/tallystone.queue.v1.QueueService/ListQueueActivity";
    desk.server.post(path, r#"{"prefix": "mail"}"#).json()
}

/// A server with two queues, one of which has two ready messages and one that is out of attempts.
fn desk_with_errors() -> Desk {
    let desk = Desk::set();
    desk.run(&["queue", "create", "mail", "--max-attempts", "1"]).ok();
    desk.run(&["queue", "create", "other"]).ok();
    for number in 0..3 {
        desk.run(&["msg", "push", "-q", "mail", "--id", &format!("m{number}"), "hello"]).ok();
    }
    let lease = desk.run(&["msg", "pull", "-q", "mail", "--tokens"]).ok();
    desk.run(&["msg", "fail", "-q", "mail", lease.trim()]).ok();
    let is_read = || {
        let row = &called(&desk)["queues"][0];
        (&row["pending"], &row["errored"]) == (&"2".into(), &"1".into())
    };
    assert!(eventually(PATIENCE, is_read), "{}", called(&desk));
    desk
}

#[test]
fn the_screens_of_top_have_the_numbers_of_the_call_in_80_columns_and_24_lines() {
    let desk = desk_with_errors();
    let text = called(&desk)["queues"][0]["attention"][0]["text"].as_str().expect("a sentence").to_owned();
    let screens = desk.run(&["top", "--screens", "2", "--every", "10ms"]).ok();
    let lines: Vec<&str> = screens.lines().collect();
    assert!(lines.len() <= 48 && lines.iter().all(|line| line.chars().count() <= 80), "{screens}");
    assert_eq!(lines.iter().filter(|line| **line == format!("! mail: {text}")).count(), 2, "{screens}");
    let rows: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
    let of_mail: Vec<_> = rows.iter().filter(|row| row.first() == Some(&"mail")).map(|row| &row[1..5]).collect();
    assert_eq!(of_mail, [["2", "0", "0", "1"]; 2], "{screens}");
    assert!(lines[0].contains(&desk.server.address.to_string()) && lines[1].starts_with("ready 2 "), "{screens}");
    let refused = desk.run(&["top", "-o", "json"]);
    assert_eq!(refused.code, 2, "{}{}", refused.out, refused.err);
}

#[test]
fn the_activity_of_queues_is_that_of_the_call_and_the_status_names_what_needs_attention() {
    let desk = desk_with_errors();

    // On a machine that stands still for a while the numbers are old as well, which needs attention too.
    let mut rows = String::new();
    let is_as_called = eventually(PATIENCE, || {
        rows = desk.run(&["queue", "activity", "mail", "-o", "csv"]).ok();
        let lines: Vec<&str> = rows.lines().collect();
        assert!(lines[0].starts_with("queue,pending,invisible,running,errored,in_per_second,"), "{rows}");
        lines[1].starts_with("mail,2,0,0,1,") && lines[1].ends_with(",MESSAGES_ERRORED")
    });
    assert!(is_as_called, "{rows}");
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
    assert!(eventually(PATIENCE, || is_seconds(age())), "{:?}", age());
    assert!(is_seconds(age()), "from then on always: {:?}", age());

    for command in [&["queue", "activity", "mail"][..], &["status"]] {
        let (mut text, mut shown) = (String::new(), String::new());
        let is_shown = eventually(PATIENCE, || {
            text = called(&desk)["queues"][0]["attention"][0]["text"].as_str().expect("a sentence").to_owned();
            shown = desk.run(command).ok();
            shown.contains(&text)
        });
        assert!(is_shown, "{text:?} is missing of\n{shown}");
    }
}
