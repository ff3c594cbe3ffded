//! Sessions: dequeues that may be repeated, one heartbeat for all leases, labels, and how a session ends.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::domain::Reason;

use super::{Wire, clock, enqueue, settle, with_mail, with_mail_at};

/// A session with this lease.
async fn opened(server: &Wire, label: &str, lease: &str) -> String {
    let answer = server.done("OpenSession", json!({"label": label, "session_lease": lease})).await;
    assert_eq!(answer["sessionLease"], lease);
    answer["sessionId"].as_str().expect("an id").to_owned()
}

/// A dequeue of up to two messages as one call of a session.
fn call(session: &str, sequence: u64) -> Value {
    json!({"queue": "mail", "max_messages": 2, "session_id": session, "sequence": sequence})
}

fn again(session: &str, sequence: u64, attempt: u32) -> Value {
    let mut body = call(session, sequence);
    body["try"] = json!(attempt);
    body
}

/// The tokens of an answer, in an order of their own.
fn tokens(answer: &Value) -> Vec<String> {
    let leases = answer["leases"].as_array().expect("leases");
    let mut tokens: Vec<String> =
        leases.iter().map(|lease| lease["leaseToken"].as_str().expect("a token").to_owned()).collect();
    tokens.sort();
    tokens
}

async fn with_messages(count: i64) -> Wire {
    let server = with_mail().await;
    for number in 0..count {
        server.done("Enqueue", enqueue(&format!("m-{number}"), number)).await;
    }
    server
}

#[tokio::test]
async fn a_repeated_dequeue_is_given_the_same_leases_and_no_others() {
    let server = with_messages(5).await;
    let session = opened(&server, "", "3600s").await;
    let first = server.done("Dequeue", call(&session, 1)).await;
    assert_eq!(tokens(&first).len(), 2);
    for body in [call(&session, 1), again(&session, 1, 2), again(&session, 1, 3)] {
        assert_eq!(tokens(&server.done("Dequeue", body.clone()).await), tokens(&first), "{body}");
    }
    server.refused("Dequeue", again(&session, 1, 2), Reason::TryBarred).await;
    let second = server.done("Dequeue", call(&session, 2)).await;
    assert!(tokens(&second).iter().all(|token| !tokens(&first).contains(token)));
    for lease in first["leases"].as_array().expect("leases") {
        server.done("Complete", settle(lease)).await;
    }
    let over = server.done("Dequeue", again(&session, 1, 4)).await;
    assert_eq!(tokens(&over), Vec::<String>::new(), "its leases have ended, and it leases no others");
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "1");
}

#[tokio::test]
async fn a_repeat_over_several_shards_is_given_what_each_of_them_gave() {
    let server = Wire::start().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail", "shards": 8}})).await;
    for number in 0..40 {
        server.done("Enqueue", enqueue(&format!("m-{number}"), number)).await;
    }
    let session = opened(&server, "", "3600s").await;
    let mut body = call(&session, 1);
    body["max_messages"] = json!(20);
    let first = server.done("Dequeue", body.clone()).await;
    assert!(tokens(&first).len() > 8, "several from each: {}", tokens(&first).len());
    assert_eq!(tokens(&server.done("Dequeue", body.clone()).await), tokens(&first));
    body["try"] = json!(2);
    assert_eq!(tokens(&server.done("Dequeue", body).await), tokens(&first));
}

#[tokio::test]
async fn a_sequence_that_jumps_back_is_answered_as_it_was_or_refused() {
    let server = with_messages(20).await;
    let session = opened(&server, "", "3600s").await;
    let mut answers = Vec::new();
    for sequence in 1..=10 {
        answers.push(tokens(&server.done("Dequeue", call(&session, sequence)).await));
    }
    for sequence in [3, 10] {
        let back = server.done("Dequeue", call(&session, sequence)).await;
        assert_eq!(tokens(&back), answers[usize::try_from(sequence).expect("small") - 1]);
    }
    for sequence in [1, 2] {
        server.refused("Dequeue", call(&session, sequence), Reason::SequenceTooOld).await;
    }
    server.refused("Dequeue", call(&session, 0), Reason::InvalidRange).await;
}

