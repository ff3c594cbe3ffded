//! What is refused, and in which words: every bad input has its reason, its field where one is at fault, and a
//! text that says what is wrong and whether anything happened.

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::{Wire, at, enqueue, lease, settle, with_mail};

/// A call that is refused: the method, its body, the reason and words of the text.
type Refused = (&'static str, Value, Reason, &'static str);

async fn check(server: &Wire, cases: Vec<Refused>) {
    for (method, body, reason, words) in cases {
        let shown: String = body.to_string().chars().take(200).collect();
        let refused = server.refused(method, body, reason).await;
        let text = refused["message"].as_str().expect("a text");
        assert!(text.contains(words), "{method} {shown}: {text:?} lacks {words:?}");
        assert!(!reason.info().help.is_empty(), "{reason:?} says what to do");
    }
}

/// An enqueue into `mail` of a message that has one field so.
fn with(field: &str, value: Value) -> Value {
    let mut message = json!({"message_id": "a", "payload": "aGk="});
    message[field] = value;
    json!({"queue": "mail", "message": message})
}

fn base64(bytes: usize) -> Value {
    use base64::Engine as _;
    json!(base64::engine::general_purpose::STANDARD.encode(vec![7; bytes]))
}

async fn messages(server: &Wire) -> Value {
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    json!([depth["pending"], depth["invisible"], depth["running"], depth["completed"], depth["canceled"]])
}

#[tokio::test]
async fn every_part_of_a_message_that_leaves_its_range_is_named() {
    let server = with_mail().await;
    let pairs: Value = (0..5).map(|number| (format!("k{number}"), json!("v"))).collect();
    let long = |bytes: usize| json!("x".repeat(bytes));
    let bad = Reason::InvalidMessage;
    let range = Reason::InvalidRange;
    let cases = vec![
        ("Enqueue", with("payload", base64(32_769)), bad, "larger than 32,768 bytes; store the data elsewhere"),
        ("Enqueue", with("metadata", pairs), bad, "metadata has at most 4 pairs"),
        ("Enqueue", with("metadata", json!({"k": "x".repeat(257)})), bad, "a value at most 256"),
        ("Enqueue", with("priority", json!("9007199254740993")), bad, "must be -2^53 to 2^53"),
        ("Enqueue", with("priority", json!("-9007199254740993")), bad, "must be -2^53 to 2^53"),
        ("Enqueue", with("max_attempts", json!(0)), bad, "1 to 10,000"),
        ("Enqueue", with("invisibility", json!("-1s")), range, "invisibility"),
        ("Enqueue", with("invisibility", json!("3155760000s")), range, "at most 10 years"),
        ("Enqueue", with("ttl", json!("3155760000s")), range, "a TTL is at most 10 years"),
        ("Enqueue", with("lease_duration", json!("0.9s")), range, "1 s to 12 h"),
        ("Enqueue", with("message_id", long(65)), Reason::InvalidMessageId, "1 to 64 bytes"),
        ("Enqueue", with("message_id", long(1 << 20)), Reason::InvalidMessageId, "1 to 64 bytes"),
        ("Enqueue", with("shard_key", long(1 << 20)), bad, "1 to 256 bytes"),
        ("Enqueue", with("priority_class", json!("nobody")), bad, "has no priority classes"),
        ("Enqueue", with("generation_time", json!(at(90.0).to_string())), Reason::InvalidFutureTime, "60 s ahead"),
    ];
    check(&server, cases).await;
    assert_eq!(messages(&server).await, json!(["0", "0", "0", "0", "0"]), "nothing was taken in");
}

#[tokio::test]
async fn the_last_legal_value_of_each_range_is_taken_as_it_is() {
    let server = with_mail().await;
    for (number, (field, value)) in [
        ("payload", base64(0)),
        ("payload", base64(32_768)),
        ("metadata", json!({"a": "", "b": "x".repeat(256), "c": "ö", "d": "\u{0}\r\n{}"})),
        ("priority", json!("9007199254740992")),
        ("priority", json!("-9007199254740992")),
        ("maxAttempts", json!(10_000)),
        ("leaseDuration", json!("1s")),
        ("leaseDuration", json!("43200s")),
        ("shardKey", json!("x".repeat(256))),
        ("type", json!("{}\u{0}\r\n")),
    ]
    .into_iter()
    .enumerate()
    {
        let mut body = with(field, value.clone());
        body["message"]["message_id"] = json!(format!("of-{number}"));
        let key = server.done("Enqueue", body).await["messageKey"].clone();
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": key})).await;
        assert_eq!(found["message"][field], value, "{field}");
    }
}

