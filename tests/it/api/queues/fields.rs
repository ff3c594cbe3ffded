//! A refusal names the argument at fault as the call has it, so that a program can show it beside what was typed.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::refusals::violations;
use super::{at, with_mail};

#[tokio::test]
async fn a_refusal_names_an_argument_that_the_call_has() {
    let server = with_mail().await;
    let sent = |message: Value| json!({"queue": "mail", "message": message});
    let queue = |setting: Value| {
        let mut queue = setting;
        queue["name"] = json!("other");
        json!({"queue": queue})
    };
    let (range, id, settings) = (Reason::InvalidRange, Reason::InvalidMessageId, Reason::InvalidSettings);
    let (time, token) = (Reason::InvalidGenerationTime, Reason::InvalidToken);
    let long = "x".repeat(257);
    let at_now = at(0.0).to_string();
    let of_2023 = "01890a5d-ac96-774b-bcce-b302099a8057";
    let cases = [
        ("Enqueue", sent(json!({"generation_time": at_now})), time, "message.generation_time"),
        ("Enqueue", sent(json!({"message_id": of_2023, "generation_time": at_now})), time, "message.generation_time"),
        ("Enqueue", sent(json!({"message_id": "m.1"})), id, "message.message_id"),
        ("Enqueue", sent(json!({"invisibility": "-1s"})), range, "message.invisibility"),
        ("Enqueue", sent(json!({"type": long})), Reason::InvalidMessage, "message.type"),
        ("BatchEnqueue", json!({"queue": "mail", "messages": []}), Reason::InvalidBatchSize, "messages"),
        ("SettleMessages", json!({"queue": "mail", "items": []}), Reason::InvalidBatchSize, "items"),
        ("PurgeQueue", json!({"queue": "mail", "request_token": long}), token, "request_token"),
        ("DeleteQueue", json!({"queue": "mail", "request_token": long}), token, "request_token"),
        ("RedriveMessages", json!({"queue": "mail", "request_token": long}), token, "request_token"),
        ("Dequeue", json!({"queue": "mail", "min_messages": -1}), range, "min_messages"),
        ("Dequeue", json!({"queue": "mail", "max_messages": 101}), range, "max_messages"),
        ("Dequeue", json!({"queue": "mail", "wait": "-1s"}), range, "wait"),
        ("GetMessage", json!({"queue": "mail"}), id, "message_id"),
        ("GetMessage", json!({"queue": "mail", "message_id": "m.1"}), id, "message_id"),
        (
            "GetMessage",
            json!({"queue": "mail", "message_id": "a", "shard_key": long}),
            Reason::InvalidMessage,
            "shard_key",
        ),
        ("SetValueLimit", json!({"queue": "mail", "value": ""}), Reason::InvalidArgument, "value"),
        ("ListMessages", json!({"queue": "mail", "state": 99}), Reason::InvalidArgument, "state"),
        ("CreateQueue", queue(json!({"max_in_flight_per_value": 2})), settings, "queue.max_in_flight_per_value"),
        ("CreateQueue", queue(json!({"strict_order_per_value": true})), settings, "queue.strict_order_per_value"),
        ("CreateQueue", queue(json!({"type": "EXCLUSIVE"})), settings, "queue.exclusivity_key"),
    ];
    for (method, body, reason, field) in cases {
        let shown: String = body.to_string().chars().take(200).collect();
        let refused = server.refused(method, body, reason).await;
        assert_eq!(violations(&refused), [field], "{method} {shown}: {refused}");
    }
}

#[tokio::test]
async fn an_empty_id_of_a_message_is_told_what_to_send() {
    let server = with_mail().await;
    let refused = server.refused("GetMessage", json!({"queue": "mail"}), Reason::InvalidMessageId).await;
    let text = refused["message"].as_str().expect("a text");
    assert!(text.contains("a message_key"), "{text}: a key, which begins with m., is a name too");
    assert!(!text.contains("not begin"), "{text}");
}
