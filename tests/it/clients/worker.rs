//! The worker of the client library on a real server: what it completes, what it does when answers are lost, when a lease
//! is, when a message is to be canceled, and how it ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tallystone::client::queues::{Enqueued, Job, Message, Outcome, Phase, Queue, Shutdown, StopReason, WorkerEvent};
use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::queue::v1 as pb;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{Launch, PATIENCE, Server};

#[allow(dead_code, reason = "its main is not run here")]
#[path = "../../../examples/worker.rs"]
mod example;

/// A server with the queue `mail`, and a way to it.
struct House {
    server: Arc<Server>,
    _folder: TempDir,
    way: Arc<Proxy>,
}

impl House {
    fn new(settings: &Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let server = Launch::dev(&folder.path().join("data")).start();
        let way = Proxy::start(server.address, Wire::Http2).expect("a proxy");
        let house = Self { server: Arc::new(server), _folder: folder, way: Arc::new(way) };
        let mut queue = settings.clone();
        queue["name"] = json!("mail");
        house.ask("CreateQueue", &json!({"queue": queue}));
        house
    }

    fn client(&self) -> Client {
        let policy = RetryPolicy {
            attempts_max: 20,
            total: PATIENCE,
            pause_first: Duration::from_millis(5),
            ..RetryPolicy::default()
        };
        Client::new(&self.way.address().to_string(), policy).expect("a valid address")
    }

    /// A call past the proxy.
    fn ask(&self, method: &str, body: &Value) -> Value {
        let path = format!("/tallystone.queue.v1.QueueService/{method}");
        let answer = self.server.post(&path, &body.to_string());
        assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
        serde_json::from_str(&answer.body).expect("JSON")
    }

    fn message(&self, id: &str) -> Value {
        self.ask("GetMessage", &json!({"queue": "mail", "message_id": id}))["message"].clone()
    }

    fn depth(&self) -> [Value; 5] {
        let depth = self.ask("GetDepth", &json!({"queue": "mail"}));
        ["pending", "running", "errored", "completed", "canceled"].map(|state| depth[state].clone())
    }
}

