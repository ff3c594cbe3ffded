//! What an application gets: typed messages sent and worked off by the client library, each job a task of its own.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use tallystone_client::queues::{Enqueued, Job, Message, Outcome, Queue, Shutdown};
use tallystone_client::{Client, RetryPolicy};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::messages::{PAYLOAD, enqueued};
use crate::load::Span;
use crate::report::Report;

const WORKERS: usize = 4;
/// Jobs at once of each worker.
const CONCURRENCY: usize = 250;
const PRODUCERS: usize = 4;
const BATCH: usize = 100;
/// How many more messages may be sent than were worked off.
const AHEAD: usize = 10_000;

/// Sends and works off as fast as it goes; a report counts the jobs, with the time from the enqueue to the job.
pub async fn run(url: &str, queue: &str, span: Span) -> Result<Report> {
    let from = Instant::now() + span.warm_up;
    let to = from + span.measure;
    let (room, shutdown) = (Arc::new(Semaphore::new(AHEAD)), Arc::new(Shutdown::default()));
    let report = Arc::new(Mutex::new(Report::new()));
    let queue_of = |client: &Client| -> Queue<String> { client.queue(queue) };
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let queue = queue_of(&Client::of(&[url], RetryPolicy::default())?);
        let (room, report, shutdown) = (Arc::clone(&room), Arc::clone(&report), Arc::clone(&shutdown));
        let work = move |value: String, job: Job| {
            room.add_permits(1);
            let now = Instant::now();
            if now >= from && now < to {
                report
                    .lock()
                    .expect("nobody panics with it")
                    .note(since_enqueue(&job), &Ok(u64::from(value.len() == PAYLOAD - QUOTES)));
            }
            async { Outcome::Complete }
        };
        workers.spawn(async move {
            let worker = queue.worker().concurrency(CONCURRENCY);
            Box::pin(queue.run(&worker, work, &shutdown)).await
        });
    }
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        let queue = queue_of(&Client::of(&[url], RetryPolicy::default())?);
        producers.spawn(produce(queue, Arc::clone(&room), to));
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    tokio::time::sleep_until(to).await;
    shutdown.stop_leasing();
    let mut failed = 0;
    while let Some(tally) = workers.join_next().await {
        let tally = tally?.context("a worker ended")?;
        failed += tally.failed + tally.others;
    }
    ensure!(failed == 0, "{failed} jobs were not completed");
    let mut all = Report::new();
    all.merge(&report.lock().expect("nobody panics with it"));
    all.measured = span.measure;
    Ok(all)
}

/// The bytes around a string in JSON.
const QUOTES: usize = 2;

async fn produce(queue: Queue<String>, room: Arc<Semaphore>, to: Instant) -> Result<()> {
    let value = "7".repeat(PAYLOAD - QUOTES);
    while Instant::now() < to {
        let Ok(permits) = tokio::time::timeout_at(to, room.acquire_many(u32::try_from(BATCH)?)).await else { break };
        permits?.forget();
        let messages = (0..BATCH).map(|_| Message::new(&value)).collect::<Result<_, _>>()?;
        let sent = queue.send_all(messages).await?;
        ensure!(sent.iter().all(|sent| matches!(sent, Enqueued::Taken(_))), "every message is taken in");
    }
    Ok(())
}

/// By the server's clock, which is that of this machine.
fn since_enqueue(job: &Job) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    enqueued(job.message()).map_or(Duration::ZERO, |enqueued| now.saturating_sub(enqueued))
}
