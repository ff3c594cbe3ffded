//! Health asks whether Redis serves, not whether it answers: a Redis without its data answers every question.

use serde_json::json;

use super::*;
use crate::servers::redis::ReplicaPair;
use crate::support::harness::{HttpAnswer, Server, eventually};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";

/// Runs `tallystone status` on a server: its exit code, and all that it printed.
pub fn status(server: &Server) -> (i32, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tallystone"));
    command.args(["status", "--server", &server.address.to_string(), "--timeout", "60s"]);
    let output = command.output().expect("the binary of this build starts");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code().expect("nobody kills it"), String::from_utf8_lossy(&printed).into_owned())
}

fn enqueue(server: &Server, id: &str) -> HttpAnswer {
    let body = json!({"queue": "mail", "message": {"message_id": id, "payload": "aGVsbG8="}});
    server.post(&format!("{QUEUES}/Enqueue"), &body.to_string())
}

/// A server with a queue that holds a message, once its status shows it.
fn with_a_message(redis: &RedisServer) -> Server {
    let server = dev_on(redis).start();
    let created = server.post(&format!("{QUEUES}/CreateQueue"), &json!({"queue": {"name": "mail"}}).to_string());
    assert_eq!((created.status, enqueue(&server, "a").status), (200, 200), "{created:?}");
    let is_shown = || status(&server).1.contains("1 queue: 1 pending");
    assert!(eventually(BACK_WITHIN, is_shown), "{:?}", status(&server));
    server
}

/// The row of the queue that a call about activities answers with.
fn activity(server: &Server, call: &str, body: &str) -> serde_json::Value {
    let answer = server.post(&format!("{QUEUES}/{call}"), body).json();
    let listed = answer["queues"].as_array().map(|rows| rows[0].clone());
    listed.unwrap_or_else(|| answer["activity"].clone())
}

/// Rows of a lost queue say that it is lost, and have none of the numbers of before; neither have the sums.
fn has_no_depth(server: &Server) {
    for (call, body) in [("GetQueueActivity", r#"{"queue": "mail"}"#), ("ListQueueActivity", "{}")] {
        let is_lost = || activity(server, call, body).to_string().contains("its store has lost it");
        assert!(eventually(BACK_WITHIN, is_lost), "{call}: {}", activity(server, call, body));
        let row = activity(server, call, body);
        assert_eq!(row["attention"][0]["reason"], "ATTENTION_REASON_NUMBERS_OLD", "{row}");
        for number in ["pending", "running", "oldestReadyAge", "inPerSecond", "asOf"] {
            assert!(row.get(number).is_none_or(serde_json::Value::is_null), "{call}, {number}: {row}");
        }
    }
    let totals = server.post(&format!("{QUEUES}/ListQueueActivity"), "{}").json()["totals"].clone();
    assert!(totals["pending"].is_null() && totals["attention"] == "1", "{totals}");
    let console = server.get("/console/").body;
    assert!(console.contains("its store has lost it"), "{console}");
}

/// Everything that tells of a loss tells it, with what to do, and nothing tells what queues held before.
fn is_told(server: &Server, redis: &RedisServer, words: &str) {
    let is_ready = || server.get("/readyz").status == 200;
    assert!(eventually(BACK_WITHIN, || !is_ready()), "it is not ready");
    let (ready, (code, shown)) = (server.get("/readyz"), status(server));
    let sentence = format!("Redis at {} has lost what it had: {words}", redis.address());
    assert!(ready.status == 503 && ready.body.contains(&sentence), "{ready:?}");
    server.wait_for_line(&sentence);
    assert!(code == 5 && shown.contains(&sentence) && shown.contains("does not serve: STORE_LOST"), "{code} {shown}");
    assert!(!shown.contains("pending") && !shown.contains("answers, "), "nothing of before is shown: {shown}");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("tallystone_ready{service=\"tallystone.queue.v1.QueueService\"} 0.0"), "{metrics}");
    let health = server.get("/console/health").body;
    assert!(health.contains("does not serve: STORE_LOST") && health.contains("not ready"), "{health}");
    has_no_depth(server);
    let refused = enqueue(server, "b");
    assert_eq!(refused.status, 503, "{refused:?}");
    for words in ["STORE_UNAVAILABLE", "has lost what it had; restore a backup of it, or accept the loss"] {
        assert!(refused.body.contains(words), "{refused:?}");
    }
}