#[tokio::test]
async fn a_number_that_was_passed_over_leases_nothing_so_that_nothing_is_confirmed_unseen() {
    let server = with_messages(20).await;
    let session = opened(&server, "", "3600s").await;
    let fifth = tokens(&server.done("Dequeue", call(&session, 5)).await);
    for late in [call(&session, 3), again(&session, 3, 2)] {
        let refused = server.refused("Dequeue", late, Reason::SequenceTooOld).await;
        assert!(refused.to_string().contains("higher sequence"), "{refused}");
    }
    let received = |sequence: u64, received: u64| {
        let mut body = call(&session, sequence);
        body["received_up_to"] = json!(received);
        body
    };
    for early in [received(6, 6), received(6, 1_000)] {
        server.refused("Dequeue", early, Reason::InvalidRange).await;
    }
    server.done("Heartbeat", json!({"session_id": session, "received_up_to": 1_000})).await;
    assert_eq!(tokens(&server.done("Dequeue", call(&session, 5)).await), fifth);
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["running"], "2", "those of the fifth");
    let empty =
        json!({"queue": "mail", "session_id": session, "sequence": 6, "message_id": "m-5", "filter": {"a": "b"}});
    assert_eq!(tokens(&server.done("Dequeue", empty.clone()).await), Vec::<String>::new());
    assert_eq!(tokens(&server.done("Dequeue", call(&session, 6)).await).len(), 2, "the newest was given nothing yet");
}

#[tokio::test]
async fn an_unknown_session_is_refused_everywhere() {
    let server = with_messages(1).await;
    for unknown in ["s.0000000000000000000000000000002a", "worker-7", "s.zz"] {
        server.refused("Dequeue", call(unknown, 1), Reason::SessionNotFound).await;
        server.refused("Heartbeat", json!({"session_id": unknown}), Reason::SessionNotFound).await;
        server.refused("CloseSession", json!({"session_id": unknown}), Reason::SessionNotFound).await;
    }
    server.refused("Heartbeat", json!({}), Reason::SessionNotFound).await;
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "1", "nothing was leased");
}

#[tokio::test]
async fn a_label_that_is_opened_again_ends_the_older_session_at_once() {
    let server = with_messages(2).await;
    let first = opened(&server, "worker-7", "3600s").await;
    assert_eq!(tokens(&server.done("Dequeue", call(&first, 1)).await).len(), 2);
    let other = opened(&server, "worker-8", "3600s").await;
    let second = opened(&server, "worker-7", "3600s").await;
    server.refused("Dequeue", call(&first, 2), Reason::SessionReplaced).await;
    server.refused("Heartbeat", json!({"session_id": first}), Reason::SessionReplaced).await;
    server.refused("CloseSession", json!({"session_id": first}), Reason::SessionReplaced).await;
    let taken = server.done("Dequeue", call(&second, 1)).await;
    assert_eq!(taken["leases"][0]["attemptNumber"], 2, "its leases ended as expired: {taken}");
    assert_eq!(tokens(&taken).len(), 2);
    server.done("Heartbeat", json!({"session_id": other})).await;
}

#[tokio::test]
async fn a_session_that_is_not_heard_gives_its_messages_back() {
    let clock = clock();
    let server = with_mail_at(&clock).await;
    server.done("Enqueue", enqueue("m-0", 0)).await;
    let session = opened(&server, "", "10s").await;
    let mut body = call(&session, 1);
    body["lease_duration"] = json!("3600s");
    let lease = server.done("Dequeue", body).await["leases"][0].clone();
    assert_eq!(lease["leaseExpiresIn"], "3600s", "its own, until the session has said that it arrived");
    server.done("Heartbeat", json!({"session_id": session, "received_up_to": 1})).await;
    clock.advance(Duration::from_secs(9));
    assert_eq!(server.done("Dequeue", json!({"queue": "mail"})).await["leases"], json!([]), "it may still speak");
    clock.advance(Duration::from_secs(1));
    let other = server.done("Dequeue", json!({"queue": "mail"})).await;
    assert_eq!(other["leases"][0]["attemptNumber"], 2, "it came back with the end of the session: {other}");
    server.refused("Heartbeat", json!({"session_id": session}), Reason::SessionEnded).await;
    server.refused("Dequeue", call(&session, 2), Reason::SessionEnded).await;
    server.refused("Fail", settle(&lease), Reason::LeaseLost).await;
}

