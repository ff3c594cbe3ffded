//! Work: credit in, leases out, settlements in, their answers and cancel requests out.

use serde_json::json;
use tallystone::proto::queue::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::{Wire, enqueue, with_mail};

struct Worker {
    requests: Option<mpsc::Sender<wire::WorkRequest>>,
    answers: Streaming<wire::WorkResponse>,
}

impl Worker {
    async fn open(server: &Wire, credit: i32) -> Self {
        let (requests, sent) = mpsc::channel(16);
        requests.send(credited("mail", credit)).await.expect("room");
        let answers = server.queues().await.work(ReceiverStream::new(sent)).await.expect("a stream").into_inner();
        let mut worker = Self { requests: Some(requests), answers };
        assert_eq!(worker.next().await, wire::WorkResponse::default(), "each request is answered");
        worker
    }

    async fn send(&self, request: wire::WorkRequest) {
        self.requests.as_ref().expect("it is open").send(request).await.expect("room");
    }

    async fn next(&mut self) -> wire::WorkResponse {
        self.answers.next().await.expect("an answer").expect("no error")
    }
}

fn credited(queue: &str, credit: i32) -> wire::WorkRequest {
    wire::WorkRequest { queue: queue.to_owned(), credit, ..Default::default() }
}

fn complete(lease: &wire::Lease) -> wire::Settlement {
    let verb = wire::Verb::Complete.into();
    wire::Settlement { lease_token: lease.lease_token.clone(), verb, ..Default::default() }
}

#[tokio::test]
async fn a_stream_gets_as_many_leases_as_it_has_credit() {
    let server = with_mail().await;
    let mut worker = Worker::open(&server, 2).await;
    for (id, priority) in [("a", 1), ("b", 2), ("c", 3)] {
        server.done("Enqueue", enqueue(id, priority)).await;
    }
    let mut leases = Vec::new();
    while leases.len() < 2 {
        leases.extend(worker.next().await.leases);
    }
    assert_eq!(leases.len(), 2, "its credit is spent");
    worker.send(wire::WorkRequest { settlements: leases.iter().map(complete).collect(), ..credited("", 0) }).await;
    let answer = worker.next().await;
    assert!(answer.leases.is_empty(), "no credit, no lease");
    let states: Vec<_> = answer.results.iter().map(wire::SettleResult::state).collect();
    assert_eq!(states, [wire::MessageState::Completed; 2]);
    worker.send(credited("mail", 1)).await;
    worker.next().await;
    assert_eq!(worker.next().await.leases[0].message.as_ref().expect("a message").message_id, "c");
}

#[tokio::test]
async fn a_worker_that_ends_its_side_gives_its_leases_back() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let mut worker = Worker::open(&server, 5).await;
    assert_eq!(worker.next().await.leases.len(), 1);
    worker.requests = None;
    assert!(worker.answers.next().await.is_none(), "the stream ends");
    let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(found["message"]["state"], "MESSAGE_STATE_PENDING");
}

#[tokio::test]
async fn a_cancel_request_reaches_the_worker_on_its_stream() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let mut worker = Worker::open(&server, 1).await;
    let lease = worker.next().await.leases.remove(0);
    server.done("CancelMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(worker.next().await.cancel_requests, std::slice::from_ref(&lease.lease_token));
    let extension = wire::ExtendLeaseRequest { lease_token: lease.lease_token, ..Default::default() };
    worker.send(wire::WorkRequest { extensions: vec![extension], ..credited("", 0) }).await;
    assert!(worker.next().await.extended[0].cancel_requested);
}

#[tokio::test]
async fn a_settlement_that_extends_keeps_the_lease_for_the_end_of_the_stream() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let mut worker = Worker::open(&server, 1).await;
    let lease = worker.next().await.leases.remove(0);
    let hour = Some(prost_types::Duration { seconds: 3_600, nanos: 0 });
    let extend = wire::Settlement { verb: wire::Verb::Extend.into(), lease_duration: hour, ..complete(&lease) };
    worker.send(wire::WorkRequest { settlements: vec![extend], ..credited("", 0) }).await;
    let result = worker.next().await.results.remove(0);
    assert_eq!((result.state(), result.lease_expires_in), (wire::MessageState::Running, hour), "{result:?}");
    worker.requests = None;
    assert!(worker.answers.next().await.is_none(), "the stream ends");
    let found = server.done("GetMessage", json!({"queue": "mail", "message_id": "a"})).await;
    assert_eq!(found["message"]["state"], "MESSAGE_STATE_PENDING", "it was given back: {found}");
}

#[tokio::test]
async fn a_blocked_queue_keeps_its_streams_and_goes_on_when_unblocked() {
    let server = with_mail().await;
    let block = |blocked: bool| json!({"queue": {"name": "mail", "dequeue_blocked": blocked}});
    server.done("UpdateQueue", block(true)).await;
    let mut worker = Worker::open(&server, 1).await;
    server.done("Enqueue", enqueue("a", 1)).await;
    // An answer of the stream that comes after the message was there: nothing was leased before it.
    let absent = wire::Settlement { lease_token: "none".to_owned(), ..complete(&wire::Lease::default()) };
    worker.send(wire::WorkRequest { settlements: vec![absent], ..credited("", 0) }).await;
    let answer = worker.next().await;
    assert_eq!((answer.results.len(), answer.leases.len()), (1, 0), "{answer:?}");
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "1");
    server.done("UpdateQueue", block(false)).await;
    assert_eq!(worker.next().await.leases.len(), 1);
}

#[tokio::test]
async fn a_draining_server_takes_settlements_of_a_stream_and_then_ends_it() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let mut worker = Worker::open(&server, 5).await;
    let lease = worker.next().await.leases.remove(0);
    server.engine.queues().expect("this engine has queues").stop_leasing();
    server.stop.cancel();
    worker.send(wire::WorkRequest { settlements: vec![complete(&lease)], ..credited("", 0) }).await;
    assert_eq!(worker.next().await.results[0].state(), wire::MessageState::Completed);
    let end = worker.answers.next().await.expect("an end").expect_err("an error");
    assert_eq!(super::super::reason(&end), "SHUTTING_DOWN");
}

#[tokio::test]
async fn a_stream_that_asks_for_nonsense_is_refused_with_its_reason() {
    let server = with_mail().await;
    for (request, reason) in [
        (credited("", 1), "INVALID_QUEUE_NAME"),
        (credited("absent", 1), "QUEUE_NOT_FOUND"),
        (credited("mail", -1), "INVALID_RANGE"),
        (credited("mail", 1_001), "INVALID_RANGE"),
    ] {
        let requests = tokio_stream::iter([request]);
        let mut answers = server.queues().await.work(requests).await.expect("a stream").into_inner();
        let refused = answers.next().await.expect("an answer").expect_err("an error");
        assert_eq!(super::super::reason(&refused), reason);
    }
}
