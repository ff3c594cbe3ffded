//! Queues on a server whose wall clock is an hour or more off and is then set right: leases go on, delays end, callers with
//! right clocks are served, and what cannot be is told and mended.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::clockskew::Clock;
use crate::support::harness::{Launch, Server};

const HOUR_MS: i64 = 3_600_000;

fn start(data: &std::path::Path, clock: &Clock) -> Server {
    clock.environment().into_iter().fold(Launch::dev(data), |launch, (name, value)| launch.env(name, &value)).start()
}

fn called(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
    answer.json()
}

/// A message whose id was made by a caller with the right clock, a minute from now or so.
fn sent_in(seconds: u64) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let time = uuid::Timestamp::from_unix_time(now.as_secs() + seconds, now.subsec_nanos(), 0, 0);
    json!({"queue": "mail", "message": {"message_id": Uuid::new_v7(time).to_string()}})
}

fn lease_of(server: &Server) -> Value {
    let ask = json!({"queue": "mail", "wait": "20s", "lease_duration": "600s"});
    called(server, "Dequeue", &ask)["leases"][0]["leaseToken"].clone()
}

/// What a server does whose clock was off at its first start.
fn serves_callers_of_right_clocks(off_ms: i64) {
    let data = tempfile::tempdir().expect("a temporary directory");
    let clock = Clock::off_by(off_ms);
    let server = start(data.path(), &clock);
    called(&server, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    called(&server, "Enqueue", &json!({"queue": "mail", "message": {"message_id": "before"}}));
    let held = lease_of(&server);
    let later = json!({"queue": "mail", "message": {"message_id": "later", "invisibility": "1s"}});
    called(&server, "Enqueue", &later);
    clock.jump_to(0);
    assert!(lease_of(&server).is_string(), "delays go on, and only the one that was held back is there");
    let sent = sent_in(0);
    assert_eq!(called(&server, "Enqueue", &sent)["alreadyEnqueued"], false);
    assert!(server.stop().success(), "an orderly stop");
    for again in [-off_ms, 0] {
        clock.jump_to(again);
        let server = start(data.path(), &clock);
        assert_eq!(called(&server, "Enqueue", &sent)["alreadyEnqueued"], true, "off by {again} ms");
        assert!(called(&server, "Enqueue", &sent_in(0))["messageId"].is_string());
        let extended = called(&server, "ExtendLease", &json!({"queue": "mail", "lease_token": held}));
        assert!(extended["leaseExpiresIn"].is_string(), "the lease has lasted: {extended}");
        server.kill();
    }
}

#[test]
fn a_server_that_started_an_hour_ahead_takes_messages_of_callers_with_right_clocks() {
    serves_callers_of_right_clocks(HOUR_MS);
}

#[test]
fn a_server_that_started_an_hour_behind_takes_messages_of_callers_with_right_clocks() {
    serves_callers_of_right_clocks(-HOUR_MS);
}

#[test]
fn a_clock_that_was_years_ahead_is_told_and_its_tokens_are_let_go_by_a_reset() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let clock = Clock::off_by(24 * 365 * HOUR_MS);
    let server = start(data.path(), &clock);
    called(&server, "CreateQueue", &json!({"queue": {"name": "mail"}}));
    // The time of queues is kept with what happens in them.
    called(&server, "Enqueue", &json!({"queue": "mail", "message": {}}));
    assert!(server.stop().success(), "an orderly stop");
    clock.jump_to(0);
    let server = start(data.path(), &clock);
    server.wait_for_line("the time of queues is ahead");
    let metrics = server.get("/metrics").body;
    let ahead = metrics.lines().find_map(|line| line.strip_prefix("tallystone_queue_tokens_ahead_seconds "));
    let ahead: f64 = ahead.expect("it is exported").parse().expect("a number");
    assert!(ahead > 24.0 * 364.0 * 3_600.0, "{ahead} s");
    let refused = server.post("/tallystone.queue.v1.QueueService/Enqueue", &sent_in(0).to_string());
    assert!(refused.status == 412 && refused.body.contains("TOKEN_EXPIRED"), "{}", refused.body);
    assert!(refused.body.contains("read as a time: put a prefix such as order-"), "{}", refused.body);
    assert!(refused.body.contains("reset-clock"), "it says what to do: {}", refused.body);
    let looked = called(&server, "ResetQueueClock", &json!({"dry_run": true}));
    assert!(looked["tokensFrom"].is_null() && looked["judgedBy"].as_str() > looked["serverTime"].as_str(), "{looked}");
    let reset = called(&server, "ResetQueueClock", &json!({}));
    assert!(reset["judgedBy"].as_str() < reset["tokensFrom"].as_str(), "{reset}");
    let after = 62; // tokens of the first minute are refused
    clock.jump_to(1_000 * after as i64);
    let soon = sent_in(after);
    assert_eq!(called(&server, "Enqueue", &soon)["alreadyEnqueued"], false);
    server.kill();
    let server = start(data.path(), &clock);
    assert_eq!(called(&server, "Enqueue", &soon)["alreadyEnqueued"], true);
    assert_eq!(called(&server, "ResetQueueClock", &json!({}))["tokensFrom"], Value::Null, "once is enough");
    server.kill();
}
