//! Queues through real sockets: the life of a message in JSON, repeats, batches, administration.

mod activity;
mod bad_input;
mod bulk_filters;
mod busy;
mod contents;
mod counts;
mod fair_shares;
mod fields;
mod history;
mod items;
mod mapping;
mod names;
mod next_steps;
mod on_stores;
mod operations;
mod outlook;
mod phases;
mod refusals;
mod reused_ids;
mod sessions;
mod settings;
mod streams;
mod ties;
mod visible_times;
mod waiting;
mod work;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::system::SystemClock;
use tallystone::domain::{Reason, Timestamp};
use tallystone::ports::Clock;
use tallystone::proto::queue::v1::queue_service_client::QueueServiceClient;

pub(super) use refusals::violations;

use on_stores::{mail, on_every_store};

use super::partner::alternates;
use super::{Wire, at};
use crate::support::patience::PatientChannel;

const QUEUES: &str = "/tallystone.queue.v1.QueueService";

impl Wire {
    /// Calls a method of the queue service with a JSON body.
    async fn ask(&self, method: &str, body: Value) -> (u16, Value) {
        let path = format!("{QUEUES}/{method}");
        let answer = self.http("POST", &path, &[("content-type", "application/json")], &body.to_string()).await;
        (answer.status, super::json(&answer.body))
    }

    /// The same for a call that is taken.
    pub(super) async fn done(&self, method: &str, body: Value) -> Value {
        let (status, answer) = self.ask(method, body.clone()).await;
        assert_eq!(status, 200, "{method} {body}: {answer}");
        answer
    }

    /// The same for a call that is refused.
    async fn refused(&self, method: &str, body: Value, expected: Reason) -> Value {
        let shown: String = body.to_string().chars().take(300).collect();
        let (status, answer) = self.ask(method, body).await;
        assert_eq!(answer["details"][0]["reason"], json!(expected.info().name), "{method} {shown}: {answer}");
        assert_eq!(status, expected.info().http, "{method} {shown}: {answer}");
        answer
    }

    async fn queues(&self) -> QueueServiceClient<PatientChannel> {
        QueueServiceClient::new(self.patient_channel().await)
    }
}

/// A server with the simple queue `mail`.
async fn with_mail() -> Wire {
    let server = Wire::start().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    server
}

/// The same on a clock that only the test moves, so that leases and sessions last however slow the machine is.
async fn with_mail_at(clock: &ManualClock) -> Wire {
    let server = Wire::with_clock(clock).await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    server
}

/// A clock that tests move. Redis has its own, which goes with the tests' clock as long as it is ahead of it.
fn clock() -> ManualClock {
    let behind = if alternates() { 400 * 24 * 3_600 } else { 0 };
    ManualClock::at(Timestamp::from_secs(SystemClock.now().millis() / 1_000 - behind))
}

fn enqueue(id: &str, priority: i64) -> Value {
    json!({"queue": "mail", "message": {"messageId": id, "payload": "aGk=", "priority": priority.to_string()}})
}

/// The one lease that is there.
async fn lease(server: &Wire) -> Value {
    let answer = server.done("Dequeue", json!({"queue": "mail", "max_messages": 1})).await;
    let leases = answer["leases"].as_array().expect("leases");
    assert_eq!(leases.len(), 1, "{answer}");
    leases[0].clone()
}

fn settle(lease: &Value) -> Value {
    json!({"queue": "mail", "lease_token": lease["leaseToken"]})
}

