//! Enqueue, dequeue and complete through batches and Work streams, with a backlog that stays as large as it was.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tallystone_client::proto::queue::v1::{BatchEnqueueRequest, WorkRequest};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::messages::{Client, Kind, client, completion, message};
use crate::client::Connections;
use crate::load::Span;
use crate::report::Report;
use crate::store::Rows;

const STREAMS: usize = 4;
const PRODUCERS: usize = 8;
const BATCH: usize = 100;
const CREDIT: i32 = 1_000;
/// How many more messages may be enqueued than were completed.
const AHEAD: usize = 20_000;

/// The rows that no queue on this store can do without in the three steps of a cycle: head and body, head, head.
pub const ROWS_OF_A_CYCLE: usize = 4;

/// Rows of that size, in commits as large as the store's committer makes them.
pub fn rows_of_a_cycle() -> Rows {
    Rows { key_bytes: 28, value_bytes: 100, batch: 100, producers: 64, group: 2_048, counters: 1 }
}

/// Runs cycles; a report counts what was completed, with the latency of the settlements.
pub async fn run(connections: &Connections, queue: &str, kind: Kind, span: Span) -> Result<Report> {
    let room = Arc::new(Semaphore::new(AHEAD));
    let from = Instant::now() + span.warm_up;
    let to = from + span.measure;
    let mut producers = JoinSet::new();
    for worker in 0..PRODUCERS {
        producers.spawn(produce(client(connections, worker), queue.to_owned(), kind, Arc::clone(&room), to));
    }
    let mut workers = JoinSet::new();
    for worker in 0..STREAMS {
        workers.spawn(work(client(connections, worker), queue.to_owned(), Arc::clone(&room), (from, to)));
    }
    let mut all = Report::new();
    while let Some(report) = workers.join_next().await {
        all.merge(&report??);
    }
    room.close();
    while let Some(done) = producers.join_next().await {
        done??;
    }
    all.measured = span.measure;
    Ok(all)
}

async fn produce(mut client: Client, queue: String, kind: Kind, room: Arc<Semaphore>, to: Instant) -> Result<()> {
    while Instant::now() < to {
        let Ok(permits) = room.acquire_many(u32::try_from(BATCH)?).await else { break };
        permits.forget();
        let messages = (0..BATCH as u64).map(|number| message(kind, number)).collect();
        let request = BatchEnqueueRequest { queue: queue.clone(), messages };
        let results = client.batch_enqueue(request).await?.into_inner().results;
        anyhow::ensure!(results.iter().all(|result| result.error.is_none()), "every message is taken in");
    }
    Ok(())
}

async fn work(
    mut client: Client,
    queue: String,
    room: Arc<Semaphore>,
    (from, to): (Instant, Instant),
) -> Result<Report> {
    let (requests, sent) = mpsc::channel(64);
    requests.send(WorkRequest { queue: queue.clone(), credit: CREDIT, ..WorkRequest::default() }).await?;
    let mut answers = client.work(ReceiverStream::new(sent)).await?.into_inner();
    let mut report = Report::new();
    let mut settled_at = std::collections::VecDeque::new();
    while Instant::now() < to {
        let next = tokio::time::timeout(Duration::from_secs(10), answers.message()).await;
        let answer = next.context("a stream fell silent")??.context("the server ended the stream")?;
        let now = Instant::now();
        if !answer.results.is_empty() {
            let begun = settled_at.pop_front().unwrap_or(now);
            let done = answer.results.iter().filter(|result| result.error.is_none()).count();
            room.add_permits(done);
            if now >= from && now < to {
                report.note(now - begun, &Ok(done as u64));
            }
        }
        if !answer.leases.is_empty() {
            let credit = i32::try_from(answer.leases.len())?;
            let settlements = answer.leases.into_iter().map(|lease| completion(lease.lease_token)).collect();
            settled_at.push_back(now);
            requests.send(WorkRequest { settlements, credit, ..WorkRequest::default() }).await?;
        }
    }
    Ok(report)
}
