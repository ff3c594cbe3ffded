//! Waiting inside the server: who is woken, by what, and how a wait ends.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use tallystone::domain::Reason;
use tallystone::proto::queue::v1 as wire;
use tokio::task::JoinHandle;

use super::{Wire, clock, enqueue, lease, settle, with_mail, with_mail_at};

/// Workers that wait for one message each, once all of them wait.
async fn waiting(server: &Wire, count: usize) -> Vec<JoinHandle<Vec<wire::Lease>>> {
    let client = server.queues().await;
    let workers = (0..count).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let wait = Some(prost_types::Duration { seconds: 15, nanos: 0 });
            let request = wire::DequeueRequest { queue: "mail".to_owned(), wait, ..Default::default() };
            client.dequeue(request).await.expect("an answer").into_inner().leases
        })
    });
    let workers = workers.collect();
    until(|| server.waiting_dequeues() == count).await;
    workers
}

pub async fn until(holds: impl Fn() -> bool) {
    comes_to_hold(async || holds()).await;
}

/// The same for what has to be asked.
pub async fn comes_to_hold(holds: impl AsyncFn() -> bool) {
    let all = async {
        while !holds().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("it comes to hold");
}

#[tokio::test]
async fn each_message_wakes_one_worker() {
    let server = with_mail().await;
    let workers = waiting(&server, 5).await;
    let messages = json!([{"message_id": "a"}, {"message_id": "b"}]);
    server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    until(|| server.waiting_dequeues() == 3).await;
    server.done("BatchEnqueue", json!({"queue": "mail", "messages": [{}, {}, {}]})).await;
    let leases = join_all(workers).await;
    assert!(leases.iter().all(|got| got.as_ref().expect("no panic").len() == 1), "one message each");
}

#[tokio::test]
async fn what_becomes_servable_by_a_settlement_or_an_update_wakes_too() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let held = lease(&server).await;
    let worker = waiting(&server, 1).await.remove(0);
    server.done("Release", settle(&held)).await;
    let got = worker.await.expect("no panic");
    assert_eq!(got[0].message.as_ref().expect("a message").message_id, "a");
    let later = json!({"queue": "mail", "message": {"message_id": "b", "invisibility": "3600s"}});
    server.done("Enqueue", later).await;
    let worker = waiting(&server, 1).await.remove(0);
    server.done("UpdateMessage", json!({"queue": "mail", "message_id": "b", "invisibility": "0s"})).await;
    assert_eq!(worker.await.expect("no panic").len(), 1);
}

#[tokio::test]
async fn time_alone_wakes_a_worker() {
    let server = with_mail().await;
    let worker = waiting(&server, 1).await.remove(0);
    let soon = json!({"queue": "mail", "message": {"message_id": "a", "invisibility": "0.2s"}});
    assert_eq!(server.done("Enqueue", soon).await["state"], "MESSAGE_STATE_INVISIBLE");
    assert_eq!(worker.await.expect("no panic").len(), 1);
}

#[tokio::test]
async fn a_wait_that_looked_at_everything_says_so() {
    let server = with_mail().await;
    // More than a dequeue without a wait looks at.
    for _ in 0..45 {
        let messages: Vec<_> = (0..100).map(|_| json!({})).collect();
        server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
    }
    let ask = |wait: &str| json!({"queue": "mail", "filter": {"team": "nobody"}, "wait": wait});
    let mut told = Vec::new();
    // A machine that is slow or stopped may need a longer one.
    for wait in ["1s", "5s", "15s", "15s"] {
        let answer = server.done("Dequeue", ask(wait)).await;
        assert_eq!(answer["leases"], json!([]));
        told.push(answer["completeness"].clone());
        if told.last() == Some(&json!("COMPLETE")) {
            return;
        }
    }
    panic!("all was looked at: {told:?}");
}

#[tokio::test]
async fn a_wait_ends_empty_before_the_deadline_of_its_call() {
    let clock = clock();
    let server = with_mail_at(&clock).await;
    let mut request = tonic::Request::new(wire::DequeueRequest {
        queue: "mail".to_owned(),
        wait: Some(prost_types::Duration { seconds: 20, nanos: 0 }),
        ..Default::default()
    });
    // The call's own time is that of the machine; the wait is on the clock of the test, so it takes none of that.
    request.set_timeout(Duration::from_secs(18));
    let mut client = server.queues().await;
    let worker = tokio::spawn(async move { client.dequeue(request).await });
    until(|| server.waiting_dequeues() == 1).await;
    clock.advance(Duration::from_secs(18));
    let answer = worker.await.expect("no panic").expect("an answer, not a deadline").into_inner();
    assert!(answer.leases.is_empty());
    assert_eq!(answer.completeness(), wire::dequeue_response::Completeness::Complete);
}

#[tokio::test]
async fn a_worker_that_goes_away_while_it_waits_takes_nothing_with_it() {
    let server = with_mail().await;
    let worker = waiting(&server, 1).await.remove(0);
    worker.abort();
    until(|| server.waiting_dequeues() == 0).await;
    server.done("Enqueue", enqueue("a", 1)).await;
    assert_eq!(lease(&server).await["attemptNumber"], 1);
}

#[tokio::test]
async fn a_server_that_stops_leasing_ends_the_waits_and_takes_settlements() {
    let server = with_mail().await;
    server.done("Enqueue", enqueue("a", 1)).await;
    let held = lease(&server).await;
    let workers = waiting(&server, 3).await;
    server.engine.queues().expect("this engine has queues").stop_leasing();
    for got in join_all(workers).await {
        assert!(got.expect("no panic").is_empty());
    }
    server.refused("Dequeue", json!({"queue": "mail"}), Reason::ShuttingDown).await;
    assert_eq!(server.done("Complete", settle(&held)).await["state"], "MESSAGE_STATE_COMPLETED");
}

#[tokio::test]
async fn deleting_a_queue_ends_its_waits() {
    let server = with_mail().await;
    let mut client = server.queues().await;
    let worker = tokio::spawn(async move {
        let wait = Some(prost_types::Duration { seconds: 15, nanos: 0 });
        let request = wire::DequeueRequest { queue: "mail".to_owned(), wait, ..Default::default() };
        client.dequeue(request).await.expect_err("the queue is gone")
    });
    until(|| server.waiting_dequeues() == 1).await;
    server.done("DeleteQueue", json!({"queue": "mail"})).await;
    assert_eq!(super::super::reason(&worker.await.expect("no panic")), "QUEUE_NOT_FOUND");
}
