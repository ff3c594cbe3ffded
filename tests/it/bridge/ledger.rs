//! Every counter of a queue, compared with a ledger of the calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::{
    Counts, QUEUE, SLOW_WITHIN, WITHIN, check_levels, check_series, comes_within, counts, counts_of, create, enqueue,
    lease_all, names, number, queue_call, reported_to, reports, settle, sure_reading, wait_until_reported,
};
use crate::support::harness::{Launch, Server};

/// The leases of the messages with these numbers.
fn of(leases: &BTreeMap<String, String>, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| leases[&format!("m{number:03}")].clone()).collect()
}

/// 1,000 messages: 50 canceled, 600 completed, 100 failed of which 50 for good, 30 given back, 20 extended.
fn work(server: &Server) {
    create(server, json!({"shards": 2}));
    let messages: Vec<Value> = (0..1_000)
        .map(|number| {
            let max_attempts = if (600..650).contains(&number) { 1 } else { 3 };
            json!({"message_id": format!("m{number:03}"), "payload": "aGVsbG8=", "max_attempts": max_attempts})
        })
        .collect();
    enqueue(server, &messages);
    for number in 950..1_000 {
        queue_call(server, "CancelMessage", json!({"queue": QUEUE, "message_id": format!("m{number:03}")}));
    }
    let leases = lease_all(server);
    assert_eq!(leases.len(), 950);
    settle(server, &of(&leases, 0..600), &json!({"verb": "VERB_COMPLETE"}));
    let failed =
        json!({"verb": "VERB_FAIL", "delay": "3600s", "error": {"signature": "time out", "text": "after 5 s"}});
    settle(server, &of(&leases, 600..700), &failed);
    settle(server, &of(&leases, 700..730), &json!({"verb": "VERB_RELEASE"}));
    settle(server, &of(&leases, 730..750), &json!({"verb": "VERB_EXTEND", "lease_duration": "7200s"}));
}

/// What the work adds up to: levels and flows.
fn expected_fast() -> Counts {
    let bytes = 1_000 * 5;
    let fast = [
        ("depth.invisible", 50),
        ("depth.pending", 30),
        ("depth.running", 220),
        ("depth.completed", 600),
        ("depth.canceled", 50),
        ("depth.errored", 50),
        ("bytes", bytes),
        ("enqueued", 1_000),
        ("enqueued_bytes", bytes),
        ("ready", 1_030),
        ("dequeued", 950),
        ("attempts", 920),
        ("extended", 20),
        ("completed", 600),
        ("completed_late", 0),
        ("failed", 100),
        ("released", 30),
        ("lease_expired", 0),
        ("canceled", 50),
        ("canceled.ttl", 0),
        ("canceled.purge", 0),
        ("errored", 50),
        ("redriven", 0),
        ("expired", 0),
    ];
    fast.map(|(name, count)| (name.to_owned(), count)).into()
}

/// The counters by attempt and by error that are not 0.
fn expected_slow() -> Counts {
    let slow = [
        ("leased_at.1", 950),
        ("completed_at.1", 600),
        ("errored_at.1", 50),
        ("failed~error=time%20out", 100),
        ("errored~error=time%20out", 50),
    ];
    slow.map(|(name, count)| (name.to_owned(), count)).into()
}

/// The counts of both, and the sums of `wait` and `run`.
fn check_all(server: &Server) {
    let fast = expected_fast();
    assert_eq!(counts_of(server, fast.keys().map(String::as_str)), fast);
    let slow = expected_slow();
    assert_eq!(counts_of(server, slow.keys().map(String::as_str)), slow);
    let times = |kind: &str| counts(server, kind).values().sum::<i64>();
    assert_eq!((times("wait."), times("run.")), (950, 600 + 100 + 30), "each lease, and each end of one");
    let times = counts(server, "").into_keys().filter(|name| name.starts_with("wait.") || name.starts_with("run."));
    let known: Vec<String> = fast.into_keys().chain(slow.into_keys()).chain(times).collect();
    let others: Vec<String> = counts(server, "").into_keys().filter(|name| !known.contains(name)).collect();
    assert!(others.is_empty(), "counters that nothing moved: {others:?}");
}

