//! A queue that requires more durability than Redis offers at the moment: it takes nothing in, and gives out what it has. And a
//! Redis that lost all its data while a server runs: queues are not taken for ones that never were.

use serde_json::{Value, json};

use super::*;
use crate::support::harness::{HttpAnswer, Server, eventually};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const REASON: &str = "DURABILITY_NOT_OFFERED";

fn post(server: &Server, method: &str, body: &Value) -> HttpAnswer {
    server.post(&format!("{QUEUES}/{method}"), &body.to_string())
}

fn create(server: &Server, name: &str, required: &str) -> HttpAnswer {
    post(server, "CreateQueue", &json!({"queue": {"name": name, "required_durability": required}}))
}

fn enqueue(server: &Server, id: &str) -> HttpAnswer {
    post(server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": id, "payload": "aGVsbG8="}}))
}

fn is_refused(answer: &HttpAnswer) -> bool {
    answer.status != 200 && answer.body.contains(REASON)
}

#[test]
fn a_queue_that_requires_more_than_redis_offers_takes_nothing_in_and_gives_out_what_it_has() {
    for build in Build::ALL {
        let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
        let Some(redis) = or_skip(RedisServer::start_with(build, settings)) else { continue };
        println!("on {}", build.name());
        let server = dev_on(&redis).start();
        let created = create(&server, "mail", "DURABILITY_SAFE");
        assert_eq!((created.status, enqueue(&server, "a").status), (200, 200), "{created:?}");
        let more = create(&server, "more", "DURABILITY_REPLICATED");
        assert!(is_refused(&more), "{more:?}");
        assert!(server.stop().success());

        redis.config_set("appendfsync", "everysec");
        let server = dev_on(&redis).start();
        let (next, again) = (create(&server, "next", "DURABILITY_SAFE"), enqueue(&server, "b"));
        assert!(is_refused(&next) && is_refused(&again), "{next:?} {again:?}");
        assert_eq!(create(&server, "fast", "DURABILITY_FAST").status, 200);
        let leased = post(&server, "Dequeue", &json!({"queue": "mail"})).json();
        assert_eq!(leased["leases"].as_array().map(Vec::len), Some(1), "{leased}");
        let lease = &leased["leases"][0]["leaseToken"];
        assert_eq!(post(&server, "Complete", &json!({"queue": "mail", "lease_token": lease})).status, 200);
        assert!(server.stop().success());
    }
}

#[test]
fn a_redis_that_lost_its_data_is_not_served_as_an_empty_one_by_a_server_that_runs() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = dev_on(&redis).start();
    let created = create(&server, "mail", "DURABILITY_UNSPECIFIED");
    assert_eq!((created.status, enqueue(&server, "a").status), (200, 200), "{created:?}");
    redis.cli(&["FLUSHALL"]);
    let has_noticed = || server.printed().contains("STORE_LOST");
    assert!(eventually(BACK_WITHIN, has_noticed), "{}", server.printed());
    for _ in 0..3 {
        let refused = enqueue(&server, "b");
        assert!(refused.status >= 500 && !refused.body.contains("QUEUE_NOT_FOUND"), "{refused:?}");
    }
    let listed = post(&server, "ListQueues", &json!({}));
    assert!(listed.body.contains("mail"), "{listed:?}");
    drop(server);
    let fresh = dev_on(&redis).start();
    assert!(enqueue(&fresh, "b").body.contains("QUEUE_NOT_FOUND"), "a restart accepts the loss");
}
