//! Each limit and each time of a message belongs to one phase of its life: the TTL to the time until the first lease, the age
//! of a ready message to its wait, the retention to the time after its end.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::domain::Reason;

use super::super::Wire;
use super::on_stores::{mail, on_every_store, on_every_store_at};
use super::{enqueue, lease, settle};

const COMPLETED: &str = "MESSAGE_STATE_COMPLETED";
const CANCELED: &str = "MESSAGE_STATE_CANCELED";
const PENDING: &str = "MESSAGE_STATE_PENDING";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn message(server: &Wire, id: &str) -> Value {
    server.done("GetMessage", json!({"queue": "mail", "message_id": id})).await["message"].clone()
}

async fn put(server: &Wire, message: Value) -> Value {
    server.done("Enqueue", json!({"queue": "mail", "message": message})).await
}

/// Leases nothing, but lets the shard apply what is due.
async fn catch_up(server: &Wire, clock: &ManualClock, passed: Duration) {
    clock.advance(passed);
    server.done("Dequeue", json!({"queue": "mail", "filter": {"nobody": "has"}})).await;
}

/// Asks until an operation has ended.
async fn ended(server: &Wire, mut operation: Value) -> Value {
    for _ in 0..10_000 {
        if operation["state"] != "OPERATION_STATE_RUNNING" {
            return operation;
        }
        let asked = json!({"operation_id": operation["operationId"]});
        operation = server.done("GetOperation", asked).await["operation"].clone();
        tokio::task::yield_now().await;
    }
    panic!("it has not ended: {operation}");
}

async fn depth(server: &Wire, state: &str) -> Value {
    server.done("GetDepth", json!({"queue": "mail"})).await[state].clone()
}

