//! Counters on Cassandra beside what the node itself does when the same driver asks it, as the table of
//! `docs/benchmarks.md`.
//!
//! Server, driver and node share the machine. What is compared runs in turns, a round each, after a warm-up that the node's
//! compiler needs; before the node is asked alone, the server has rolled up what it was given. Every part has a server on a
//! keyspace of its own, which is dropped in the end.

mod adds;
mod node;
mod rolls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use tokio::time::Instant;

use crate::client::Connections;
use crate::converge;
use crate::figures::{Figure, print_table};
use crate::ledger::Writer;
use crate::load::{Call as _, Span};
use crate::namespaces::{self, Settings};
use crate::report::{Report, median};
use crate::target::{self, Target};
use node::Node;

/// How much to run.
#[derive(Args, Clone)]
pub struct Scale {
    /// Running nodes of one cluster, HOST:PORT[,...]
    #[arg(long, value_delimiter = ',', required = true)]
    cassandra: Vec<String>,
    /// Rounds of each comparison
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a round
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds of load before the first round of a part
    #[arg(long, default_value_t = 60)]
    warm_up_seconds: u64,
    /// Warm counters, all hit alike
    #[arg(long, default_value_t = 10_000)]
    counters: u64,
    /// Active counters of the convergence run
    #[arg(long, default_value_t = 100_000)]
    active: u64,
    /// Seconds of load of the convergence run
    #[arg(long, default_value_t = 60)]
    converge_seconds: u64,
    /// Seconds of load on one hot counter
    #[arg(long, default_value_t = 600)]
    hot_seconds: u64,
    /// Run this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the table.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Single adds beside raw inserts and native counter columns; cold counters
    Unary,
    /// Batches and streams beside raw inserts
    Batches,
    /// Many active counters
    Converge,
    /// Partitions of one hot counter, in narrow time buckets and in event buckets of its own
    Hot,
    /// The latter alone
    HotWide,
}

const CONNECTIONS: usize = 4;
/// Namespaces of the parts, and the keyspace in which the node is asked alone.
const UNARY: &str = "unary";
const BATCHES: &str = "batches";
const HOT: &str = "hot";
const HOT_AND_WIDE: &str = "hot_wide";
const RAW: &str = "raw";
/// Adds run so long before they are measured that their rollups run beside them: the accept limit and a window.
const ROLLING_AFTER: Duration = Duration::from_secs(16);
const QUIET_WITHIN: Duration = Duration::from_secs(180);
const WAITING: &str = "tallystone_rollup_set_counters";

/// Runs everything and prints the table. What was made on the cluster is dropped, however it ends.
pub async fn run(binary: &Path, scale: Scale) -> Result<()> {
    let bench = Bench::open(binary, scale).await?;
    let table = parts(&bench).await;
    for part in [UNARY, BATCHES, converge::settings().name, HOT, HOT_AND_WIDE, RAW] {
        bench.node.drop_keyspace(&bench.keyspace(part)).await?;
    }
    print_table(table?);
    Ok(())
}

async fn parts(bench: &Bench) -> Result<Vec<Figure>> {
    let mut table = Vec::new();
    let wanted = |part| bench.scale.only.is_none_or(|only| only == part);
    if wanted(Part::Unary) {
        table.extend(adds::unary(bench).await?);
    }
    if wanted(Part::Batches) {
        table.extend(adds::batches(bench).await?);
    }
    if wanted(Part::Converge) {
        table.push(rolls::converge(bench).await?);
    }
    if wanted(Part::Hot) {
        table.push(rolls::hot(bench).await?);
    }
    if wanted(Part::Hot) || wanted(Part::HotWide) {
        table.push(rolls::hot_and_wide(bench).await?);
    }
    Ok(table)
}

/// The node and what servers on it are started with.
struct Bench {
    node: Arc<Node>,
    binary: PathBuf,
    /// What the keyspaces of this run begin with.
    prefix: String,
    scale: Scale,
}