#[test]
fn a_redis_that_answers_without_its_data_is_not_ready_until_it_has_it_again() {
    for build in Build::ALL {
        let Some(redis) = or_skip(RedisServer::start(build)) else { continue };
        println!("on {}", build.name());
        let server = with_a_message(&redis);
        // An empty database takes the place of the one with the data.
        redis.cli(&["SWAPDB", "0", "1"]);
        is_told(&server, &redis, "STORE_LOST: the store has lost its catalog.");
        let create = json!({"queue": {"name": "other"}}).to_string();
        let created = server.post(&format!("{QUEUES}/CreateQueue"), &create);
        assert!(created.body.contains("STORE_UNAVAILABLE"), "no new catalog takes its place: {created:?}");
        redis.cli(&["SWAPDB", "0", "1"]);
        let is_back = || server.get("/readyz").status == 200 && status(&server).0 == 0;
        assert!(eventually(BACK_WITHIN, is_back), "{:?}", status(&server));
        assert!(status(&server).1.contains("1 queue: 1 pending"), "{:?}", status(&server));
        let has_its_depth = || activity(&server, "ListQueueActivity", "{}")["pending"] == "1";
        assert!(eventually(BACK_WITHIN, has_its_depth), "{}", activity(&server, "ListQueueActivity", "{}"));
        assert_eq!(enqueue(&server, "b").status, 200);
        redis.cli(&["FLUSHALL"]);
        is_told(&server, &redis, "STORE_LOST: the store has lost its catalog.");
    }
}

#[test]
fn a_redis_that_takes_no_writes_is_not_ready_until_it_does() {
    for build in Build::ALL {
        let Some(redis) = or_skip(RedisServer::start(build)) else { continue };
        println!("on {}", build.name());
        let server = with_a_message(&redis);
        let replicas = |count: &str| redis.cli(&["CONFIG", "SET", "min-replicas-to-write", count]);
        replicas("1");
        assert!(eventually(BACK_WITHIN, || server.get("/readyz").status == 503), "it is not ready");
        let (ready, (code, shown)) = (server.get("/readyz"), status(&server));
        let words = ["NOREPLICAS", "start its replicas, or lower min-replicas-to-write"];
        assert!(words.iter().all(|word| ready.body.contains(word)), "{ready:?}");
        assert!(code == 5 && words.iter().all(|word| shown.contains(word)), "{code} {shown}");
        replicas("0");
        let is_back = || server.get("/readyz").status == 200 && status(&server).0 == 0;
        assert!(eventually(BACK_WITHIN, is_back), "{:?}", status(&server));
    }
}