#[tokio::test]
async fn a_message_is_taken_in_leased_and_completed() {
    let server = with_mail().await;
    let sent = json!({"queue": "mail", "message": {
        "message_id": "order-7", "payload": "aGk=", "priority": "5", "metadata": {"team": "red"}, "type": "invoice",
        "lease_duration": "60s", "max_attempts": 2, "ttl": "3600s", "trace_context": "00-ab-cd-01"}});
    let enqueued = server.done("Enqueue", sent).await;
    assert_eq!(enqueued["messageId"], "order-7");
    assert_eq!(enqueued["state"], "MESSAGE_STATE_PENDING");
    assert_eq!((&enqueued["alreadyEnqueued"], &enqueued["idempotent"]), (&json!(false), &json!(true)));
    let answer = server.done("Dequeue", json!({"queue": "mail", "maxMessages": 10})).await;
    assert_eq!(answer["completeness"], "COMPLETE");
    let lease = &answer["leases"][0];
    assert_eq!((&lease["attemptNumber"], &lease["leaseExpiresIn"]), (&json!(1), &json!("60s")));
    let message = &lease["message"];
    assert_eq!((&message["payload"], &message["type"]), (&json!("aGk="), &json!("invoice")));
    assert_eq!((&message["metadata"], &message["priority"]), (&json!({"team": "red"}), &json!("5")));
    assert_eq!((&message["state"], &message["traceContext"]), (&json!("MESSAGE_STATE_RUNNING"), &json!("00-ab-cd-01")));
    let completed = server.done("Complete", settle(lease)).await;
    assert_eq!(completed["state"], "MESSAGE_STATE_COMPLETED");
    assert_eq!(server.done("Complete", settle(lease)).await, completed, "a repeat answers as the first");
    server.refused("Fail", settle(lease), Reason::LeaseLost).await;
    for name in ["order-7", enqueued["messageKey"].as_str().expect("a key")] {
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": name})).await;
        assert_eq!(found["message"]["state"], "MESSAGE_STATE_COMPLETED", "{name}");
    }
}

#[tokio::test]
async fn lower_priorities_come_first_and_equal_ones_in_the_order_of_arrival() {
    let server = with_mail().await;
    for (id, priority) in [("c", 7), ("a", -3), ("d", 7), ("b", 0)] {
        server.done("Enqueue", enqueue(id, priority)).await;
    }
    let peeked = server.done("PeekMessages", json!({"queue": "mail"})).await;
    let ids = |messages: &Value| -> String {
        let all = messages.as_array().expect("a list");
        all.iter().map(|message| message["messageId"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(&peeked["messages"]), "abcd");
    let answer = server.done("Dequeue", json!({"queue": "mail", "max_messages": 100})).await;
    let leased = answer["leases"].as_array().expect("leases").iter().map(|lease| lease["message"].clone()).collect();
    assert_eq!(ids(&Value::Array(leased)), "abcd");
}

#[tokio::test]
async fn an_enqueue_repeated_is_one_message() {
    let server = with_mail().await;
    let first = server.done("Enqueue", enqueue("a", 1)).await;
    let again = server.done("Enqueue", enqueue("a", 1)).await;
    assert_eq!((&again["messageKey"], &again["alreadyEnqueued"]), (&first["messageKey"], &json!(true)));
    server.refused("Enqueue", enqueue("a", 2), Reason::TokenReused).await;
    let unnamed = json!({"queue": "mail", "message": {"payload": ""}});
    let one = server.done("Enqueue", unnamed.clone()).await;
    let other = server.done("Enqueue", unnamed).await;
    assert_ne!(one["messageId"], other["messageId"]);
    assert_eq!(one["idempotent"], json!(false));
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "3");
}

#[tokio::test]
async fn a_repeat_with_its_time_is_known_after_completion_and_while_enqueues_are_blocked() {
    let server = with_mail().await;
    let sent = json!({"queue": "mail", "message": {"message_id": "a", "generation_time": at(-1.0).to_string()}});
    let first = server.done("Enqueue", sent.clone()).await;
    let held = lease(&server).await;
    server.done("Complete", settle(&held)).await;
    let block = json!({"queue": {"name": "mail", "enqueue_blocked": true, "enqueue_blocked_reason": "night"}});
    server.done("UpdateQueue", block).await;
    let again = server.done("Enqueue", sent).await;
    assert_eq!((&again["messageKey"], &again["state"]), (&first["messageKey"], &json!("MESSAGE_STATE_COMPLETED")));
    let refused = server.refused("Enqueue", enqueue("b", 1), Reason::EnqueueBlocked).await;
    assert!(refused["message"].as_str().expect("a text").contains("night"), "{refused}");
}

#[tokio::test]
async fn a_failed_message_is_tried_again_until_its_attempts_are_spent_and_can_be_redriven() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    for attempt in 1..=3 {
        let held = lease(&server).await;
        assert_eq!(held["attemptNumber"], attempt);
        let mut fail = settle(&held);
        fail["delay"] = json!("0s");
        fail["error"] = json!({"signature": "io", "text": "no route"});
        let failed = server.done("Fail", fail).await;
        let state = if attempt == 3 { "MESSAGE_STATE_ERRORED" } else { "MESSAGE_STATE_PENDING" };
        assert_eq!(failed["state"], state);
    }
    let explained = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(explained["explanations"][0]["cause"], "errored");
    assert!(explained["explanations"][0]["text"].as_str().expect("a text").contains("no route"), "{explained}");
    let dry = server.done("RedriveMessages", json!({"queue": "mail", "dry_run": true})).await;
    assert_eq!((&dry["operation"]["state"], &dry["operation"]["done"]), (&json!("OPERATION_STATE_DONE"), &json!("1")));
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["errored"], "1", "a dry run changes nothing");
    let redrive = json!({"queue": "mail", "request_token": "once"});
    let operation = server.done("RedriveMessages", redrive.clone()).await["operation"].clone();
    let end = server.done("CancelOperation", json!({"operation_id": operation["operationId"]})).await;
    assert_ne!(end["operation"]["state"], "OPERATION_STATE_RUNNING");
    let again = server.done("RedriveMessages", redrive).await;
    assert_eq!(again["operation"]["operationId"], operation["operationId"], "a repeat is the same redrive");
    server.done("RedriveMessages", json!({"queue": "mail"})).await;
    let held = server.done("Dequeue", json!({"queue": "mail", "wait": "10s"})).await;
    assert_eq!(held["leases"][0]["attemptNumber"], 1, "its attempts are back: {held}");
}

