//! Refusals and explanations say what to do next, as a call and as a command.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::{Wire, enqueue, lease, settle, with_mail};

fn text(refused: &Value) -> String {
    refused["message"].as_str().expect("a text").to_owned()
}

async fn check(server: &Wire, method: &str, body: Value, reason: Reason, words: &str) {
    let refused = text(&server.refused(method, body, reason).await);
    assert!(refused.contains(words), "{method}: {refused:?} lacks {words:?}");
}

fn named(id: &str) -> Value {
    json!({"queue": "mail", "message_id": id})
}

#[tokio::test]
async fn a_message_in_the_wrong_state_is_told_what_may_be_done() {
    let server = with_mail().await;
    let state = Reason::WrongMessageState;
    let mut update = named("a");
    update["priority"] = json!("1");
    server.done("Enqueue", enqueue("a", 1)).await;
    check(&server, "RedriveMessages", named("a"), state, "only errored messages can be redriven").await;
    let held = lease(&server).await;
    check(
        &server,
        "UpdateMessage",
        update.clone(),
        state,
        "CancelMessage (tallystone msg cancel -q QUEUE --id MESSAGE)",
    )
    .await;
    server.done("Complete", settle(&held)).await;
    check(&server, "CancelMessage", named("a"), state, "enqueue it with another id").await;
    let mut last = enqueue("b", 1);
    last["message"]["max_attempts"] = json!(1);
    server.done("Enqueue", last).await;
    server.done("Fail", settle(&lease(&server).await)).await;
    check(&server, "CancelMessage", named("b"), state, "RedriveMessages (tallystone dlq redrive -q QUEUE MESSAGE)")
        .await;
}

#[tokio::test]
async fn what_holds_a_message_back_and_what_blocks_a_queue_says_what_to_do() {
    let server = with_mail().await;
    let titles = json!({"name": "titles", "type": "EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": titles})).await;
    for id in ["a", "b"] {
        let message = json!({"message_id": id, "metadata": {"title": "x"}});
        server.done("Enqueue", json!({"queue": "titles", "message": message})).await;
    }
    server.done("Dequeue", json!({"queue": "titles"})).await;
    let second = json!({"queue": "titles", "message_id": "b"});
    check(&server, "Dequeue", second, Reason::ValueHeld, "SetValueLimit (tallystone queue limit QUEUE VALUE N)").await;
    let both = json!({"name": "mail", "enqueue_blocked": true, "enqueue_blocked_reason": "night",
                      "dequeue_blocked": true, "dequeue_blocked_reason": "night"});
    server.done("UpdateQueue", json!({"queue": both})).await;
    check(&server, "Enqueue", enqueue("a", 1), Reason::EnqueueBlocked, "retry with the same id").await;
    check(&server, "Dequeue", json!({"queue": "mail"}), Reason::DequeueBlocked, "existing leases can be settled").await;
    let other = json!({"queue": "mail", "queue_id": "0".repeat(32)});
    check(&server, "PurgeQueue", other, Reason::QueueNotFound, "GetQueue (tallystone queue describe mail)").await;
}

#[tokio::test]
async fn a_message_has_a_version_and_no_etag() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let mut update = named("a");
    update["priority"] = json!("2");
    update["expected_version"] = json!("9");
    let refused = text(&server.refused("UpdateMessage", update, Reason::EtagMismatch).await);
    assert!(refused.contains("not the expected_version") && !refused.contains("etag"), "{refused}");
}

#[tokio::test]
async fn the_nearest_shape_is_there_for_programs_where_there_is_one() {
    let server = with_mail().await;
    let by = |queue: &str, filter: Value| json!({"queue": queue, "filter": filter});
    let none = server.refused("GetDepth", by("mail", json!({"a": "x"})), Reason::FilterNotDeclared).await;
    assert_eq!(none["details"][0]["metadata"].get("nearest"), None, "{none}");
    assert!(text(&none).contains("queue update QUEUE --filter-shape"), "{none}");
    let shapes = json!([{"keys": ["size", "colour"]}, {"keys": ["team"]}]);
    server.done("CreateQueue", json!({"queue": {"name": "shop", "filter_shapes": shapes}})).await;
    let colour = server.refused("GetDepth", by("shop", json!({"colour": "x"})), Reason::FilterNotDeclared).await;
    assert_eq!(colour["details"][0]["metadata"]["nearest"], "colour,size", "{colour}");
    assert!(text(&colour).contains("the nearest is colour, size: use that shape"), "{colour}");
}

#[tokio::test]
async fn settings_are_shown_as_people_write_them_and_lists_by_their_length() {
    let server = Wire::start().await;
    let classes = json!([{"name": "urgent", "offset_ms": "-1000"},
                         {"name": "gold", "offset_ms": "0", "tag_key": "tier", "tag_value": "gold"}]);
    server.done("CreateQueue", json!({"queue": {"name": "mail", "priority_classes": classes}})).await;
    let plain = json!({"queue": {"name": "mail"}});
    let shown = "priority_classes: urgent=-1000ms, gold=0ms for tier=gold -> none";
    check(&server, "CreateQueue", plain, Reason::QueueExists, shown).await;
    let shapes: Value = (0..16).map(|number| json!({"keys": [format!("key-{number}")]})).collect();
    let many = json!({"queue": {"name": "other", "filter_shapes": shapes}});
    check(&server, "CreateQueue", many, Reason::InvalidSettings, "filter_shapes has 16, allowed is at most 15").await;
}

#[tokio::test]
async fn the_lease_of_a_queue_that_was_deleted_is_told_so() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let held = lease(&server).await;
    server.done("DeleteQueue", json!({"queue": "mail"})).await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    check(&server, "Complete", settle(&held), Reason::InvalidLeaseToken, "a deleted queue of this name").await;
}

#[tokio::test]
async fn an_explanation_tells_the_beginning_of_a_long_error_and_names_call_and_command() {
    let server = with_mail().await;
    let mut message = enqueue("a", 1);
    message["message"]["max_attempts"] = json!(1);
    server.done("Enqueue", message).await;
    let held = lease(&server).await;
    let running = server.done("ExplainMessage", named("a")).await;
    let told = running["explanations"][0]["text"].as_str().expect("a text").to_owned();
    assert!(told.contains("CancelMessage (tallystone msg cancel -q mail --id a)"), "{told}");
    let mut fail = settle(&held);
    fail["error"] = json!({"signature": "io", "text": format!("line one\n{}", "x".repeat(1_000))});
    server.done("Fail", fail).await;
    let errored = server.done("ExplainMessage", named("a")).await;
    let told = errored["explanations"][0]["text"].as_str().expect("a text");
    assert!(told.contains(": io line one xxx") && told.contains("…; fix the cause"), "{told}");
    assert!(told.len() < 250 && told.contains("RedriveMessages (tallystone dlq redrive -q mail a)"), "{told}");
    assert_eq!(errored["message"]["error"]["text"].as_str().map(str::len), Some(1_009), "the message has all of it");
}
