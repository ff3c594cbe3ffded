//! The verbs of dyno-queues and of the timeout center through our calls, row by row of docs/queues-mapping.md.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::on_stores::{mail, on_every_store};
use super::{Wire, enqueue, lease, settle};

/// A queue of as many shards, with filters by `biz_id`.
fn of_shards(shards: u32) -> Value {
    json!({"name": "mail", "shards": shards, "filter_shapes": [{"keys": ["biz_id"]}]})
}

fn ids(messages: &Value) -> Vec<&str> {
    messages.as_array().expect("a list").iter().map(|message| message["messageId"].as_str().expect("an id")).collect()
}

async fn depth(server: &Wire, state: &str) -> Value {
    server.done("GetDepth", json!({"queue": "mail"})).await[state].clone()
}

#[tokio::test]
async fn dyno_push_poll_peek_and_ack() {
    on_every_store(mail(), async |server| {
        let push = json!({"queue": "mail", "messages": [
            {"message_id": "b", "payload": "Yg==", "priority": "2"},
            {"message_id": "a", "payload": "YQ==", "priority": "1"},
            {"message_id": "later", "payload": "YQ==", "priority": "0", "invisibility": "60s"},
        ]});
        let pushed = server.done("BatchEnqueue", push).await;
        assert_eq!(ids(&pushed["results"]), ["b", "a", "later"], "push answers the ids");
        let peeked = server.done("PeekMessages", json!({"queue": "mail", "max_messages": 5})).await;
        assert_eq!(ids(&peeked["messages"]), ["a", "b"], "peek shows what is due and moves nothing");
        let polled = server.done("Dequeue", json!({"queue": "mail", "max_messages": 5, "wait": "1s"})).await;
        let leases = polled["leases"].as_array().expect("leases");
        assert_eq!(leases.iter().map(|lease| &lease["message"]["messageId"]).collect::<Vec<_>>(), ["a", "b"]);
        let items: Value =
            leases.iter().map(|lease| json!({"lease_token": lease["leaseToken"], "verb": "COMPLETE"})).collect();
        let acked = server.done("SettleMessages", json!({"queue": "mail", "items": items})).await;
        let all = acked["results"].as_array().expect("results");
        assert!(all.iter().all(|result| result["state"] == "MESSAGE_STATE_COMPLETED"), "{acked}");
    })
    .await;
}

#[tokio::test]
async fn dyno_poll_and_peek_by_id_on_any_shard() {
    on_every_store(of_shards(8), async |server| {
        for id in ["a", "b", "c"] {
            server.done("Enqueue", enqueue(id, 1)).await;
        }
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "b"})).await;
        assert_eq!(
            (&found["message"]["payload"], &found["message"]["state"]),
            (&json!("aGk="), &json!("MESSAGE_STATE_PENDING"))
        );
        let this = json!({"queue": "mail", "message_id": "b"});
        let polled = server.done("Dequeue", this.clone()).await;
        assert_eq!(polled["leases"][0]["message"]["messageId"], "b");
        server.refused("Dequeue", this, Reason::WrongMessageState).await;
        server.refused("Dequeue", json!({"queue": "mail", "message_id": "z"}), Reason::MessageNotFound).await;
    })
    .await;
}

#[tokio::test]
async fn dyno_set_unack_timeout() {
    on_every_store(mail(), async |server| {
        server.done("Enqueue", enqueue("a", 1)).await;
        let held = lease(server).await;
        let mut longer = settle(&held);
        longer["lease_duration"] = json!("600s");
        assert_eq!(server.done("ExtendLease", longer).await["leaseExpiresIn"], "600s");
        let mut at_once = settle(&held);
        at_once["lease_duration"] = json!("0s");
        server.done("ExtendLease", at_once).await;
        assert_eq!(lease(server).await["attemptNumber"], 2, "0 serves it again at once");
    })
    .await;
}

#[tokio::test]
async fn dyno_set_timeout_keeps_the_priority_and_spares_what_is_leased() {
    on_every_store(mail(), async |server| {
        for (id, priority) in [("a", 1), ("b", 2)] {
            server.done("Enqueue", enqueue(id, priority)).await;
        }
        let time = |seconds: &str| json!({"queue": "mail", "message_id": "a", "invisibility": seconds});
        server.done("UpdateMessage", time("600s")).await;
        assert_eq!(lease(server).await["message"]["messageId"], "b");
        server.done("UpdateMessage", time("0s")).await;
        let held = lease(server).await;
        assert_eq!((&held["message"]["messageId"], &held["message"]["priority"]), (&json!("a"), &json!("1")));
        server.refused("UpdateMessage", time("600s"), Reason::WrongMessageState).await;
        let absent = json!({"queue": "mail", "message_id": "z", "invisibility": "1s"});
        server.refused("UpdateMessage", absent, Reason::MessageNotFound).await;
    })
    .await;
}