#[tokio::test]
async fn leases_are_extended_released_and_ended() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let held = lease(&server).await;
    let mut extend = settle(&held);
    extend["lease_duration"] = json!("600s");
    assert_eq!(server.done("ExtendLease", extend.clone()).await["leaseExpiresIn"], "600s");
    let asked = server.done("CancelMessage", json!({"queue": "mail", "message_id": "a", "reason": "late"})).await;
    assert_eq!(asked["state"], "MESSAGE_STATE_RUNNING");
    assert_eq!(server.done("ExtendLease", extend.clone()).await["cancelRequested"], json!(true));
    assert_eq!(server.done("Release", settle(&held)).await["state"], "MESSAGE_STATE_CANCELED");
    server.done("Enqueue", enqueue("b", 1)).await;
    let held = lease(&server).await;
    assert_eq!(server.done("Release", settle(&held)).await["state"], "MESSAGE_STATE_PENDING");
    let held = lease(&server).await;
    assert_eq!(held["attemptNumber"], 1, "a release gives the attempt back");
    let mut end = settle(&held);
    end["lease_duration"] = json!("0s");
    assert_eq!(server.done("ExtendLease", end).await["leaseExpiresIn"], "0s");
    let late = server.done("Complete", settle(&held)).await;
    assert_eq!(late["state"], "MESSAGE_STATE_COMPLETED", "a late completion counts while nobody else has it");
}

