//! Workers that wait: many open streams on a queue that is empty, and what they cost the server; then messages, each of which
//! wakes one of them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use tallystone_client::Connection;
use tallystone_client::proto::queue::v1 as pb;
use tallystone_client::proto::queue::v1::queue_service_client::QueueServiceClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::Connections;
use crate::target::{Target, Usage, usage};

/// Streams of one connection; servers of HTTP/2 take 200.
const STREAMS_OF_A_CONNECTION: usize = 100;
const QUEUE: &str = "idle";

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Streams that wait.
    pub workers: usize,
    /// How long the server is watched while they do.
    pub watched: Duration,
    /// Messages that are sent one after another then.
    pub messages: u32,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    workers: usize,
    /// The share of one core.
    pub cpu: f64,
    resident_max: u64,
    /// From an enqueue to its lease at a worker, on average.
    delivery: Duration,
}

impl Cost {
    /// One line for people.
    pub fn line(&self) -> String {
        let Self { workers, cpu, resident_max, delivery } = self;
        let (percent, mib) = (cpu * 100.0, resident_max / 1024 / 1024);
        format!("idle: {workers} workers, {percent:.2} % of one core, {mib} MiB, {delivery:.2?} from enqueue to lease")
    }
}

/// Opens the streams, watches the server, sends messages.
pub async fn run(target: &Target, plan: Plan) -> Result<Cost> {
    let connections = Connections::open(&target.url(), plan.workers.div_ceil(STREAMS_OF_A_CONNECTION) + 1).await?;
    let mut client = QueueServiceClient::new(connections.channel(0));
    let queue = pb::Queue { name: QUEUE.to_owned(), ..Default::default() };
    client.create_queue(pb::CreateQueueRequest { queue: Some(queue), ..Default::default() }).await?;
    let (leased, mut leases) = mpsc::channel(1_024);
    let mut workers = JoinSet::new();
    let opening = (0..plan.workers)
        .map(|worker| open(QueueServiceClient::new(connections.channel(1 + worker / STREAMS_OF_A_CONNECTION))));
    for (requests, mut answers) in try_join_all(opening).await? {
        let leased = leased.clone();
        workers.spawn(async move {
            while let Ok(Some(answer)) = answers.message().await {
                for lease in answer.leases {
                    let verb = pb::Verb::Complete.into();
                    let settlements =
                        vec![pb::Settlement { lease_token: lease.lease_token, verb, ..Default::default() }];
                    // Both ends are there as long as the run lasts.
                    let _ = leased.send(Instant::now()).await;
                    let _ = requests.send(pb::WorkRequest { settlements, credit: 1, ..Default::default() }).await;
                }
            }
        });
    }
    let (before, began) = (usage(target.pid())?, Instant::now());
    tokio::time::sleep(plan.watched).await;
    let (Usage { cpu, resident_max, .. }, lasted) = (usage(target.pid())?, began.elapsed());
    let cpu = cpu.saturating_sub(before.cpu).as_secs_f64() / lasted.as_secs_f64();
    let mut waited = Duration::ZERO;
    for _ in 0..plan.messages {
        let sent = Instant::now();
        let message = pb::Message { payload: vec![7; 100], ..Default::default() };
        client.enqueue(pb::EnqueueRequest { queue: QUEUE.to_owned(), message: Some(message) }).await?;
        let came = tokio::time::timeout(Duration::from_secs(10), leases.recv()).await;
        waited += came
            .context("no worker got the message")?
            .context("the workers are there")?
            .saturating_duration_since(sent);
    }
    workers.shutdown().await;
    ensure!(leases.try_recv().is_err(), "a message came twice");
    Ok(Cost { workers: plan.workers, cpu, resident_max, delivery: waited / plan.messages.max(1) })
}

/// A stream whose first request was answered.
async fn open(
    mut client: QueueServiceClient<Connection>,
) -> Result<(mpsc::Sender<pb::WorkRequest>, tonic::Streaming<pb::WorkResponse>)> {
    let (requests, sent) = mpsc::channel(4);
    requests.send(pb::WorkRequest { queue: QUEUE.to_owned(), credit: 1, ..Default::default() }).await?;
    let mut answers = client.work(ReceiverStream::new(sent)).await?.into_inner();
    answers.message().await?.context("the first request is answered")?;
    Ok((requests, answers))
}
