//! The history of messages through real sockets: traces, searches, pages, and what callers get wrong.

use std::time::Duration;

use serde_json::{Value, json};
use tallystone::adapters::manual::ManualClock;
use tallystone::domain::Reason;
use tallystone::domain::history::HistoryCursor;
use tallystone::domain::history::HistoryGap;
use tallystone::domain::queue::ShardId;
use tallystone::domain::queue::transition::RowPosition;
use tallystone::ports::{Clock, HistoryBatch};
use tallystone::proto::history::v1 as pb;
use tallystone::proto::history::v1::history_service_client::HistoryServiceClient;

use super::{Wire, clock, settle};

const HISTORY: &str = "/tallystone.history.v1.HistoryService";

impl Wire {
    async fn ask_history(&self, method: &str, body: Value) -> (u16, Value) {
        let headers = [("content-type", "application/json")];
        let answer = self.http("POST", &format!("{HISTORY}/{method}"), &headers, &body.to_string()).await;
        (answer.status, super::super::json(&answer.body))
    }

    async fn told(&self, method: &str, body: Value) -> Value {
        let (status, answer) = self.ask_history(method, body.clone()).await;
        assert_eq!(status, 200, "{method} {body}: {answer}");
        answer
    }

    async fn not_told(&self, method: &str, body: Value, expected: Reason) {
        let (status, answer) = self.ask_history(method, body.clone()).await;
        assert_eq!(answer["details"][0]["reason"], json!(expected.info().name), "{method} {body}: {answer}");
        assert_eq!(status, expected.info().http, "{method} {body}: {answer}");
    }

    /// Moves the rows that are still in outboxes to the history, and writes these gaps.
    async fn relay(&self, gaps: &[HistoryGap]) {
        let outbox = &self.queue_stores.outbox;
        for shard in outbox.outboxes().await.expect("memory answers") {
            let known = self.history.cursor(shard).await.expect("memory answers").map(|cursor| cursor.position);
            let page = outbox.outbox(shard, known.unwrap_or_default(), 5_000).await.expect("memory answers");
            let cursor = HistoryCursor { position: page.through, register: Box::default() };
            let batch = HistoryBatch { shard, rows: page.rows, gaps: Vec::new(), cursor };
            self.history.append(vec![batch]).await.expect("written");
            outbox.forget_outbox(shard, page.through).await.expect("forgotten");
        }
        // The relay of the server may have moved the rows before.
        for queue in self.queue_stores.shards.queues().await.expect("memory answers") {
            for gap in gaps {
                let shard = ShardId { queue: queue.id, number: gap.shard };
                let known = self.history.cursor(shard).await.expect("memory answers");
                let none = HistoryCursor { position: RowPosition::default(), register: Box::default() };
                let (rows, gaps, cursor) = (Vec::new(), vec![*gap], known.unwrap_or(none));
                self.history.append(vec![HistoryBatch { shard, rows, gaps, cursor }]).await.expect("written");
            }
        }
    }

    /// Sweeps what is due in the queue.
    async fn swept(&self) {
        self.done("GetDepth", json!({"queue": "orders"})).await;
    }
}

/// A server with the queue `orders`, counted by tenant.
async fn with_orders(clock: &ManualClock) -> Wire {
    let server = Wire::with_clock(clock).await;
    let retry = json!({"initial": "1s", "factor_percent": 100, "max": "1s"});
    let queue = json!({"name": "orders", "count_by": ["tenant"], "default_lease": "10s", "retry_policy": retry,
        "default_max_attempts": 3});
    server.done("CreateQueue", json!({"queue": queue})).await;
    server
}

async fn push(server: &Wire, id: &str, tenant: &str, zone: &str) {
    let message = json!({"message_id": id, "payload": "aGk=", "metadata": {"tenant": tenant, "zone": zone}});
    server.done("Enqueue", json!({"queue": "orders", "message": message})).await;
}

/// A lease of one message.
async fn leased(server: &Wire, session: Option<(&str, u64)>) -> Value {
    let mut body = json!({"queue": "orders"});
    if let Some((id, sequence)) = session {
        (body["session_id"], body["sequence"]) = (json!(id), json!(sequence));
    }
    server.done("Dequeue", body).await["leases"][0].clone()
}

fn of(lease: &Value) -> Value {
    let mut body = settle(lease);
    body["queue"] = json!("orders");
    body
}

