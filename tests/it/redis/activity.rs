//! What a queue does, as two servers on one Redis say: each reads the shards by itself, so both say the same.

use serde_json::{Value, json};

use super::*;
use crate::fleet::several_servers::metric;
use crate::observability::expect_times_of_leases;
use crate::support::harness::{Server, eventually};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const WITHIN: Duration = Duration::from_secs(60);

fn call(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("{QUEUES}/{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
    answer.json()
}

/// The numbers of the queue as a server says them.
fn depth(server: &Server) -> [i64; 3] {
    let activity = call(server, "GetQueueActivity", &json!({"queue": "mail"}))["activity"].clone();
    assert!(activity["asOf"].is_string(), "it says of when it is: {activity}");
    ["pending", "running", "completed"]
        .map(|state| activity[state].as_str().and_then(|count| count.parse().ok()).unwrap_or(-1))
}

#[test]
fn the_sessions_of_all_servers_are_listed_at_each_of_them() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let (one, other) = (dev_on(&redis).start(), dev_on(&redis).start());
    call(&one, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    call(&one, "Enqueue", &json!({"queue": "mail", "message": {"message_id": "m", "payload": "aGVsbG8="}}));
    call(&one, "OpenSession", &json!({"label": "idle"}));
    let session = call(&other, "OpenSession", &json!({"label": "busy"}))["sessionId"].clone();
    let ask = json!({"queue": "mail", "session_id": session, "sequence": 1});
    assert_eq!(call(&other, "Dequeue", &ask)["leases"].as_array().map(Vec::len), Some(1));
    for server in [&one, &other] {
        let listed = call(server, "ListSessions", &json!({}))["sessions"].clone();
        let rows = listed.as_array().expect("a list").iter();
        let shown: Vec<_> = rows.map(|row| (row["label"].clone(), row["leases"].clone())).collect();
        assert_eq!(shown, [(json!("idle"), json!("0")), (json!("busy"), json!("1"))], "{listed}");
        let of_queue = call(server, "ListSessions", &json!({"queue": "mail"}))["sessions"].clone();
        assert_eq!(of_queue.as_array().map(Vec::len), Some(1), "{of_queue}");
        assert_eq!(of_queue[0]["label"], json!("busy"));
    }
}

#[test]
fn there_are_as_many_waits_as_leases_and_as_many_runs_as_settlements() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    expect_times_of_leases(&dev_on(&redis).start());
}

#[test]
fn the_activity_of_a_queue_is_the_same_at_every_server() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let (one, other) = (dev_on(&redis).start(), dev_on(&redis).start());
    call(&one, "CreateQueue", &json!({"queue": {"name": "mail", "shards": 2}}));
    for number in 0..6 {
        call(
            &one,
            "Enqueue",
            &json!({"queue": "mail", "message": {"message_id": format!("m{number}"), "payload": "aGVsbG8="}}),
        );
    }
    let agree = |expected: [i64; 3]| {
        let agree = || depth(&one) == expected && depth(&other) == expected;
        assert!(eventually(WITHIN, agree), "{:?} and {:?}", depth(&one), depth(&other));
    };
    agree([6, 0, 0]);
    let leased = call(&other, "Dequeue", &json!({"queue": "mail", "max_messages": 2}));
    agree([4, 2, 0]);
    let lease = &leased["leases"][0]["leaseToken"];
    call(&one, "Complete", &json!({"queue": "mail", "lease_token": lease}));
    agree([4, 1, 1]);
    let listed =
        |server: &Server| call(server, "ListQueueActivity", &json!({"prefix": "mail"}))["queues"][0]["pending"].clone();
    assert!(eventually(WITHIN, || listed(&one) == json!("4") && listed(&other) == json!("4")));
}

#[test]
fn the_servers_that_share_a_redis_are_a_fleet_in_the_status_and_in_metrics() {
    const STATUS: &str = "/tallystone.admin.v1.StatusService/GetStatus";
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let one = dev_on(&redis).start();
    assert_eq!(metric(&one, "tallystone_fleet_members"), 1.0);
    let other = dev_on(&redis).start();
    let both = || [&one, &other].iter().all(|server| metric(server, "tallystone_fleet_members") == 2.0);
    assert!(eventually(WITHIN, both), "each sees the other");
    let status = one.post(STATUS, "{}").json();
    let fleet = &status["queueFleet"];
    assert!(status["fleet"].is_null(), "each server has counters of its own: {status}");
    assert_eq!((&fleet["members"], fleet["servers"].as_array().map(Vec::len)), (&json!("2"), Some(2)), "{fleet}");
    for port in [one.address.port(), other.address.port()] {
        let is_of = |server: &Value| server.as_str().is_some_and(|name| name.ends_with(&format!(":{port}")));
        assert!(fleet["servers"].as_array().is_some_and(|servers| servers.iter().any(is_of)), "{port}: {fleet}");
    }
    assert!(other.stop().success());
    let alone = || metric(&one, "tallystone_fleet_members") == 1.0;
    assert!(eventually(WITHIN, alone), "a server that stops leaves at once");
}
