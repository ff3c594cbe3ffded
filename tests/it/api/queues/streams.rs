//! Work streams of several queues, with filters and sessions; workers that do not read, and many that wait.

use std::time::Duration;

use serde_json::json;
use tallystone::ports::Clock as _;
use tallystone::proto::queue::v1 as wire;
use tallystone::proto::queue::v1::queue_service_client::QueueServiceClient;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::waiting::{comes_to_hold, until};
use super::{Wire, clock, enqueue, lease, with_mail, with_mail_at};
use crate::support::patience::PatientChannel;
use crate::support::usual_or_long;

struct Worker {
    requests: mpsc::Sender<wire::WorkRequest>,
    answers: Streaming<wire::WorkResponse>,
}

impl Worker {
    /// Opens a stream with this first message.
    async fn open(mut client: QueueServiceClient<PatientChannel>, first: wire::WorkRequest) -> Self {
        let (requests, sent) = mpsc::channel(16);
        requests.send(first).await.expect("room");
        let answers = client.work(ReceiverStream::new(sent)).await.expect("a stream").into_inner();
        Self { requests, answers }
    }

    /// Leases until there are so many.
    async fn leases(&mut self, count: usize) -> Vec<wire::Lease> {
        let mut leases = Vec::new();
        while leases.len() < count {
            leases.extend(self.answers.next().await.expect("an answer").expect("no error").leases);
        }
        leases
    }

    /// How the server ends the stream.
    async fn end(&mut self) -> String {
        loop {
            match self.answers.next().await.expect("an end with a reason") {
                Ok(_) => {}
                Err(status) => return super::super::reason(&status),
            }
        }
    }
}

fn asking(credit: i32) -> wire::WorkRequest {
    wire::WorkRequest { queue: "mail".to_owned(), credit, ..Default::default() }
}

fn complete(lease: &wire::Lease) -> wire::Settlement {
    let verb = wire::Verb::Complete.into();
    wire::Settlement { lease_token: lease.lease_token.clone(), verb, ..Default::default() }
}

