//! Two servers and many queues, each with a worker that waits at one of them while messages come through the other.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tallystone_client::proto::queue::v1::{DequeueRequest, EnqueueRequest};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::server::Redis;
use crate::client::Connections;
use crate::figures::{Figure, figure};
use crate::queues::messages::{Kind, Queues, client, create, message};
use crate::report::Report;
use crate::target::Target;

/// Streams of one connection; servers of HTTP/2 take 200.
const WORKERS_OF_A_CONNECTION: usize = 100;
/// The longest wait that a dequeue may ask for.
const WAIT: prost_types::Duration = prost_types::Duration { seconds: 30, nanos: 0 };
const SENT: usize = 500;

/// Runs it: what waiting costs Redis, and how soon a message is delivered through the other server.
pub async fn run(
    binary: &Path,
    folder: &impl Fn() -> Result<TempDir>,
    redis: &Redis,
    queues: usize,
    seconds: u64,
) -> Result<Vec<Figure>> {
    let (here, there) = (folder()?, folder()?);
    let arguments = ["--redis".to_owned(), redis.address.to_string()];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let sender = Target::server_with(binary, here.path(), &arguments)?;
    let waiting = Target::server_with(binary, there.path(), &arguments)?;
    let sending = Connections::open(&sender.url(), 4).await?;
    let made = Instant::now();
    for number in 0..queues {
        create(&sending, Queues::simple(&name(number))).await?;
    }
    eprintln!("{queues} queues made in {:.1?}", made.elapsed());
    let waits = Connections::open(&waiting.url(), queues.div_ceil(WORKERS_OF_A_CONNECTION)).await?;
    let (leased, mut leases) = mpsc::channel(1_024);
    let mut workers = JoinSet::new();
    for number in 0..queues {
        workers.spawn(work(client(&waits, number / WORKERS_OF_A_CONNECTION), name(number), leased.clone()));
    }
    // The first round of waits reads each shard once, and servers look at all that is new, which is the cost of beginning and
    // not of waiting.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (before, began) = (redis.used()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds.max(30))).await;
    let after = redis.used()?;
    let commands = (after.commands - before.commands) as f64 / began.elapsed().as_secs_f64();
    let mut report = Report::new();
    let mut client = client(&sending, 0);
    for at in 0..SENT {
        let queue = name(at * (queues / SENT).max(1) % queues);
        let sent = Instant::now();
        client.enqueue(EnqueueRequest { queue, message: Some(message(Kind::Plain, 0)) }).await?;
        let came: Instant =
            tokio::time::timeout(Duration::from_secs(35), leases.recv()).await?.context("the workers are there")?;
        report.note(came.saturating_duration_since(sent), &Ok(1));
    }
    workers.shutdown().await;
    ensure!(leases.try_recv().is_err(), "a message came twice");
    let (p50, p99) = (report.quantile_ms(0.5), report.quantile_ms(0.99));
    let what = format!("{queues} queues with a waiting worker each, two servers");
    Ok(vec![
        figure(&format!("{what}: commands at Redis"), format!("{commands:.0}/s"), "<= 400/s", commands <= 400.0),
        figure(
            &format!("{what}: enqueue to delivery through the other server"),
            format!("p99 {p99:.1} ms, p50 {p50:.1} ms"),
            "p99 < 20 ms",
            p99 < 20.0,
        ),
    ])
}

fn name(number: usize) -> String {
    format!("q-{number}")
}

/// Waits for messages again and again, and tells when one came. Its lease is left to expire.
async fn work(mut client: crate::queues::messages::Client, queue: String, leased: mpsc::Sender<Instant>) {
    loop {
        let mut request = tonic::Request::new(DequeueRequest {
            queue: queue.clone(),
            wait: Some(WAIT),
            lease_duration: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
            ..DequeueRequest::default()
        });
        request.set_timeout(Duration::from_secs(60));
        match client.dequeue(request).await {
            Ok(answer) if !answer.get_ref().leases.is_empty() => {
                let _ = leased.send(Instant::now()).await; // the run may be over
            }
            Ok(_) => {}
            Err(status) => {
                eprintln!("a wait ended: {status}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
