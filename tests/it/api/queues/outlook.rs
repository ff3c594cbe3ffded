//! ExplainQueue foresees what a dequeue with the same filter gets.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Wire, clock, enqueue, lease, settle, with_mail};

async fn explained(server: &Wire, filter: Value) -> Vec<(String, String)> {
    let told = server.done("ExplainQueue", json!({"queue": "mail", "filter": filter})).await;
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let causes = told["explanations"].as_array().expect("explanations");
    causes.iter().map(|told| (text(&told["cause"]), text(&told["text"]))).collect()
}

fn causes(told: &[(String, String)]) -> Vec<&str> {
    told.iter().map(|(cause, _)| cause.as_str()).collect()
}

/// What a dequeue with the filter gets.
async fn got(server: &Wire, filter: Value) -> usize {
    let answer = server.done("Dequeue", json!({"queue": "mail", "filter": filter, "max_messages": 9})).await;
    answer["leases"].as_array().expect("leases").len()
}

/// Three messages of the title x and the team red, the first of which is leased, and one of the title y and the team blue.
async fn with_held_reds(shapes: Value, strict: bool) -> Wire {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "type": "EXCLUSIVE", "exclusivity_key": "title", "filter_shapes": shapes,
        "strict_order_per_value": strict});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for (id, title, team) in [("a1", "x", "red"), ("a2", "x", "red"), ("a3", "x", "red"), ("b1", "y", "blue")] {
        let message = json!({"message_id": id, "metadata": {"title": title, "team": team}});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    server
}

#[tokio::test]
async fn an_explanation_for_a_filter_tells_what_that_filter_meets() {
    for (shapes, first) in [(json!([{"keys": ["team"]}]), None), (json!([]), Some("filter_not_declared"))] {
        let server = with_held_reds(shapes, false).await;
        server.done("Dequeue", json!({"queue": "mail", "message_id": "a1"})).await;
        let told = explained(&server, json!({"team": "red"})).await;
        let expected: Vec<&str> = first.into_iter().chain(["value_held", "value_held"]).collect();
        assert_eq!(causes(&told), expected, "{told:?}");
        let (_, last) = told.last().expect("a cause");
        assert!(last.contains("\"x\" is at its limit of 1, and 2 pending messages wait for it"), "{last}");
        assert!(last.contains("a worker without a session has had message \"a1\" for "), "{last}");
        assert_eq!(got(&server, json!({"team": "red"})).await, 0);
        let told = explained(&server, json!({"team": "blue"})).await;
        assert_eq!(causes(&told), first.into_iter().chain(["no_worker", "next"]).collect::<Vec<_>>(), "{told:?}");
        assert_eq!(got(&server, json!({"team": "blue"})).await, 1);
        let told = explained(&server, json!({"team": "green"})).await;
        assert_eq!(causes(&told), first.into_iter().chain(["filter_not_met"]).collect::<Vec<_>>(), "{told:?}");
    }
}

#[tokio::test]
async fn an_explanation_for_a_filter_tells_when_what_meets_it_becomes_visible() {
    let server = Wire::start().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail", "filter_shapes": [{"keys": ["team"]}]}})).await;
    for (id, team, time) in [("soon", "red", "3600s"), ("late", "red", "7200s"), ("blue", "blue", "60s")] {
        let message = json!({"message_id": id, "metadata": {"team": team}, "invisibility": time});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let told = explained(&server, json!({"team": "red"})).await;
    assert_eq!(causes(&told), ["filter_not_met", "invisible"], "{told:?}");
    assert!(told[1].1.starts_with("2 messages are still invisible, the first for another "), "{told:?}");
    let told = explained(&server, json!({})).await;
    assert_eq!(causes(&told), ["invisible"], "{told:?}");
    assert!(told[0].1.starts_with("3 messages are still invisible"), "{told:?}");
}

#[tokio::test]
async fn an_explanation_under_strict_order_names_the_message_that_comes_first() {
    let server = with_held_reds(json!([]), true).await;
    let hide = json!({"queue": "mail", "message_id": "a1", "invisibility": "3600s"});
    server.done("UpdateMessage", hide).await;
    server.done("CancelMessage", json!({"queue": "mail", "message_id": "b1"})).await;
    let told = explained(&server, json!({})).await;
    assert_eq!(causes(&told), ["value_held", "value_held"], "{told:?}");
    assert!(told[1].1.contains("message \"a1\" (invisible) is first; wait until"), "{told:?}");
    assert!(told.iter().all(|(_, text)| !text.contains("limit")), "no limit holds it: {told:?}");
}

#[tokio::test]
async fn an_explanation_of_a_blocked_queue_sends_nobody_to_dequeue() {
    let server = with_mail().await;
    for id in ["a", "b"] {
        server.done("Enqueue", enqueue(id, 1)).await;
    }
    let block = json!({"queue": {"name": "mail", "dequeue_blocked": true, "dequeue_blocked_reason": "repair"}});
    server.done("UpdateQueue", block).await;
    assert_eq!(causes(&explained(&server, json!({})).await), ["dequeue_blocked"]);
    for (id, cause) in [("a", "next"), ("b", "position")] {
        let told = server.done("ExplainMessage", json!({"queue": "mail", "message_id": id})).await;
        let causes = &told["explanations"];
        assert_eq!((&causes[0]["cause"], &causes[1]["cause"]), (&json!("dequeue_blocked"), &json!(cause)), "{told}");
        assert!(causes[1]["text"].as_str().expect("a text").contains("once dequeues are unblocked"), "{told}");
    }
}

#[tokio::test]
async fn one_message_is_spoken_of_as_one() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "default_max_attempts": 1, "filter_shapes": [{"keys": ["team"]}]});
    server.done("CreateQueue", json!({"queue": queue})).await;
    let message = json!({"message_id": "a", "metadata": {"team": "red"}});
    server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    for filter in [json!({}), json!({"team": "red"})] {
        let (cause, text) = explained(&server, filter).await.remove(1);
        assert_eq!(cause, "next");
        assert!(text.starts_with("1 message is pending") && text.ends_with("a dequeue returns it at once"), "{text}");
    }
    let hide = |time: &str| json!({"queue": "mail", "message_id": "a", "invisibility": time});
    server.done("UpdateMessage", hide("3600s")).await;
    let (_, text) = explained(&server, json!({"team": "red"})).await.remove(0);
    assert!(text.contains("1 is invisible and 0 are leased"), "{text}");
    let (_, text) = explained(&server, json!({})).await.remove(0);
    assert!(text.starts_with("1 message is still invisible, for another "), "{text}");
    server.done("UpdateMessage", hide("0s")).await;
    let held = lease(&server).await;
    let (_, text) = explained(&server, json!({})).await.remove(0);
    assert!(
        text.starts_with("1 message is leased to a worker; wait: it is served again only if its lease ends"),
        "{text}"
    );
    server.done("Fail", settle(&held)).await;
    let (_, text) = explained(&server, json!({})).await.remove(0);
    assert!(text.starts_with("1 message is out of attempts; read its error"), "{text}");
    let told = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "a"})).await;
    let text = told["explanations"][0]["text"].as_str().expect("a text").to_owned();
    assert!(text.starts_with("its only attempt is used up"), "{text}");
}