#[tokio::test]
async fn names_of_messages_are_any_text_and_come_back_as_they_were() {
    let server = with_mail().await;
    for name in ["{braces}", "nul\u{0}", "line\r\nend", " ", "M.1", "ünï", &"x".repeat(64)] {
        server.done("Enqueue", with("message_id", json!(name))).await;
        let held = lease(&server).await;
        assert_eq!(held["message"]["messageId"], name);
        assert_eq!(server.done("Complete", settle(&held)).await["state"], "MESSAGE_STATE_COMPLETED");
        let found = server.done("GetMessage", json!({"queue": "mail", "message_id": name})).await;
        assert_eq!(found["message"]["messageId"], name);
    }
}

#[tokio::test]
async fn an_exclusive_queue_says_what_it_misses() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": queue})).await;
    let mut both = with("metadata", json!({"title": "x"}));
    both["message"]["shard_key"] = json!("eu");
    let bad = Reason::InvalidMessage;
    let cases = vec![
        ("Enqueue", with("metadata", json!({"other": "x"})), bad, "its exclusivity key \"title\" with"),
        ("Enqueue", with("metadata", json!({"title": ""})), bad, "a value of 1 to 256 bytes"),
        ("Enqueue", both, bad, "does not accept a shard key"),
    ];
    check(&server, cases).await;
    assert_eq!(messages(&server).await, json!(["0", "0", "0", "0", "0"]), "nothing was taken in");
}

#[tokio::test]
async fn leases_that_are_not_ours_are_told_apart_and_change_nothing() {
    let server = with_mail().await;
    server.done("CreateQueue", json!({"queue": {"name": "other"}})).await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let stale = lease(&server).await;
    server.done("Release", settle(&stale)).await;
    let held = lease(&server).await;
    let foreign = json!({"queue": "other", "lease_token": held["leaseToken"]});
    let forged = json!({"queue": "mail", "lease_token": "forged"});
    let mut century = settle(&held);
    century["lease_duration"] = json!("3155760000s");
    let mut negative = settle(&held);
    negative["delay"] = json!("-1s");
    let (lost, invalid) = (Reason::LeaseLost, Reason::InvalidLeaseToken);
    let cases = vec![
        ("Complete", settle(&stale), lost, "nothing was changed"),
        ("Fail", settle(&stale), lost, "nothing was changed"),
        ("ExtendLease", settle(&stale), lost, "nothing was changed"),
        ("Complete", foreign, invalid, "queue"),
        ("Complete", forged, invalid, "lease"),
        ("ExtendLease", century, Reason::InvalidRange, "12 h"),
        ("Fail", negative, Reason::InvalidRange, "delay"),
    ];
    check(&server, cases).await;
    assert_eq!(server.done("Complete", settle(&held)).await["state"], "MESSAGE_STATE_COMPLETED");
    let again = server.done("Complete", settle(&held)).await;
    assert_eq!(again["state"], "MESSAGE_STATE_COMPLETED", "settled twice alike answers as the first");
    check(&server, vec![("Fail", settle(&held), lost, "nothing was changed")]).await;
}

#[tokio::test]
async fn a_settlement_that_comes_late_counts_if_it_completes_and_nobody_else_has_had_the_message() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let late = lease(&server).await;
    let mut over = settle(&late);
    over["lease_duration"] = json!("0s");
    server.done("ExtendLease", over).await;
    let lost = Reason::LeaseLost;
    check(&server, vec![("Fail", settle(&late), lost, "has ended"), ("Release", settle(&late), lost, "has ended")])
        .await;
    let other = lease(&server).await;
    check(&server, vec![("Complete", settle(&late), lost, "has ended")]).await;
    server.done("Release", settle(&other)).await;
    check(&server, vec![("Complete", settle(&late), lost, "has ended")]).await;
}

