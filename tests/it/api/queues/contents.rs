//! What is in a message that waits may be replaced: its payload and its metadata.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::super::Wire;
use super::on_stores::{mail, on_every_store};
use super::{lease, settle};

async fn put(server: &Wire, message: Value) {
    server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
}

fn change(id: &str, mut parts: Value) -> Value {
    (parts["queue"], parts["message_id"]) = (json!("mail"), json!(id));
    parts
}

async fn message(server: &Wire, id: &str) -> Value {
    server.done("GetMessage", json!({"queue": "mail", "message_id": id})).await["message"].clone()
}

async fn leased_by(server: &Wire, filter: Value) -> Vec<Value> {
    let asked = json!({"queue": "mail", "max_messages": 10, "filter": filter});
    let got = server.done("Dequeue", asked).await;
    let leases = got["leases"].as_array().cloned().unwrap_or_default();
    leases.iter().map(|lease| lease["message"]["messageId"].clone()).collect()
}

fn base64(bytes: usize) -> Value {
    use base64::Engine as _;
    json!(base64::engine::general_purpose::STANDARD.encode(vec![7; bytes]))
}

#[tokio::test]
async fn a_waiting_message_gets_another_payload_and_keeps_all_else() {
    on_every_store(mail(), async |server| {
        put(
            server,
            json!({"message_id": "a", "payload": "b2xk", "metadata": {"tenant": "acme"}, "type": "mail", "priority": "5",
                "trace_context": "00-ab-cd-01"}),
        )
        .await;
        let updated = server.done("UpdateMessage", change("a", json!({"payload": "bmV3ZXI="}))).await;
        assert_eq!(updated, json!({"state": "MESSAGE_STATE_PENDING", "version": "2"}));
        let held = lease(server).await["message"].clone();
        assert_eq!((&held["payload"], &held["payloadBytes"]), (&json!("bmV3ZXI="), &json!(5)), "{held}");
        let kept = [&held["metadata"], &held["type"], &held["priority"], &held["traceContext"]];
        assert_eq!(kept, [&json!({"tenant": "acme"}), &json!("mail"), &json!("5"), &json!("00-ab-cd-01")]);
        let again = json!({"message_id": "a", "payload": "b2xk", "metadata": {"tenant": "acme"}, "type": "mail",
            "priority": "5"});
        let again = server.done("Enqueue", json!({"queue": "mail", "message": again})).await;
        assert_eq!(again["alreadyEnqueued"], true, "the enqueue is known by what it sent: {again}");
    })
    .await;
}

#[tokio::test]
async fn an_empty_payload_is_a_payload_and_an_absent_one_changes_nothing() {
    on_every_store(mail(), async |server| {
        put(server, json!({"message_id": "a", "payload": "b2xk", "invisibility": "3600s"})).await;
        server.done("UpdateMessage", change("a", json!({"priority": "1"}))).await;
        assert_eq!(message(server, "a").await["payload"], "b2xk");
        let updated = server.done("UpdateMessage", change("a", json!({"payload": ""}))).await;
        assert_eq!(updated["state"], "MESSAGE_STATE_INVISIBLE", "it goes on waiting");
        let emptied = message(server, "a").await;
        assert_eq!((&emptied["payload"], &emptied["payloadBytes"]), (&json!(""), &json!(0)), "{emptied}");
    })
    .await;
}

#[tokio::test]
async fn filters_find_a_message_by_its_new_metadata_at_once_and_not_by_the_old() {
    for shapes in [json!([]), json!([{"keys": ["tenant"]}])] {
        let queue = json!({"name": "mail", "filter_shapes": shapes});
        on_every_store(queue, async |server| {
            for id in ["a", "b"] {
                put(server, json!({"message_id": id, "metadata": {"tenant": "acme"}})).await;
            }
            server.done("UpdateMessage", change("a", json!({"metadata": {"tenant": "brick", "zone": "1"}}))).await;
            assert_eq!(message(server, "a").await["metadata"], json!({"tenant": "brick", "zone": "1"}));
            let acme = json!({"tenant": "acme"});
            if shapes != json!([]) {
                let depth = async |tenant: &str| {
                    server.done("GetDepth", json!({"queue": "mail", "filter": {"tenant": tenant}})).await["pending"]
                        .clone()
                };
                assert_eq!((depth("acme").await, depth("brick").await), (json!("1"), json!("1")));
            }
            assert_eq!(leased_by(server, acme).await, [json!("b")]);
            server.done("UpdateMessage", change("a", json!({"clear_metadata": true}))).await;
            assert_eq!(message(server, "a").await["metadata"], json!({}));
            assert_eq!(leased_by(server, json!({"tenant": "brick"})).await, [] as [Value; 0]);
            assert_eq!(leased_by(server, json!({})).await, [json!("a")]);
        })
        .await;
    }
}

#[tokio::test]
async fn a_waiting_dequeue_gets_what_an_update_makes_of_a_message() {
    on_every_store(mail(), async |server| {
        put(server, json!({"message_id": "a", "metadata": {"tenant": "acme"}})).await;
        let asked = json!({"queue": "mail", "max_messages": 1, "filter": {"tenant": "brick"}, "wait": "20s"});
        let changed = async {
            // In either order the dequeue finds it: it waits, or comes later.
            server.done("UpdateMessage", change("a", json!({"metadata": {"tenant": "brick"}}))).await;
        };
        let (got, ()) = tokio::join!(server.done("Dequeue", asked), changed);
        assert_eq!(got["leases"][0]["message"]["messageId"], "a", "{got}");
    })
    .await;
}

