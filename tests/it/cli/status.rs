//! `status`: what a person on call sees first.

use super::Desk;
use super::settings::alone;
use crate::support::harness::{Launch, Server};

#[test]
fn a_server_in_good_order_is_shown_at_one_glance() {
    let desk = Desk::set();
    desk.run(&["counter", "add", "views", "5"]).ok();
    desk.run(&["msg", "push", "-q", "timed/mail", "hello"]).ok();
    let shown = desk.run(&["status"]).ok();
    for words in
        ["ready, up ", "embedded", "answers, ", " free", "dataset", "1 queue: 1 pending", "timed/mail", "counts"]
    {
        assert!(shown.contains(words), "{words:?} is missing of\n{shown}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    let status: serde_json::Value = serde_json::from_str(&desk.run(&["status", "-o", "json"]).ok()).expect("JSON");
    assert_eq!((&status["ready"], &status["problems"]), (&true.into(), &serde_json::json!([])), "{status}");
    assert_eq!(status["queues"]["oldest"][0]["pending"], "1", "{status}");
    assert!(status["fleet"].is_null(), "one process has the embedded store for itself: {status}");
}

#[test]
fn a_long_accept_limit_is_nothing_wrong() {
    let desk = Desk::set();
    desk.write("slow.toml", "name = \"slow\"\n\n[storage]\ndataset = \"slow\"\n\n[dataset]\naccept_limit = \"90s\"\n");
    desk.run(&["apply", "-f", "slow.toml"]).ok();
    desk.run(&["counter", "add", "-n", "slow", "views", "5"]).ok();
    let status: serde_json::Value = serde_json::from_str(&desk.run(&["status", "-o", "json"]).ok()).expect("JSON");
    let datasets = status["datasets"].as_array().expect("datasets").iter();
    let mut slow = datasets.filter(|set| set["dataset"] == "slow");
    let staleness = slow.next().expect("it is shown")["staleness"].as_str().expect("a span").to_owned();
    let seconds: f64 = staleness.trim_end_matches('s').parse().expect("seconds");
    assert!(seconds > 85.0, "{status}");
    assert_eq!(status["problems"], serde_json::json!([]), "{status}");
    let shown = desk.run(&["status"]).ok();
    assert!(shown.contains("slow"), "{shown}");
}

#[test]
fn a_full_disk_is_a_problem_with_an_exit_code_and_the_server_is_still_shown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert!(Launch::dev(folder.path()).start().stop().success());
    let reserve = (1_u64 << 60).to_string();
    let server = Launch::dev(folder.path()).env("TALLYSTONE__STORAGE__RESERVE_BYTES", &reserve).start();
    let address = server.address.to_string();
    let ran = alone(&["status", "--server", &address], &[]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("ready, up ") && ran.out.contains("FULL"), "{}", ran.out);
    assert!(ran.err.contains("the disk of the store embedded is full"), "{}", ran.err);
    let place = format!("{} needs 1048576TiB free (storage.reserve_bytes)", folder.path().display());
    assert!(ran.err.contains(&place) && ran.err.contains("iB free, so adds"), "{}", ran.err);
    let nobody = alone(&["status", "--server", "127.0.0.1:1", "--timeout", "1s"], &[]);
    assert_eq!(nobody.code, 5, "{}{}", nobody.out, nobody.err);
}

#[test]
fn a_server_whose_messages_take_more_than_their_bound_starts_and_says_so_with_an_exit_code() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let queue = |server: &Server, method: &str, body: &str| {
        server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), body)
    };
    let enqueue = r#"{"queue": "mail", "message": {"payload": "aGVsbG8="}}"#;
    let server = Launch::dev(folder.path()).start();
    assert_eq!(queue(&server, "CreateQueue", r#"{"queue": {"name": "mail", "shards": 1}}"#).status, 200);
    let hundred = vec![r#"{"payload": "aGVsbG8="}"#; 100].join(", ");
    let batch = format!(r#"{{"queue": "mail", "messages": [{hundred}]}}"#);
    assert!((0..4).all(|_| queue(&server, "BatchEnqueue", &batch).status == 200));
    assert!(server.stop().success());

    let server = Launch::dev(folder.path()).arg("--set").arg("queues.memory_bytes=64KiB").start();
    let refused = queue(&server, "Enqueue", enqueue);
    assert!(refused.status == 429 && refused.body.contains("STORAGE_FULL"), "{refused:?}");
    let address = server.address.to_string();
    let ran = alone(&["status", "--server", &address], &[]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("queue-memory.md") && ran.err.contains("of 64KiB"), "{}", ran.err);
    let dequeue = r#"{"queue": "mail", "maxMessages": 5, "leaseDuration": "60s"}"#;
    let leases = queue(&server, "Dequeue", dequeue).json()["leases"].as_array().expect("leases").clone();
    assert_eq!(leases.len(), 5);
    for lease in leases {
        let settled = format!(r#"{{"queue": "mail", "leaseToken": {}}}"#, lease["leaseToken"]);
        assert_eq!(queue(&server, "Complete", &settled).status, 200);
    }
    assert!(server.stop().success());

    let server = Launch::dev(folder.path()).start();
    assert_eq!(queue(&server, "Enqueue", enqueue).status, 200);
    let depth = queue(&server, "GetDepth", r#"{"queue": "mail"}"#).json();
    assert_eq!((&depth["pending"], &depth["completed"]), (&"396".into(), &"5".into()), "{depth}");
}