#[tokio::test]
async fn held_values_and_missing_workers_are_told_before_what_a_dequeue_would_get() {
    let clock = clock();
    let server = Wire::with_clock(&clock).await;
    let queue = json!({"name": "mail", "type": "EXCLUSIVE", "exclusivity_key": "title", "default_lease": "60s"});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for (id, title) in [("a1", "x"), ("a2", "x"), ("b1", "y"), ("c1", "z")] {
        let message = json!({"message_id": id, "metadata": {"title": title}, "priority": "1"});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let told = explained(&server, json!({})).await;
    assert_eq!(causes(&told), ["no_worker", "next"], "{told:?}");
    assert!(
        told[0].1.contains("there was no dequeue since the server started; start a worker (tallystone work -q mail")
    );
    let session = server.done("OpenSession", json!({"label": "mailer-7", "session_lease": "3600s"})).await;
    let session = session["sessionId"].as_str().expect("a session").to_owned();
    let taken = json!({"queue": "mail", "session_id": session, "sequence": "1"});
    assert_eq!(server.done("Dequeue", taken).await["leases"][0]["message"]["messageId"], "a1");
    server.done("SetValueLimit", json!({"queue": "mail", "value": "y", "limit": 0})).await;
    clock.advance(Duration::from_secs(20));
    let told = explained(&server, json!({})).await;
    assert_eq!(causes(&told), ["no_worker", "value_held", "value_held", "next"], "{told:?}");
    let (worker, x, y) = (&told[0].1, &told[1].1, &told[2].1);
    assert!(worker.contains("the last dequeue was 20s ago; 1 message is leased"), "{worker}");
    assert!(x.contains("value \"x\" is at its limit of 1, and 1 pending message waits for it"), "{x}");
    assert!(
        x.contains("worker \"mailer-7\" (session ") && x.contains(" has had message \"a1\" for 20s, since "),
        "{x}"
    );
    assert!(x.contains("its lease ends in 40s, at ") && x.contains("(tallystone queue limit mail x N)"), "{x}");
    assert!(y.contains("value \"y\" is paused: its limit is 0, and 1 pending message waits for it"), "{y}");
    let one = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "a2"})).await;
    assert_eq!(one["explanations"][0]["text"], *x, "the message behind it is told the same");
    for told in [x, y, worker] {
        assert!(!told.contains(&session) && !told.contains("m.0"), "no secrets, no keys of the store: {told}");
    }
    let free = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "c1"})).await;
    let causes: Vec<&Value> =
        free["explanations"].as_array().expect("causes").iter().map(|one| &one["cause"]).collect();
    assert_eq!(causes, ["no_worker", "next"], "{free}");
}

#[tokio::test]
async fn under_strict_order_the_worker_of_the_message_that_comes_first_is_named() {
    let server = with_held_reds(json!([]), true).await;
    server.done("Dequeue", json!({"queue": "mail", "message_id": "a1"})).await;
    let told = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "a2"})).await;
    let text = told["explanations"][0]["text"].as_str().expect("a text").to_owned();
    assert!(text.contains("value \"x\" are served in order, and message \"a1\" (running)"), "{text}");
    assert!(text.contains("a worker without a session has had it for "), "{text}");
}

#[tokio::test]
async fn messages_that_failed_several_times_are_counted_with_their_failures() {
    let server = Wire::start().await;
    let never = json!({"initial": "0s", "max": "0s", "factor_percent": 100, "jitter_percent": 0});
    server.done("CreateQueue", json!({"queue": {"name": "mail", "retry_policy": never}})).await;
    for (id, attempts) in [("a", 3), ("b", 1)] {
        let message = json!({"message_id": id, "max_attempts": attempts});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
        for _ in 0..attempts {
            let held = lease(&server).await;
            server.done("Fail", settle(&held)).await;
        }
    }
    let told = explained(&server, json!({})).await;
    let (_, text) = told.iter().find(|(cause, _)| cause == "errored").expect("it says so");
    assert!(text.starts_with("2 messages are out of attempts after 4 failed attempts; read their errors"), "{text}");
    assert!(
        text.contains("(tallystone dlq ls -q mail --messages)") && text.contains("(tallystone dlq redrive -q mail)"),
        "{text}"
    );
}
