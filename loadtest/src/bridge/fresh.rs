//! How soon counts and series show a change, at a fixed rate of changes.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::readings::{count, series_sum};
use super::{Scale, bounded};
use crate::client::{Connections, Counters};
use crate::figures::{Figure, tell};
use crate::load::{Call, Span, open};
use crate::queues::begin;
use crate::queues::calls::{Enqueue, Pair};
use crate::queues::messages::{Kind, Queues, create, fill};
use crate::report::Report;

const QUEUE: &str = "fresh";
/// Changes of a message in its life: enqueue, dequeue, complete.
pub const CHANGES_OF_A_LIFE: f64 = 3.0;
const WORKERS: usize = 128;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Load at a fixed rate, with looks at a count and a series beside it.
pub async fn run(binary: &Path, folder: &TempDir, scale: &Scale) -> Result<Vec<Figure>> {
    let (_server, connections) = begin(binary, folder.path()).await?;
    create(&connections, Queues::simple(QUEUE)).await?;
    fill(&connections, QUEUE, Kind::Plain, 10_000).await?;
    let completed = Arc::new(AtomicI64::new(0));
    let span = Span { warm_up: Duration::ZERO, measure: Duration::from_secs(scale.seconds.max(30)) };
    let until = Instant::now() + span.measure;
    let counts = tokio::spawn(follow(connections.counters(2), Look::Count, Arc::clone(&completed), until));
    let series: JoinHandle<Result<Report>> =
        tokio::spawn(follow(connections.counters(3), Look::Series, Arc::clone(&completed), until));
    let load = live(&connections, QUEUE, scale.rate, span, &completed).await;
    tell(&[("enqueue", &load.0), ("dequeue and complete", &load.1)]);
    let (counts, series) = (counts.await??, series.await??);
    Ok(vec![
        bounded("GetCount shows a change", &counts, "p99 < 1 s", 1_000.0),
        bounded("the series shows it", &series, "p99 < 2.5 s", 2_500.0),
    ])
}

/// Whole lives of messages at a rate of changes; adds to a number as completions are acknowledged.
pub async fn live(
    connections: &Connections,
    queue: &str,
    rate: f64,
    span: Span,
    completed: &Arc<AtomicI64>,
) -> (Report, Report) {
    let lives = rate / CHANGES_OF_A_LIFE;
    let pairs = Pair::workers(connections, queue, WORKERS);
    let pairs = pairs.into_iter().map(|call| Counted { call, done: Arc::clone(completed) }).collect();
    tokio::join!(open(Enqueue::workers(connections, queue, WORKERS), lives, span), open(pairs, lives, span))
}

/// A call whose successes are counted.
struct Counted<C> {
    call: C,
    done: Arc<AtomicI64>,
}

impl<C: Call> Call for Counted<C> {
    async fn call(&mut self) -> Result<u64, String> {
        let done = self.call.call().await?;
        self.done.fetch_add(i64::try_from(done).unwrap_or_default(), Ordering::Relaxed);
        Ok(done)
    }
}

#[derive(Clone, Copy)]
enum Look {
    Count,
    Series,
}

/// Notes how many completions are acknowledged at a moment, and how long it takes until as many are shown.
async fn follow(mut client: Counters, look: Look, completed: Arc<AtomicI64>, until: Instant) -> Result<Report> {
    let name = format!("{QUEUE}~completed");
    let began = SystemTime::now() - Duration::from_secs(60);
    let mut waiting = VecDeque::new();
    let mut report = Report::new();
    while Instant::now() < until {
        waiting.push_back((Instant::now(), completed.load(Ordering::Relaxed)));
        let shown = match look {
            Look::Count => count(&mut client, &name).await?.count,
            Look::Series => series_sum(&mut client, &name, began).await?,
        };
        while let Some(&(at, acknowledged)) = waiting.front() {
            if acknowledged > shown {
                break;
            }
            report.note(at.elapsed(), &Ok(1));
            waiting.pop_front();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(report)
}