#[tokio::test]
async fn items_of_a_batch_succeed_or_fail_one_by_one() {
    let server = with_mail().await;
    let messages = json!([{"message_id": "a"}, {"message_id": "m.b"}, {"message_id": "c"}]);
    let answer = server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results[0]["state"], "MESSAGE_STATE_PENDING");
    assert_eq!(results[1]["error"]["reason"], "INVALID_MESSAGE_ID");
    assert_eq!((&results[2]["messageId"], &results[2]["error"]), (&json!("c"), &Value::Null));
    let leases = server.done("Dequeue", json!({"queue": "mail", "max_messages": 2})).await["leases"].clone();
    let items = json!([
        {"lease_token": leases[0]["leaseToken"], "verb": "COMPLETE"},
        {"lease_token": "forged", "verb": "COMPLETE"},
        {"lease_token": leases[1]["leaseToken"], "verb": "VERB_RELEASE"},
        {"lease_token": leases[1]["leaseToken"]},
    ]);
    let answer = server.done("SettleMessages", json!({"queue": "mail", "items": items})).await;
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results[0]["state"], "MESSAGE_STATE_COMPLETED");
    assert_eq!(results[1]["error"]["reason"], "INVALID_LEASE_TOKEN");
    assert_eq!(results[2]["state"], "MESSAGE_STATE_PENDING");
    assert_eq!(results[3]["error"]["reason"], "INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_message_that_nobody_has_is_updated_and_canceled() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let hide = json!({"queue": "mail", "message_id": "a", "invisibility": "3600s"});
    assert_eq!(server.done("UpdateMessage", hide).await["state"], "MESSAGE_STATE_INVISIBLE");
    let explained = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(explained["explanations"][0]["cause"], "invisible");
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((&depth["invisible"], &depth["byShard"][0]["invisible"]), (&json!("1"), &json!("1")));
    let stale = json!({"queue": "mail", "message_id": "a", "priority": "3", "expected_version": "1"});
    server.refused("UpdateMessage", stale, Reason::EtagMismatch).await;
    let show = json!({"queue": "mail", "message_id": "a", "visible_time": at(-5.0).to_string(), "priority": "3"});
    assert_eq!(server.done("UpdateMessage", show).await["state"], "MESSAGE_STATE_PENDING");
    let cancel = json!({"queue": "mail", "message_id": "a", "reason": "no longer wanted"});
    assert_eq!(server.done("CancelMessage", cancel).await["state"], "MESSAGE_STATE_CANCELED");
    let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(found["message"]["cancelReason"], "no longer wanted");
    let late = json!({"queue": "mail", "message_id": "a", "priority": "4"});
    server.refused("UpdateMessage", late, Reason::WrongMessageState).await;
    server.refused("GetMessage", json!({"queue": "mail", "message_id": "nobody"}), Reason::MessageNotFound).await;
}

#[tokio::test]
async fn a_cancel_without_a_reason_is_shown_as_requested_also_if_the_worker_carries_it_out() {
    on_every_store(mail(), async |server| {
        for (id, expected) in [("", "request"), ("late", "late")] {
            let name = format!("m{id}");
            server.done("Enqueue", enqueue(&name, 1)).await;
            let held = lease(server).await;
            server.done("CancelMessage", json!({"queue": "mail", "message_id": name, "reason": id})).await;
            assert_eq!(server.done("Cancel", settle(&held)).await["state"], "MESSAGE_STATE_CANCELED");
            let found = server.done("GetMessage", json!({"queue": "mail", "message_id": name})).await;
            assert_eq!(found["message"]["cancelReason"], expected);
        }
        server.done("Enqueue", enqueue("own", 1)).await;
        server.done("Cancel", settle(&lease(server).await)).await;
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "own"})).await;
        assert_eq!(found["message"]["cancelReason"], "worker");
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_extended_by_what_a_lease_may_last() {
    on_every_store(mail(), async |server| {
        server.done("Enqueue", enqueue("a", 1)).await;
        let held = lease(server).await;
        let extend = |time: &str| {
            let mut extend = settle(&held);
            extend["lease_duration"] = json!(time);
            extend
        };
        for outside in ["0.5s", "0.999999s", "43200.1s"] {
            let refused = server.refused("ExtendLease", extend(outside), Reason::InvalidRange).await;
            assert!(refused["message"].as_str().is_some_and(|text| text.contains("1 s to 12 h")), "{refused}");
        }
        let mut item = extend("0.5s");
        item["verb"] = json!("EXTEND");
        item.as_object_mut().expect("an object").remove("queue");
        let settled = server.done("SettleMessages", json!({"queue": "mail", "items": [item]})).await;
        assert_eq!(settled["results"][0]["error"]["reason"], "INVALID_RANGE", "{settled}");
        assert_eq!(server.done("ExtendLease", extend("1s")).await["leaseExpiresIn"], "1s");
    })
    .await;
}

