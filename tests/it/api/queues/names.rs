//! Every call that takes a message id finds the message by that alone, whatever routed it.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::{Wire, lease, settle};

/// A message of an exclusive queue and one of a simple queue with a shard key, each on queues of one and of eight shards.
async fn on_every_route(law: impl AsyncFn(&Wire, Value)) {
    for shards in [1, 8] {
        let exclusive = json!({"name": "mail", "type": "EXCLUSIVE", "exclusivity_key": "title", "shards": shards});
        let simple = json!({"name": "mail", "shards": shards});
        let by_value = json!({"metadata": {"title": "a"}, "max_attempts": 1});
        let by_key = json!({"shard_key": "eu", "max_attempts": 1});
        for (queue, message) in [(exclusive, by_value), (simple, by_key)] {
            println!("{queue}");
            let server = Wire::start().await;
            server.done("CreateQueue", json!({"queue": queue})).await;
            law(&server, message).await;
        }
    }
}

fn named(id: &str) -> Value {
    json!({"queue": "mail", "message_id": id})
}

/// Enqueues a message under an id.
async fn put(server: &Wire, id: &str, message: &Value) {
    let mut message = message.clone();
    message["message_id"] = json!(id);
    server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
}

#[tokio::test]
async fn each_call_finds_a_message_by_its_own_id() {
    on_every_route(async |server, message| {
        for id in ["one", "two", "three", "four"] {
            put(server, id, &message).await;
            assert_eq!(server.done("GetMessage", named(id)).await["message"]["messageId"], id);
        }
        let mut hide = named("one");
        hide["invisibility"] = json!("3600s");
        assert_eq!(server.done("UpdateMessage", hide).await["state"], "MESSAGE_STATE_INVISIBLE");
        let explained = server.done("ExplainMessage", named("one")).await;
        assert_eq!(explained["explanations"][0]["cause"], "invisible", "{explained}");
        let leased = server.done("Dequeue", named("three")).await["leases"][0].clone();
        assert_eq!(leased["message"]["messageId"], "three");
        server.done("Fail", settle(&leased)).await;
        assert_eq!(server.done("GetMessage", named("three")).await["message"]["state"], "MESSAGE_STATE_ERRORED");
        let redriven = server.done("RedriveMessages", named("three")).await;
        assert_eq!(redriven["operation"]["done"], "1", "{redriven}");
        assert_eq!(server.done("CancelMessage", named("two")).await["state"], "MESSAGE_STATE_CANCELED");
        let left = [lease(server).await, server.done("GetMessage", named("four")).await];
        assert_eq!(left[0]["message"]["messageId"], "three", "the redriven one comes before the fourth");
        assert_eq!(left[1]["message"]["state"], "MESSAGE_STATE_PENDING");
    })
    .await;
}

#[tokio::test]
async fn an_id_that_no_message_has_is_told_so_by_each_call() {
    on_every_route(async |server, message| {
        put(server, "one", &message).await;
        for method in ["GetMessage", "UpdateMessage", "Dequeue", "CancelMessage", "RedriveMessages"] {
            let mut absent = named("absent");
            if method == "UpdateMessage" {
                absent["priority"] = json!("1");
            }
            server.refused(method, absent, Reason::MessageNotFound).await;
        }
        let explained = server.done("ExplainMessage", named("absent")).await;
        assert_eq!(explained["explanations"][0]["cause"], "unknown_id", "{explained}");
        let mut elsewhere = named("one");
        elsewhere["shard_key"] = json!("another");
        server.refused("GetMessage", elsewhere, Reason::MessageNotFound).await;
    })
    .await;
}

#[tokio::test]
async fn an_id_is_one_message_of_its_queue_whatever_routes_it() {
    on_every_route(async |server, message| {
        put(server, "one", &message).await;
        for other in ["b", "c", "d", "e", "f"] {
            let mut sent = message.clone();
            sent["message_id"] = json!("one");
            if message["shard_key"].is_null() {
                sent["metadata"]["title"] = json!(other);
            } else {
                sent["shard_key"] = json!(other);
            }
            server.refused("Enqueue", json!({"queue": "mail", "message": sent}), Reason::TokenReused).await;
        }
        if message["metadata"].is_null() {
            let bare = json!({"queue": "mail", "message": {"message_id": "one"}});
            server.refused("Enqueue", bare, Reason::TokenReused).await;
        }
        assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "1");
    })
    .await;
}