#[test]
fn every_counter_of_a_queue_is_as_the_ledger_says_within_three_seconds() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    work(&server);
    wait_until_reported(&server, WITHIN);
    let fast = expected_fast();
    assert_eq!(counts_of(&server, fast.keys().map(String::as_str)), fast);
    check_levels(&server);
    let slow = expected_slow();
    let are_reported =
        || counts_of(&server, slow.keys().map(String::as_str)) == slow && names(&server, "run.") != [""; 0];
    comes_within(&server, SLOW_WITHIN, "the slow counters are reported", are_reported);
    check_all(&server);
    for flow in ["enqueued", "dequeued", "completed", "failed", "canceled"] {
        check_series(&server, flow);
    }

    let discard = json!({"queue": QUEUE, "error_signature": "time out", "request_token": "once"});
    let discarded = || {
        let operation = &queue_call(&server, "DiscardMessages", discard.clone())["operation"];
        operation["state"] == json!("OPERATION_STATE_DONE") && operation["done"] == json!("50")
    };
    comes_within(&server, WITHIN, "all are discarded", discarded);
    wait_until_reported(&server, WITHIN);
    assert_eq!(check_levels(&server)["depth.errored"], 0);
    assert_eq!(
        counts_of(&server, ["expired", "enqueued", "errored"]).into_values().collect::<Vec<_>>(),
        [1_000, 50, 50]
    );
}

/// Stops the server, and starts it again. Answers it with the time at which it was stopped.
fn restarted(server: Server, data: &Path) -> (Server, SystemTime) {
    assert!(server.stop().success(), "an orderly stop");
    let ended = SystemTime::now();
    (Launch::dev(data).start(), ended)
}

/// The takeover of a start has nothing to add: the counters were written before the stop was over.
fn written_before(server: &Server, counters: impl IntoIterator<Item = String>, ended: SystemTime) {
    for name in counters {
        let reading = sure_reading(server, &name);
        let Some(written) = reading["lastWriteTime"].as_str() else {
            assert_eq!(number(&reading["count"]), 0, "{name}");
            continue;
        };
        let written: prost_types::Timestamp = written.parse().expect("a time");
        let written = SystemTime::try_from(written).expect("after 1970");
        assert!(written < ended, "{name} was written by the next start");
    }
}

#[test]
fn a_stop_right_after_load_has_reported_everything_before_it_ends() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    work(&server);
    let (server, ended) = restarted(server, data.path());
    wait_until_reported(&server, SLOW_WITHIN);
    check_all(&server);
    check_levels(&server);
    written_before(&server, expected_fast().into_keys().chain(expected_slow().into_keys()), ended);
}

#[test]
fn a_stop_right_after_one_message_has_reported_its_attempt_and_its_times() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 1}));
    wait_until_reported(&server, WITHIN);
    enqueue(&server, &[json!({"message_id": "m"})]);
    settle(&server, lease_all(&server).values(), &json!({"verb": "VERB_COMPLETE"}));
    let (server, ended) = restarted(server, data.path());
    wait_until_reported(&server, SLOW_WITHIN);
    let mut names: Vec<String> = ["enqueued", "completed", "leased_at.1", "completed_at.1"].map(str::to_owned).into();
    assert!(counts_of(&server, names.iter().map(String::as_str)).values().all(|count| *count == 1));
    names.extend(
        ["10ms", "30ms", "100ms", "300ms", "1s", "3s"].iter().flat_map(|d| [format!("wait.{d}"), format!("run.{d}")]),
    );
    written_before(&server, names, ended);
}

#[test]
fn a_total_says_the_positions_that_it_covers_and_none_is_covered_twice() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, json!({"shards": 1}));
    for round in 0..4 {
        let messages: Vec<Value> = (0..10).map(|number| json!({"message_id": format!("m{round}-{number}")})).collect();
        enqueue(&server, &messages);
        wait_until_reported(&server, WITHIN);
    }
    let reports = reports(&server, "enqueued");
    assert_eq!((reports[0].first, reports[reports.len() - 1].last), (1, 40), "{reports:?}");
    assert!(reports.windows(2).all(|pair| pair[0].last + 1 == pair[1].first), "{reports:?}");
    let reading = sure_reading(&server, "enqueued");
    assert_eq!(number(&reading["count"]), 40);
    assert!(reported_to(&reading).is_some());
}