#[tokio::test]
async fn a_redrive_makes_dead_letters_ready_whose_ttl_would_be_over() {
    let queue = json!({"name": "mail", "default_max_attempts": 1, "default_ttl": "3s"});
    on_every_store_at(queue, async |server, clock| {
        for id in ["one", "other"] {
            put(server, json!({"message_id": id})).await;
            assert_eq!(message(server, id).await["ttlLeft"], "3s");
            let held = lease(server).await;
            assert_eq!(held["message"]["ttlLeft"], Value::Null, "the first lease ends the TTL");
            server.done("Fail", settle(&held)).await;
        }
        catch_up(server, clock, seconds(4)).await;
        let redriven = server.done("RedriveMessages", json!({"queue": "mail"})).await["operation"].clone();
        let redriven = ended(server, redriven).await;
        assert_eq!((&redriven["done"], &redriven["total"]), (&json!("2"), &json!("2")), "{redriven}");
        catch_up(server, clock, seconds(4)).await;
        for id in ["one", "other"] {
            assert_eq!(message(server, id).await["state"], PENDING, "{id}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_first_lease_ends_the_ttl_however_the_lease_ends() {
    let queue = json!({"name": "mail", "default_ttl": "3s", "default_lease": "1s"});
    on_every_store_at(queue, async |server, clock| {
        put(server, json!({"message_id": "fails"})).await;
        server
            .done("Fail", {
                let mut failed = settle(&lease(server).await);
                failed["delay"] = json!("60s");
                failed
            })
            .await;
        put(server, json!({"message_id": "is-released"})).await;
        server.done("Release", settle(&lease(server).await)).await;
        clock.advance(seconds(4));
        put(server, json!({"message_id": "expires", "priority": "-1"})).await;
        lease(server).await;
        catch_up(server, clock, seconds(61)).await;
        for id in ["fails", "is-released", "expires"] {
            let found = message(server, id).await;
            assert_eq!(found["state"], PENDING, "{id}: {found}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_ttl_counts_from_the_time_at_which_a_message_becomes_visible() {
    on_every_store_at(json!({"name": "mail", "default_ttl": "5s"}), async |server, clock| {
        put(server, json!({"message_id": "served", "invisibility": "3600s"})).await;
        put(server, json!({"message_id": "in-vain", "invisibility": "3600s"})).await;
        put(server, json!({"message_id": "put-off"})).await;
        server.done("UpdateMessage", json!({"queue": "mail", "message_id": "put-off", "invisibility": "3600s"})).await;
        catch_up(server, clock, seconds(3_599)).await;
        for id in ["served", "in-vain", "put-off"] {
            let found = message(server, id).await;
            assert_eq!((&found["state"], &found["ttl"]), (&json!("MESSAGE_STATE_INVISIBLE"), &json!("5s")), "{id}");
            assert_eq!(found["ttlLeft"], "6s", "{id}");
        }
        clock.advance(seconds(5));
        let taken = server.done("Dequeue", json!({"queue": "mail", "message_id": "served"})).await;
        assert_eq!(taken["leases"][0]["message"]["messageId"], "served", "{taken}");
        assert_eq!(message(server, "put-off").await["state"], PENDING);
        catch_up(server, clock, seconds(1)).await;
        assert_eq!(message(server, "in-vain").await["state"], CANCELED);
        assert_eq!(message(server, "put-off").await["state"], CANCELED);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_priority_keeps_the_age_of_a_waiting_message() {
    on_every_store_at(mail(), async |server, clock| {
        let activity = async || server.done("GetQueueActivity", json!({"queue": "mail"})).await["activity"].clone();
        clock.advance(seconds(10));
        server.done("Enqueue", enqueue("waits", 9)).await;
        let since = message(server, "waits").await["visibleTime"].clone();
        for priority in 0..13 {
            clock.advance(seconds(10));
            let update = json!({"queue": "mail", "message_id": "waits", "priority": priority.to_string()});
            server.done("UpdateMessage", update).await;
            let now = json!({"queue": "mail", "message_id": "waits", "invisibility": "0s"});
            server.done("UpdateMessage", now).await;
            activity().await; // readings of the rates, as somebody who watches makes them
        }
        assert_eq!(message(server, "waits").await["visibleTime"], since, "it has been ready since then");
        clock.advance(seconds(61));
        let shown = activity().await;
        let age = shown["oldestReadyAge"].as_str().and_then(|age| age.strip_suffix('s')).expect("an age");
        assert!(age.parse::<f64>().expect("a number") >= 130.0, "{shown}");
        assert_eq!(shown["attention"][0]["reason"], "ATTENTION_REASON_NOBODY_DEQUEUES", "{shown}");
    })
    .await;
}

#[tokio::test]
async fn a_repeated_enqueue_says_in_which_state_the_message_is() {
    on_every_store(mail(), async |server| {
        let again = async |id: &str| {
            let answer = server.done("Enqueue", enqueue(id, 1)).await;
            assert_eq!(answer["alreadyEnqueued"], true, "{answer}");
            answer["state"].clone()
        };
        for id in ["done", "canceled"] {
            assert_eq!(server.done("Enqueue", enqueue(id, 1)).await["state"], PENDING);
            assert_eq!(again(id).await, PENDING);
        }
        server.done("CancelMessage", json!({"queue": "mail", "message_id": "canceled"})).await;
        let held = lease(server).await;
        assert_eq!(again("done").await, "MESSAGE_STATE_RUNNING");
        server.done("Complete", settle(&held)).await;
        assert_eq!((again("done").await, again("canceled").await), (json!(COMPLETED), json!(CANCELED)));
        let batch = json!({"queue": "mail", "messages": [enqueue("done", 1)["message"]]});
        assert_eq!(server.done("BatchEnqueue", batch).await["results"][0]["state"], COMPLETED);
    })
    .await;
}

#[tokio::test]
async fn a_delayed_message_has_the_priority_of_the_time_at_which_it_becomes_visible() {
    let classes = json!([{"name": "urgent", "offset_ms": -60_000}]);
    let queue = json!({"name": "mail", "default_invisibility": "60s", "priority_classes": classes});
    on_every_store_at(queue, async |server, clock| {
        let priority = async |id: &str| -> i64 {
            message(server, id).await["priority"].as_str().and_then(|number| number.parse().ok()).expect("a number")
        };
        put(server, json!({"message_id": "now", "invisibility": "0s"})).await;
        put(server, json!({"message_id": "by-the-queue"})).await;
        put(server, json!({"message_id": "tomorrow", "invisibility": "86400s"})).await;
        put(server, json!({"message_id": "soon", "invisibility": "90s", "priority_class": "urgent"})).await;
        let now = priority("now").await;
        assert_eq!(priority("by-the-queue").await - now, 60_000);
        assert_eq!(priority("tomorrow").await - now, 86_400_000);
        assert_eq!(priority("soon").await - now, 30_000, "the offset counts from the same time");
        clock.advance(seconds(86_400));
        put(server, json!({"message_id": "of-that-day", "invisibility": "0s", "priority_class": "urgent"})).await;
        let served = server.done("Dequeue", json!({"queue": "mail", "max_messages": 9})).await;
        let ids: Vec<&str> = served["leases"]
            .as_array()
            .expect("leases")
            .iter()
            .map(|lease| lease["message"]["messageId"].as_str().expect("an id"))
            .collect();
        assert_eq!(ids, ["now", "soon", "by-the-queue", "of-that-day", "tomorrow"]);
    })
    .await;
}

/// Enqueues messages and completes them.
async fn complete(server: &Wire, ids: &[&str]) {
    for id in ids {
        server.done("Enqueue", enqueue(id, 1)).await;
        server.done("Complete", settle(&lease(server).await)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_retention_reaches_messages_that_are_over_already() {
    on_every_store_at(json!({"name": "mail", "dedupe_window": "60s"}), async |server, clock| {
        complete(server, &["a", "b", "c"]).await;
        clock.advance(seconds(30));
        complete(server, &["later"]).await;
        let retention = json!({"completed": "60s"});
        let queue = json!({"name": "mail", "retention": retention});
        server.done("UpdateQueue", json!({"queue": queue})).await;
        let left = async || depth(server, "completed").await;
        let mut shown = left().await;
        // In small steps: a sweep that begins to wait while the clock makes one waits too long by that step. 55 s in all, while
        // `later` has 60 s left.
        for _ in 0..550 {
            if shown == "1" {
                break;
            }
            clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
            shown = left().await;
        }
        assert_eq!(shown, "1", "those whose 60 s are over are gone");
        assert_eq!(message(server, "later").await["state"], COMPLETED);
    })
    .await;
}

#[tokio::test]
async fn a_purge_removes_the_messages_that_are_over_of_the_states_that_it_names() {
    on_every_store(json!({"name": "mail", "shards": 2}), async |server| {
        complete(server, &["a", "b"]).await;
        for id in ["canceled", "waits"] {
            server.done("Enqueue", enqueue(id, 1)).await;
        }
        server.done("CancelMessage", json!({"queue": "mail", "message_id": "canceled"})).await;
        let purge = async |states: Value| {
            let asked = json!({"queue": "mail", "states": states});
            ended(server, server.done("PurgeQueue", asked).await["operation"].clone()).await["done"].clone()
        };
        for states in [json!(["RUNNING"]), json!(["COMPLETED", "ERRORED"]), json!(["MESSAGE_STATE_UNSPECIFIED"])] {
            let asked = json!({"queue": "mail", "states": states});
            let refused = server.refused("PurgeQueue", asked, Reason::InvalidArgument).await;
            assert!(refused["message"].as_str().expect("a text").contains("DiscardMessages"), "{refused}");
        }
        assert_eq!(purge(json!(["MESSAGE_STATE_COMPLETED"])).await, "2");
        assert_eq!((depth(server, "completed").await, depth(server, "canceled").await), (json!("0"), json!("1")));
        let again = server.done("Enqueue", enqueue("a", 1)).await;
        assert_eq!((&again["alreadyEnqueued"], &again["state"]), (&json!(false), &json!(PENDING)), "its id is free");
        assert_eq!(purge(json!([])).await, "2", "those that wait, when no state is named");
        assert_eq!(purge(json!(["CANCELED"])).await, "3");
        server.refused("GetMessage", json!({"queue": "mail", "message_id": "waits"}), Reason::MessageNotFound).await;
    })
    .await;
}

#[tokio::test]
async fn the_token_of_a_purge_is_that_of_its_states() {
    on_every_store(mail(), async |server| {
        complete(server, &["a"]).await;
        let purge = |states: Value| json!({"queue": "mail", "request_token": "once", "states": states});
        let first = server.done("PurgeQueue", purge(json!(["COMPLETED"]))).await["operation"].clone();
        let again = server.done("PurgeQueue", purge(json!(["COMPLETED"]))).await["operation"].clone();
        assert_eq!(first["operationId"], again["operationId"]);
        for other in [json!([]), json!(["COMPLETED", "CANCELED"])] {
            server.refused("PurgeQueue", purge(other), Reason::TokenReused).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_so_and_each_piece_of_its_advice_makes_room() {
    let queue = json!({"name": "mail", "quota_messages": "3"});
    on_every_store_at(queue, async |server, clock| {
        let explained = async || {
            let told = server.done("ExplainQueue", json!({"queue": "mail"})).await;
            told["explanations"].as_array().expect("explanations").clone()
        };
        let is_full = async || {
            clock.advance(seconds(1)); // whatever was read before is read again
            let row = server.done("GetQueueActivity", json!({"queue": "mail"})).await["activity"].clone();
            let named = row["attention"].as_array().expect("a list").clone();
            named.iter().any(|one| {
                one["runbook"] == "docs/runbook/queue-full.md" && one["reason"] == "ATTENTION_REASON_QUEUE_FULL"
            })
        };
        let reread = async || {
            for _ in 0..10_000 {
                if is_full().await {
                    return true;
                }
            }
            false
        };
        complete(server, &["a", "b", "c"]).await;
        let refused = server.refused("Enqueue", enqueue("d", 1), Reason::QueueFull).await;
        assert!(refused["message"].as_str().expect("a text").contains("queue purge"), "{refused}");
        assert!(reread().await, "{:?}", server.done("GetQueueActivity", json!({"queue": "mail"})).await);
        let told = explained().await;
        let causes: Vec<&str> = told.iter().map(|one| one["cause"].as_str().expect("a cause")).collect();
        assert_eq!(causes, ["queue_full", "empty"], "{told:?}");
        let text = told[0]["text"].as_str().expect("a text");
        assert!(text.contains("3 messages are over") && text.contains("queue purge mail --state completed"), "{text}");
        assert!(!told[1]["text"].as_str().expect("a text").contains("check that producers"), "{told:?}");

        // To remove what is over makes room.
        server.done("PurgeQueue", json!({"queue": "mail", "states": ["COMPLETED"]})).await;
        complete(server, &["d", "e", "f"]).await;
        server.refused("Enqueue", enqueue("g", 1), Reason::QueueFull).await;
        // So does a higher quota.
        let raised = json!({"name": "mail", "quota_messages": "4"});
        server.done("UpdateQueue", json!({"queue": raised})).await;
        complete(server, &["g"]).await;
        server.refused("Enqueue", enqueue("h", 1), Reason::QueueFull).await;
        // And a shorter retention, once it is over.
        let told = explained().await[0]["text"].as_str().expect("a text").to_owned();
        assert!(told.contains("queue update mail --keep-completed TIME --dedupe-window TIME"), "{told}");
        let shorter = json!({"name": "mail", "retention": {"completed": "60s"}, "dedupe_window": "60s"});
        server.done("UpdateQueue", json!({"queue": shorter})).await;
        // Three minutes at most, far from the hour that it was kept before; the sweeper sleeps by the same clock.
        for _ in 0..180 {
            if depth(server, "completed").await == "0" {
                break;
            }
            clock.advance(seconds(1));
        }
        server.done("Enqueue", enqueue("h", 1)).await;
        assert!(explained().await.iter().all(|one| one["cause"] != "queue_full"));
    })
    .await;
}
