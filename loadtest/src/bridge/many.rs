//! Many queues with many messages: reads of their counters, a kill, and what they cost at rest.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tallystone_client::proto::queue::v1::{BatchEnqueueRequest, EnqueueRequest, Queue};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::readings::{Read, counts};
use super::{HISTORY_LAG, Scale, bounded};
use crate::client::Connections;
use crate::figures::{Figure, figure, tell};
use crate::load::{Span, open};
use crate::queues::begin;
use crate::queues::messages::{Kind, Queues, client, create, message};
use crate::target::{self, Target, usage};

const BATCH: u64 = 100;
const FILLERS: usize = 16;
/// Queues that are used while the server is killed.
const BUSY: u64 = 10;
const VALUES: u64 = 4;
const READS_PER_SECOND: f64 = 1_000.0;
const WITHIN: Duration = Duration::from_secs(600);

/// Fills, reads, rests, kills, and reads until every count is right.
pub async fn run(binary: &Path, folder: &TempDir, scale: &Scale) -> Result<Vec<Figure>> {
    let (server, connections) = begin(binary, folder.path()).await?;
    let each = scale.pending / scale.queues / BATCH * BATCH;
    fill(&connections, scale.queues, each).await?;
    let depths: Vec<String> = (0..scale.queues).map(|queue| format!("{}~depth.pending", name(queue))).collect();
    let expected = vec![i64::try_from(each)?; depths.len()];
    let filled = right(&connections, &depths, &expected).await?;
    eprintln!("all counters were right {filled:.1?} after the last enqueue");
    let carried = history_carried(&server).await?;
    eprintln!("the history had all of it after {carried:.1?} more");
    let by_value = (0..scale.queues).map(|queue| format!("{}~depth.pending~kind=v{}", name(queue), queue % VALUES));
    let span = Span { warm_up: Duration::from_secs(1), measure: Duration::from_secs(scale.seconds) };
    let plain = open(Read::workers(&connections, depths.clone(), 32), READS_PER_SECOND, span).await;
    let valued = open(Read::workers(&connections, by_value.collect(), 32), READS_PER_SECOND, span).await;
    tell(&[("GetCount of a depth", &plain), ("GetCount of a depth by value", &valued)]);
    let idle = at_rest(&server).await?;
    let mut expected = expected;
    one_more(&connections, scale.queues).await?;
    expected.iter_mut().for_each(|count| *count += 1);
    let resident = usage(server.pid())?.resident_max;
    drop(server); // kill -9 with reports still due
    let (ready, busy, all) = restarted(binary, folder, scale, (&depths, expected)).await?;
    let what = format!("{} queues, {} pending", scale.queues, each * scale.queues);
    Ok(vec![
        bounded(&format!("{what}: GetCount of a depth"), &plain, "p99 < 5 ms", 5.0),
        bounded(&format!("{what}: by value"), &valued, "p99 < 5 ms", 5.0),
        figure(&format!("{what}: idle"), format!("{:.2} % of a core", idle * 100.0), "< 1 %", idle < 0.01),
        figure(
            "busy queues right after a kill",
            format!("{:.1} s after the server was ready, which took {:.1} s", busy.as_secs_f64(), ready.as_secs_f64()),
            "< 5 s",
            busy < Duration::from_secs(5),
        ),
        figure(
            "all queues right after it",
            format!("{:.1} s; at most {} MiB resident before", all.as_secs_f64(), resident >> 20),
            "< 60 s",
            all < Duration::from_secs(60),
        ),
    ])
}

fn name(queue: u64) -> String {
    format!("q{queue:05}")
}

async fn fill(connections: &Connections, queues: u64, each: u64) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for worker in 0..FILLERS {
        let (mut client, next) = (client(connections, worker), Arc::clone(&next));
        let channel = connections.clone();
        tasks.spawn(async move {
            loop {
                let queue = next.fetch_add(1, Ordering::Relaxed);
                if queue >= queues {
                    return anyhow::Ok(());
                }
                let settings = Queue { count_by: vec!["kind".to_owned()], ..Queues::simple(&name(queue)) };
                create(&channel, settings).await?;
                for _ in 0..each / BATCH {
                    let messages = (0..BATCH).map(with_value).collect();
                    let request = BatchEnqueueRequest { queue: name(queue), messages };
                    let results = client.batch_enqueue(request).await?.into_inner().results;
                    ensure!(results.iter().all(|result| result.error.is_none()), "every message is taken in");
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

fn with_value(number: u64) -> tallystone_client::proto::queue::v1::Message {
    let mut message = message(Kind::Plain, number);
    message.metadata.insert("kind".to_owned(), format!("v{}", number % VALUES));
    message
}

/// One message into each queue, the busy ones last.
async fn one_more(connections: &Connections, queues: u64) -> Result<()> {
    let mut client = client(connections, 0);
    for queue in (0..queues).rev() {
        let request = EnqueueRequest { queue: name(queue), message: Some(with_value(0)) };
        client.enqueue(request).await?;
    }
    Ok(())
}

/// Waits until every counter reads as it should.
async fn right(connections: &Connections, names: &[String], expected: &[i64]) -> Result<Duration> {
    let (mut client, begun) = (connections.counters(0), Instant::now());
    let mut open: Vec<usize> = (0..names.len()).collect();
    loop {
        let wanted: Vec<String> = open.iter().map(|&at| names[at].clone()).collect();
        let read = counts(&mut client, &wanted).await?;
        open = open.iter().zip(read).filter(|&(&at, read)| read != expected[at]).map(|(&at, _)| at).collect();
        if open.is_empty() {
            return Ok(begun.elapsed());
        }
        let first = open[0];
        ensure!(begun.elapsed() < WITHIN, "{} counters are not right, {} is the first", open.len(), names[first]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the history has what was filled in, so that reads are measured beside a quiet server.
async fn history_carried(server: &Target) -> Result<Duration> {
    let begun = Instant::now();
    while target::metric(&server.metrics()?, HISTORY_LAG) > 1.0 {
        ensure!(begun.elapsed() < WITHIN, "the history lags after {WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(begun.elapsed())
}

/// The share of one core that a server takes at rest.
async fn at_rest(server: &Target) -> Result<f64> {
    tokio::time::sleep(Duration::from_secs(60)).await; // what was filled in is flushed, and read back once
    let (before, begun) = (usage(server.pid())?.cpu, Instant::now());
    tokio::time::sleep(Duration::from_secs(60)).await;
    Ok((usage(server.pid())?.cpu - before).as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// Starts again while the busy queues are used; when they are right, and when all are.
async fn restarted(
    binary: &Path,
    folder: &TempDir,
    scale: &Scale,
    (names, mut expected): (&[String], Vec<i64>),
) -> Result<(Duration, Duration, Duration)> {
    let server = Target::server(binary, folder.path())?;
    let (begun, ready) = (Instant::now(), server.ready_after);
    let connections = Connections::open(&server.url(), 1).await?;
    one_more(&connections, BUSY.min(scale.queues)).await?;
    let count = usize::try_from(BUSY.min(scale.queues))?;
    expected[..count].iter_mut().for_each(|count| *count += 1);
    right(&connections, &names[..count], &expected[..count]).await?;
    let busy = begun.elapsed();
    right(&connections, names, &expected).await?;
    let takeovers = target::metric(&server.metrics()?, "tallystone_bridge_takeovers_total");
    eprintln!("{takeovers} takeovers so far");
    Ok((ready, busy, begun.elapsed()))
}
