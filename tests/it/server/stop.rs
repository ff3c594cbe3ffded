//! An orderly stop of the real binary: what was acknowledged a moment before is rolled up, and the next start has nothing
//! to make up for.

use std::path::Path;
use std::time::Duration;

use crate::support::harness::{Launch, Server, eventually};

const COUNTERS: &str = "/tallystone.counter.v1.CounterService";

fn call(server: &Server, method: &str, body: &str) -> serde_json::Value {
    let answer = server.post(&format!("{COUNTERS}/{method}"), body);
    assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Two messages are taken in, and one of them is completed, twice.
fn work_on_two_messages(server: &Server) {
    let ask = |method: &str, body: &str| -> serde_json::Value {
        let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), body);
        assert_eq!(answer.status, 200, "{method}: {}", answer.body);
        serde_json::from_str(&answer.body).expect("JSON")
    };
    ask("CreateQueue", r#"{"queue": {"name": "orders"}}"#);
    for id in ["a", "b"] {
        ask("Enqueue", &format!(r#"{{"queue": "orders", "message": {{"messageId": "{id}"}}}}"#));
    }
    let leased = ask("Dequeue", r#"{"queue": "orders"}"#);
    let complete = serde_json::json!({"queue": "orders", "leaseToken": leased["leases"][0]["leaseToken"]}).to_string();
    for _ in 0..2 {
        ask("Complete", &complete);
    }
}

fn start(data: &Path) -> Server {
    Launch::dev(data).start()
}

#[test]
fn what_was_acknowledged_just_before_an_orderly_stop_is_rolled_up_when_it_ends() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // What is left of the time is short on a machine that is busy with other tests.
    let mut server = Launch::dev(folder.path()).arg("--set").arg("server.drain_deadline_ms=120000").start();
    for n in 0..30 {
        call(&server, "AddCount", &format!(r#"{{"namespace": "default", "counterName": "c{}", "delta": 1}}"#, n % 10));
    }
    work_on_two_messages(&server);
    server.signal(libc::SIGTERM);
    let status = server.wait();
    assert!(status.success(), "{status}:\n{}", server.printed());
    let summary = server.wait_for_line("stopped: SIGTERM");
    assert!(summary.contains("30 writes applied") && summary.contains("; 0 of "), "{summary}");
    assert!(summary.contains(", 2 messages enqueued, 1 completed, "), "{summary}");
    assert!(summary.ends_with(", 0 counters left to the next start"), "{}", server.printed());
    let server = start(folder.path());
    for n in 0..10 {
        let body = format!(r#"{{"namespace": "default", "counterName": "c{n}", "freshness": "ROLLED_UP"}}"#);
        let reading = call(&server, "GetCount", &body);
        assert_eq!((&reading["count"], &reading["behind"]), (&"3".into(), &false.into()), "{reading}");
    }
}

#[test]
fn a_counter_that_is_written_until_the_stop_is_rolled_up_to_its_last_event() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = Launch::dev(folder.path()).arg("--set").arg("server.drain_deadline_ms=120000").start();
    let add = r#"{"namespace": "default", "counterName": "busy", "delta": 1}"#;
    let rolls = || {
        let page = server.get("/metrics").body;
        let line = page.lines().find(|line| line.starts_with("tallystone_rolls_total{outcome=\"written\"}"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).expect("a number of rolls")
    };
    // It waits for a roll from then on, whenever the stop comes, and has newer events than those that it waits with.
    let mut added = 0;
    while rolls() < 5.0 {
        for _ in 0..20 {
            call(&server, "AddCount", add);
            added += 1;
        }
    }
    server.signal(libc::SIGTERM);
    let status = server.wait();
    assert!(status.success(), "{status}:\n{}", server.printed());
    let summary = server.wait_for_line("stopped: SIGTERM");
    assert!(summary.ends_with(", 0 counters left to the next start"), "{}", server.printed());
    let server = start(folder.path());
    let body = r#"{"namespace": "default", "counterName": "busy", "freshness": "ROLLED_UP"}"#;
    let reading = call(&server, "GetCount", body);
    assert_eq!((&reading["count"], &reading["behind"]), (&added.to_string().into(), &false.into()), "{reading}");
}

#[test]
fn a_stop_ends_the_dequeues_that_wait_and_leases_nothing_more() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = Launch::dev(folder.path()).env("TALLYSTONE__SERVER__DRAIN_DEADLINE_MS", "10000").start();
    let queues = |method: &str| format!("/tallystone.queue.v1.QueueService/{method}");
    let created = server.post(&queues("CreateQueue"), r#"{"queue": {"name": "mail"}}"#);
    assert_eq!(created.status, 200, "{}", created.body);
    let answer = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(&queues("Dequeue"), r#"{"queue": "mail", "wait": "20s"}"#));
        let waits = || server.get("/metrics").body.contains("tallystone_queue_dequeues_waiting{queue=\"mail\"} 1.0\n");
        assert!(eventually(Duration::from_secs(60), waits), "{}", server.printed());
        server.signal(libc::SIGTERM);
        // Else the deadline of the stop, half as long as the wait, would cut the connection.
        waiting.join().expect("an answer")
    });
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(!answer.body.contains("leaseToken"), "{}", answer.body);
    assert!(server.wait().success(), "{}", server.printed());
}
