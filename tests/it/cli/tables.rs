//! Tables of queues and messages: they fit a line of 100 characters, whatever the names and texts in them.

use super::Desk;

/// The most that tables take.
const WIDTH: usize = 100;

/// A queue with a long name whose messages have long ids, metadata, signatures and errors: one errored, one that runs and
/// two that wait.
fn with_long_texts(queue: &str) -> (Desk, String) {
    let (desk, id) = (Desk::set(), "i".repeat(63));
    desk.run(&["queue", "create", queue, "--max-attempts", "1"]).ok();
    let (signature, error, label) = ("s".repeat(300), "e".repeat(400), "w".repeat(200));
    let meta = format!("key={}", "v".repeat(200));
    for number in 0..4 {
        let id = format!("{id}{number}");
        desk.run(&["msg", "push", "-q", queue, &"p".repeat(500), "--id", &id, "--meta", &meta]).ok();
    }
    let lease = desk.run(&["msg", "pull", "-q", queue, "--tokens"]).ok().trim().to_owned();
    desk.run(&["msg", "fail", "-q", queue, &lease, "--error", &error, "--signature", &signature]).ok();
    let session = desk.run(&["session", "open", "--label", &label, "--lease", "1h", "--id"]).ok().trim().to_owned();
    desk.run(&["msg", "pull", "-q", queue, "--session", &session, "--sequence", "1"]).ok();
    (desk, id)
}

#[test]
fn tables_of_queues_and_messages_fit_a_line_and_ids_stay_whole() {
    let queue = "q".repeat(128);
    let (desk, id) = with_long_texts(&queue);
    for (line, has_id) in [
        ("msg ls -q QUEUE", true),
        ("msg ls -q QUEUE --state running", true),
        ("msg ls -q QUEUE --state errored", true),
        ("msg ls -q QUEUE --state completed", false),
        ("msg peek -q QUEUE", true),
        ("dlq ls -q QUEUE", true),
        ("dlq ls -q QUEUE --messages", true),
        ("dlq redrive -q QUEUE --dry-run", false),
        ("dlq rm -q QUEUE --all --dry-run", false),
        ("queue ls", false),
        ("queue depth QUEUE", false),
        ("queue history QUEUE", false),
        ("queue describe QUEUE", false),
        ("session ls", false),
        ("session ls -q QUEUE", false),
    ] {
        let shown = desk.shell(&format!("tallystone {}", line.replace("QUEUE", &queue))).ok();
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH), "{line}:\n{shown}");
        assert!(!has_id || shown.contains(&id), "{line}:\n{shown}");
        assert!(!shown.is_empty(), "{line}");
    }
    let whole = desk.run(&["msg", "ls", "-q", &queue, "--state", "errored", "-o", "json"]).ok();
    assert!(whole.contains(&"s".repeat(300)) && whole.contains("attemptsLeft") && !whole.contains('…'), "{whole}");
}

#[test]
fn tables_with_short_names_keep_what_says_most() {
    let desk = Desk::set();
    desk.run(&["queue", "create", "orders"]).ok();
    let listed = desk.run(&["queue", "ls", "orders"]).ok();
    assert!(listed.contains("VERSION") && listed.contains("UPDATE TIME"), "{listed}");
    desk.run(&["msg", "push", "-q", "orders", "x", "--id", "one"]).ok();
    let listed = desk.run(&["msg", "ls", "-q", "orders"]).ok();
    assert!(listed.contains("ATTEMPTS LEFT") && listed.contains("ATTEMPT NUMBER"), "{listed}");
}