#[test]
fn a_redis_that_became_a_replica_is_named_with_what_to_do_until_it_is_a_primary_again() {
    for build in Build::ALL {
        let Some(pair) = or_skip(ReplicaPair::start(build, &RedisSettings::default())) else { continue };
        println!("on {}", build.name());
        let server = with_a_message(&pair.primary);
        // A replica that is promoted before it has the catalog has lost it, which is another trouble.
        assert!(eventually(BACK_WITHIN, || pair.primary.replicas_are_in_step()), "the replica gets everything");
        pair.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        pair.primary.cli(&["REPLICAOF", "127.0.0.1", &pair.replica.address().port().to_string()]);
        let address = pair.primary.address().to_string();
        assert!(eventually(BACK_WITHIN, || server.get("/readyz").status == 503), "it is not ready");
        let (ready, (code, shown)) = (server.get("/readyz"), status(&server));
        let words = [format!("Redis at {address} is a replica"), "name the address of its primary".to_owned()];
        assert!(words.iter().all(|word| ready.body.contains(word)), "{ready:?}");
        assert!(code == 5 && words.iter().all(|word| shown.contains(word)), "{code} {shown}");
        let refused = enqueue(&server, "b");
        assert!(refused.status == 503 && refused.body.contains("STORE_UNAVAILABLE"), "{refused:?}");
        let told = [format!("{address} is a replica now and takes no writes"), "Sentinels".to_owned()];
        assert!(told.iter().all(|word| refused.body.contains(word)), "{refused:?}");
        pair.primary.cli(&["REPLICAOF", "NO", "ONE"]);
        let is_back = || server.get("/readyz").status == 200 && status(&server).0 == 0;
        assert!(eventually(BACK_WITHIN, is_back), "{:?}", status(&server));
        assert_eq!(enqueue(&server, "b").status, 200);
    }
}

#[test]
fn a_redis_that_takes_no_writes_or_lacks_a_command_keeps_a_server_from_starting_and_says_why() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    redis.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let (status, printed) = dev_on(&redis).try_start().err().expect("it is refused");
    assert!(
        status.code() == Some(5) && printed.contains("takes no writes: ") && printed.contains("NOREPLICAS"),
        "{printed}"
    );
    let settings = RedisSettings::of(&["rename-command INFO \"\""]);
    let Some(redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    let (_, printed) = dev_on(&redis).try_start().err().expect("it is refused");
    assert!(printed.contains("lacks a command") && printed.contains("INFO"), "{printed}");
}

#[test]
fn a_command_that_functions_or_news_need_and_a_redis_has_renamed_is_named() {
    for build in Build::ALL {
        let settings = RedisSettings::of(&["rename-command XADD OTHER", "rename-command SUBSCRIBE \"\""]);
        let Some(redis) = or_skip(RedisServer::start_with(build, settings)) else { continue };
        println!("on {}", build.name());
        let (_, printed) = dev_on(&redis).try_start().err().expect("it is refused");
        let words = ["lacks a command: XADD is renamed or turned off", "under their own names"];
        assert!(words.iter().all(|word| printed.contains(word)) && !printed.contains("SUBSCRIBE"), "{printed}");
        let settings = RedisSettings::of(&["rename-command SUBSCRIBE \"\""]);
        let Some(redis) = or_skip(RedisServer::start_with(build, settings)) else { continue };
        let server = dev_on(&redis).start();
        server.wait_for_line(
            "it lacks a command: SUBSCRIBE is renamed or turned off (rename-command): other servers learn",
        );
    }
}

/// As a replica that never had the data and was promoted: the functions are gone too.
#[test]
fn an_empty_redis_in_the_place_of_the_old_one_is_not_ready() {
    let Some(mut redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = with_a_message(&redis);
    redis.restart_empty().expect("it starts");
    is_told(&server, &redis, "STORE_LOST: the store has lost its catalog.");
}

#[test]
fn a_lost_shard_is_named_with_its_queue_until_an_operator_gives_it_up() {
    let Some(redis) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let server = with_a_message(&redis);
    let keys = redis.cli(&["KEYS", "*"]);
    let shard = keys.lines().find_map(|key| key.strip_suffix("}m")).expect("the header of the shard").to_owned();
    for key in keys.lines().filter(|key| key.starts_with(&shard)) {
        redis.cli(&["DEL", key]);
    }
    is_told(&server, &redis, "STORE_LOST: the store has lost shard 0 of the queue mail; ");
    let deleted = server.post(&format!("{QUEUES}/DeleteQueue"), &json!({"queue": "mail"}).to_string());
    assert_eq!(deleted.status, 200, "{deleted:?}");
    assert!(eventually(BACK_WITHIN, || server.get("/readyz").status == 200), "{:?}", server.get("/readyz"));
    assert_eq!(status(&server).0, 0, "{:?}", status(&server));
}
