//! What callers get wrong about queues: each with its reason, nothing applied.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::{Wire, at, enqueue, lease, settle, with_mail};

/// The mail queue with one message that is changed so.
fn message(change: impl FnOnce(&mut Value)) -> Value {
    let mut body = json!({"queue": "mail", "message": {"message_id": "a", "payload": "aGk="}});
    change(&mut body["message"]);
    body
}

#[tokio::test]
async fn every_bad_part_of_a_message_has_its_reason() {
    let server = with_mail().await;
    let pairs = |count: usize| -> Value { (0..count).map(|n| (format!("k{n}"), json!("v"))).collect() };
    let long = |bytes: usize| "x".repeat(bytes);
    let base64 = |bytes: usize| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(vec![7; bytes])
    };
    let century = "3155760000s";
    let cases: Vec<(Value, Reason)> = vec![
        (message(|m| m["payload"] = json!(base64(32_769))), Reason::InvalidMessage),
        (message(|m| m["metadata"] = pairs(5)), Reason::InvalidMessage),
        (message(|m| m["metadata"] = json!({"k": long(257)})), Reason::InvalidMessage),
        (message(|m| m["metadata"] = json!({long(65): "v"})), Reason::InvalidMessage),
        (message(|m| m["priority"] = json!("9007199254740993")), Reason::InvalidMessage),
        (message(|m| m["priority"] = json!("-9007199254740993")), Reason::InvalidMessage),
        (message(|m| m["priority"] = json!("9223372036854775808")), Reason::InvalidJson),
        (message(|m| m["invisibility"] = json!("-1s")), Reason::InvalidRange),
        (message(|m| m["invisibility"] = json!(century)), Reason::InvalidRange),
        (message(|m| m["ttl"] = json!("-0.5s")), Reason::InvalidRange),
        (message(|m| m["ttl"] = json!(century)), Reason::InvalidRange),
        (message(|m| m["lease_duration"] = json!("0.5s")), Reason::InvalidRange),
        (message(|m| m["lease_duration"] = json!("43201s")), Reason::InvalidRange),
        (message(|m| m["max_attempts"] = json!(0)), Reason::InvalidMessage),
        (message(|m| m["max_attempts"] = json!(-1)), Reason::InvalidMessage),
        (message(|m| m["max_attempts"] = json!(10_001)), Reason::InvalidMessage),
        (message(|m| m["message_id"] = json!(long(65))), Reason::InvalidMessageId),
        (message(|m| m["message_id"] = json!("m.1.1.1")), Reason::InvalidMessageId),
        (message(|m| m["shard_key"] = json!(long(257))), Reason::InvalidMessage),
        (message(|m| m["type"] = json!(long(257))), Reason::InvalidMessage),
        (message(|m| m["generation_time"] = json!(at(90.0).to_string())), Reason::InvalidFutureTime),
        (message(|m| m["generation_time"] = json!(at(-7_200.0).to_string())), Reason::TokenExpired),
        (
            message(|m| {
                m["priority"] = json!(7);
                m["priority_class"] = json!("urgent");
            }),
            Reason::InvalidArgument,
        ),
        (json!({"queue": "mail"}), Reason::InvalidMessage),
        (json!({"queue": "mail", "message": {"generation_time": at(0.0).to_string()}}), Reason::InvalidGenerationTime),
        (json!({"queue": "mail", "message": {"paylod": "aGk="}}), Reason::InvalidField),
        (json!({"queue": "absent", "message": {}}), Reason::QueueNotFound),
    ];
    for (body, reason) in cases {
        server.refused("Enqueue", body, reason).await;
    }
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "0", "nothing was taken in");
    for bytes in [0, 32_768] {
        let id = format!("of-{bytes}");
        let fits = json!({"queue": "mail", "message": {"message_id": id, "payload": base64(bytes)}});
        server.done("Enqueue", fits).await;
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": id})).await;
        assert_eq!(
            (&found["message"]["payload"], &found["message"]["payloadBytes"]),
            (&json!(base64(bytes)), &json!(bytes))
        );
    }
}

