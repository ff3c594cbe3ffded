//! What a queue asks of its store, and what it lowers for its messages.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::on_stores::{Store, mail, on_each_store, on_every_store};
use super::{lease, settle};

#[tokio::test]
async fn a_queue_that_requires_more_than_its_store_offers_is_refused() {
    on_each_store(async |server, store| {
        for tier in ["FAST", "SAFE", "REPLICATED"] {
            let is_offered = store == Store::Embedded && tier != "REPLICATED";
            let plain = json!({"name": "orders", "required_durability": tier});
            let template = json!({"name": "orders", "required_durability": tier, "template_for": "orders/"});
            for queue in [plain, template] {
                if is_offered {
                    let made = server.done("CreateQueue", json!({"queue": queue})).await["queue"].clone();
                    assert_eq!(made["requiredDurability"], json!(format!("DURABILITY_{tier}")));
                    server.done("DeleteQueue", json!({"queue": "orders"})).await;
                } else {
                    let refused = server.refused("CreateQueue", json!({"queue": queue}), Reason::DurabilityNotOffered);
                    let text = refused.await["message"].as_str().expect("a text").to_owned();
                    assert!(text.contains(&format!("orders requires the durability {tier}; ")), "{text}");
                    server.refused("GetQueue", json!({"queue": "orders"}), Reason::QueueNotFound).await;
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_live_queue_requires_more_only_where_it_is_offered_and_nothing_again_after_a_reset() {
    on_each_store(async |server, store| {
        let require = |tier: &str| json!({"queue": {"name": "mail", "required_durability": tier}});
        server.refused("UpdateQueue", require("REPLICATED"), Reason::DurabilityNotOffered).await;
        if store == Store::Embedded {
            let changed = server.done("UpdateQueue", require("SAFE")).await["queue"].clone();
            assert_eq!(changed["requiredDurability"], "DURABILITY_SAFE");
            let reset = json!({"queue": {"name": "mail"}, "reset": ["required_durability"]});
            server.done("UpdateQueue", reset).await;
        } else {
            server.refused("UpdateQueue", require("FAST"), Reason::DurabilityNotOffered).await;
        }
        let now = server.done("GetQueue", json!({"queue": "mail"})).await["queue"].clone();
        assert_eq!(now["requiredDurability"], "DURABILITY_UNSPECIFIED", "{now}");
    })
    .await;
}

/// An enqueue of so many bytes `x`.
fn sent(id: &str, bytes: usize, metadata: Value) -> Value {
    use base64::Engine as _;
    let payload = base64::engine::general_purpose::STANDARD.encode("x".repeat(bytes));
    json!({"queue": "mail", "message": {"message_id": id, "payload": payload, "metadata": metadata}})
}

#[tokio::test]
async fn what_is_larger_than_the_queue_takes_is_refused_and_what_it_took_before_stays() {
    on_every_store(mail(), async |server| {
        server.done("Enqueue", sent("before", 11, json!({"team": "blue"}))).await;
        let lower = json!({"queue": {"name": "mail", "payload_max_bytes": 10, "metadata_max_bytes": 7}});
        let changed = server.done("UpdateQueue", lower).await["queue"].clone();
        assert_eq!((&changed["payloadMaxBytes"], &changed["metadataMaxBytes"]), (&json!(10), &json!(7)));
        let repeat = server.done("Enqueue", sent("before", 11, json!({"team": "blue"}))).await;
        assert_eq!(repeat["alreadyEnqueued"], json!(true), "a repeat answers as the first");
        server.done("Enqueue", sent("fits", 10, json!({"team": "red"}))).await;
        let cases = [
            (sent("large", 11, json!({})), "larger than 10 bytes, the payload_max_bytes", "message.payload"),
            (sent("wide", 1, json!({"team": "blue"})), "larger than 7 bytes together", "message.metadata"),
            (sent("huge", 32_769, json!({})), "larger than 32,768 bytes", "message.payload"),
        ];
        for (body, words, field) in cases {
            let refused = server.refused("Enqueue", body, Reason::InvalidMessage).await;
            assert!(refused["message"].as_str().expect("a text").contains(words), "{refused}");
            assert_eq!(refused["details"][1]["fieldViolations"][0]["field"], field, "{refused}");
        }
        for _ in 0..2 {
            server.done("Complete", settle(&lease(server).await)).await;
        }
        let reset = json!({"queue": {"name": "mail"}, "reset": ["payload_max_bytes", "metadata_max_bytes"]});
        server.done("UpdateQueue", reset).await;
        server.done("Enqueue", sent("large", 32_768, json!({"team": "blue"}))).await;
    })
    .await;
}

#[tokio::test]
async fn settings_that_no_message_or_queue_can_meet_are_refused_with_their_field() {
    on_every_store(mail(), async |server| {
        let class = |name: &str| json!({"name": name, "offset_ms": "5"});
        let cases = [
            (
                json!({"type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "title", "metadata_max_bytes": 5}),
                "queue.metadata_max_bytes",
                "metadata_max_bytes is 5, allowed is up to 1,280 bytes; on an exclusive queue, more than the length of its exclusivity_key",
            ),
            (
                json!({"priority_classes": [class("fast"), class("fast")]}),
                "queue.priority_classes",
                "allowed is at most 32, with distinct names",
            ),
            (
                json!({"priority_classes": [{"name": "far", "offset_ms": "99999999999999999"}]}),
                "queue.priority_classes",
                "offset_ms -4,503,599,627,370,496 to 4,503,599,627,370,496",
            ),
            (
                json!({"priority_classes": [{"name": "a", "tag_value": "k"}]}),
                "queue.priority_classes",
                "has a tag_value without a tag_key",
            ),
            (
                json!({"retry_policy": {"initial": "10s", "max": "5s"}}),
                "queue.retry_policy.max",
                "allowed is retry_policy.initial to 10 years",
            ),
            (json!({"template_for": "/jobs"}), "queue.template_for", "a valid beginning of a queue name"),
        ];
        for (mut queue, field, words) in cases {
            queue["name"] = json!("orders");
            let refused = server.refused("CreateQueue", json!({"queue": queue}), Reason::InvalidSettings).await;
            let violation = &refused["details"][1]["fieldViolations"][0];
            assert_eq!(violation["field"], field, "{refused}");
            assert!(violation["description"].as_str().expect("a text").contains(words), "{violation}");
        }
        server.refused("GetQueue", json!({"queue": "orders"}), Reason::QueueNotFound).await;
    })
    .await;
}

#[tokio::test]
async fn two_templates_with_one_prefix_are_refused() {
    on_every_store(json!({"name": "jobs", "template_for": "jobs/"}), async |server| {
        let template = |name: &str, prefix: &str| json!({"queue": {"name": name, "template_for": prefix}});
        let refused = server.refused("CreateQueue", template("other", "jobs/"), Reason::QueueExists).await;
        assert_eq!(refused["details"][1]["fieldViolations"][0]["field"], "queue.template_for", "{refused}");
        assert!(
            refused["message"].as_str().expect("a text").contains("template jobs already has the prefix"),
            "{refused}"
        );
        server.done("CreateQueue", template("jobs", "jobs/")).await;
        server.done("CreateQueue", template("other", "jobs/night/")).await;
        server.done("DeleteQueue", json!({"queue": "jobs"})).await;
        server.done("CreateQueue", template("third", "jobs/")).await;
    })
    .await;
}

#[tokio::test]
async fn an_update_of_a_message_that_changes_nothing_is_refused() {
    on_every_store(mail(), async |server| {
        server.done("Enqueue", sent("a", 1, json!({}))).await;
        for body in [json!({"only_if_sooner": true}), json!({"expected_version": "1"}), json!({})] {
            let mut body = body;
            (body["queue"], body["message_id"]) = (json!("mail"), json!("a"));
            let refused = server.refused("UpdateMessage", body, Reason::InvalidArgument).await;
            let text = refused["message"].as_str().expect("a text");
            assert!(
                text.contains("send priority, visible_time, invisibility, payload, metadata or clear_metadata"),
                "{text}"
            );
        }
        let without_time = json!({"queue": "mail", "message_id": "a", "priority": "5", "only_if_sooner": true});
        let refused = server.refused("UpdateMessage", without_time, Reason::InvalidArgument).await;
        assert!(refused["message"].as_str().expect("a text").contains("visible_time or invisibility"), "{refused}");
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
        assert_eq!(found["message"]["version"], "1", "{found}");
    })
    .await;
}
