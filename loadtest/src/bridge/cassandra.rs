//! Queues of one server whose counters and history are on Cassandra, at a fixed rate, and through an outage of the node.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::fresh::live;
use super::readings::{age, count};
use super::{HISTORY_LAG, Scale, bounded};
use crate::client::Connections;
use crate::figures::{Figure, figure, tell};
use crate::load::Span;
use crate::queues::CONNECTIONS;
use crate::queues::messages::{Kind, Queues, create, fill};
use crate::report::Report;
use crate::target::{self, Target};

const QUEUE: &str = "on_cassandra";
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The lags that count as caught up.
const REPORTS_WITHIN: Duration = Duration::from_secs(3);
const HISTORY_WITHIN: Duration = Duration::from_secs(10);
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(900);

/// Load at a fixed rate; then the same with the node stopped for a while.
pub async fn run(binary: &Path, folder: &TempDir, scale: &Scale) -> Result<Vec<Figure>> {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let keyspace = format!("clusters.cassandra.keyspace=loadtest_bridge_{began}");
    let data = folder.path().to_str().context("the path of a data directory is text")?;
    let arguments = ["--data", data, "--cassandra", &scale.cassandra.join(","), "--set", &keyspace];
    let server = Target::dev(binary, &arguments)?;
    let connections = Connections::open(&server.url(), CONNECTIONS).await?;
    create(&connections, Queues::simple(QUEUE)).await?;
    fill(&connections, QUEUE, Kind::Plain, 5_000).await?;
    let span = |seconds| Span { warm_up: Duration::ZERO, measure: Duration::from_secs(seconds) };
    let load = |seconds| {
        let connections = connections.clone();
        let (span, rate) = (span(seconds), scale.cassandra_rate);
        tokio::spawn(async move { live(&connections, QUEUE, rate, span, &Arc::new(AtomicI64::new(0))).await })
    };
    let running = load(60 + scale.seconds.max(60));
    tokio::time::sleep(Duration::from_secs(60)).await; // the node's compiler needs it
    let (reports, history) = lags(&server, &connections, Duration::from_secs(scale.seconds.max(60))).await?;
    let (enqueues, pairs) = running.await?;
    tell(&[("enqueue", &enqueues), ("dequeue and complete", &pairs)]);
    let rate = scale.cassandra_rate;
    let mut figures = vec![
        bounded(&format!("Cassandra, {rate} changes/s: age of `reported_to`"), &reports, "p99 < 3 s", 3_000.0),
        bounded("the same: age of the oldest change that is not in the history", &history, "p99 < 10 s", 10_000.0),
    ];
    if let Some(process) = scale.cassandra_process {
        let outage = Duration::from_secs(scale.outage_seconds);
        let running = load(scale.outage_seconds + 360);
        signal("-STOP", process)?;
        tokio::time::sleep(outage).await;
        signal("-CONT", process)?;
        let (reports, history) = caught_up(&server, &connections).await?;
        let (enqueues, pairs) = running.await?;
        tell(&[("enqueue", &enqueues), ("dequeue and complete", &pairs)]);
        let failed = enqueues.failed.values().chain(pairs.failed.values()).sum::<u64>();
        let gaps = target::metric(&server.metrics()?, "tallystone_history_gaps_total");
        figures.push(figure(
            &format!("caught up after {} s without Cassandra, load going on", scale.outage_seconds),
            format!("reports {reports:.1?}, history {history:.1?}; {failed} calls failed, {gaps} gaps"),
            "< 5 min",
            reports.max(history) < Duration::from_secs(300) && failed == 0,
        ));
    }
    Ok(figures)
}

fn signal(what: &str, process: u32) -> Result<()> {
    ensure!(Command::new("kill").args([what, &process.to_string()]).status()?.success(), "no process {process}");
    Ok(())
}

/// How far reports and history lie behind.
async fn lag(server: &Target, connections: &Connections) -> Result<(Duration, Duration)> {
    let reading = count(&mut connections.counters(0), &format!("{QUEUE}~completed")).await?;
    let reports = age(&reading.reported_to.context("the counter tells how far reports have come")?);
    let history = Duration::from_secs_f64(target::metric(&server.metrics()?, HISTORY_LAG).max(0.0));
    Ok((reports, history))
}

async fn lags(server: &Target, connections: &Connections, lasting: Duration) -> Result<(Report, Report)> {
    let (mut reports, mut histories, begun) = (Report::new(), Report::new(), Instant::now());
    while begun.elapsed() < lasting {
        let (report, history) = lag(server, connections).await?;
        reports.note(report, &Ok(1));
        histories.note(history, &Ok(1));
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok((reports, histories))
}

/// Waits until both are as close behind as before; a read that fails is made again.
async fn caught_up(server: &Target, connections: &Connections) -> Result<(Duration, Duration)> {
    let (begun, mut reports, mut histories) = (Instant::now(), None, None);
    loop {
        if let Ok((report, history)) = lag(server, connections).await {
            reports = reports.or((report < REPORTS_WITHIN).then(|| begun.elapsed()));
            histories = histories.or((history < HISTORY_WITHIN).then(|| begun.elapsed()));
        }
        if let (Some(reports), Some(histories)) = (reports, histories) {
            return Ok((reports, histories));
        }
        ensure!(begun.elapsed() < CAUGHT_UP_WITHIN, "not caught up after {CAUGHT_UP_WITHIN:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
