//! A server whose user of Redis has the rights that the page of keys names: it needs no other, and has no other.

use serde_json::{Value, json};

use super::*;
use crate::support::harness::Server;

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
pub const PASSWORD: &str = "hunter2";

/// The line of the page that makes the user.
pub fn documented_user() -> String {
    let page = include_str!("../../../docs/redis-keys.md");
    let line = page.lines().find(|line| line.starts_with("user tallystone on >PASSWORD "));
    line.expect("the page names the rights of the user").replace("PASSWORD", PASSWORD)
}

fn start(redis: &RedisServer) -> Server {
    let user = ["clusters.redis.user=tallystone".to_owned(), format!("clusters.redis.password={PASSWORD}")];
    user.iter().fold(dev_on(redis), |launch, setting| launch.arg("--set").arg(setting)).start()
}

fn call(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("{QUEUES}/{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
    answer.json()
}

/// Does with a queue what there is to do, at two servers in turn.
fn use_queue(servers: [&Server; 2], queue: &Value) {
    let [one, other] = servers;
    let name = queue["name"].clone();
    call(one, "CreateQueue", &json!({"queue": queue}));
    for number in 0..6 {
        let message = json!({"message_id": format!("m{number}"), "payload": "aGVsbG8=",
            "metadata": {"account": format!("a{}", number % 2), "zone": "z"}});
        call(other, "Enqueue", &json!({"queue": name, "message": message}));
    }
    let session = call(one, "OpenSession", &json!({"label": "worker"}))["sessionId"].clone();
    let leases = call(other, "Dequeue", &json!({"queue": name, "max_messages": 10}));
    let leases = leases["leases"].as_array().cloned().unwrap_or_default();
    assert!(leases.len() >= 2, "{leases:?}");
    let item = |at: usize, verb: &str| json!({"lease_token": leases[at]["leaseToken"], "verb": verb});
    let items = [item(0, "VERB_COMPLETE"), item(1, "VERB_FAIL")];
    let settled = call(one, "SettleMessages", &json!({"queue": name, "items": items}));
    assert!(
        settled["results"].as_array().expect("results").iter().all(|result| result["error"].is_null()),
        "{settled}"
    );
    call(other, "GetDepth", &json!({"queue": name, "filter": {"zone": "z"}}));
    call(one, "ExplainQueue", &json!({"queue": name}));
    call(other, "PurgeQueue", &json!({"queue": name}));
    call(one, "CloseSession", &json!({"session_id": session}));
    call(other, "DeleteQueue", &json!({"queue": name}));
}

#[test]
fn a_user_with_the_documented_rights_can_do_all_that_a_server_does_and_no_more() {
    for build in Build::ALL {
        println!("on {}", build.name());
        let settings = RedisSettings::of(&["appendonly yes", "appendfsync always", &documented_user()]);
        let Some(redis) = or_skip(RedisServer::start_with(build, settings)) else { continue };
        let (one, other) = (start(&redis), start(&redis));
        use_queue(
            [&one, &other],
            &json!({"name": "plain", "count_by": ["zone"], "shards": 2, "filter_shapes": [{"keys": ["zone"]}]}),
        );
        let exclusive = json!({"name": "exclusive", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "account",
            "filter_shapes": [{"keys": ["zone"]}]});
        use_queue([&one, &other], &exclusive);
        assert_eq!(redis.cli(&["ACL", "LOG"]), "", "nothing was denied to a server");
        for words in [
            &["FLUSHALL"][..],
            &["FLUSHDB"],
            &["KEYS", "*"],
            &["SHUTDOWN"],
            &["DEBUG", "SLEEP", "0"],
            &["CONFIG", "SET", "maxmemory", "1"],
            &["EVAL", "return 1", "0"],
            &["FUNCTION", "FLUSH"],
            &["ACL", "LIST"],
            &["REPLICAOF", "NO", "ONE"],
            &["GET", "another-key"],
        ] {
            let answer = redis.cli(&[&["ACL", "DRYRUN", "tallystone"], words].concat());
            assert!(answer.contains("has no permissions"), "{words:?}: {answer}");
        }
        assert!(one.stop().success() && other.stop().success());
    }
}