async fn fail(server: &Wire, lease: &Value, signature: &str) {
    let mut body = of(lease);
    body["error"] = json!({"signature": signature, "text": format!("{signature} after 5s")});
    server.done("Fail", body).await;
}

fn trace_of(id: &str) -> Value {
    json!({"queue": "orders", "message_id": id})
}

/// Message `a` with three attempts: failed, expired, completed; half a second between the changes.
async fn three_attempts(server: &Wire, clock: &ManualClock) {
    let half = Duration::from_millis(500);
    let opened = server.done("OpenSession", json!({"label": "ada", "session_lease": "3600s"})).await;
    let session = opened["sessionId"].as_str().expect("an id");
    push(server, "a", "acme", "north").await;
    clock.advance(half);
    let first = leased(server, Some((session, 1))).await;
    clock.advance(half);
    fail(server, &first, "timeout").await;
    clock.advance(Duration::from_secs(2));
    leased(server, None).await;
    clock.advance(Duration::from_secs(11));
    server.swept().await;
    let third = leased(server, Some((session, 2))).await;
    clock.advance(half);
    server.done("Complete", of(&third)).await;
}

#[tokio::test]
async fn a_trace_shows_each_attempt_with_its_worker_its_error_and_the_time_in_each_state() {
    let clock = clock();
    let server = with_orders(&clock).await;
    three_attempts(&server, &clock).await;
    let before = server.told("GetMessageTrace", trace_of("a")).await;
    let life = &before["lives"][0];
    assert_eq!((&life["messageId"], &life["metadata"]["tenant"]), (&json!("a"), &json!("acme")));
    assert_eq!(life["complete"], json!(true), "nothing is in the history yet: {life}");
    let rows = life["transitions"].as_array().expect("transitions");
    let told: Vec<(&str, &str, Option<&str>)> = rows
        .iter()
        .map(|row| {
            let text = |field: &str| row[field].as_str();
            let trigger = text("trigger").expect("a trigger").trim_start_matches("TRANSITION_TRIGGER_");
            let to = text("to").expect("a state").trim_start_matches("MESSAGE_STATE_");
            (trigger, to, text("timeInState"))
        })
        .collect();
    let expected = [
        ("ENQUEUE", "PENDING", Some("0.500s")),
        ("DEQUEUE", "RUNNING", Some("0.500s")),
        ("FAIL", "INVISIBLE", Some("2s")),
        ("INVISIBILITY_OVER", "PENDING", Some("0s")),
        ("DEQUEUE", "RUNNING", Some("11s")),
        ("LEASE_OVER", "PENDING", Some("0s")),
        ("DEQUEUE", "RUNNING", Some("0.500s")),
        ("COMPLETE", "COMPLETED", None),
    ];
    assert_eq!(told, expected);
    let versions: Vec<&str> = rows.iter().map(|row| row["version"].as_str().expect("a number")).collect();
    assert_eq!(versions, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    let attempts = life["attempts"].as_array().expect("attempts");
    let told: Vec<(&Value, &str, &Value, &Value)> = attempts
        .iter()
        .map(|attempt| {
            let end = attempt["end"].as_str().expect("an end").trim_start_matches("ATTEMPT_END_");
            (&attempt["number"], end, &attempt["worker"], &attempt["error"]["signature"])
        })
        .collect();
    let (ada, nobody, timeout) = (json!("ada"), json!(""), json!("timeout"));
    let expected = [
        (&json!(1), "FAILED", &ada, &timeout),
        (&json!(2), "EXPIRED", &nobody, &Value::Null),
        (&json!(3), "COMPLETED", &ada, &Value::Null),
    ];
    assert_eq!(told, expected);

    server.relay(&[]).await;
    assert_eq!(server.told("GetMessageTrace", trace_of("a")).await, before, "the history tells the same");
    clock.advance(Duration::from_secs(2 * 3_600));
    server.swept().await;
    server.refused("GetMessage", json!({"queue": "orders", "message_id": "a"}), Reason::MessageNotFound).await;
    let after = server.told("GetMessageTrace", trace_of("a")).await;
    assert_eq!(after["lives"][0]["attempts"], life["attempts"], "the message is gone, its history is not");
    let by_key = json!({"queue": "orders", "message_key": life["messageKey"]});
    assert_eq!(server.told("GetMessageTrace", by_key).await, after);
    // The id is free again. Each use of it is a life of its own.
    push(&server, "a", "acme", "south").await;
    let again = server.told("GetMessageTrace", trace_of("a")).await;
    let zones: Vec<&Value> =
        again["lives"].as_array().expect("lives").iter().map(|life| &life["metadata"]["zone"]).collect();
    assert_eq!(zones, ["south", "north"], "the newest first, although the history does not have it yet");
}

#[tokio::test]
async fn pages_of_a_trace_tell_together_what_one_page_tells() {
    let clock = clock();
    let server = with_orders(&clock).await;
    three_attempts(&server, &clock).await;
    clock.advance(Duration::from_secs(2 * 3_600));
    server.swept().await;
    server.relay(&[]).await;
    three_attempts(&server, &clock).await;
    let whole = server.told("GetMessageTrace", trace_of("a")).await;
    let sum = |trace: &Value, field: &str| -> Vec<Value> {
        let lives = trace["lives"].as_array().expect("lives");
        lives.iter().flat_map(|life| life[field].as_array().expect("a list").clone()).collect()
    };
    assert_eq!(sum(&whole, "attempts").len(), 6);
    for size in [1, 2, 3, 5, 8, 16] {
        let (mut rows, mut attempts, mut token, mut pages) = (Vec::new(), Vec::new(), json!(""), 0);
        loop {
            let mut body = trace_of("a");
            (body["page_size"], body["page_token"]) = (json!(size), token);
            let page = server.told("GetMessageTrace", body).await;
            assert!(sum(&page, "transitions").len() <= size, "{page}");
            rows.extend(sum(&page, "transitions"));
            attempts.extend(sum(&page, "attempts"));
            (token, pages) = (page["nextPageToken"].clone(), pages + 1);
            if token == "" {
                break;
            }
        }
        assert_eq!(rows, sum(&whole, "transitions"), "pages of {size}");
        // An attempt that expired is there once: nothing completed it late.
        assert_eq!(attempts, sum(&whole, "attempts"), "pages of {size}");
        assert!(pages >= 16 / size, "{pages} pages of {size}");
    }
}

#[tokio::test]
async fn a_gap_is_shown_and_a_life_with_missing_rows_is_not_complete() {
    let clock = clock();
    let server = with_orders(&clock).await;
    push(&server, "a", "acme", "north").await;
    server.relay(&[]).await;
    let lease = leased(&server, None).await;
    // The rows of the lease are lost: they leave the outbox without the history.
    let outbox = &server.queue_stores.outbox;
    let shard: ShardId = outbox.outboxes().await.expect("memory answers")[0];
    let lost = outbox.outbox(shard, RowPosition::default(), 10).await.expect("memory answers");
    outbox.forget_outbox(shard, lost.through).await.expect("forgotten");
    let place = lost.rows[0].position();
    let now = clock.now();
    let (from_position, to_position) = (place.position, lost.through.position);
    let gap = HistoryGap { shard: 0, epoch: place.epoch, from_position, to_position, from_time: now, to_time: now };
    let trace = server.told("GetMessageTrace", trace_of("a")).await;
    assert_eq!(trace["lives"][0]["complete"], json!(false), "the queue knows a newer version: {trace}");
    server.done("Complete", of(&lease)).await;
    server.relay(&[gap]).await;
    let trace = server.told("GetMessageTrace", trace_of("a")).await;
    let life = &trace["lives"][0];
    assert_eq!(life["complete"], json!(false));
    let attempt = &life["attempts"][0];
    assert_eq!((&attempt["end"], &attempt["leasedTime"]), (&json!("ATTEMPT_END_COMPLETED"), &Value::Null));
    let shown = &trace["gaps"][0];
    let positions = [&shown["fromPosition"], &shown["toPosition"]];
    assert_eq!(positions, [&json!(from_position.to_string()), &json!(to_position.to_string())]);
    let found = server.told("SearchMessages", json!({"queue": "orders"})).await;
    assert_eq!(found["gaps"], trace["gaps"]);
}

/// The ids that a search finds, in the order of the answer, over pages of a size.
async fn found(server: &Wire, mut body: Value, size: usize) -> Vec<String> {
    body["queue"] = json!("orders");
    body["page_size"] = json!(size);
    let mut ids = Vec::new();
    loop {
        let page = server.told("SearchMessages", body.clone()).await;
        let messages = page["messages"].as_array().expect("messages");
        assert!(messages.len() <= size && page["completeness"] == "COMPLETE", "{page}");
        ids.extend(messages.iter().map(|found| found["messageId"].as_str().expect("an id").to_owned()));
        body["page_token"] = page["nextPageToken"].clone();
        if page["nextPageToken"] == "" {
            return ids;
        }
    }
}

#[tokio::test]
async fn a_search_finds_exactly_the_messages_that_meet_all_conditions() {
    let clock = clock();
    let server = with_orders(&clock).await;
    let second = Duration::from_secs(1);
    // Four messages run out of attempts, by two errors and for two tenants; two others are completed and left.
    let cases =
        [("a", "acme", "timeout"), ("b", "beta", "timeout"), ("c", "acme", "refused"), ("d", "acme", "timeout")];
    for (at, (id, tenant, signature)) in cases.into_iter().enumerate() {
        push(&server, id, tenant, if at % 2 == 0 { "north" } else { "south" }).await;
        for _ in 0..3 {
            clock.advance(second * 2);
            let lease = leased(&server, None).await;
            fail(&server, &lease, signature).await;
        }
    }
    push(&server, "e", "acme", "north").await;
    let lease = leased(&server, None).await;
    server.done("Complete", of(&lease)).await;
    clock.advance(second);
    push(&server, "f", "acme", "south").await;
    server.relay(&[]).await;
    let errored = "MESSAGE_STATE_ERRORED";
    let acme = json!({"tenant": "acme"});
    let cases = [
        (json!({"state": errored, "error_signature": "timeout", "filter": acme}), vec!["d", "a"]),
        (json!({"state": errored, "error_signature": "timeout"}), vec!["d", "b", "a"]),
        (json!({"state": errored}), vec!["d", "c", "b", "a"]),
        (json!({"state": errored, "filter": {"zone": "north"}}), vec!["c", "a"]),
        (json!({"error_signature": "refused"}), vec!["c"]),
        (json!({"filter": acme}), vec!["f", "e", "d", "c", "a"]),
        (json!({"filter": {"zone": "south", "tenant": "acme"}}), vec!["f", "d"]),
        (json!({"filter": {"zone": "south"}}), vec!["f", "d", "b"]),
        (json!({}), vec!["f", "e", "d", "c", "b", "a"]),
        (json!({"state": "MESSAGE_STATE_PENDING"}), vec!["f"]),
        (json!({"state": "MESSAGE_STATE_COMPLETED", "filter": acme}), vec!["e"]),
        (json!({"state": "MESSAGE_STATE_RUNNING"}), vec![]),
        (json!({"state": "MESSAGE_STATE_RUNNING", "current_only": false}), vec!["e", "d", "c", "b", "a"]),
        (json!({"state": errored, "error_signature": "absent"}), vec![]),
    ];
    for (body, expected) in cases {
        for size in [1, 2, 100] {
            assert_eq!(found(&server, body.clone(), size).await, expected, "{body} in pages of {size}");
        }
    }
    server.done("RedriveMessages", json!({"queue": "orders", "message_id": "a"})).await;
    server.relay(&[]).await;
    let state = json!({"state": errored, "error_signature": "timeout"});
    assert_eq!(found(&server, state.clone(), 100).await, ["d", "b"], "a is not errored any more");
    let ever = json!({"state": errored, "error_signature": "timeout", "current_only": false});
    assert_eq!(found(&server, ever, 2).await, ["d", "b", "a"], "but it was");
}

#[tokio::test]
async fn a_search_in_a_range_of_time_finds_what_happened_in_it() {
    let clock = clock();
    let server = with_orders(&clock).await;
    let mut times = Vec::new();
    for id in ["a", "b", "c"] {
        times.push(tallystone_time(&clock));
        push(&server, id, "acme", "north").await;
        clock.advance(Duration::from_secs(60));
    }
    server.relay(&[]).await;
    let pending = "MESSAGE_STATE_PENDING";
    let cases = [
        (json!({"state": pending, "from": times[1]}), vec!["c", "b"]),
        (json!({"state": pending, "to": times[1]}), vec!["a"]),
        (json!({"state": pending, "from": times[1], "to": times[2]}), vec!["b"]),
        (json!({"from": times[2], "to": times[1]}), vec![]),
    ];
    for (body, expected) in cases {
        assert_eq!(found(&server, body.clone(), 1).await, expected, "{body}");
    }
}

fn tallystone_time(clock: &ManualClock) -> String {
    tallystone::api::time::write(clock.now()).to_string()
}

#[tokio::test]
async fn a_search_that_looks_at_too_many_rows_stops_and_goes_on() {
    let clock = clock();
    let server = with_orders(&clock).await;
    for batch in 0..60 {
        let message = |number: usize| {
            let zone = if batch == 0 && number == 0 { "rare" } else { "north" };
            json!({"message_id": format!("{batch}-{number}"), "payload": "", "metadata": {"zone": zone}})
        };
        let messages: Vec<Value> = (0..100).map(message).collect();
        server.done("BatchEnqueue", json!({"queue": "orders", "messages": messages})).await;
        server.relay(&[]).await;
        clock.advance(Duration::from_secs(1));
    }
    let mut body = json!({"queue": "orders", "filter": {"zone": "rare"}});
    let first = server.told("SearchMessages", body.clone()).await;
    assert_eq!((&first["messages"], &first["completeness"]), (&json!([]), &json!("PARTIAL")), "a row is a row");
    body["page_token"] = first["nextPageToken"].clone();
    let second = server.told("SearchMessages", body.clone()).await;
    assert_eq!((&second["messages"][0]["messageId"], &second["completeness"]), (&json!("0-0"), &json!("COMPLETE")));
    assert_eq!(second["nextPageToken"], "", "nothing follows the oldest message");
    body["filter"]["zone"] = json!("north");
    server.not_told("SearchMessages", body, Reason::InvalidPageToken).await;
}

#[tokio::test]
async fn what_callers_get_wrong_about_the_history_has_its_reason() {
    let clock = clock();
    let server = with_orders(&clock).await;
    let q = "orders";
    let traces = [
        (json!({"queue": "absent", "message_id": "a"}), Reason::QueueNotFound),
        (json!({"queue": "", "message_id": "a"}), Reason::InvalidQueueName),
        (json!({"queue": q}), Reason::InvalidMessageId),
        (json!({"queue": q, "message_id": ""}), Reason::InvalidMessageId),
        (json!({"queue": q, "message_id": "x".repeat(65)}), Reason::InvalidMessageId),
        (json!({"queue": q, "message_id": "m.1"}), Reason::InvalidMessageId),
        (json!({"queue": q, "message_key": "order-1"}), Reason::InvalidMessageId),
        (json!({"queue": q, "message_id": "a", "page_size": -1}), Reason::InvalidPageSize),
        (json!({"queue": q, "message_id": "a", "page_token": "AAAA"}), Reason::InvalidPageToken),
    ];
    for (body, reason) in traces {
        server.not_told("GetMessageTrace", body, reason).await;
    }
    let searches = [
        (json!({"queue": "absent"}), Reason::QueueNotFound),
        (json!({"queue": q, "state": 99}), Reason::InvalidArgument),
        (json!({"queue": q, "filter": {"": "a"}}), Reason::InvalidFilter),
        (json!({"queue": q, "page_size": -1}), Reason::InvalidPageSize),
        (json!({"queue": q, "page_token": "AAAA"}), Reason::InvalidPageToken),
    ];
    for (body, reason) in searches {
        server.not_told("SearchMessages", body, reason).await;
    }
    let none = server.told("GetMessageTrace", trace_of("absent")).await;
    assert_eq!((&none["lives"], &none["nextPageToken"]), (&json!([]), &json!("")));
    let key = json!({"queue": q, "message_key": "m.900.1.1"});
    assert_eq!(server.told("GetMessageTrace", key).await["lives"], json!([]), "no such shard");
    let none = server.told("SearchMessages", json!({"queue": q})).await;
    assert_eq!((&none["messages"], &none["completeness"]), (&json!([]), &json!("COMPLETE")));
}

#[tokio::test]
async fn the_history_answers_over_grpc_too() {
    let clock = clock();
    let server = with_orders(&clock).await;
    push(&server, "a", "acme", "north").await;
    server.relay(&[]).await;
    let mut client = HistoryServiceClient::new(server.patient_channel().await);
    let message = Some(pb::get_message_trace_request::Message::MessageId("a".into()));
    let request = pb::GetMessageTraceRequest { queue: "orders".into(), message, ..Default::default() };
    let trace = client.get_message_trace(request).await.expect("a trace").into_inner();
    assert_eq!(trace.lives[0].transitions[0].trigger(), pb::TransitionTrigger::Enqueue);
    let request = pb::SearchMessagesRequest { queue: "orders".into(), ..Default::default() };
    let found = client.search_messages(request).await.expect("an answer").into_inner();
    assert_eq!(found.messages[0].message_id, "a");
}