#[tokio::test]
async fn an_update_that_comes_again_answers_as_the_first_whatever_came_between() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let update = |token: &str, priority: &str| json!({"queue": "mail", "message_id": "a", "priority": priority, "request_token": token});
    let first = server.done("UpdateMessage", update("one", "3")).await;
    let second = server.done("UpdateMessage", update("two", "9")).await;
    assert_ne!(first["version"], second["version"]);
    assert_eq!(server.done("UpdateMessage", update("one", "3")).await, first);
    let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!((&found["message"]["priority"], &found["message"]["version"]), (&json!("9"), &second["version"]));
    let refused = server.refused("UpdateMessage", update("one", "4"), Reason::TokenReused).await;
    assert!(refused.to_string().contains("a different update"), "{refused}");
    server.refused("UpdateMessage", update(&"x".repeat(65), "4"), Reason::InvalidToken).await;
    // A repeat that comes when the message is with a worker, or over, is told what the first was told.
    let lease = server.done("Dequeue", json!({"queue": "mail"})).await["leases"][0]["leaseToken"].clone();
    assert_eq!(server.done("UpdateMessage", update("two", "9")).await, second);
    server.done("Complete", json!({"queue": "mail", "lease_token": lease})).await;
    assert_eq!(server.done("UpdateMessage", update("two", "9")).await, second);
    server.refused("UpdateMessage", update("three", "9"), Reason::WrongMessageState).await;
}

#[tokio::test]
async fn a_message_remembers_its_last_eight_updates_with_a_token() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let update = |number: u32| json!({"queue": "mail", "message_id": "a", "priority": number.to_string(), "request_token": number.to_string()});
    let mut answers = Vec::new();
    for number in 0..9 {
        answers.push(server.done("UpdateMessage", update(number)).await);
    }
    for number in 1..9 {
        assert_eq!(server.done("UpdateMessage", update(number)).await, answers[number as usize]);
    }
    assert_ne!(server.done("UpdateMessage", update(0)).await, answers[0], "forgotten: it is an update as any other");
}

#[tokio::test]
async fn an_exclusive_queue_leases_one_message_of_each_value() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for (id, title) in [("a1", "a"), ("a2", "a"), ("b1", "b")] {
        let message = json!({"message_id": id, "metadata": {"title": title}, "priority": "1"});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let answer = server.done("Dequeue", json!({"queue": "mail", "max_messages": 10})).await;
    let ids: Vec<&str> = answer["leases"]
        .as_array()
        .expect("leases")
        .iter()
        .map(|lease| lease["message"]["messageId"].as_str().expect("an id"))
        .collect();
    assert_eq!(ids, ["a1", "b1"], "{answer}");
    let explained = server.done("ExplainQueue", json!({"queue": "mail"})).await;
    assert_eq!(explained["explanations"][0]["cause"], "value_held", "{explained}");
    server.done("Complete", settle(&answer["leases"][0])).await;
    assert_eq!(lease(&server).await["message"]["messageId"], "a2");
}

