//! What a queue asks of its store, and what it lowers for its messages.

use serde_json::json;
use tallystone::domain::Reason;

use super::on_stores::{Store, on_each_store};

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
