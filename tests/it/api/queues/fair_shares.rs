//! Workers that wait for messages get equal shares of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tallystone::proto::queue::v1 as wire;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::Wire;
use super::on_stores::on_every_store;
use super::waiting::until;

const WORKERS: usize = 30;
const MESSAGES: usize = 300;

/// Workers that take one message after another, and what each has taken.
struct Workers {
    taken: Arc<[AtomicUsize]>,
    tasks: JoinSet<()>,
}

impl Workers {
    fn none() -> Self {
        Self { taken: (0..WORKERS).map(|_| AtomicUsize::new(0)).collect(), tasks: JoinSet::new() }
    }

    /// Workers that wait in dequeues, for what meets the filter of their number.
    async fn that_dequeue(server: &Wire, filter: impl Fn(usize) -> HashMap<String, String>) -> Self {
        let mut workers = Self::none();
        for own in 0..WORKERS {
            workers.dequeue(server, own, filter(own)).await;
        }
        until(|| server.waiting_dequeues() == WORKERS).await;
        workers
    }

    async fn dequeue(&mut self, server: &Wire, own: usize, filter: HashMap<String, String>) {
        let (mut client, taken) = (server.queues().await, Arc::clone(&self.taken));
        self.tasks.spawn(async move {
            loop {
                let wait = Some(prost_types::Duration { seconds: 15, nanos: 0 });
                let filter = filter.clone();
                let ask = wire::DequeueRequest { queue: "mail".to_owned(), wait, filter, ..Default::default() };
                for lease in client.dequeue(ask).await.expect("an answer").into_inner().leases {
                    let item = complete(&lease);
                    let settle = wire::SettleMessagesRequest { queue: "mail".to_owned(), items: vec![item] };
                    client.settle_messages(settle).await.expect("settled");
                    taken[own].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// A worker with a stream. It settles what it gets at once, or never.
    async fn stream(&mut self, server: &Wire, own: usize, credit: i32, settles: bool) {
        let (mut client, taken) = (server.queues().await, Arc::clone(&self.taken));
        let (requests, sent) = mpsc::channel(16);
        requests
            .send(wire::WorkRequest { queue: "mail".to_owned(), credit, ..Default::default() })
            .await
            .expect("room");
        let mut answers = client.work(ReceiverStream::new(sent)).await.expect("a stream").into_inner();
        self.tasks.spawn(async move {
            while let Some(answer) = answers.next().await {
                let leases = answer.expect("no error").leases;
                taken[own].fetch_add(leases.len(), Ordering::Relaxed);
                if settles && !leases.is_empty() {
                    let credit = i32::try_from(leases.len()).expect("small");
                    let settlements = leases.iter().map(complete).collect();
                    let request = wire::WorkRequest { settlements, credit, ..Default::default() };
                    requests.send(request).await.expect("room");
                }
            }
        });
    }

    /// What each has taken, once all of so many messages are.
    async fn shares(&self, messages: usize) -> Vec<usize> {
        let shares = || self.taken.iter().map(|own| own.load(Ordering::Relaxed)).collect::<Vec<_>>();
        until(|| shares().iter().sum::<usize>() == messages).await;
        shares()
    }
}

fn complete(lease: &wire::Lease) -> wire::Settlement {
    let verb = wire::Verb::Complete.into();
    wire::Settlement { lease_token: lease.lease_token.clone(), verb, ..Default::default() }
}

async fn send(server: &Wire, metadata: Value) {
    server.done("Enqueue", json!({"queue": "mail", "message": {"metadata": metadata}})).await;
}

fn shapes() -> Value {
    json!({"name": "mail", "filter_shapes": [{"keys": ["team"]}]})
}

fn assert_fair(shares: &[usize]) {
    let twice = 2 * shares.iter().sum::<usize>() / shares.len();
    assert!(shares.iter().all(|share| *share <= twice), "{shares:?}");
}

#[tokio::test]
async fn of_messages_that_come_one_at_a_time_no_waiting_worker_gets_twice_its_share() {
    on_every_store(shapes(), async |server| {
        let workers = Workers::that_dequeue(server, |_| HashMap::new()).await;
        for _ in 0..MESSAGES {
            send(server, json!({})).await;
        }
        assert_fair(&workers.shares(MESSAGES).await);
    })
    .await;
}

#[tokio::test]
async fn of_messages_that_come_in_bursts_no_waiting_worker_gets_twice_its_share() {
    on_every_store(shapes(), async |server| {
        let workers = Workers::that_dequeue(server, |_| HashMap::new()).await;
        for burst in 1..=MESSAGES / WORKERS {
            let messages = vec![json!({}); WORKERS];
            server.done("BatchEnqueue", json!({"queue": "mail", "messages": messages})).await;
            workers.shares(burst * WORKERS).await;
        }
        assert_fair(&workers.shares(MESSAGES).await);
    })
    .await;
}

#[tokio::test]
async fn of_workers_with_two_filters_none_gets_twice_its_share() {
    on_every_store(shapes(), async |server| {
        let teams = ["red", "blue"];
        let filter = |own: usize| HashMap::from([("team".to_owned(), teams[own % 2].to_owned())]);
        let workers = Workers::that_dequeue(server, filter).await;
        for number in 0..MESSAGES {
            send(server, json!({"team": teams[number % 2]})).await;
        }
        assert_fair(&workers.shares(MESSAGES).await);
    })
    .await;
}

#[tokio::test]
async fn of_streams_that_settle_at_once_none_gets_twice_its_share() {
    on_every_store(shapes(), async |server| {
        let mut workers = Workers::none();
        for own in 0..WORKERS {
            workers.stream(server, own, 5, true).await;
        }
        until(|| server.waiting_dequeues() == WORKERS).await;
        for _ in 0..MESSAGES {
            send(server, json!({})).await;
        }
        assert_fair(&workers.shares(MESSAGES).await);
    })
    .await;
}

#[tokio::test]
async fn of_streams_the_one_with_the_most_free_credit_is_served_first() {
    on_every_store(shapes(), async |server| {
        let mut workers = Workers::none();
        let streams = 3;
        for own in 0..streams {
            workers.stream(server, own, 4 + 2 * i32::from(own == 1), false).await;
        }
        until(|| server.waiting_dequeues() == streams).await;
        for number in 1..=5 {
            send(server, json!({})).await;
            workers.shares(number).await;
            until(|| server.waiting_dequeues() == streams).await;
        }
        // 4, 6, 4, then 4, 4, 4, and then in turns.
        assert_eq!(&workers.shares(5).await[..streams], [1, 3, 1]);
    })
    .await;
}