#[tokio::test]
async fn several_shards_are_one_queue() {
    let server = Wire::start().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail", "shards": 8}})).await;
    let messages: Vec<Value> = (0..60).map(|n| json!({"message_id": format!("m-{n}"), "priority": "1"})).collect();
    server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    let shards = depth["byShard"].as_array().expect("shards");
    assert!(shards.iter().filter(|shard| shard["pending"] != "0").count() > 4, "{depth}");
    let (mut listed, mut token) = (0, String::new());
    loop {
        let page = server.done("ListMessages", json!({"queue": "mail", "page_size": 7, "page_token": token})).await;
        listed += page["messages"].as_array().expect("messages").len();
        token = page["nextPageToken"].as_str().expect("a token").to_owned();
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(listed, 60, "each once over all pages");
    let mut leased = 0;
    while leased < 60 {
        let answer = server.done("Dequeue", json!({"queue": "mail", "max_messages": 25})).await;
        let count = answer["leases"].as_array().expect("leases").len();
        assert!(count > 0, "{answer}");
        leased += count;
    }
    let empty = server.done("Dequeue", json!({"queue": "mail", "max_messages": 25})).await;
    assert_eq!((&empty["leases"], &empty["completeness"]), (&json!([]), &json!("COMPLETE")));
}

#[tokio::test]
async fn queues_are_described_changed_listed_and_deleted() {
    let server = with_mail().await;
    let made = server.done("GetQueue", json!({"queue": "mail"})).await["queue"].clone();
    assert_eq!((&made["type"], &made["defaultLease"]), (&json!("QUEUE_TYPE_SIMPLE"), &json!("30s")));
    let same = server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await["queue"].clone();
    assert_eq!(same, made, "creating it again answers it");
    let other = json!({"queue": {"name": "mail", "default_max_attempts": 9}});
    let refused = server.refused("CreateQueue", other.clone(), Reason::QueueExists).await;
    assert!(refused["message"].as_str().expect("a text").contains("default_max_attempts: 3 -> 9"), "{refused}");
    let changed =
        server.done("UpdateQueue", json!({"queue": other["queue"], "reason": "flaky"})).await["queue"].clone();
    assert_eq!((&changed["defaultMaxAttempts"], &changed["version"]), (&json!(9), &json!("2")));
    let stale = json!({"queue": {"name": "mail", "etag": made["etag"], "default_max_attempts": 4}});
    server.refused("UpdateQueue", stale, Reason::EtagMismatch).await;
    server.refused("UpdateQueue", json!({"queue": {"name": "mail", "shards": 4}}), Reason::SettingIsFixed).await;
    let changes = server.done("ListQueueChanges", json!({"queue": "mail"})).await["changes"].clone();
    assert_eq!(
        (&changes[0]["reason"], &changes[0]["differences"][0]),
        (&json!("flaky"), &json!("default_max_attempts: 3 -> 9"))
    );
    server.done("Enqueue", enqueue("a", 1)).await;
    let purged = server.done("PurgeQueue", json!({"queue": "mail"})).await;
    assert_eq!((&purged["purged"], &purged["operation"]["state"]), (&json!("1"), &json!("OPERATION_STATE_DONE")));
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["canceled"], "1");
    assert_eq!(server.done("DeleteQueue", json!({"queue": "mail"})).await["messages"], "1");
    server.refused("Enqueue", enqueue("a", 1), Reason::QueueNotFound).await;
    assert_eq!(server.done("ListQueues", json!({"prefix": "ma"})).await["queues"], json!([]));
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    let anew = server.done("GetQueue", json!({"queue": "mail"})).await["queue"].clone();
    assert_ne!(anew["id"], made["id"], "the number of a deleted queue is not used again");
    assert_eq!(server.done("Enqueue", enqueue("a", 1)).await["alreadyEnqueued"], json!(false));
}