/// A release with a delay that was dropped had its message run again at once, until its attempts were used up.
#[tokio::test]
async fn a_settlement_with_a_field_that_its_verb_does_not_use_is_refused() {
    let server = with_mail().await;
    server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "a"}})).await;
    let leased = server.done("Dequeue", json!({"queue": "mail", "wait": "60s"})).await;
    let token = &leased["leases"][0]["leaseToken"];
    let fields = [
        ("delay", json!("60s"), "FAIL"),
        ("error", json!({"text": "x"}), "FAIL"),
        ("lease_duration", json!("5s"), "EXTEND"),
    ];
    for verb in ["COMPLETE", "CANCEL", "FAIL", "RELEASE", "EXTEND"] {
        for (field, value, of) in fields.iter().filter(|(_, _, of)| *of != verb) {
            let item = json!({"lease_token": token, "verb": verb, *field: value});
            let answer = server.done("SettleMessages", json!({"queue": "mail", "items": [item]})).await;
            let error = &answer["results"][0]["error"];
            assert_eq!(error["reason"], "INVALID_ARGUMENT", "{verb} {field}: {answer}");
            assert!(error["message"].as_str().is_some_and(|text| text.contains(of)), "{answer}");
        }
    }
    let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(found["message"]["state"], "MESSAGE_STATE_RUNNING", "nothing was settled");
    let later = json!({"lease_token": token, "verb": "FAIL", "delay": "60s", "error": {"text": "x"}});
    let answer = server.done("SettleMessages", json!({"queue": "mail", "items": [later]})).await;
    assert_eq!(answer["results"][0]["state"], "MESSAGE_STATE_INVISIBLE", "{answer}");
}

#[tokio::test]
async fn a_key_that_occurs_twice_in_a_map_is_refused() {
    let server = with_mail().await;
    for (method, body) in [
        ("Enqueue", r#"{"queue": "mail", "message": {"metadata": {"t": "0", "t": "1"}}}"#),
        ("Dequeue", r#"{"queue": "mail", "filter": {"t": "0", "t": "1"}}"#),
        ("DiscardMessages", r#"{"queue": "mail", "filter": {"t": "0", "t": "1"}, "dry_run": true}"#),
    ] {
        let path = format!("/tallystone.queue.v1.QueueService/{method}");
        let answer = server.http("POST", &path, &[("content-type", "application/json")], body).await;
        assert_eq!(answer.status, 400, "{method}: {}", answer.body);
        assert!(answer.body.contains("INVALID_JSON") && answer.body.contains("occurs twice"), "{}", answer.body);
    }
}

#[tokio::test]
async fn names_of_queues_are_checked_before_anything_else() {
    let server = with_mail().await;
    for name in ["", "a{b}", "a\u{0}", "a\r\nb", " mail", ".mail", &"q".repeat(129), &"q".repeat(1 << 20)] {
        for method in ["Enqueue", "Dequeue", "GetQueue", "GetDepth", "PurgeQueue", "DeleteQueue", "ExplainQueue"] {
            server.refused(method, json!({"queue": name}), Reason::InvalidQueueName).await;
        }
        server.refused("CreateQueue", json!({"queue": {"name": name}}), Reason::InvalidQueueName).await;
    }
}

#[tokio::test]
async fn settings_out_of_their_ranges_are_refused() {
    let server = Wire::start().await;
    for setting in [
        json!({"shards": 3}),
        json!({"shards": 512}),
        json!({"shards": -1}),
        json!({"shards": 4, "quota_messages": 3}),
        json!({"default_lease": "0.1s"}),
        json!({"default_max_attempts": 0}),
        json!({"dedupe_window": "86401s"}),
        json!({"retention": {"completed": "1s"}}),
        json!({"retry_policy": {"initial": "1s", "factor_percent": 50}}),
        json!({"retry_policy": {"initial": "1s", "jitter_percent": 101}}),
        json!({"default_ttl": "-1s"}),
        json!({"type": "QUEUE_TYPE_EXCLUSIVE"}),
        json!({"exclusivity_key": "title"}),
        json!({"enqueue_blocked_reason": "why"}),
        json!({"quota_messages": "-1"}),
        json!({"payload_max_bytes": 32_769}),
        json!({"payload_max_bytes": -1}),
        json!({"metadata_max_bytes": 1_281}),
    ] {
        let mut queue = setting;
        queue["name"] = json!("mail");
        server.refused("CreateQueue", json!({"queue": queue}), Reason::InvalidSettings).await;
    }
    server.refused("GetQueue", json!({"queue": "mail"}), Reason::QueueNotFound).await;
}

#[tokio::test]
async fn an_exclusive_queue_wants_its_value_and_no_shard_key() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "type": "EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": queue})).await;
    server.refused("Enqueue", message(|_| ()), Reason::InvalidMessage).await;
    let both = message(|m| {
        m["metadata"] = json!({"title": "x"});
        m["shard_key"] = json!("y");
    });
    server.refused("Enqueue", both, Reason::InvalidMessage).await;
}