/// A server on a keyspace of its own, with a namespace in it.
struct Subject {
    server: Target,
    connections: Connections,
    keyspace: String,
    namespace: &'static str,
}

impl Bench {
    async fn open(binary: &Path, scale: Scale) -> Result<Self> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let prefix = format!("loadtest_{began}");
        let node = Node::open(&scale.cassandra, &format!("{prefix}_{RAW}")).await?;
        Ok(Self { node: Arc::new(node), binary: binary.to_owned(), prefix, scale })
    }

    /// The keyspace of a part.
    fn keyspace(&self, part: &str) -> String {
        format!("{}_{part}", self.prefix)
    }

    fn span(&self) -> Span {
        Span { warm_up: Duration::from_secs(2), measure: Duration::from_secs(self.scale.seconds) }
    }

    /// Starts a server and makes a namespace on it.
    async fn subject(&self, settings: &Settings) -> Result<Subject> {
        let keyspace = self.keyspace(settings.name);
        let own = format!("clusters.cassandra.keyspace={keyspace}");
        let server = Target::dev(&self.binary, &["--cassandra", &self.scale.cassandra.join(","), "--set", &own])?;
        let connections = Connections::open(&server.url(), CONNECTIONS).await?;
        namespaces::create(&mut connections.catalog(), settings).await?;
        Ok(Subject { server, connections, keyspace, namespace: settings.name })
    }
}

impl Subject {
    /// Writes every counter once, however slow a node is that has just begun.
    async fn warm(&self, counters: u64) -> Result<()> {
        const ITEMS: u64 = 100;
        let mut writer =
            Writer::new(self.connections.counters(0), self.namespace, counters, usize::try_from(ITEMS)?, (0, 1));
        for _ in 0..counters.div_ceil(ITEMS) {
            writer.call().await.map_err(|reason| anyhow::anyhow!(reason))?;
        }
        Ok(())
    }

    /// Waits until the server has rolled up what it was given, so that it leaves the node alone.
    async fn quiet(&self) -> Result<()> {
        let begun = Instant::now();
        while target::metric(&self.server.metrics()?, WAITING) > 0.0 {
            ensure!(begun.elapsed() < QUIET_WITHIN, "the server still rolls after {QUIET_WITHIN:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }
}

/// A namespace with the published defaults, but for one event bucket: none of the counters is hot.
fn published(name: &'static str) -> Settings {
    Settings { accept_limit_ms: 5_000, coalesce_ms: 10_000, ..Settings::dev(name) }
}

/// What the rounds of one workload measured.
#[derive(Default)]
struct Rounds {
    rates: Vec<f64>,
    p99s: Vec<f64>,
    failed: u64,
}

impl Rounds {
    fn note(&mut self, name: &str, report: &Report) {
        eprintln!("{}", report.line(name));
        self.rates.push(report.rate());
        self.p99s.push(report.quantile_ms(0.99));
        self.failed += report.failed.values().sum::<u64>();
    }

    /// The middle one of the ratios, round by round.
    fn over(&self, other: &Self) -> f64 {
        median(self.rates.iter().zip(&other.rates).map(|(own, other)| own / other).collect())
    }

    fn rate(&self) -> f64 {
        median(self.rates.clone())
    }

    fn text(&self) -> String {
        let failed = if self.failed == 0 { String::new() } else { format!(", {} failed", self.failed) };
        format!("{:.0}/s, p99 {:.1} ms{failed}", self.rate(), median(self.p99s.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_middle_one_of_its_rounds() {
        let rounds = |rates: [f64; 3]| Rounds { rates: rates.into(), ..Rounds::default() };
        let ratio = rounds([1.0, 9.0, 4.0]).over(&rounds([2.0, 9.0, 5.0]));
        assert!((ratio - 0.8).abs() < 1e-9, "of 0.5, 1.0 and 0.8");
    }
}
