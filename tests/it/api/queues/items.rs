//! Items of the conformance list that ask for a server and not only for a store, under their numbers in
//! docs/queues-conformance.md.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallystone::domain::Reason;
use tallystone::domain::queue::MessageState;

use super::on_stores::{mail, on_every_store, on_every_store_at};
use super::{enqueue, lease, settle};

#[tokio::test]
async fn item_10_a_poll_of_an_empty_queue_takes_its_whole_wait() {
    on_every_store(mail(), async |server| {
        let began = Instant::now();
        let answer = server.done("Dequeue", json!({"queue": "mail", "wait": "1s"})).await;
        assert_eq!((&answer["leases"], &answer["completeness"]), (&json!([]), &json!("COMPLETE")));
        assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test]
async fn item_22_messages_are_spread_over_shards_and_what_is_left_is_served_at_once() {
    on_every_store_at(json!({"name": "mail", "shards": 2}), async |server, _| {
        let messages: Vec<Value> = (0..50).map(|number| json!({"message_id": format!("m-{number}")})).collect();
        server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
        let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
        let of_shard = |number: usize| -> u32 {
            depth["byShard"][number]["pending"].as_str().and_then(|count| count.parse().ok()).expect("a count")
        };
        assert!(of_shard(0) >= 10 && of_shard(1) >= 10 && of_shard(0) + of_shard(1) == 50, "{depth}");
        let mut left = 50;
        while left > 0 {
            let answer = server.done("Dequeue", json!({"queue": "mail", "max_messages": 30, "wait": "20s"})).await;
            let count = answer["leases"].as_array().expect("leases").len();
            assert!(count > 0, "{answer}");
            left -= count;
        }
        // A call that waited for more than there was would not have ended: nobody moves the clock.
    })
    .await;
}

#[tokio::test]
async fn item_34_the_age_of_the_oldest_ready_message_is_told_by_queue() {
    on_every_store_at(json!({"name": "mail", "shards": 2}), async |server, clock| {
        server.done("CreateQueue", json!({"queue": {"name": "jobs", "template_for": "jobs/"}})).await;
        let told = |waiting: u64, seconds: u64| {
            let backlogs = server.engine.queues().expect("this engine has queues").backlogs();
            let told: Vec<_> = backlogs
                .iter()
                .map(|of| (&*of.queue, of.messages[MessageState::Pending as usize], of.oldest.as_secs()))
                .collect();
            assert_eq!(told, [("mail", waiting, seconds)], "the queue and no template");
        };
        told(0, 0);
        server.done("Enqueue", enqueue("worse", 2)).await;
        clock.advance(Duration::from_secs(30));
        server.done("Enqueue", enqueue("better", 1)).await;
        told(2, 30);
        clock.advance(Duration::from_secs(10));
        told(2, 40);
        let better = lease(server).await;
        assert_eq!(better["message"]["messageId"], "better");
        told(1, 40);
        lease(server).await;
        told(0, 0);
    })
    .await;
}

#[tokio::test]
async fn item_50_the_first_enqueue_makes_the_queue_where_a_template_says_so() {
    on_every_store(json!({"name": "jobs", "template_for": "jobs/"}), async |server| {
        let sent = json!({"queue": "jobs/mail", "message": {"message_id": "a"}});
        assert_eq!(server.done("Enqueue", sent.clone()).await["alreadyEnqueued"], json!(false));
        assert_eq!(server.done("Enqueue", sent).await["alreadyEnqueued"], json!(true));
        assert_eq!(server.done("GetDepth", json!({"queue": "jobs/mail"})).await["pending"], "1");
        server.refused("Enqueue", json!({"queue": "mail", "message": {}}), Reason::QueueNotFound).await;
    })
    .await;
}

#[tokio::test]
async fn item_52_a_call_may_ask_for_a_lease_of_its_own() {
    on_every_store(mail(), async |server| {
        server.done("Enqueue", enqueue("a", 1)).await;
        let answer = server.done("Dequeue", json!({"queue": "mail", "lease_duration": "7s"})).await;
        assert_eq!(answer["leases"][0]["leaseExpiresIn"], "7s");
    })
    .await;
}

#[tokio::test]
async fn item_67_what_is_given_back_is_served_before_what_is_worse() {
    on_every_store(mail(), async |server| {
        for (id, priority) in [("first", 1), ("second", 2)] {
            server.done("Enqueue", enqueue(id, priority)).await;
        }
        for _ in 0..3 {
            let held = lease(server).await;
            assert_eq!(held["message"]["messageId"], "first");
            server.done("Release", settle(&held)).await;
        }
    })
    .await;
}

/// The error of rank of a dequeue is the number of better messages that it leaves behind.
#[tokio::test]
async fn item_75_dequeues_one_by_one_leave_no_better_message_behind_on_any_shard() {
    on_every_store(json!({"name": "mail", "shards": 8}), async |server| {
        let message =
            |number: i64| json!({"message_id": format!("m-{number}"), "priority": (number * 37 % 100).to_string()});
        let messages: Vec<Value> = (0..100).map(message).collect();
        server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
        let mut served = Vec::new();
        for _ in 0..100 {
            let priority = lease(server).await["message"]["priority"].clone();
            served.push(priority.as_str().and_then(|text| text.parse::<i64>().ok()).expect("a priority"));
        }
        let errors = served.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert_eq!(errors, 0, "{served:?}");
    })
    .await;
}

#[tokio::test]
async fn a_batch_extends_some_leases_and_settles_others() {
    on_every_store_at(mail(), async |server, clock| {
        for id in ["a", "b"] {
            server.done("Enqueue", enqueue(id, 1)).await;
        }
        let [a, b] = [lease(server).await, lease(server).await];
        let extend = |lease: &Value, duration: &str| {
            json!({"lease_token": lease["leaseToken"], "verb": "EXTEND", "lease_duration": duration})
        };
        let batch = async |items: Value| {
            let answer = server.done("SettleMessages", json!({"queue": "mail", "items": items})).await;
            answer["results"].as_array().expect("results").clone()
        };
        let complete = json!({"lease_token": b["leaseToken"], "verb": "COMPLETE"});
        let plain = json!({"lease_token": a["leaseToken"], "verb": "VERB_EXTEND"});
        let items = json!([extend(&a, "600s"), complete, extend(&b, "600s"), extend(&a, "43201s"), plain]);
        let first = batch(items.clone()).await;
        let shown = |result: &Value| (result["state"].clone(), result["leaseExpiresIn"].clone());
        assert_eq!(shown(&first[0]), (json!("MESSAGE_STATE_RUNNING"), json!("600s")), "{first:?}");
        assert_eq!(shown(&first[1]), (json!("MESSAGE_STATE_COMPLETED"), Value::Null), "{first:?}");
        assert_eq!(first[2]["error"]["reason"], "LEASE_LOST", "it was settled by the item before: {first:?}");
        assert_eq!(first[3]["error"]["reason"], "INVALID_RANGE", "{first:?}");
        assert_eq!(shown(&first[4]), (json!("MESSAGE_STATE_RUNNING"), json!("30s")), "the queue's default: {first:?}");
        clock.advance(Duration::from_secs(20));
        let again = batch(items).await;
        assert_eq!((&again[1], shown(&again[4])), (&first[1], shown(&first[4])), "a repeat extends from its own time");
        clock.advance(Duration::from_secs(20));
        server.done("CancelMessage", json!({"queue": "mail", "message_id": "a"})).await;
        let asked = batch(json!([extend(&a, "60s")])).await;
        assert_eq!(asked[0]["cancelRequested"], json!(true), "it goes on, 40 s after a lease of 30: {asked:?}");
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
        assert_eq!(found["message"]["version"], asked[0]["version"], "{found}");
        let over = batch(json!([extend(&a, "0s")])).await;
        assert_eq!(shown(&over[0]), (json!("MESSAGE_STATE_CANCELED"), json!("0s")), "{over:?}");
        assert_eq!(batch(json!([extend(&a, "60s")])).await[0]["error"]["reason"], "LEASE_LOST");
    })
    .await;
}

#[tokio::test]
async fn a_depth_says_that_it_is_exact_and_is_so_after_each_step() {
    on_every_store(json!({"name": "mail", "shards": 4, "filter_shapes": [{"keys": ["team"]}]}), async |server| {
        for number in 0..9 {
            let team = if number % 3 == 0 { "red" } else { "blue" };
            let message = json!({"message_id": format!("m-{number}"), "metadata": {"team": team}});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
            for (filter, count) in [(json!({}), number + 1), (json!({"team": "red"}), number / 3 + 1)] {
                let depth = server.done("GetDepth", json!({"queue": "mail", "filter": filter})).await;
                let shown = (&depth["pending"], &depth["exact"]);
                assert_eq!(shown, (&json!(count.to_string()), &json!(true)), "{depth}");
            }
        }
    })
    .await;
}
