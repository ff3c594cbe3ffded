//! What a power cut takes from a Redis that syncs once a second: no more than docs/redis-keys.md says, and the server says that a
//! new life of it has begun.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use super::rounds;
use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};
use crate::support::harness::{Launch, Server, eventually};
use crate::support::powerloss::{Moment, PowerCut};

/// What `FAST` loses at most while the disk syncs at once.
const WINDOW: Duration = Duration::from_secs(2);
/// Longer than two windows, so that there is something that must not be lost.
const LOAD: Duration = Duration::from_secs(5);
/// How long the server may take to be back after its Redis is, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn a_power_cut_of_a_fast_redis_loses_the_last_two_seconds_at_most_and_the_log_says_so() {
    let mut lost = 0;
    for round in 0..rounds(2, 30) {
        // The others take the signal of the power cut for themselves.
        let settings = RedisSettings::of(&["appendonly yes", "appendfsync everysec"]);
        let Some(redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
        let gone = lost_by_a_cut(redis);
        println!("round {round}: {gone} messages are lost");
        lost += gone;
    }
    assert!(lost > 0, "a cut that takes nothing shows nothing");
}

/// Enqueues for a while, cuts the power, and answers how many acknowledged messages are gone.
fn lost_by_a_cut(mut redis: RedisServer) -> usize {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let report = folder.path().join("report");
    let cut =
        PowerCut { data: redis.directory().to_owned(), moment: Moment::OnSignal, seed: 0, report: report.clone() };
    redis.restart_under(&cut.environment()).expect("it starts");
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = serve(&data, &redis);
    let queue = json!({"queue": {"name": "mail", "required_durability": "DURABILITY_FAST"}});
    assert_eq!(post(&server, "CreateQueue", &queue).0, 200);

    let (began, mut acknowledged) = (Instant::now(), Vec::new());
    while began.elapsed() < LOAD {
        let id = format!("m-{}", acknowledged.len());
        assert_eq!(post(&server, "Enqueue", &message(&id)).0, 200);
        acknowledged.push(Instant::now());
    }
    let cut_at = Instant::now();
    redis.signal("-USR2");
    assert!(eventually(BACK_WITHIN, || longest_sync(&report).is_some()), "the power was cut");
    redis.restart_after_a_power_cut().expect("it starts on what it had synced");

    let back = eventually(BACK_WITHIN, || post(&server, "GetDepth", &json!({"queue": "mail"})).0 == 200);
    assert!(back, "{}", server.printed());
    // One caller enqueued one after the other into one shard: what is left is a beginning.
    let is_there = |number: usize| {
        let (status, body) =
            post(&server, "GetMessage", &json!({"queue": "mail", "message_id": format!("m-{number}")}));
        assert!(status == 200 || body.contains("MESSAGE_NOT_FOUND"), "{status} {body}");
        status == 200
    };
    let left = (0..acknowledged.len()).rev().find(|number| is_there(*number)).map_or(0, |last| last + 1);
    assert!((0..left).rev().step_by(97).all(is_there), "no message is lost before one that is there");
    let slowest = longest_sync(&report).expect("the report is written");
    if let Some(first_lost) = acknowledged.get(left) {
        let age = cut_at - *first_lost;
        // A sync that takes longer holds up the next write and its sync.
        assert!(age <= WINDOW + 2 * slowest, "{age:?} of work are lost; the longest sync took {slowest:?}");
    }
    assert_eq!(post(&server, "Enqueue", &message("after")).0, 200);
    server.wait_for_line("the epoch is raised");
    acknowledged.len() - left
}

fn serve(data: &TempDir, redis: &RedisServer) -> Server {
    Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start()
}

fn message(id: &str) -> serde_json::Value {
    json!({"queue": "mail", "message": {"message_id": id, "payload": "aGVsbG8="}})
}

fn post(server: &Server, method: &str, body: &serde_json::Value) -> (u16, String) {
    let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), &body.to_string());
    (answer.status, answer.body)
}

/// The time of the longest sync of Redis before the cut; none until what was not synced is gone.
fn longest_sync(report: &Path) -> Option<Duration> {
    let report = std::fs::read_to_string(report).ok()?;
    let millis = report.split_once("longest ")?.1.split_once(" ms")?.0.parse().ok()?;
    Some(Duration::from_millis(millis))
}
