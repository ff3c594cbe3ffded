//! A queue that requires more durability than Redis offers at the moment: it takes nothing in, and gives out what it has. And a
//! Redis that lost all its data while a server runs: queues are not taken for ones that never were.

use serde_json::{Value, json};

use super::*;
use crate::fleet::several_servers::metric_of;
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

#[test]
fn work_that_redis_lost_stands_in_log_status_activity_and_metrics_with_the_name_of_its_queue() {
    let Some(mut redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = dev_on(&redis).start();
    assert_eq!(create(&server, "mail", "DURABILITY_UNSPECIFIED").status, 200);
    assert_eq!(enqueue(&server, "a").status, 200);
    let activity = || post(&server, "ListQueueActivity", &json!({})).json()["queues"][0]["attention"].clone();
    let status = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tallystone"));
        command.args(["status", "--server", &server.address.to_string()]);
        let output = command.output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(!activity().to_string().contains("WORK_LOST"), "{}", activity());
    assert_eq!(metric_of(&server, "tallystone_queue_steps_lost_total", "queue=\"mail\""), 0.0);
    redis.cli(&["SAVE"]);
    assert!(["b", "c", "d"].iter().all(|id| enqueue(&server, id).status == 200));
    redis.restart().expect("it starts");
    let is_back = || enqueue(&server, "e").status == 200;
    assert!(eventually(BACK_WITHIN, is_back), "{}", server.printed());
    assert!(eventually(BACK_WITHIN, || activity().to_string().contains("WORK_LOST")), "{}", server.printed());
    let told = activity();
    let lost = told.as_array().and_then(|all| all.iter().find(|one| one["reason"] == "ATTENTION_REASON_WORK_LOST"));
    let text = lost.expect("the reason")["text"].to_string();
    assert!(
        text.contains("without 3 or more of its changes") && told[0]["runbook"] == "docs/runbook/work-lost.md",
        "{told}"
    );
    assert!(metric_of(&server, "tallystone_queue_steps_lost_total", "queue=\"mail\"") >= 3.0);
    let printed = server.printed();
    assert!(
        printed.lines().any(|line| line.contains("an earlier state of a queue") && line.contains("mail")),
        "{printed}"
    );
    // The numbers of status are up to a second old.
    let is_told =
        || matches!(status(), (Some(1), problems) if problems.contains("3 or more changes of the queue mail"));
    assert!(eventually(BACK_WITHIN, is_told), "{:?}", status());
}
