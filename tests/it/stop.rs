//! An orderly stop of the real binary: what was acknowledged a moment before is rolled up, and the next start has nothing
//! to make up for.

use std::path::Path;

use crate::harness::{Launch, Server};

const COUNTERS: &str = "/tallystone.counter.v1.CounterService";

fn call(server: &Server, method: &str, body: &str) -> serde_json::Value {
    let answer = server.post(&format!("{COUNTERS}/{method}"), body);
    assert_eq!(answer.status, 200, "{method}: {}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

fn start(data: &Path) -> Server {
    Launch::dev(data).start()
}

#[test]
fn what_was_acknowledged_just_before_an_orderly_stop_is_rolled_up_when_it_ends() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut server = start(folder.path());
    for n in 0..30 {
        call(&server, "AddCount", &format!(r#"{{"namespace": "default", "counterName": "c{}", "delta": 1}}"#, n % 10));
    }
    server.signal(libc::SIGTERM);
    let status = server.wait();
    assert!(status.success(), "{status}:\n{}", server.printed());
    let summary = server.wait_for_line("stopped: SIGTERM");
    assert!(summary.contains("30 writes applied") && summary.contains("; 0 of "), "{summary}");
    assert!(summary.ends_with(", 0 counters left to the next start"), "{summary}");
    let server = start(folder.path());
    for n in 0..10 {
        let body = format!(r#"{{"namespace": "default", "counterName": "c{n}", "freshness": "ROLLED_UP"}}"#);
        let reading = call(&server, "GetCount", &body);
        assert_eq!((&reading["count"], &reading["behind"]), (&"3".into(), &false.into()), "{reading}");
    }
}
