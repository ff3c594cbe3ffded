//! An event that no roll has taken in when its slice is past its time and the server is killed: the slice stays, over as
//! many kills as there are, until the event is rolled up; then it goes and the count stays.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallystone::domain::limits::COALESCE_MS_MAX;

use crate::support::harness::{Launch, Server, eventually};

/// The shortest life a slice can have; nothing is rolled up by itself.
fn namespace(coalesce_ms: u64) -> Value {
    json!({"namespace": {
        "name": "brief",
        "storage": {"dataset": "brief"},
        "dataset": {"sliceWidth": "10s", "closeAfter": "11s", "deleteAfter": "12s", "acceptLimit": "0.5s"},
        "timePartition": {"secondsPerBucket": 10},
        "rollup": {"coalesceMs": coalesce_ms, "numQueues": 1},
    }})
}

const SOON_MS: u64 = 100;
/// A slice's width and life, and the pauses of the loop that drops it.
const PAST_ITS_TIME: Duration = Duration::from_secs(10 + 12 + 2 * 10);
/// Longer than a slice may be behind before that is called keeping it back.
const PATIENCE: Duration = Duration::from_secs(180);

/// A coalescing time whose next turn is 300 s away, longer than the event has to wait. A single queue has its turns at the
/// multiples of the coalescing time since the machine started.
fn never_ms() -> u64 {
    let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux says how long it is up");
    let seconds: f64 = uptime.split(' ').next().and_then(|text| text.parse().ok()).expect("seconds");
    let next_turn = seconds as u64 * 1_000 + 300_000;
    next_turn.div_ceil(next_turn.div_ceil(u64::from(COALESCE_MS_MAX)))
}

fn call(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("/tallystone.{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method}: {}\n{}", answer.body, server.printed());
    serde_json::from_str(&answer.body).expect("JSON")
}

fn add(n: u32, token: &str) -> Value {
    json!({"namespace": "brief", "counterName": "views", "delta": 1_u32 << n, "idempotencyToken": {"token": token}})
}

/// Adds as soon as the token is made, and answers the token. Where a slow machine was later than the accept limit, the add was
/// not applied, and another token is tried.
fn added(server: &Server, n: u32) -> String {
    let began = Instant::now();
    loop {
        let token = uuid::Uuid::now_v7().to_string();
        let answer = server.post("/tallystone.counter.v1.CounterService/AddCount", &add(n, &token).to_string());
        if answer.status == 200 {
            return token;
        }
        assert!(answer.body.contains("NOT_APPLIED") && began.elapsed() < PATIENCE, "{}", answer.body);
    }
}

fn read(server: &Server, freshness: &str) -> (Value, Value) {
    let body = json!({"namespace": "brief", "counterName": "views", "freshness": freshness});
    let reading = call(server, "counter.v1.CounterService/GetCount", &body);
    (reading["count"].clone(), reading["behind"].clone())
}

fn metric(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics").body;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} is missing in:\n{page}"))
}

#[test]
fn an_event_that_is_not_rolled_up_keeps_its_slice_over_every_kill() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let start = || Launch::dev(folder.path()).start();
    let server = start();
    call(&server, "admin.v1.NamespaceService/CreateNamespace", &namespace(never_ms()));
    let tokens: Vec<String> = (0..3).map(|n| added(&server, n)).collect();
    let added = Instant::now();
    server.kill();

    let server = start();
    assert_eq!(read(&server, "UP_TO_DATE").0, "7", "before its slice is past its time");
    let kept_back = || added.elapsed() > PAST_ITS_TIME && metric(&server, "tallystone_slices_kept_back_total") > 0;
    assert!(eventually(PATIENCE, kept_back), "no slice was kept back:\n{}", server.printed());
    assert_eq!(read(&server, "ROLLED_UP"), ("0".into(), true.into()), "nothing was rolled up");
    assert_eq!(read(&server, "UP_TO_DATE").0, "7", "past its time");
    call(&server, "admin.v1.NamespaceService/UpdateNamespace", &namespace(SOON_MS));
    server.kill();

    let server = start();
    assert_eq!(read(&server, "UP_TO_DATE").0, "7", "after another kill");
    let rolled_up = || read(&server, "ROLLED_UP") == ("7".into(), false.into());
    assert!(eventually(PATIENCE, rolled_up), "{:?}\n{}", read(&server, "ROLLED_UP"), server.printed());
    let is_dropped = || {
        let body = json!({"namespace": "brief", "counterName": "views", "idempotencyToken": {"token": tokens[2]}});
        let verdict = call(&server, "counter.v1.CounterService/CheckToken", &body)["verdict"].clone();
        assert!(verdict == "VERDICT_APPLIED" || verdict == "VERDICT_TOO_OLD", "{verdict}");
        verdict == "VERDICT_TOO_OLD"
    };
    assert!(eventually(PATIENCE, is_dropped), "its slice was not dropped:\n{}", server.printed());
    let again = server.post("/tallystone.counter.v1.CounterService/AddCount", &add(0, &tokens[0]).to_string());
    assert_eq!(again.status, 412, "nobody can say any more, so it does not count again: {}", again.body);
    assert_eq!(read(&server, "UP_TO_DATE").0, "7", "its slice is gone");
    server.kill();

    let server = start();
    for freshness in ["UP_TO_DATE", "ROLLED_UP"] {
        assert_eq!(read(&server, freshness), ("7".into(), false.into()), "{freshness} without its slice");
    }
}