async fn filled(house: &House, count: u32) -> Queue<u32> {
    let queue: Queue<u32> = house.client().queue("mail");
    let messages = (0..count).map(|n| Message::new(&n).expect("a number").id(format!("m-{n}"))).collect();
    let taken = queue.send_all(messages).await.expect("they are taken in");
    assert!(taken.iter().all(|one| matches!(one, Enqueued::Taken(_))), "{taken:?}");
    queue
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_lost_cost_no_message_an_attempt() {
    const MESSAGES: u32 = 40;
    let house = House::new(&json!({"default_lease": "3600s", "default_max_attempts": 1, "shards": 2}));
    let queue = filled(&house, MESSAGES).await;
    let (seen, shutdown) = (Arc::new(Mutex::new(BTreeSet::new())), Shutdown::default());
    let (way, done, end) = (Arc::clone(&house.way), Arc::clone(&seen), shutdown.clone());
    let work = move |number: u32, _job: Job| {
        if number.is_multiple_of(5) {
            way.set(Fault::LoseOne);
        }
        let mut seen = done.lock().expect("nobody panicked");
        assert!(seen.insert(number), "{number} came twice");
        if seen.len() == MESSAGES as usize {
            end.stop_leasing();
        }
        async { Outcome::Complete }
    };
    let worker = queue.worker().concurrency(3);
    let summary = queue.run(&worker, work, &shutdown).await.expect("losses pass");
    assert!(house.way.lost() >= 3, "answers were lost: {}", house.way.lost());
    assert_eq!((summary.completed, summary.failed), (u64::from(MESSAGES), 0), "{summary:?}");
    assert_eq!(house.depth(), ["0", "0", "0", "40", "0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_renewed_while_the_work_lasts_and_no_longer() {
    let house = House::new(&json!({"default_lease": "6s", "default_max_attempts": 1}));
    let queue = filled(&house, 1).await;
    let worker = queue.worker().session_lease(Duration::from_secs(6)).until_empty();
    let client = house.client();
    let work = move |_: u32, _job: Job| {
        let mut queues = client.queues();
        async move {
            // Nothing is ready, so this lasts twice the lease.
            let wait = Some(prost_types::Duration { seconds: 12, nanos: 0 });
            let ask = pb::DequeueRequest { queue: "mail".to_owned(), wait, ..Default::default() };
            let nothing = queues.dequeue(ask).await.expect("an answer").into_inner();
            assert!(nothing.leases.is_empty(), "the lease holds");
            Outcome::Complete
        }
    };
    queue.run(&worker, work, &Shutdown::default()).await.expect("it works");
    assert_eq!(house.depth(), ["0", "0", "0", "1", "0"]);
}

/// Asks for the end of the message of a job, past the proxy.
async fn cancel_asked(server: &Arc<Server>, job: &Job) {
    let cancel = json!({"queue": "mail", "message_id": job.message().message_id}).to_string();
    let server = Arc::clone(server);
    let asked = tokio::task::spawn_blocking(move || {
        server.post("/tallystone.queue.v1.QueueService/CancelMessage", &cancel).status
    });
    assert_eq!(asked.await.expect("no panic"), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_is_told_when_its_message_is_to_be_canceled() {
    let house = House::new(&json!({}));
    let queue = filled(&house, 1).await;
    let server = Arc::clone(&house.server);
    let work = move |_: u32, mut job: Job| {
        let server = Arc::clone(&server);
        async move {
            cancel_asked(&server, &job).await;
            assert_eq!(job.must_end().await, StopReason::CancelRequested);
            Outcome::Release
        }
    };
    let worker = queue.worker().session_lease(Duration::from_secs(9)).grace(Duration::from_secs(30)).until_empty();
    let summary = queue.run(&worker, work, &Shutdown::default()).await.expect("it works");
    assert_eq!(summary.others, 1);
    assert_eq!(house.message("m-0")["state"], "MESSAGE_STATE_CANCELED", "as was asked, whatever the work answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_while_the_cancel_of_its_message_cannot_be_settled() {
    let house = House::new(&json!({"default_lease": "3600s"}));
    let queue = filled(&house, 1).await;
    let (server, way) = (Arc::clone(&house.server), Arc::clone(&house.way));
    let (told, mut tells) = mpsc::channel(1);
    let work = move |_: u32, mut job: Job| {
        let (server, way, told) = (Arc::clone(&server), Arc::clone(&way), told.clone());
        async move {
            cancel_asked(&server, &job).await;
            assert_eq!(job.must_end().await, StopReason::CancelRequested);
            way.set(Fault::Cut);
            told.send(()).await.expect("the test waits");
            Outcome::Cancel
        }
    };
    let shutdown = Shutdown::default();
    let (unsettled, mut heard) = mpsc::channel(4);
    let worker =
        queue.worker().session_lease(Duration::from_secs(30)).grace(Duration::from_mins(1)).observed(move |event| {
            if let WorkerEvent::SettleFailed { message_id, .. } = event {
                unsettled.try_send(message_id.to_owned()).expect("the test hears it");
            }
        });
    let end = async {
        tells.recv().await.expect("the message is to be canceled");
        shutdown.abort_jobs();
    };
    let ends = async { tokio::join!(queue.run(&worker, work, &shutdown), end) };
    // The lease was given for an hour, and for so long would the cancel be tried.
    let (summary, ()) =
        tokio::time::timeout(Duration::from_mins(3), ends).await.expect("the worker hears that it ends");
    assert_eq!(summary.expect("it ends well").others, 1);
    assert_eq!(heard.recv().await.as_deref(), Some("m-0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_label_is_opened_again_drops_its_work() {
    let house = House::new(&json!({}));
    let queue = filled(&house, 1).await;
    let (events, mut heard) = mpsc::channel(16);
    let worker = queue.worker().label("worker-7").session_lease(Duration::from_secs(9)).observed(move |event| {
        if let WorkerEvent::StopRequested { message_id, reason } = event {
            // The test may have heard what it waits for.
            let _ = events.try_send((message_id.to_owned(), reason));
        }
    });
    let server = Arc::clone(&house.server);
    let work = move |_: u32, _job: Job| {
        let server = Arc::clone(&server);
        async move {
            let open = json!({"label": "worker-7"}).to_string();
            let opened = tokio::task::spawn_blocking(move || {
                server.post("/tallystone.queue.v1.QueueService/OpenSession", &open).status
            });
            assert_eq!(opened.await.expect("no panic"), 200);
            std::future::pending::<Outcome>().await
        }
    };
    let broken = queue.run(&worker, work, &Shutdown::default()).await.expect_err("the other has the label");
    assert_eq!(broken.error.reason().as_deref(), Some("SESSION_REPLACED"), "{broken}");
    assert_eq!(heard.recv().await, Some(("m-0".to_owned(), StopReason::LeaseLost)));
    assert_eq!(house.message("m-0")["state"], "MESSAGE_STATE_PENDING", "it went back at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_in_two_phases() {
    let house = House::new(&json!({}));
    let queue = filled(&house, 3).await;
    let shutdown = Shutdown::default();
    let (begun, mut begins) = mpsc::channel(4);
    let worker = queue.worker().concurrency(2).grace(Duration::from_secs(30));
    let work = move |number: u32, mut job: Job| {
        let begun = begun.clone();
        async move {
            begun.send(number).await.expect("the test waits");
            assert_eq!(job.must_end().await, StopReason::Stopped);
            Outcome::failed("stopped", "")
        }
    };
    let end = async {
        begins.recv().await.expect("one");
        begins.recv().await.expect("two");
        shutdown.stop_leasing();
        assert_eq!((shutdown.phase(), house.depth()[1].clone()), (Phase::Finishing, json!("2")), "what runs goes on");
        shutdown.abort_jobs();
    };
    let (summary, ()) = tokio::join!(queue.run(&worker, work, &shutdown), end);
    assert_eq!(summary.expect("it ends well").others, 2);
    assert_eq!(house.depth(), ["3", "0", "0", "0", "0"]);
    assert_eq!(house.message("m-0")["attemptsLeft"], 3, "given back, with its attempt");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_panics_or_cannot_be_read_fails_its_message() {
    let house = House::new(&json!({"default_max_attempts": 1}));
    let queue = filled(&house, 1).await;
    let other: Queue<String> = house.client().queue("mail");
    other.send(Message::new(&"no number".to_owned()).expect("a text").id("text")).await.expect("it is taken in");
    let worker = queue.worker().until_empty();
    let work = |_: u32, _job: Job| async move { panic!("a defect of the application") };
    let summary = queue.run(&worker, work, &Shutdown::default()).await.expect("the worker goes on");
    assert_eq!((summary.failed, summary.completed), (2, 0));
    assert_eq!(house.message("m-0")["error"]["signature"], "panic");
    assert_eq!(house.message("text")["error"]["signature"], "bad payload");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_a_worker_pays_what_was_ordered() {
    let house = House::new(&json!({}));
    let address = house.way.address().to_string();
    assert_eq!(example::work_off(&[&address]).await.expect("it works"), 400);
    house.way.set(Fault::LoseOne);
    assert_eq!(example::work_off(&[&address]).await.expect("it works"), 400, "an order is taken in once");
}