#[tokio::test]
async fn tokens_that_cannot_be_taken_say_that_nothing_was_enqueued() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let timed = |id: &str, seconds: f64| json!({"queue": "mail", "message": {"message_id": id, "generation_time": at(seconds).to_string()}});
    let old = "01890a5d-ac96-774b-bcce-b302099a8057"; // a UUIDv7 of 2023
    let expired = Reason::TokenExpired;
    let cases = vec![
        ("Enqueue", enqueue("a", 2), Reason::TokenReused, "with other content"),
        ("Enqueue", timed("b", -7_200.0), expired, "nothing was enqueued"),
        ("Enqueue", with("message_id", json!(old)), expired, "nothing was enqueued"),
        ("Enqueue", timed("b", 120.0), Reason::InvalidFutureTime, "ahead of the server's clock"),
    ];
    check(&server, cases).await;
    assert_eq!(messages(&server).await, json!(["1", "0", "0", "0", "0"]), "nothing else was taken in");
}

#[tokio::test]
async fn a_bad_item_of_a_batch_has_its_reason_and_leaves_the_others_alone() {
    let server = with_mail().await;
    let sent = json!([{"message_id": "a"}, {"message_id": "b", "priority": "9007199254740993"}, {"message_id": "c"}]);
    let answer = server.done("BatchEnqueue", json!({"queue": "mail", "messages": sent})).await;
    let error = &answer["results"][1]["error"];
    assert_eq!(error["reason"], "INVALID_MESSAGE");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("2^53")), "{error}");
    for number in [0, 2] {
        assert_eq!(answer["results"][number]["state"], "MESSAGE_STATE_PENDING");
    }
    assert_eq!(messages(&server).await, json!(["2", "0", "0", "0", "0"]));
}

#[tokio::test]
async fn a_filter_by_a_key_that_nobody_has_is_empty_and_a_malformed_one_is_refused() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "filter_shapes": [{"keys": ["team"]}]});
    server.done("CreateQueue", json!({"queue": queue})).await;
    server.done("Enqueue", with("metadata", json!({"team": "red"}))).await;
    let by = |filter: Value| json!({"queue": "mail", "filter": filter});
    let empty = server.done("Dequeue", by(json!({"unknown": "x"}))).await;
    assert_eq!((&empty["leases"], &empty["completeness"]), (&json!([]), &json!("COMPLETE")));
    let pairs: Value = (0..5).map(|number| (format!("k{number}"), json!("v"))).collect();
    let invalid = Reason::InvalidFilter;
    let cases = vec![
        ("GetDepth", by(json!({"unknown": "x"})), Reason::FilterNotDeclared, "the nearest is team"),
        ("Dequeue", by(pairs), invalid, "at most 4 pairs"),
        ("Dequeue", by(json!({"": "x"})), invalid, "a key has 1 to 64 bytes"),
        ("Dequeue", by(json!({"k": "x".repeat(257)})), invalid, "a value at most 256"),
    ];
    check(&server, cases).await;
}

#[tokio::test]
async fn a_queue_that_exists_with_other_settings_is_shown_with_the_differences() {
    let server = with_mail().await;
    let other = |field: &str, value: Value| {
        let mut queue = json!({"name": "mail"});
        queue[field] = value;
        json!({"queue": queue})
    };
    let exists = Reason::QueueExists;
    let cases = vec![
        ("CreateQueue", other("default_lease", json!("60s")), exists, "default_lease"),
        ("CreateQueue", other("shards", json!(4)), exists, "shards: 1 -> 4"),
        ("CreateQueue", other("default_max_attempts", json!(9)), exists, "default_max_attempts: 3 -> 9"),
    ];
    check(&server, cases).await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
}

/// The fields at fault that a refusal names.
pub fn violations(refused: &Value) -> Vec<&str> {
    let details = refused["details"].as_array().expect("details");
    let all = details.iter().filter_map(|detail| detail["fieldViolations"].as_array()).flatten();
    all.filter_map(|violation| violation["field"].as_str()).collect()
}