async fn opened(server: &Wire, label: &str, lease: &str) -> String {
    let answer = server.done("OpenSession", json!({"label": label, "session_lease": lease})).await;
    answer["sessionId"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn a_stream_serves_several_queues_with_one_credit() {
    let server = with_mail().await;
    server.done("CreateQueue", json!({"queue": {"name": "other"}})).await;
    let first = wire::WorkRequest { queues: vec!["other".to_owned()], ..asking(3) };
    let mut worker = Worker::open(server.queues().await, first).await;
    for (queue, id) in [("mail", "a"), ("other", "b"), ("mail", "c"), ("other", "d")] {
        server.done("Enqueue", json!({"queue": queue, "message": {"message_id": id}})).await;
    }
    let leases = worker.leases(3).await;
    let of = |queue: &str| leases.iter().filter(|lease| lease.queue == queue).count();
    assert!(leases.len() == 3 && of("mail") >= 1 && of("other") >= 1, "{} and {}", of("mail"), of("other"));
    let settlements = leases.iter().map(complete).collect();
    worker.requests.send(wire::WorkRequest { settlements, credit: 1, ..Default::default() }).await.expect("room");
    let settled = worker.answers.next().await.expect("an answer").expect("no error");
    assert!(settled.results.iter().all(|result| result.state() == wire::MessageState::Completed), "{settled:?}");
    assert_eq!(worker.leases(1).await.len(), 1, "the last one, for the new credit");
    let other = wire::WorkRequest { queues: vec!["third".to_owned()], ..Default::default() };
    worker.requests.send(other).await.expect("room");
    assert_eq!(worker.end().await, "INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_stream_with_a_filter_gets_what_meets_it() {
    let server = Wire::start().await;
    let shapes = json!([{"keys": ["team"]}]);
    server.done("CreateQueue", json!({"queue": {"name": "mail", "filter_shapes": shapes}})).await;
    let filter = [("team".to_owned(), "red".to_owned())].into();
    let mut worker = Worker::open(server.queues().await, wire::WorkRequest { filter, ..asking(9) }).await;
    for team in ["blue", "red", "blue"] {
        let message = json!({"message_id": format!("{team}-{}", uuid::Uuid::now_v7()), "metadata": {"team": team}});
        server.done("Enqueue", json!({"queue": "mail", "message": message})).await;
    }
    let lease = worker.leases(1).await.remove(0);
    assert_eq!(lease.message.expect("a message").metadata["team"], "red");
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["pending"], "2");
}

#[tokio::test]
async fn an_open_stream_keeps_the_leases_of_its_session_and_its_end_gives_them_back() {
    let clock = clock();
    let server = with_mail_at(&clock).await;
    let session_id = opened(&server, "", "10s").await;
    // Shorter and longer than the session's: once they have arrived, leases end with the session.
    for (id, seconds) in [("short", 3), ("long", 3_600)] {
        server
            .done(
                "Enqueue",
                json!({"queue": "mail", "message": {"message_id": id, "lease_duration": format!("{seconds}s")}}),
            )
            .await;
    }
    let mut worker = Worker::open(server.queues().await, wire::WorkRequest { session_id, ..asking(2) }).await;
    let leases = worker.leases(2).await;
    assert!(leases.iter().all(|lease| lease.attempt_number == 1));
    let ends = async |id: &str| {
        let shown = server.done("GetMessage", json!({"queue": "mail", "message_id": id})).await;
        let time: Option<jiff::Timestamp> =
            shown["message"]["leaseExpireTime"].as_str().and_then(|time| time.parse().ok());
        time.map_or(i64::MIN, jiff::Timestamp::as_millisecond)
    };
    let begun = clock.now().millis();
    comes_to_hold(async || ends("short").await == begun + 10_000 && ends("long").await == begun + 10_000).await;
    // The worker says nothing more.
    for step in 1..=6 {
        clock.advance(Duration::from_secs(5));
        let now = begun + step * 5_000;
        comes_to_hold(async || ends("short").await == now + 10_000 && ends("long").await == now + 10_000).await;
        assert_eq!(server.done("Dequeue", json!({"queue": "mail"})).await["leases"], json!([]));
    }
    // A connection that breaks keeps nothing.
    drop(worker);
    comes_to_hold(async || {
        clock.advance(Duration::from_secs(1));
        let other = server.done("Dequeue", json!({"queue": "mail"})).await;
        other["leases"][0]["attemptNumber"] == 2
    })
    .await;
}

#[tokio::test]
async fn a_stream_ends_at_once_when_its_label_is_opened_again() {
    let server = with_mail().await;
    let session_id = opened(&server, "worker-7", "3600s").await;
    let mut worker = Worker::open(server.queues().await, wire::WorkRequest { session_id, ..asking(1) }).await;
    server.done("Enqueue", enqueue("a", 1)).await;
    worker.leases(1).await;
    opened(&server, "worker-7", "3600s").await;
    assert_eq!(worker.end().await, "SESSION_REPLACED");
    let next = server.done("Dequeue", json!({"queue": "mail"})).await;
    assert_eq!(next["leases"][0]["attemptNumber"], 2);
    let unknown = wire::WorkRequest { session_id: "s.unknown".to_owned(), ..asking(1) };
    assert_eq!(Worker::open(server.queues().await, unknown).await.end().await, "SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_worker_that_never_reads_holds_little_and_loses_it() {
    const MESSAGES: usize = 300;
    let server = Wire::start().await;
    // A slow machine takes seconds to lease and settle a batch of this size.
    server
        .done("CreateQueue", json!({"queue": {"name": "mail", "default_lease": "5s", "default_max_attempts": 100}}))
        .await;
    let mut client = server.queues().await;
    for part in 0..MESSAGES / 100 {
        let message = |n: usize| wire::Message {
            message_id: format!("m-{part}-{n}"),
            payload: vec![7; 32 * 1024],
            ..Default::default()
        };
        let messages = (0..100).map(message).collect();
        client
            .batch_enqueue(wire::BatchEnqueueRequest { queue: "mail".to_owned(), messages })
            .await
            .expect("it takes them");
    }
    let deaf = Worker::open(server.queues().await, asking(1_000)).await;
    until(|| server.engine.stats().leases_given.get() > 0).await;
    let mut taken = 0;
    while taken < MESSAGES {
        let wait = Some(prost_types::Duration { seconds: 15, nanos: 0 });
        let ask = wire::DequeueRequest { queue: "mail".to_owned(), max_messages: 100, wait, ..Default::default() };
        let leases = client.dequeue(ask).await.expect("an answer").into_inner().leases;
        assert!(!leases.is_empty(), "others go on, {taken} so far");
        taken += leases.len();
        let items = leases.iter().map(complete).collect();
        let settle = wire::SettleMessagesRequest { queue: "mail".to_owned(), items };
        let settled = client.settle_messages(settle).await.expect("an answer").into_inner();
        taken -= settled.results.iter().filter(|result| result.error.is_some()).count();
    }
    assert_eq!(server.done("GetDepth", json!({"queue": "mail"})).await["completed"], MESSAGES.to_string());
    drop(deaf);
}

#[tokio::test]
async fn workers_that_wait_cost_the_store_nothing_and_one_message_wakes_one() {
    let streams = usual_or_long(500, 10_000);
    let server = with_mail().await;
    let mut workers = Vec::new();
    for _ in 0..streams / 100 {
        let client = server.queues().await;
        for _ in 0..100 {
            workers.push(Worker::open(client.clone(), asking(1)).await);
        }
    }
    until(|| server.waiting_dequeues() == streams).await;
    let before = server.engine.stats().queue_commands.get();
    server.done("Enqueue", enqueue("a", 1)).await;
    let mut firsts: Vec<_> = workers.iter_mut().map(|worker| Box::pin(worker.leases(1))).collect();
    let any = futures_util::future::select_all(firsts.iter_mut());
    let (leases, _, _) = tokio::time::timeout(Duration::from_secs(60), any).await.expect("one of them gets it");
    assert_eq!(leases.len(), 1);
    assert_eq!(server.engine.stats().queue_commands.get() - before, 2, "the enqueue, and the dequeue of one worker");
}

#[tokio::test]
async fn what_a_broken_connection_did_not_accept_goes_back_at_once() {
    const MESSAGES: usize = 250;
    // Responses of 50 messages and 1.6 MB. Two begin within the 2 MB that a worker takes unread, and a third waits for its turn.
    const ACCEPTED: usize = 100;
    const LEASED: usize = 150;
    let server = Wire::start().await;
    server.done("CreateQueue", json!({"queue": {"name": "mail", "default_lease": "3600s"}})).await;
    let mut client = server.queues().await;
    for _ in 0..MESSAGES / 50 {
        let message = || wire::Message { payload: vec![7; 32 * 1024], ..Default::default() };
        let messages = (0..50).map(|_| message()).collect();
        let asked = wire::BatchEnqueueRequest { queue: "mail".to_owned(), messages };
        client.batch_enqueue(asked).await.expect("it takes them");
    }
    let deaf = Worker::open(server.queues().await, asking(1_000)).await;
    comes_to_hold(async || server.engine.stats().leases_given.get() == LEASED as u64).await;
    drop(deaf);
    let running = async || server.done("GetDepth", json!({"queue": "mail"})).await["running"].clone();
    comes_to_hold(async || running().await == json!(ACCEPTED.to_string())).await;
    assert_eq!(lease(&server).await["attemptNumber"], 1, "nobody has seen it");
}
