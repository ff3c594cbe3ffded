//! What a queue does, as two servers on one Redis say: each reads the shards by itself, so both say the same.

use serde_json::{Value, json};

use super::*;
use crate::support::harness::{Server, eventually};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const WITHIN: Duration = Duration::from_secs(20);

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