#[tokio::test]
async fn settings_that_leave_their_ranges_are_each_named_with_value_and_range() {
    let server = with_mail().await;
    let cases = [
        (json!({"default_lease": "0.5s"}), "default_lease", "default_lease is 0.5s, allowed is 1 s to 12 h"),
        (json!({"max_run_time": "29s"}), "max_run_time", "max_run_time is 29s, allowed is at least default_lease"),
        (json!({"default_max_attempts": 0}), "default_max_attempts", "is 0, allowed is 1 to 10,000"),
        (json!({"default_max_attempts": -1}), "default_max_attempts", "is -1, allowed is 1 to 10,000"),
        (json!({"dedupe_window": "86401s"}), "dedupe_window", "is 86401s, allowed is 60 s to 24 h"),
        (json!({"dedupe_window": "0s"}), "dedupe_window", "is 0s, allowed is 60 s to 24 h"),
        (json!({"dedupe_max_bytes": "0"}), "dedupe_max_bytes", "is 0, allowed is at least 65,536 for each shard"),
        (json!({"quota_messages": "0"}), "quota_messages", "is 0, allowed is at least 1"),
        (
            json!({"retention": {"completed": "1s"}}),
            "retention.completed",
            "is 1s, allowed is dedupe_window to 10 years",
        ),
        (json!({"shards": 3}), "shards", "shards is 3, allowed is a power of two, 1 to 256"),
        (json!({"retry_policy": {"jitter_percent": 101}}), "retry_policy.jitter_percent", "0 to 100"),
        (json!({"quota_bytes": "-1"}), "quota_bytes", "is -1, allowed is 0 or more"),
    ];
    for (mut queue, setting, words) in cases {
        queue["name"] = json!("other");
        let refused = server.refused("CreateQueue", json!({"queue": queue}), Reason::InvalidSettings).await;
        let text = refused["message"].as_str().expect("a text");
        assert!(text.contains(words), "{text:?} lacks {words:?}");
        assert_eq!(violations(&refused), [format!("queue.{setting}")], "{refused}");
    }
    let two = json!({"queue": {"name": "mail", "default_lease": "0.1s", "default_max_attempts": 10_001}});
    let refused = server.refused("UpdateQueue", two, Reason::InvalidSettings).await;
    assert_eq!(violations(&refused), ["queue.default_lease", "queue.default_max_attempts"]);
}

#[tokio::test]
async fn what_a_session_or_a_value_lacks_is_named() {
    let server = with_mail().await;
    let session = server.done("OpenSession", json!({})).await["sessionId"].clone();
    let (range, settings) = (Reason::InvalidRange, Reason::InvalidSettings);
    let limit = |limit: i32| json!({"queue": "mail", "value": "x", "limit": limit});
    let cases = [
        ("Dequeue", json!({"queue": "mail", "session_id": session}), range, "sequence", "sequence is missing"),
        (
            "Dequeue",
            json!({"queue": "mail", "session_id": session, "sequence": 1, "try": -1}),
            range,
            "try",
            "try must",
        ),
        ("OpenSession", json!({"session_lease": "0.1s"}), range, "session_lease", "1 s to 12 h"),
        ("SetValueLimit", limit(-1), settings, "limit", "limit must be 0 to 10,000"),
        ("SetValueLimit", limit(1), settings, "queue", "this is a simple queue"),
    ];
    for (method, body, reason, field, words) in cases {
        let refused = server.refused(method, body, reason).await;
        let text = refused["message"].as_str().expect("a text");
        assert!(text.contains(words), "{method}: {text:?} lacks {words:?}");
        assert_eq!(violations(&refused), [field], "{refused}");
    }
    let exclusive = json!({"name": "titles", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": exclusive})).await;
    let beyond = json!({"queue": "titles", "value": "x", "limit": 10_001});
    check(&server, vec![("SetValueLimit", beyond, settings, "limit must be 0 to 10,000")]).await;
}

#[tokio::test]
async fn a_full_queue_says_of_what_and_an_unknown_class_which_there_are() {
    let server = Wire::start().await;
    let classes = json!([{"name": "urgent", "offset_ms": "-1000"}, {"name": "bulk", "offset_ms": "1000"}]);
    for (name, setting) in [("few", json!({"quota_messages": "1"})), ("small", json!({"quota_bytes": "1"}))] {
        let mut queue = setting;
        queue["name"] = json!(name);
        queue["priority_classes"] = classes.clone();
        server.done("CreateQueue", json!({"queue": queue})).await;
    }
    let of = |queue: &str, message: Value| json!({"queue": queue, "message": message});
    server.done("Enqueue", of("few", json!({"message_id": "a"}))).await;
    let full = Reason::QueueFull;
    let cases = vec![
        ("Enqueue", of("few", json!({"message_id": "b"})), full, "the queue reached its quota_messages"),
        ("Enqueue", of("small", json!({"payload": "aGk="})), full, "the queue reached its quota_bytes"),
        ("Enqueue", of("small", json!({"priority_class": "slow"})), Reason::InvalidMessage, "it has urgent, bulk"),
    ];
    check(&server, cases).await;
}