#[tokio::test]
async fn dyno_ensure_is_every_enqueue() {
    on_every_store(mail(), async |server| {
        for (round, known) in [false, true, true].into_iter().enumerate() {
            let answer = server.done("Enqueue", enqueue("a", 1)).await;
            assert_eq!(answer["alreadyEnqueued"], json!(known), "call {round}");
            if round == 1 {
                lease(server).await;
            }
        }
        assert_eq!((depth(server, "pending").await, depth(server, "running").await), (json!("0"), json!("1")));
    })
    .await;
}

#[tokio::test]
async fn dyno_predicates_are_metadata_filters() {
    on_every_store(of_shards(4), async |server| {
        for (id, biz_id) in [("a", "7"), ("b", "8"), ("c", "7")] {
            let message = json!({"message_id": id, "priority": "1", "metadata": {"biz_id": biz_id}});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        let of = |biz_id: &str| json!({"queue": "mail", "filter": {"biz_id": biz_id}});
        for (biz_id, count) in [("7", "2"), ("8", "1"), ("9", "0")] {
            assert_eq!(server.done("GetDepth", of(biz_id)).await["pending"], count, "containsPredicate: {biz_id}");
        }
        let polled = server.done("Dequeue", of("8")).await;
        assert_eq!(polled["leases"][0]["message"]["messageId"], "b", "popMsgWithPredicate");
        assert_eq!(server.done("Dequeue", of("8")).await["leases"], json!([]));
    })
    .await;
}

#[tokio::test]
async fn dyno_remove_get_and_get_all() {
    on_every_store(mail(), async |server| {
        for id in ["a", "b"] {
            server.done("Enqueue", enqueue(id, 1)).await;
        }
        let a = json!({"queue": "mail", "message_id": "a"});
        assert_eq!(server.done("CancelMessage", a.clone()).await["state"], "MESSAGE_STATE_CANCELED");
        assert_eq!(server.done("CancelMessage", a.clone()).await["state"], "MESSAGE_STATE_CANCELED", "again");
        assert_eq!(server.done("GetMessage", a).await["message"]["state"], "MESSAGE_STATE_CANCELED");
        server.refused("GetMessage", json!({"queue": "mail", "message_id": "z"}), Reason::MessageNotFound).await;
        let all = server.done("ListMessages", json!({"queue": "mail"})).await;
        assert_eq!(ids(&all["messages"]), ["b"]);
        assert_eq!(lease(server).await["message"]["messageId"], "b");
    })
    .await;
}

#[tokio::test]
async fn dyno_size_shard_sizes_and_clear() {
    on_every_store(of_shards(4), async |server| {
    let messages: Vec<Value> = (0..20)
        .map(|number| json!({"message_id": format!("m-{number}"), "invisibility": if number < 5 { "60s" } else { "0s" }}))
        .collect();
    server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    lease(server).await;
    let sizes = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!(
        (&sizes["pending"], &sizes["invisible"], &sizes["running"]),
        (&json!("14"), &json!("5"), &json!("1")),
        "what is not due yet is counted by itself"
    );
    let shards = sizes["byShard"].as_array().expect("shards");
    let sum = |state: &str| -> u32 {
        shards.iter().map(|shard| shard[state].as_str().and_then(|n| n.parse::<u32>().ok()).expect("a count")).sum()
    };
    assert_eq!((shards.len(), sum("pending"), sum("invisible"), sum("running")), (4, 14, 5, 1));
    assert_eq!(server.done("PurgeQueue", json!({"queue": "mail"})).await["purged"], "19");
    assert_eq!((depth(server, "pending").await, depth(server, "running").await), (json!("0"), json!("1")));
    })
    .await;
}

#[tokio::test]
async fn dyno_process_unacks_needs_no_call() {
    on_every_store(mail(), async |server| {
        server.done("Enqueue", enqueue("a", 1)).await;
        let mut soon = settle(&lease(server).await);
        soon["lease_duration"] = json!("1s");
        server.done("ExtendLease", soon).await;
        let again = server.done("Dequeue", json!({"queue": "mail", "wait": "20s"})).await;
        assert_eq!(again["leases"][0]["attemptNumber"], 2, "{again}");
    })
    .await;
}

#[tokio::test]
async fn dyno_unsafe_calls_over_all_shards_are_the_usual_ones() {
    on_every_store(of_shards(8), async |server| {
        let messages: Vec<Value> = (0..40)
            .map(|number| json!({"message_id": format!("m-{number}"), "priority": number.to_string()}))
            .collect();
        server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
        let peeked = server.done("PeekMessages", json!({"queue": "mail", "max_messages": 40})).await;
        let wanted: Vec<String> = (0..40).map(|number| format!("m-{number}")).collect();
        assert_eq!(ids(&peeked["messages"]), wanted, "unsafePeekAllShards: best priority first over all shards");
        let mut all = Vec::new();
        while all.len() < 40 {
            let polled = server.done("Dequeue", json!({"queue": "mail", "max_messages": 40})).await;
            let leases = polled["leases"].as_array().expect("leases").clone();
            assert!(!leases.is_empty(), "{polled}");
            all.extend(leases.iter().map(|lease| lease["message"]["messageId"].as_str().expect("an id").to_owned()));
        }
        all.sort_unstable();
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        assert_eq!(all, sorted, "unsafePop, unsafeBulkPop: from all shards, each once");
    })
    .await;
}

#[tokio::test]
async fn timeout_center_a_topic_keeps_what_is_not_due_in_slots_by_its_slot_basis() {
    on_every_store(of_shards(8), async |server| {
        for (id, basis) in [("a", "order-1"), ("b", "order-1"), ("c", "order-2")] {
            let message = json!({"message_id": id, "shard_key": basis, "invisibility": "3600s"});
            server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        }
        let sizes = server.done("GetDepth", json!({"queue": "mail"})).await;
        let of_slot = |slot: usize| sizes["byShard"][slot]["invisible"].clone();
        // CRC-32 of the slot basis, modulo the slots.
        assert_eq!((of_slot(0xef & 7), of_slot(0x55 & 7)), (json!("2"), json!("1")));
        server.refused("UpdateQueue", json!({"queue": {"name": "mail", "shards": 16}}), Reason::SettingIsFixed).await;
        let by_basis = json!({"queue": "mail", "message_id": "a", "shard_key": "order-1"});
        for asked in [by_basis, json!({"queue": "mail", "message_id": "a"})] {
            assert_eq!(server.done("GetMessage", asked).await["message"]["messageId"], "a");
        }
    })
    .await;
}

#[tokio::test]
async fn timeout_center_two_stages_take_and_then_delete_or_return() {
    on_every_store(mail(), async |server| {
        for id in ["done", "returned"] {
            server.done("Enqueue", enqueue(id, 1)).await;
        }
        assert_eq!(depth(server, "pending").await, "2", "StoreQueue");
        let taken = server.done("Dequeue", json!({"queue": "mail", "max_messages": 2})).await["leases"].clone();
        assert_eq!(
            (depth(server, "pending").await, depth(server, "running").await),
            (json!("0"), json!("2")),
            "PrepareQueue"
        );
        server.done("Complete", settle(&taken[0])).await;
        let mut failed = settle(&taken[1]);
        failed["delay"] = json!("0s");
        assert_eq!(server.done("Fail", failed).await["state"], "MESSAGE_STATE_PENDING");
        let again = lease(server).await;
        assert_eq!((&again["message"]["messageId"], &again["attemptNumber"]), (&json!("returned"), &json!(2)));
    })
    .await;
}

#[tokio::test]
async fn timeout_center_dead_letters_after_sixteen_tries_are_found_by_business_id() {
    let queue = json!({"name": "timed-task", "template_for": "timed/", "default_max_attempts": 16,
                       "filter_shapes": [{"keys": ["biz_id"]}]});
    on_every_store(queue, async |server| {
        for id in ["a", "b"] {
            let message = json!({"message_id": id, "metadata": {"biz_id": format!("order-{id}")}});
            server.done("Enqueue", json!({"queue": "timed/close", "message": message})).await;
        }
        let of = |biz_id: &str| json!({"queue": "timed/close", "filter": {"biz_id": biz_id}});
        for attempt in 1..=16 {
            let held = server.done("Dequeue", of("order-a")).await["leases"][0].clone();
            assert_eq!(held["attemptNumber"], attempt);
            let fail = json!({"queue": "timed/close", "lease_token": held["leaseToken"], "delay": "0s"});
            server.done("Fail", fail).await;
        }
        let sizes = server.done("GetDepth", of("order-a")).await;
        assert_eq!((&sizes["errored"], &sizes["pending"]), (&json!("1"), &json!("0")), "DeadQueue: {sizes}");
        assert_eq!(server.done("GetDepth", of("order-b")).await["pending"], "1");
        let mut redrive = of("order-a");
        redrive["dry_run"] = json!(true);
        assert_eq!(server.done("RedriveMessages", redrive).await["operation"]["done"], "1");
    })
    .await;
}
