//! What queues do now: the same numbers as their depth, with rates and reasons, on every store.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::Wire;
use super::on_stores::on_every_store_at;
use super::{enqueue, settle};
use crate::support::harness::eventually;

async fn activity(server: &Wire) -> Value {
    server.done("GetQueueActivity", json!({"queue": "mail"})).await["activity"].clone()
}

fn reasons(activity: &Value) -> Vec<(String, String)> {
    let rows = activity["attention"].as_array().expect("a list").iter();
    rows.map(|row| {
        (row["reason"].as_str().expect("a reason").to_owned(), row["runbook"].as_str().unwrap_or("").to_owned())
    })
    .collect()
}

/// Whether a number is this rate, whatever the order of its additions was.
fn is_rate(number: &Value, rate: f64) -> bool {
    number.as_f64().is_some_and(|number| (number - rate).abs() < 1e-9)
}

fn is_unknown(activity: &Value, field: &str) -> bool {
    activity.get(field).is_none_or(Value::is_null)
}

#[tokio::test]
async fn the_activity_of_a_queue_is_its_depth_its_rates_and_its_reasons_on_every_store() {
    let queue = json!({"name": "mail", "shards": 2, "default_max_attempts": 1});
    on_every_store_at(queue, async |server, clock| {
        let first = activity(server).await;
        assert_eq!((&first["pending"], &first["errored"]), (&json!("0"), &json!("0")));
        for field in ["inPerSecond", "outPerSecond", "failPerSecond", "oldestReadyAge", "timeToDrain"] {
            assert!(is_unknown(&first, field), "{field}: {first}");
        }
        clock.advance(Duration::from_secs(10));
        for number in 0..20 {
            server.done("Enqueue", enqueue(&format!("m{number}"), 1)).await;
        }
        // Whatever was read meanwhile is read again.
        clock.advance(Duration::from_secs(1));
        let full = activity(server).await;
        assert_eq!(full["pending"], json!("20"));
        assert!(is_rate(&full["inPerSecond"], 20.0 / 11.0) && is_rate(&full["outPerSecond"], 0.0), "{full}");
        assert!(reasons(&full).is_empty(), "{full}");

        let held = server.done("Dequeue", json!({"queue": "mail", "max_messages": 10})).await;
        let leases = held["leases"].as_array().expect("leases").clone();
        for lease in &leases[1..] {
            server.done("Complete", settle(lease)).await;
        }
        server.done("Fail", settle(&leases[0])).await;
        clock.advance(Duration::from_secs(20));
        let some = activity(server).await;
        assert_eq!((&some["pending"], &some["errored"], &some["completed"]), (&json!("10"), &json!("1"), &json!("9")));
        assert!(is_rate(&some["outPerSecond"], 9.0 / 31.0) && is_rate(&some["failPerSecond"], 1.0 / 31.0), "{some}");
        assert_eq!(
            reasons(&some),
            [("ATTENTION_REASON_MESSAGES_ERRORED".to_owned(), "docs/runbook/messages-errored.md".to_owned())]
        );

        clock.advance(Duration::from_secs(100));
        let still = activity(server).await;
        assert_eq!((&still["inPerSecond"], &still["outPerSecond"]), (&json!(0.0), &json!(0.0)));
        assert_eq!(reasons(&still)[0].0, "ATTENTION_REASON_NOBODY_DEQUEUES", "{still}");
        server.done("CreateQueue", json!({"queue": {"name": "new"}})).await;
        let totals = server.done("ListQueueActivity", json!({})).await["totals"].clone();
        assert_eq!((&totals["queues"], &totals["pending"]), (&json!("2"), &json!("10")), "{totals}");
        assert!(is_rate(&totals["outPerSecond"], 0.0), "a new queue does not hide the sums: {totals}");
        let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
        for state in ["pending", "invisible", "running", "errored", "completed", "canceled"] {
            assert_eq!(still[state], depth[state], "{state}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_has_every_queue_once_in_the_asked_order_with_the_sums_of_all() {
    let server = Wire::start().await;
    for (name, messages) in [("a/1", 2), ("a/2", 5), ("a/3", 0), ("b", 7)] {
        server.done("CreateQueue", json!({"queue": {"name": name}})).await;
        for number in 0..messages {
            server.done("Enqueue", json!({"queue": name, "message": {"message_id": format!("m{number}")}})).await;
        }
    }
    let names = async |order: &str| {
        let (mut names, mut token, mut sums) = (Vec::new(), json!(""), Vec::new());
        loop {
            let asked = json!({"prefix": "a/", "order": order, "page_size": 2, "page_token": token});
            let page = server.done("ListQueueActivity", asked).await;
            names.extend(
                page["queues"]
                    .as_array()
                    .expect("rows")
                    .iter()
                    .map(|row| row["queue"].as_str().unwrap_or("").to_owned()),
            );
            sums.push((page["totals"]["queues"].clone(), page["totals"]["pending"].clone()));
            token = page["nextPageToken"].clone();
            if token == json!("") {
                return (names, sums);
            }
        }
    };
    let is_read = || {
        let listed =
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(names("ACTIVITY_ORDER_PENDING")));
        listed.1.iter().all(|sums| *sums == (json!("3"), json!("7"))) && listed.0 == ["a/2", "a/1", "a/3"]
    };
    assert!(eventually(Duration::from_secs(60), is_read));
    assert_eq!(names("ACTIVITY_ORDER_NAME").await.0, ["a/1", "a/2", "a/3"]);
    let refused = server
        .http(
            "POST",
            "/tallystone.queue.v1.QueueService/ListQueueActivity",
            &[("content-type", "application/json")],
            r#"{"order": 99}"#,
        )
        .await;
    assert_eq!(refused.status, 400, "{}", refused.body);
}
