//! Figures of the bridge from queues to counters and history, as the table of `docs/benchmarks.md`.
//!
//! Each part starts a server of its own on a fresh directory.

mod cassandra;
mod fresh;
mod history;
mod many;
mod readings;
mod turns;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::figures::{Figure, figure, print_table};
use crate::load::Span;
use crate::report::Report;

/// How much to run.
#[derive(Args, Clone)]
pub struct Scale {
    /// Rounds of the comparison with and without the bridge
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Changes of messages per second in the runs at a fixed rate on the embedded store
    #[arg(long, default_value_t = 5_000.0)]
    rate: f64,
    /// Queues of the run with many queues; a server takes 10,000 with its templates
    #[arg(long, default_value_t = 9_990)]
    queues: u64,
    /// Messages pending in all of them
    #[arg(long, default_value_t = 10_000_000)]
    pending: u64,
    /// Rows of the history that is searched
    #[arg(long, default_value_t = 10_000_000)]
    rows: u64,
    /// Running Cassandra nodes of one cluster, HOST:PORT[,...]; without it that part is left out
    #[arg(long, value_delimiter = ',')]
    cassandra: Vec<String>,
    /// Changes of messages per second in the run on Cassandra
    #[arg(long, default_value_t = 2_000.0)]
    cassandra_rate: f64,
    /// Process of the Cassandra node, which is stopped and continued for the outage; without it there is no outage
    #[arg(long)]
    cassandra_process: Option<u32>,
    /// Seconds of the outage
    #[arg(long, default_value_t = 600)]
    outage_seconds: u64,
    /// Run this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the table.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Rates and latencies without the bridge, with counters, and with counters and history
    Turns,
    /// How soon counts and series show a change
    Fresh,
    /// Many queues: reads, restart, idle cost
    Many,
    /// A large history: traces, searches, size
    History,
    /// Counters and history on Cassandra
    Cassandra,
}

/// How far the history lies behind, in seconds.
const HISTORY_LAG: &str = "tallystone_history_lag_seconds";

/// Runs everything and prints the table.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let mut table = Vec::new();
    let wanted = |part| scale.only.is_none_or(|only| only == part);
    if wanted(Part::Turns) {
        table.extend(turns::run(binary, &folder, &scale).await?);
    }
    if wanted(Part::Fresh) {
        table.extend(fresh::run(binary, &folder()?, &scale).await?);
    }
    if wanted(Part::Many) {
        table.extend(many::run(binary, &folder()?, &scale).await?);
    }
    if wanted(Part::History) {
        table.extend(history::run(binary, &folder()?, &scale).await?);
    }
    if wanted(Part::Cassandra) && !scale.cassandra.is_empty() {
        table.extend(cassandra::run(binary, &folder()?, &scale).await?);
    }
    print_table(table);
    Ok(())
}

impl Scale {
    fn span(&self) -> Span {
        Span { warm_up: Duration::from_secs(2), measure: Duration::from_secs(self.seconds) }
    }
}

/// A line of the table for a latency whose 99th percentile has a bound.
fn bounded(what: &str, report: &Report, wanted: &'static str, below_ms: f64) -> Figure {
    let (p50, p99) = (report.quantile_ms(0.5), report.quantile_ms(0.99));
    let failed = if report.failed.is_empty() { String::new() } else { format!(", failed {:?}", report.failed) };
    let text = format!("p99 {p99:.1} ms, p50 {p50:.1} ms, {} measured{failed}", report.latency_us.len());
    figure(what, text, wanted, p99 < below_ms && report.failed.is_empty() && !report.latency_us.is_empty())
}