#[tokio::test]
async fn what_an_update_may_not_bring_is_refused_and_changes_nothing() {
    let queue = json!({"name": "mail", "quota_bytes": "100", "payload_max_bytes": 80, "metadata_max_bytes": 20});
    on_every_store(queue, async |server| {
        put(server, json!({"message_id": "a", "payload": base64(40), "metadata": {"k": "v"}})).await;
        put(server, json!({"message_id": "b", "payload": base64(40)})).await;
        let before = message(server, "a").await;
        let pairs: Value = (0..5).map(|number| (format!("k{number}"), json!("v"))).collect();
        let bad = Reason::InvalidMessage;
        let cases = [
            (json!({"payload": base64(81)}), bad, "larger than 80 bytes"),
            (json!({"payload": base64(32_769)}), bad, "larger than 32,768 bytes"),
            (json!({"payload": base64(61)}), Reason::QueueFull, "quota_bytes"),
            (json!({"metadata": {"k": "v".repeat(20)}}), bad, "larger than 20 bytes together"),
            (json!({"metadata": pairs}), bad, "at most 4 pairs"),
            (json!({"metadata": {"k": "w"}, "clear_metadata": true}), Reason::InvalidArgument, "send only one of them"),
            (json!({"payload": "eA==", "expected_version": "7"}), Reason::EtagMismatch, "version of the message is 1"),
        ];
        for (parts, reason, words) in cases {
            let refused = server.refused("UpdateMessage", change("a", parts.clone()), reason).await;
            let text = refused["message"].as_str().expect("a text");
            assert!(text.contains(words), "{text:?} lacks {words:?}");
        }
        assert_eq!(message(server, "a").await, before);
        server.done("UpdateMessage", change("a", json!({"payload": base64(60)}))).await;
        server.done("UpdateMessage", change("b", json!({"payload": base64(10)}))).await;
        server.done("UpdateMessage", change("a", json!({"payload": base64(80)}))).await;
        let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
        assert_eq!(depth["payloadBytes"], "90", "what a smaller payload leaves is free at once");
    })
    .await;
}

#[tokio::test]
async fn a_message_that_runs_or_is_over_keeps_its_content() {
    on_every_store(json!({"name": "mail", "default_max_attempts": 1}), async |server| {
        put(server, json!({"message_id": "a", "payload": "b2xk"})).await;
        let held = lease(server).await;
        let new = || change("a", json!({"payload": "bmV3", "metadata": {"k": "v"}}));
        let refused = server.refused("UpdateMessage", new(), Reason::WrongMessageState).await;
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("is running")), "{refused}");
        server.done("Fail", settle(&held)).await;
        server.refused("UpdateMessage", new(), Reason::WrongMessageState).await;
        assert_eq!(message(server, "a").await["payload"], "b2xk");
    })
    .await;
}

#[tokio::test]
async fn a_repeated_update_of_the_content_answers_as_the_first_and_another_is_told_apart() {
    on_every_store(mail(), async |server| {
        put(server, json!({"message_id": "a", "payload": "b2xk"})).await;
        let first = || change("a", json!({"payload": "b25l", "metadata": {"k": "1"}, "request_token": "t"}));
        let answer = server.done("UpdateMessage", first()).await;
        server.done("UpdateMessage", change("a", json!({"payload": "dHdv"}))).await;
        assert_eq!(server.done("UpdateMessage", first()).await, answer);
        assert_eq!(message(server, "a").await["payload"], "dHdv", "a repeat changes nothing");
        for other in [
            json!({"payload": "dHdv", "metadata": {"k": "1"}, "request_token": "t"}),
            json!({"payload": "b25l", "metadata": {"k": "2"}, "request_token": "t"}),
            json!({"payload": "b25l", "request_token": "t"}),
            json!({"payload": "b25l", "clear_metadata": true, "request_token": "t"}),
        ] {
            server.refused("UpdateMessage", change("a", other), Reason::TokenReused).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_of_an_exclusive_queue_keeps_its_exclusivity_value() {
    let queue = json!({"name": "mail", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "team",
        "max_in_flight_per_value": 2, "filter_shapes": [{"keys": ["zone"]}]});
    on_every_store(queue, async |server| {
        for id in ["a", "b"] {
            put(server, json!({"message_id": id, "metadata": {"team": "red", "zone": "1"}})).await;
        }
        for parts in [json!({"metadata": {"team": "blue", "zone": "2"}}), json!({"clear_metadata": true})] {
            let refused = server.refused("UpdateMessage", change("a", parts), Reason::InvalidMessage).await;
            assert!(refused["message"].as_str().is_some_and(|text| text.contains("keeps its exclusivity value")));
        }
        server.done("UpdateMessage", change("a", json!({"metadata": {"team": "red", "zone": "2"}}))).await;
        assert_eq!(leased_by(server, json!({"zone": "1"})).await, [json!("b")], "it was behind the one that left");
        assert_eq!(leased_by(server, json!({"zone": "2"})).await, [json!("a")]);
    })
    .await;
}
