//! Alerts of queues, of their counters and of their history. A trouble that would last longer than a test is a page of a
//! real server with other numbers.

use std::time::Duration;

use super::firing::{Seen, TROUBLE, expect_firing, page, settled};
use super::{QUEUE, used_server};
use crate::support::harness::{Launch, Server, eventually};

/// Longer than an alert of a queue waits.
const LONG: Duration = Duration::from_secs(12 * 60);
const WITHIN: Duration = Duration::from_secs(60);

/// The page with another number for a series that it has.
pub(super) fn with(page: &str, series: &str, number: f64) -> String {
    let is_it = |line: &&str| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' '));
    assert_eq!(page.lines().filter(is_it).count(), 1, "no {series} in\n{page}");
    let lines =
        page.lines().map(|line| if is_it(&line) { format!("{series} {number}\n") } else { format!("{line}\n") });
    lines.collect()
}

fn of_queue(metric: &str) -> String {
    format!("tallystone_queue_{metric}{{queue=\"{QUEUE}\"}}")
}

fn of_state(state: &str) -> String {
    format!("tallystone_queue_messages{{queue=\"{QUEUE}\",state=\"{state}\"}}")
}

/// A server whose queue has a ready message that nobody ever asked for.
fn server_with_a_message(folder: &std::path::Path) -> Server {
    let server = Launch::dev(&folder.join("data")).start();
    for (method, body) in [
        ("CreateQueue", format!(r#"{{"queue": {{"name": "{QUEUE}"}}}}"#)),
        ("Enqueue", format!(r#"{{"queue": "{QUEUE}", "message": {{"payload": "Zm9v"}}}}"#)),
    ] {
        let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), &body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    }
    settled(&server);
    let is_shown = || page(&server).contains(&format!("\n{} 1.0\n", of_queue("ready_messages")));
    assert!(eventually(WITHIN, is_shown), "{}", page(&server));
    server
}

#[test]
fn a_queue_that_nobody_asks_raises_its_alert_and_one_with_a_worker_does_not() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let alone = page(&server_with_a_message(folder.path()));
    let seen = |name, page: &str| Seen::well(name, with(page, &of_queue("ready_messages"), 0.0));
    let short = seen("a", &alone).then(Some(alone.clone()), TROUBLE);
    expect_firing(&[short], &[]);
    let long = seen("a", &alone).then(Some(alone.clone()), LONG);
    // Each sign of a worker is enough: one that waits, one that works, one that took something.
    let waits = with(&alone, &of_queue("dequeues_waiting"), 1.0);
    let works = with(&alone, &of_state("running"), 1.0);
    let waiting = seen("b", &alone).then(Some(waits), LONG);
    let working = seen("c", &alone).then(Some(works), LONG);
    let mut taking = seen("d", &alone);
    for leased in 1..=4 {
        let page = with(&alone, &of_queue("leased_total"), f64::from(leased));
        taking = taking.then(Some(page), LONG / 4);
    }
    expect_firing(&[long, waiting, working, taking], &[("NobodyDequeues", "a")]);
}

#[test]
fn an_oldest_age_that_grows_raises_its_alert_and_one_that_stands_does_not() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let well = settled(&server);
    let aged = |age: f64| with(&well, &of_queue("ready_age_seconds"), age);
    // A worker takes one message after the other, later and later; elsewhere messages are old, but no older than before.
    let (mut growing, mut standing) = (Seen::well("a", aged(100.0)), Seen::well("b", aged(500.0)));
    let minute = Duration::from_secs(60);
    for past in 1..=24_u8 {
        growing = growing.then(Some(aged(100.0 + 15.0 * f64::from(past))), minute);
        standing = standing.then(Some(aged(500.0)), minute);
    }
    expect_firing(&[growing, standing], &[("OldestAgeGrows", "a")]);
}

#[test]
fn errored_messages_that_stay_raise_their_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let well = settled(&server);
    let errored = with(&well, &of_state("errored"), 3.0);
    let seen = |name| Seen::well(name, well.clone()).then(Some(errored.clone()), LONG);
    let dealt_with = seen("b").then(Some(well.clone()), 2 * LONG);
    expect_firing(&[seen("a").then(Some(errored.clone()), 2 * LONG), dealt_with], &[("ErroredGrows", "a")]);
}

#[test]
fn a_history_that_lies_behind_lacks_rows_or_contradicts_the_queue_raises_an_alert_each() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let well = settled(&server);
    let capacity = "tallystone_outbox_capacity_bytes";
    let number = |series: &str| {
        let value = well.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in\n{well}")).parse::<f64>().expect("a number")
    };
    assert!(number(capacity) > 0.0, "there are outboxes");
    let finding = "tallystone_audit_findings_total{kind=\"rows\"}";
    for (series, fine, bad, alert) in [
        ("tallystone_bridge_report_lag_seconds", 50.0, 61.0, "QueueReportsLag"),
        ("tallystone_bridge_apart", 0.0, 1.0, "BridgeOff"),
        ("tallystone_history_lag_seconds", 50.0, 61.0, "HistoryRelayLags"),
        ("tallystone_outbox_bytes", 0.24 * number(capacity), 0.26 * number(capacity), "OutboxFills"),
        ("tallystone_history_gaps_total", 0.0, 1.0, "HistoryGap"),
        (finding, 0.0, 1.0, "AuditFinding"),
    ] {
        let seen = |name, value| Seen::well(name, well.clone()).then(Some(with(&well, series, value)), TROUBLE);
        expect_firing(&[seen("a", bad), seen("b", fine)], &[(alert, "a")]);
    }
}