#[tokio::test]
async fn stale_forged_and_foreign_lease_tokens_change_nothing() {
    let server = with_mail().await;
    server.done("CreateQueue", json!({"queue": {"name": "other"}})).await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let stale = lease(&server).await;
    server.done("Release", settle(&stale)).await;
    let held = lease(&server).await;
    let token = held["leaseToken"].as_str().expect("a token");
    for verb in ["Complete", "Cancel", "Fail", "ExtendLease"] {
        server.refused(verb, settle(&stale), Reason::LeaseLost).await;
        let unsealed: String = token.chars().take(60).collect();
        let other_seal = format!("{}{}", &token[..75], if token.ends_with('A') { 'B' } else { 'A' });
        for forged in ["", "forged", "{}", "m.0.1.1", &unsealed, &other_seal] {
            server.refused(verb, json!({"queue": "mail", "lease_token": forged}), Reason::InvalidLeaseToken).await;
        }
        let foreign = json!({"queue": "other", "lease_token": held["leaseToken"]});
        server.refused(verb, foreign, Reason::InvalidLeaseToken).await;
    }
    let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(found["message"]["state"], "MESSAGE_STATE_RUNNING");
    let mut century = settle(&held);
    century["lease_duration"] = json!("3155760000s");
    server.refused("ExtendLease", century, Reason::InvalidRange).await;
    let mut long = settle(&held);
    long["error"] = json!({"text": "x".repeat(1_025)});
    server.refused("Fail", long, Reason::InvalidMessage).await;
    assert_eq!(server.done("Complete", settle(&held)).await["state"], "MESSAGE_STATE_COMPLETED");
}