#[tokio::test]
async fn a_heartbeat_keeps_the_leases_of_all_queues_and_tells_of_cancel_requests() {
    let clock = clock();
    let server = with_mail_at(&clock).await;
    server.done("Enqueue", enqueue("m-0", 0)).await;
    server.done("CreateQueue", json!({"queue": {"name": "other"}})).await;
    server.done("Enqueue", json!({"queue": "other", "message": {"message_id": "x"}})).await;
    let session = opened(&server, "", "10s").await;
    let mut bodies = [call(&session, 1), call(&session, 2)];
    bodies[1]["queue"] = json!("other");
    let mut held = Vec::new();
    for body in &mut bodies {
        body["lease_duration"] = json!("10s");
        held.push(server.done("Dequeue", body.clone()).await["leases"][0].clone());
    }
    // Four times six seconds, in which each lease would have ended by itself.
    for _ in 0..4 {
        let beat = server.done("Heartbeat", json!({"session_id": session, "received_up_to": 2})).await;
        assert_eq!((&beat["sessionExpiresIn"], &beat["cancelRequests"]), (&json!("10s"), &json!([])));
        clock.advance(Duration::from_secs(6));
        let nothing = server.done("Dequeue", json!({"queue": "mail"})).await;
        assert_eq!(nothing["leases"], json!([]));
    }
    server.done("CancelMessage", json!({"queue": "other", "message_id": "x"})).await;
    let beat = server.done("Heartbeat", json!({"session_id": session})).await;
    assert_eq!(beat["cancelRequests"], json!([held[1]["leaseToken"]]));
    assert_eq!(server.done("Complete", settle(&held[0])).await["version"], "3");
}

#[tokio::test]
async fn a_closed_session_releases_what_it_holds() {
    let server = with_messages(2).await;
    let session = opened(&server, "worker-7", "3600s").await;
    assert_eq!(tokens(&server.done("Dequeue", call(&session, 1)).await).len(), 2);
    let close = json!({"session_id": session});
    assert_eq!(server.done("CloseSession", close.clone()).await["released"], "2");
    assert_eq!(server.done("CloseSession", close).await["released"], "0", "a repeat releases none");
    server.refused("Dequeue", call(&session, 2), Reason::SessionEnded).await;
    let taken = server.done("Dequeue", json!({"queue": "mail"})).await;
    assert_eq!(taken["leases"][0]["attemptNumber"], 1, "the attempt was given back");
}

#[tokio::test]
async fn a_message_is_leased_by_its_id_in_a_session_too() {
    let server = with_messages(3).await;
    let session = opened(&server, "", "3600s").await;
    let mut body = call(&session, 1);
    body["message_id"] = json!("m-2");
    let first = server.done("Dequeue", body.clone()).await;
    assert_eq!(first["leases"][0]["message"]["messageId"], "m-2");
    assert_eq!(tokens(&server.done("Dequeue", body).await), tokens(&first), "and a repeat gets it again");
}

#[tokio::test]
async fn what_belongs_to_a_session_is_refused_without_one() {
    let server = with_mail().await;
    for field in ["sequence", "try", "received_up_to"] {
        server.refused("Dequeue", json!({"queue": "mail", field: 1}), Reason::InvalidArgument).await;
    }
    let session = opened(&server, "", "3600s").await;
    let mut negative = call(&session, 1);
    negative["try"] = json!(-1);
    server.refused("Dequeue", negative, Reason::InvalidRange).await;
    for lease in ["0.5s", "43201s", "-1s"] {
        server.refused("OpenSession", json!({"session_lease": lease}), Reason::InvalidRange).await;
    }
    server.refused("OpenSession", json!({"label": "x".repeat(257)}), Reason::InvalidArgument).await;
}

