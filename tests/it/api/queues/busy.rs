//! Stores that misbehave: a worker whose settlements a busy one refuses, and one that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tallystone::adapters::memory;
use tallystone::adapters::system::{SystemClock, SystemEntropy};
use tallystone::client::queues::{Job, Outcome, Shutdown, WorkSummary, Worker};
use tallystone::client::{Client, RetryPolicy};
use tallystone::domain::Reason;
use tallystone::domain::queue::{Command, QueueName};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::driver::Driver;
use tallystone::engine::queues::{QueueDraft, Queues, SentMessage};
use tallystone::engine::stats::Stats;
use tokio::sync::watch;

use super::super::{DRAIN_DEADLINE, Wire};
use crate::support::harness::PATIENCE;
use crate::support::judging::{Judged, Judging};

const HOUR: Duration = Duration::from_secs(3_600);

/// A server on such a store.
async fn with_judge(judge: impl Fn(&Command) -> Judged + Send + Sync + 'static) -> Wire {
    let clock = Arc::new(SystemClock);
    let queues = Judging::before(memory::queue_stores(clock.clone()), judge);
    let mut server = Wire::bind_to(memory::stores(), queues, DRAIN_DEADLINE, clock).await;
    server.open().await;
    server
}

/// A server with one message that has one attempt, on a store that refuses so many settlements; a worker of the queue whose
/// calls are made once each, and how many refusals are left.
async fn with_busy_store(refusals: u32) -> (Wire, Worker, watch::Receiver<u32>) {
    let (left, seen) = watch::channel(refusals);
    let refuses = |left: &mut u32| {
        let some = *left > 0;
        *left = left.saturating_sub(1);
        some
    };
    let server = with_judge(move |command| match command {
        Command::Settle { .. } if left.send_if_modified(refuses) => Judged::Refused,
        _ => Judged::Taken, // only settlements are refused
    })
    .await;
    let queue = json!({"name": "mail", "default_lease": "3600s", "default_max_attempts": 1});
    server.done("CreateQueue", json!({"queue": queue})).await;
    server.done("Enqueue", json!({"queue": "mail", "message": {"message_id": "a"}})).await;
    let policy = RetryPolicy { attempts_max: 1, total: PATIENCE, attempt_max: PATIENCE, ..RetryPolicy::default() };
    let client = Client::new(&server.address.to_string(), policy).expect("a valid address");
    (server, client.worker("mail").session_lease(HOUR), seen)
}

async fn ends(work: impl Future<Output = WorkSummary>) -> WorkSummary {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("the worker ends")
}

#[tokio::test]
async fn a_settlement_that_a_busy_store_refuses_is_sent_again() {
    let (server, worker, left) = with_busy_store(2).await;
    let (done, shutdown) = (async |_: Job| Outcome::Complete, Shutdown::default());
    let worker = worker.until_empty();
    let summary = ends(async { worker.run(done, &shutdown).await.expect("it works") }).await;
    assert_eq!((summary.completed, summary.others, *left.borrow()), (1, 0, 0), "{summary:?}");
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((&depth["completed"], &depth["errored"]), (&json!("1"), &json!("0")), "{depth}");
}

#[tokio::test]
async fn a_worker_that_is_ended_does_not_insist_on_a_settlement() {
    let (server, worker, mut left) = with_busy_store(u32::MAX).await;
    let (done, shutdown) = (async |_: Job| Outcome::Complete, Shutdown::default());
    let end = async {
        left.wait_for(|left| *left < u32::MAX - 1).await.expect("the store lives");
        shutdown.abort_jobs();
    };
    let run = async { worker.run(done, &shutdown).await.expect("it works") };
    let summary = ends(async { tokio::join!(run, end).0 }).await;
    assert_eq!((summary.completed, summary.others), (0, 1), "{summary:?}");
    let depth = server.done("GetDepth", json!({"queue": "mail"})).await;
    assert_eq!((&depth["completed"], &depth["errored"]), (&json!("0"), &json!("0")), "{depth}");
    assert_eq!(depth["pending"], "1", "given back with the session: {depth}");
}

#[tokio::test]
async fn a_panic_of_the_store_hangs_no_call_and_the_next_ones_go_on() {
    let is_broken = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_broken);
    let server = with_judge(move |command| match command {
        Command::Enqueue(_) if seen.load(Ordering::SeqCst) => Judged::Panics,
        _ => Judged::Taken, // only enqueues meet the defect
    })
    .await;
    server.done("CreateQueue", json!({"queue": {"name": "mail"}})).await;
    let enqueue = |id: &str| json!({"queue": "mail", "message": {"message_id": id}});
    server.done("Enqueue", enqueue("a")).await;
    is_broken.store(true, Ordering::SeqCst);
    // One by one and together: neither the call that panicked nor one that travelled with it or waited behind it hangs.
    let refused = server.refused("Enqueue", enqueue("b"), Reason::OutcomeUnknown).await;
    assert!(refused["message"].as_str().is_some_and(|text| !text.contains("closing")), "{refused}");
    let calls = (0..50).map(|number| {
        let body = enqueue(&format!("c{number}"));
        let server = &server;
        async move { server.refused("Enqueue", body, Reason::OutcomeUnknown).await }
    });
    join_all(calls).await;
    is_broken.store(false, Ordering::SeqCst);
    server.done("Enqueue", enqueue("b")).await;
    let leases = server.done("Dequeue", json!({"queue": "mail", "max_messages": 10})).await;
    assert_eq!(leases["leases"].as_array().map(Vec::len), Some(2), "{leases}");
}

#[tokio::test]
async fn a_panic_of_the_store_is_counted() {
    let clock = Arc::new(SystemClock);
    let stores = Judging::before(memory::queue_stores(clock.clone()), |command| match command {
        Command::Enqueue(_) => Judged::Panics,
        _ => Judged::Taken, // only enqueues meet the defect
    });
    let (driver, stats) = (Driver::new(clock.clone()), Arc::new(Stats::default()));
    let queues = Queues::start(stores, clock, Arc::new(SystemEntropy), driver, Arc::clone(&stats)).await;
    let (queues, name) = (queues.expect("an empty store"), QueueName::new("mail").expect("a name"));
    let author = Author { actor: String::new(), reason: String::new() };
    queues.catalog.create(QueueDraft::of(name.clone()), author).await.expect("a queue");
    for panics in 1..=3 {
        let refused =
            queues.work.enqueue(&CallerId::nobody(), &name, SentMessage::default()).await.expect_err("a panic");
        assert_eq!((refused.reason(), stats.queue_panics.get()), (Reason::OutcomeUnknown, panics));
    }
}
