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