#[tokio::test]
async fn a_wait_for_several_messages_ends_when_they_are_there() {
    let server = with_messages(1).await;
    let several = json!({"queue": "mail", "max_messages": 3, "min_messages": 2, "wait": "15s"});
    let (answer, ()) = tokio::join!(server.done("Dequeue", several), async {
        super::waiting::until(|| server.waiting_dequeues() == 1).await;
        server.done("Enqueue", enqueue("late", 9)).await;
    });
    assert_eq!(tokens(&answer).len(), 2, "{answer}");
    let few = json!({"queue": "mail", "max_messages": 3, "min_messages": 2, "wait": "0.1s"});
    server.done("Enqueue", enqueue("alone", 9)).await;
    assert_eq!(tokens(&server.done("Dequeue", few).await).len(), 1, "the wait is over first");
    let more = json!({"queue": "mail", "max_messages": 1, "min_messages": 2});
    server.refused("Dequeue", more, Reason::InvalidRange).await;
}

#[tokio::test]
async fn an_explanation_names_who_holds_a_value_and_since_when() {
    let server = Wire::start().await;
    let queue = json!({"name": "mail", "type": "EXCLUSIVE", "exclusivity_key": "title"});
    server.done("CreateQueue", json!({"queue": queue})).await;
    for id in ["a1", "a2"] {
        let message = json!({"message_id": id, "metadata": {"title": "a"}});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let session = opened(&server, "worker-7", "3600s").await;
    server.done("Dequeue", call(&session, 1)).await;
    let ask = |id: &str| json!({"queue": "mail", "message_id": id});
    let words = async |method: &str, body: Value, at: usize| {
        let cause = server.done(method, body).await["explanations"][at].clone();
        (cause["cause"].as_str().unwrap_or_default().to_owned(), cause["text"].as_str().unwrap_or_default().to_owned())
    };
    let (cause, text) = words("ExplainMessage", ask("a2"), 0).await;
    assert_eq!(cause, "value_held", "{text}");
    assert!(text.contains("\"a\" is at its limit of 1") && text.contains("worker \"worker-7\""), "{text}");
    let (cause, text) = words("ExplainMessage", ask("a1"), 0).await;
    assert!(cause == "running" && text.starts_with("worker \"worker-7\""), "{cause}: {text}");
    let (cause, text) = words("ExplainQueue", json!({"queue": "mail"}), 1).await;
    assert!(cause == "value_held" && text.contains("worker-7"), "{cause}: {text}");
    server.done("SetValueLimit", json!({"queue": "mail", "value": "a", "limit": 0})).await;
    assert!(words("ExplainMessage", ask("a2"), 0).await.1.contains("is paused"));
}

#[tokio::test]
async fn an_explanation_says_that_no_worker_waits_for_such_a_message() {
    let server = with_mail().await;
    let waiting = json!({"queue": "mail", "wait": "15s", "filter": {"team": "red"}});
    let (answer, ()) = tokio::join!(server.done("Dequeue", waiting), async {
        super::waiting::until(|| server.waiting_dequeues() == 1).await;
        server.done("Enqueue", enqueue("plain", 1)).await;
        super::waiting::until(|| server.waiting_dequeues() == 1).await;
        let told = server.done("ExplainMessage", json!({"queue": "mail", "message_id": "plain"})).await;
        assert_eq!(told["explanations"][0]["cause"], "no_matching_worker", "{told}");
        let red = json!({"message_id": "red", "metadata": {"team": "red"}});
        server.done("Enqueue", json!({"queue": "mail", "message": red})).await;
    });
    assert_eq!(answer["leases"][0]["message"]["messageId"], "red");
}
