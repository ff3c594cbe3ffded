//! Ids that may come again once their messages are over: unique until finished.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::super::Wire;
use super::on_stores::{mail, on_every_store_at};
use super::visible_times::at_of;
use super::{lease, settle};

const PENDING: &str = "MESSAGE_STATE_PENDING";
const COMPLETED: &str = "MESSAGE_STATE_COMPLETED";

fn when_over() -> Value {
    json!({"name": "mail", "reuse_ids": "REUSE_IDS_WHEN_OVER", "default_max_attempts": 1, "quota_messages": "2"})
}

fn job(payload: &str) -> Value {
    json!({"queue": "mail", "message": {"message_id": "job", "payload": payload}})
}

/// Enqueues; answers the state and whether it is a repeat.
async fn put(server: &Wire, sent: Value) -> (Value, Value) {
    let enqueued = server.done("Enqueue", sent).await;
    (enqueued["state"].clone(), enqueued["alreadyEnqueued"].clone())
}

fn is_new() -> (Value, Value) {
    (json!(PENDING), json!(false))
}

fn repeats(state: &str) -> (Value, Value) {
    (json!(state), json!(true))
}

async fn run(server: &Wire, verb: &str) {
    let held = lease(server).await;
    server.done(verb, settle(&held)).await;
}

#[tokio::test]
async fn an_id_comes_again_once_its_message_is_completed_or_canceled() {
    on_every_store_at(when_over(), async |server, clock| {
        for verb in ["Complete", "Cancel", "Complete"] {
            assert_eq!(put(server, job("YQ==")).await, is_new(), "{verb}");
            run(server, verb).await;
            clock.advance(Duration::from_secs(60));
        }
        server.done("Enqueue", job("YQ==")).await;
        server.done("CancelMessage", json!({"queue": "mail", "message_id": "job"})).await;
        assert_eq!(put(server, job("Yg==")).await, is_new(), "other content is another call at once");
        let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
        assert_eq!(
            (&depth["pending"], &depth["completed"], &depth["canceled"]),
            (&json!("1"), &json!("0"), &json!("0"))
        );
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "job"})).await;
        assert_eq!((&found["message"]["state"], &found["message"]["payload"]), (&json!(PENDING), &json!("Yg==")));
    })
    .await;
}

#[tokio::test]
async fn a_repeat_of_the_same_call_within_a_minute_is_a_repeat_even_where_ids_come_again() {
    on_every_store_at(when_over(), async |server, clock| {
        assert_eq!(put(server, job("YQ==")).await, is_new());
        assert_eq!(put(server, job("YQ==")).await, repeats(PENDING));
        run(server, "Complete").await;
        clock.advance(Duration::from_millis(59_999));
        assert_eq!(put(server, job("YQ==")).await, repeats(COMPLETED));
        clock.advance(Duration::from_millis(1));
        assert_eq!(put(server, job("YQ==")).await, is_new());
    })
    .await;
}

#[tokio::test]
async fn an_id_whose_message_waits_runs_or_is_errored_does_not_come_again() {
    on_every_store_at(when_over(), async |server, clock| {
        server.done("Enqueue", job("YQ==")).await;
        clock.advance(Duration::from_secs(70));
        assert_eq!(put(server, job("YQ==")).await, repeats(PENDING));
        server.refused("Enqueue", job("Yg=="), Reason::TokenReused).await;
        let held = lease(server).await;
        assert_eq!(put(server, job("YQ==")).await, repeats("MESSAGE_STATE_RUNNING"));
        server.done("Fail", settle(&held)).await;
        assert_eq!(put(server, job("YQ==")).await, repeats("MESSAGE_STATE_ERRORED"));
        server.refused("Enqueue", job("Yg=="), Reason::TokenReused).await;
        server.done("DiscardMessages", json!({"queue": "mail", "message_id": "job"})).await;
        assert_eq!(put(server, job("Yg==")).await, is_new());
    })
    .await;
}

#[tokio::test]
async fn a_call_with_a_time_is_known_by_it_where_ids_come_again() {
    on_every_store_at(when_over(), async |server, clock| {
        let (first, later) = (at_of(clock, 0), at_of(clock, 30));
        let timed = |time: &str| {
            let mut sent = job("YQ==");
            sent["message"]["generation_time"] = json!(time);
            sent
        };
        assert_eq!(put(server, timed(&first)).await, is_new());
        run(server, "Complete").await;
        clock.advance(Duration::from_secs(100));
        assert_eq!(put(server, timed(&first)).await, repeats(COMPLETED), "the same call for the whole window");
        assert_eq!(put(server, timed(&later)).await, is_new(), "another time is another call");
        assert_eq!(put(server, timed(&first)).await, repeats(PENDING), "the first one is known after it has gone");
    })
    .await;
}

#[tokio::test]
async fn a_message_that_comes_again_takes_the_place_of_the_old_one_or_leaves_it() {
    on_every_store_at(when_over(), async |server, _| {
        server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "other"}})).await;
        server.done("Enqueue", job("YQ==")).await;
        server.done("CancelMessage", json!({"queue": "mail", "message_id": "job"})).await;
        let bad = json!({"queue": "mail", "message": {"message_id": "job", "max_attempts": 0}});
        server.refused("Enqueue", bad, Reason::InvalidMessage).await;
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "job"})).await;
        assert_eq!(found["message"]["state"], "MESSAGE_STATE_CANCELED", "a refused one leaves it");
        assert_eq!(put(server, job("Yg==")).await, is_new(), "although the queue is full");
        let third = json!({"queue": "mail", "message": {"message_id": "third"}});
        server.refused("Enqueue", third, Reason::QueueFull).await;
    })
    .await;
}

#[tokio::test]
async fn the_reuse_of_ids_is_a_setting_that_changes_at_any_time() {
    on_every_store_at(mail(), async |server, _| {
        let shown = async || {
            let found = server.done("GetQueue", json!({"queue": "mail"})).await;
            found["queue"]["reuseIds"].clone()
        };
        assert_eq!(shown().await, "REUSE_IDS_AFTER_WINDOW");
        server.done("Enqueue", job("YQ==")).await;
        server.done("CancelMessage", json!({"queue": "mail", "message_id": "job"})).await;
        server.refused("Enqueue", job("Yg=="), Reason::TokenReused).await;
        let update = json!({"queue": {"name": "mail", "reuse_ids": "REUSE_IDS_WHEN_OVER"}});
        server.done("UpdateQueue", update).await;
        assert_eq!(shown().await, "REUSE_IDS_WHEN_OVER");
        server.done("UpdateQueue", json!({"queue": {"name": "mail", "default_lease": "7s"}})).await;
        assert_eq!(shown().await, "REUSE_IDS_WHEN_OVER", "an update without it leaves it");
        assert_eq!(put(server, job("Yg==")).await, is_new());
        server.done("UpdateQueue", json!({"queue": {"name": "mail"}, "reset": ["reuse_ids"]})).await;
        assert_eq!(shown().await, "REUSE_IDS_AFTER_WINDOW");
    })
    .await;
}