#[tokio::test]
async fn the_first_enqueue_makes_a_queue_of_the_template_with_the_longest_prefix() {
    let server = Wire::start().await;
    for (name, prefix, attempts) in [("plain", "t/", 4), ("timed", "t/timed/", 16)] {
        let queue = json!({"name": name, "template_for": prefix, "default_max_attempts": attempts});
        server.done("CreateQueue", json!({"queue": queue})).await;
    }
    let sent = |queue: &str| json!({"queue": queue, "message": {"message_id": "a"}});
    server.done("Enqueue", sent("t/timed/mail")).await;
    let made = server.done("GetQueue", json!({"queue": "t/timed/mail"})).await["queue"].clone();
    assert_eq!((&made["defaultMaxAttempts"], &made["templateFor"]), (&json!(16), &json!("")));
    server.refused("Enqueue", sent("timed"), Reason::QueueNotFound).await;
    server.refused("Enqueue", sent("other"), Reason::QueueNotFound).await;
    server.refused("Dequeue", json!({"queue": "t/absent"}), Reason::QueueNotFound).await;
    let blocked = json!({"name": "plain", "enqueue_blocked": true, "enqueue_blocked_reason": "moving"});
    server.done("UpdateQueue", json!({"queue": blocked})).await;
    let refused = server.refused("Enqueue", sent("t/first"), Reason::EnqueueBlocked).await;
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("moving")), "{refused}");
    server.refused("GetQueue", json!({"queue": "t/first"}), Reason::QueueNotFound).await;
}

#[tokio::test]
async fn a_priority_class_is_named_or_selected_by_a_tag() {
    let server = Wire::start().await;
    let classes = json!([
        {"name": "urgent", "offset_ms": "-86400000"},
        {"name": "studio", "offset_ms": "-3600000", "tag_key": "studio", "tag_value": "yes"},
    ]);
    server.done("CreateQueue", json!({"queue": {"name": "mail", "priority_classes": classes}})).await;
    for message in [
        json!({"message_id": "plain"}),
        json!({"message_id": "tagged", "metadata": {"studio": "yes"}}),
        json!({"message_id": "urgent", "priority_class": "urgent"}),
    ] {
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let peeked = server.done("PeekMessages", json!({"queue": "mail"})).await;
    let ids: Vec<_> = (0..3).map(|at| peeked["messages"][at]["messageId"].clone()).collect();
    assert_eq!(ids, ["urgent", "tagged", "plain"]);
    let unknown = json!({"queue": "mail", "message": {"priority_class": "nobody"}});
    server.refused("Enqueue", unknown, Reason::InvalidMessage).await;
}

#[tokio::test]
async fn a_blocked_dequeue_says_why_and_settlements_go_on() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let held = lease(&server).await;
    let blocked = |blocked: bool, why: &str| json!({"queue": {"name": "mail", "dequeue_blocked": blocked, "dequeue_blocked_reason": why}});
    server.done("UpdateQueue", blocked(true, "repair")).await;
    let refused = server.refused("Dequeue", json!({"queue": "mail", "wait": "5s"}), Reason::DequeueBlocked).await;
    assert!(refused["message"].as_str().expect("a text").contains("repair"), "{refused}");
    assert_eq!(server.done("Complete", settle(&held)).await["state"], "MESSAGE_STATE_COMPLETED");
    server.done("Enqueue", enqueue("b", 1)).await;
    let explained = server.done("ExplainQueue", json!({"queue": "mail"})).await;
    assert_eq!(explained["explanations"][0]["cause"], "dequeue_blocked");
    server.done("UpdateQueue", blocked(false, "")).await;
    assert_eq!(lease(&server).await["message"]["messageId"], "b");
}