#[tokio::test]
async fn counts_batches_and_pages_have_their_bounds() {
    let server = with_mail().await;
    for count in [-1, 101] {
        server.refused("Dequeue", json!({"queue": "mail", "max_messages": count}), Reason::InvalidRange).await;
        server.refused("PeekMessages", json!({"queue": "mail", "max_messages": count}), Reason::InvalidRange).await;
    }
    server.refused("Dequeue", json!({"queue": "mail", "wait": "-1s"}), Reason::InvalidRange).await;
    server.refused("Dequeue", json!({"queue": "mail", "lease_duration": "0.5s"}), Reason::InvalidRange).await;
    let many: Vec<Value> = (0..101).map(|_| json!({})).collect();
    for messages in [json!([]), json!(many)] {
        server.refused("BatchEnqueue", json!({"queue": "mail", "messages": messages}), Reason::InvalidBatchSize).await;
        server.refused("SettleMessages", json!({"queue": "mail", "items": messages}), Reason::InvalidBatchSize).await;
    }
    server.refused("ListMessages", json!({"queue": "mail", "page_token": "x"}), Reason::InvalidPageToken).await;
    server.refused("ListMessages", json!({"queue": "mail", "page_size": -1}), Reason::InvalidPageSize).await;
    server.refused("RedriveMessages", json!({"queue": "mail", "rate": -1}), Reason::InvalidRange).await;
    for method in ["RedriveMessages", "DiscardMessages", "CancelMessages"] {
        let asked = server.ask(method, json!({"queue": "mail", "message_id": ""})).await;
        assert!(asked.0 >= 400, "{method}: an empty id is no wish for all messages: {}", asked.1);
    }
    for method in ["RedriveMessages", "Dequeue"] {
        server.refused(method, json!({"queue": "mail", "message_id": ""}), Reason::InvalidMessageId).await;
    }
    for (method, more) in [
        ("RedriveMessages", json!({"shard_key": "k"})),
        ("RedriveMessages", json!({"message_id": "m", "filter": {"a": "b"}})),
        ("RedriveMessages", json!({"message_id": "m", "rate": 1})),
        ("Dequeue", json!({"shard_key": "k"})),
    ] {
        let mut body = json!({"queue": "mail"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        server.refused(method, body, Reason::InvalidArgument).await;
    }
    server.refused("GetOperation", json!({"operation_id": "none"}), Reason::OperationNotFound).await;
    let token = "x".repeat(65);
    server.refused("PurgeQueue", json!({"queue": "mail", "request_token": token}), Reason::InvalidToken).await;
}

#[tokio::test]
async fn a_first_message_that_is_refused_leaves_no_queue_behind() {
    let server = Wire::start().await;
    let template = json!({"name": "by-user", "template_for": "user/", "type": "QUEUE_TYPE_EXCLUSIVE",
        "exclusivity_key": "user", "payload_max_bytes": 10});
    server.done("CreateQueue", json!({"queue": template})).await;
    let expired = "01900000-0000-7000-8000-000000000000"; // of 2024
    let of_user = |more: Value| {
        let mut message = json!({"message_id": "a", "metadata": {"user": "7"}});
        message.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        message
    };
    for (message, reason) in [
        (json!({"message_id": "a"}), Reason::InvalidMessage),
        (of_user(json!({"payload": "MDEyMzQ1Njc4OWE="})), Reason::InvalidMessage),
        (of_user(json!({"priority_class": "none"})), Reason::InvalidMessage),
        (of_user(json!({"message_id": expired})), Reason::TokenExpired),
    ] {
        server.refused("Enqueue", json!({"queue": "user/1", "message": message}), reason).await;
        let batch = server.done("BatchEnqueue", json!({"queue": "user/1", "messages": [message]})).await;
        assert_eq!(batch["results"][0]["error"]["reason"], reason.to_string(), "{batch}");
        server.refused("GetQueue", json!({"queue": "user/1"}), Reason::QueueNotFound).await;
    }
    let messages = json!([{"message_id": "a"}, of_user(json!({}))]);
    let batch = server.done("BatchEnqueue", json!({"queue": "user/1", "messages": messages})).await;
    assert_eq!(batch["results"][0]["error"]["reason"], Reason::InvalidMessage.to_string(), "{batch}");
    assert_eq!(server.done("GetDepth", json!({"queue": "user/1"})).await["pending"], "1", "the good one made it");
}

#[tokio::test]
async fn a_message_asked_for_by_its_id_has_to_meet_the_filter_too() {
    let server = with_mail().await;
    let message = json!({"message_id": "a", "metadata": {"team": "red"}});
    server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    let ask = |team: &str| json!({"queue": "mail", "message_id": "a", "filter": {"team": team}});
    assert_eq!(server.done("Dequeue", ask("blue")).await["leases"], json!([]));
    assert_eq!(server.done("Dequeue", ask("red")).await["leases"][0]["message"]["messageId"], "a");
}
