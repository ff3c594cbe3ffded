//! From the time at which a message falls due until a worker on an open stream has it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use tallystone_client::proto::queue::v1::{BatchEnqueueRequest, Lease, WorkRequest};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::messages::{Client, Kind, client, completion, enqueued, message};
use crate::client::Connections;
use crate::load::Span;
use crate::report::Report;

const STREAMS: usize = 4;
const BATCHES_A_SECOND: u64 = 100;
/// How long a message is invisible.
const HIDDEN: Duration = Duration::from_secs(2);

/// Enqueues invisible messages at a rate; the latency of each is from its due time, by the server's clock on this machine.
pub async fn run(connections: &Connections, queue: &str, rate: u64, span: Span) -> Result<Report> {
    let from = Instant::now() + HIDDEN + span.warm_up;
    let to = from + span.measure;
    let mut tasks = JoinSet::new();
    for worker in 0..STREAMS {
        tasks.spawn(work(client(connections, worker), queue.to_owned(), (from, to)));
    }
    let producer = tokio::spawn(produce(client(connections, STREAMS), queue.to_owned(), rate, to));
    let mut all = Report::new();
    while let Some(report) = tasks.join_next().await {
        all.merge(&report??);
    }
    producer.await??;
    all.measured = span.measure;
    Ok(all)
}

async fn produce(client: Client, queue: String, rate: u64, to: Instant) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(BATCHES_A_SECOND)?);
    let invisibility = Some(prost_types::Duration { seconds: i64::try_from(HIDDEN.as_secs())?, nanos: 0 });
    let mut sent = JoinSet::new();
    while Instant::now() < to {
        ticks.tick().await;
        let hidden = |number| {
            let mut message = message(Kind::Plain, number);
            message.invisibility = invisibility;
            message
        };
        let messages = (0..(rate / BATCHES_A_SECOND).clamp(1, 100)).map(hidden).collect();
        let (mut client, request) = (client.clone(), BatchEnqueueRequest { queue: queue.clone(), messages });
        sent.spawn(async move { client.batch_enqueue(request).await });
        while let Some(done) = sent.try_join_next() {
            done??;
        }
    }
    Ok(())
}

async fn work(mut client: Client, queue: String, (from, to): (Instant, Instant)) -> Result<Report> {
    let (requests, sent) = mpsc::channel(64);
    requests.send(WorkRequest { queue, credit: 1_000, ..WorkRequest::default() }).await?;
    let mut answers = client.work(ReceiverStream::new(sent)).await?.into_inner();
    let mut report = Report::new();
    while Instant::now() < to {
        let next = tokio::time::timeout(Duration::from_secs(10), answers.message()).await;
        let answer = next.context("a stream fell silent")??.context("the server ended the stream")?;
        if answer.leases.is_empty() {
            continue;
        }
        let (now, clock) = (Instant::now(), SystemTime::now().duration_since(UNIX_EPOCH)?);
        for lease in &answer.leases {
            if now >= from && now < to {
                report.note(clock.saturating_sub(due(lease).unwrap_or(clock)), &Ok(1));
            }
        }
        let credit = i32::try_from(answer.leases.len())?;
        let settlements = answer.leases.into_iter().map(|lease| completion(lease.lease_token)).collect();
        requests.send(WorkRequest { settlements, credit, ..WorkRequest::default() }).await?;
    }
    Ok(report)
}

/// When a message fell due, since 1970.
fn due(lease: &Lease) -> Option<Duration> {
    Some(enqueued(lease.message.as_ref()?)? + HIDDEN)
}