#[tokio::test]
async fn a_filter_gets_its_messages_whether_or_not_it_has_an_index() {
    for shapes in [json!([]), json!([{"keys": ["team"]}])] {
        let server = Wire::start().await;
        server.done("CreateQueue", json!({"queue": {"name": "mail", "shards": 2, "filter_shapes": shapes}})).await;
        for number in 0..300 {
            let team = if number == 299 { "red" } else { "blue" };
            let message = json!({"priority": number.to_string(), "metadata": {"team": team, "n": number.to_string()}});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        let ask = json!({"queue": "mail", "filter": {"team": "red"}, "max_messages": 5});
        let answer = server.done("Dequeue", ask.clone()).await;
        let leases = answer["leases"].as_array().expect("leases");
        assert_eq!((leases.len(), &leases[0]["message"]["priority"]), (1, &json!("299")), "{shapes}: {answer}");
        let empty = server.done("Dequeue", ask).await;
        assert_eq!((&empty["leases"], &empty["completeness"]), (&json!([]), &json!("COMPLETE")));
        let pairs: Value = (0..5).map(|n| (format!("k{n}"), json!("v"))).collect();
        server.refused("Dequeue", json!({"queue": "mail", "filter": pairs}), Reason::InvalidFilter).await;
        let is_declared = shapes != json!([]);
        let ask = json!({"queue": "mail", "filter": {"team": "blue"}});
        if is_declared {
            let depth = server.done("GetDepth", ask.clone()).await;
            assert_eq!((&depth["pending"], &depth["running"]), (&json!("299"), &json!("0")));
            let red = json!({"queue": "mail", "filter": {"team": "red"}});
            assert_eq!(server.done("GetDepth", red.clone()).await["running"], "1");
            assert_eq!(server.done("ExplainQueue", red).await["explanations"][0]["cause"], "filter_not_met");
            let other = json!({"queue": "mail", "filter": {"team": "red", "n": "1"}});
            let refused = server.refused("GetDepth", other, Reason::FilterNotDeclared).await;
            assert!(refused["message"].as_str().expect("a text").contains("the nearest is team"), "{refused}");
        } else {
            server.refused("GetDepth", ask.clone(), Reason::FilterNotDeclared).await;
            assert_eq!(server.done("ExplainQueue", ask).await["explanations"][0]["cause"], "filter_not_declared");
        }
    }
}

#[tokio::test]
async fn a_value_gets_a_limit_of_its_own_while_the_queue_runs() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "type": "EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for number in 0..4 {
        let message = json!({"priority": number.to_string(), "metadata": {"title": "a"}});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let leased = async |max: u32| {
        let answer = server.done("Dequeue", json!({"queue": "mail", "max_messages": max})).await;
        answer["leases"].as_array().expect("leases").len()
    };
    assert_eq!(leased(10).await, 1);
    server.done("SetValueLimit", json!({"queue": "mail", "value": "a", "limit": 3})).await;
    assert_eq!(leased(10).await, 2);
    server.done("SetValueLimit", json!({"queue": "mail", "value": "a"})).await;
    assert_eq!(leased(10).await, 0, "the limit of the queue holds again, and no lease is revoked");
    for limit in [-1, 10_001] {
        let body = json!({"queue": "mail", "value": "a", "limit": limit});
        server.refused("SetValueLimit", body, Reason::InvalidSettings).await;
    }
    server.refused("SetValueLimit", json!({"queue": "mail"}), Reason::InvalidArgument).await;
    server.done("CreateQueue", json!({"queue": {"name": "plain"}})).await;
    let simple = json!({"queue": "plain", "value": "a", "limit": 2});
    server.refused("SetValueLimit", simple, Reason::InvalidSettings).await;
}

#[tokio::test]
async fn a_queue_of_the_most_shards_is_made_changed_and_counted_within_a_call() {
    let server = Wire::start().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail", "shards": 256}})).await;
    server.done("UpdateQueue", json!({"queue": {"name": "mail", "default_lease": "60s"}})).await;
    server.done("Enqueue", enqueue("a", 1)).await;
    assert_eq!(lease(&server).await["leaseExpiresIn"], "60s", "the setting is in every shard");
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((depth["byShard"].as_array().map(Vec::len), &depth["running"]), (Some(256), &json!("1")));
}
