//! All workloads beside their ceilings in one run, as the table of `docs/benchmarks.md`.
//!
//! Client, server and ceiling share one machine, so absolute numbers say little; what is compared runs in turns, a short
//! round each, and the ratio is the middle one of the rounds.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tallystone_client::proto::counter::v1::Freshness;
use tempfile::TempDir;

use crate::adds::{self, Aim, Batch, StreamShape, Unary};
use crate::client::Connections;
use crate::gets::Get;
use crate::load::{Span, closed, open};
use crate::namespaces::{self, Settings};
use crate::report::{Report, median};
use crate::store::{self, Rows};
use crate::target::Target;
use crate::{PLAIN, converge, hot, prepared, recover};

/// How much to run.
#[derive(Args, Clone, Copy)]
pub struct Scale {
    /// Rounds of each comparison
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a round
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds of each throughput run of streams and batches
    #[arg(long, default_value_t = 60)]
    long_seconds: u64,
    /// Counters of the convergence and hot-counter runs
    #[arg(long, default_value_t = 1_000_000)]
    counters: u64,
    /// Seconds of load of the convergence run
    #[arg(long, default_value_t = 300)]
    converge_seconds: u64,
    /// Events logged before the kill of the recovery run
    #[arg(long, default_value_t = 10_000_000)]
    recover_events: u64,
    /// Run this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the table.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Single calls beside the echo
    Calls,
    /// Streams and batches beside the raw store
    Throughput,
    /// Many active counters
    Converge,
    /// One hot counter
    Hot,
    /// Restart after kill -9
    Recover,
}

/// One line of the table.
pub struct Figure {
    what: String,
    measured: String,
    wanted: &'static str,
    /// Whether it is what is wanted.
    pub met: bool,
}

const IN_FLIGHT: usize = 64;
const CONNECTIONS: usize = 4;
const COUNTERS: u64 = 10_000;
const SHAPE: StreamShape = StreamShape { streams: 4, items: 100, window: 16 };

/// Rows as the event log of the embedded store has them (namespace 8, name 12, end 1, time 8, token 17; kind and delta),
/// in commits as large as its committer makes them.
pub fn rows(producers: usize, batch: usize, counters: u64) -> Rows {
    Rows { key_bytes: 46, value_bytes: 4, batch, producers, group: 2_048, counters }
}

/// Runs everything and prints the table.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let mut table = Vec::new();
    let wanted = |part| scale.only.is_none_or(|only| only == part);
    if wanted(Part::Calls) {
        table.extend(calls(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Throughput) {
        table.extend(throughput(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Converge) {
        table.extend(convergence(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Hot) {
        table.extend(hot_counter(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Recover) {
        table.extend(recovery(binary, &folder()?, scale).await?);
    }
    print_table(table);
    Ok(())
}

/// Prints the table.
pub fn print_table(table: Vec<Figure>) {
    println!("\n| what | measured | wanted | met |\n|---|---|---|---|");
    for Figure { what, measured, wanted, met } in table {
        println!("| {what} | {measured} | {wanted} | {} |", if met { "yes" } else { "**no**" });
    }
}

/// Single calls beside the echo.
async fn calls(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let (echo, server) = (Target::echo()?, Target::server(binary, folder.path())?);
    let echo = Connections::open(&echo.url(), CONNECTIONS).await.map(|connections| (echo, connections))?;
    let connections = Connections::open(&server.url(), CONNECTIONS).await?;
    namespaces::create(&mut connections.catalog(), &Settings::dev(PLAIN)).await?;
    let aim = Aim { namespace: PLAIN, first: 0, counters: COUNTERS };
    let span = Span { warm_up: Duration::from_secs(1), measure: Duration::from_secs(scale.seconds) };
    let ceiling = || closed(Unary::workers(&echo.1, aim, IN_FLIGHT), span);

    let (mut add_ratios, mut add_rates, mut echo_rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let (echo, add) = (ceiling().await, closed(Unary::workers(&connections, aim, IN_FLIGHT), span).await);
        tell(&[("echo", &echo), ("add", &add)]);
        add_ratios.push(add.rate() / echo.rate());
        add_rates.push(add.rate());
        echo_rates.push(echo.rate());
    }
    let add_rate = median(add_rates);
    let mut half = Halves::default();
    for _ in 0..scale.rounds {
        // The echo at the same rate shows how much of the latency is the machine's own.
        let echo = open(Unary::workers(&echo.1, aim, 256), add_rate / 2.0, span).await;
        let add = open(Unary::workers(&connections, aim, 256), add_rate / 2.0, span).await;
        tell(&[("echo at that rate", &echo), ("add at half load", &add)]);
        half.take(&echo, &add);
    }

    let rolled_up = prepared(&connections, COUNTERS, 0).await?;
    let cached = against(&ceiling, scale.rounds, "get cached", || {
        closed(Get::workers(&connections, rolled_up, Freshness::RolledUp, IN_FLIGHT), span)
    })
    .await;
    let tail = prepared(&connections, COUNTERS / 10, 100).await?;
    let newest = against(&ceiling, scale.rounds, "get up to date", || {
        closed(Get::workers(&connections, tail, Freshness::UpToDate, IN_FLIGHT), span)
    })
    .await;

    let ratio = median(add_ratios);
    Ok(vec![
        figure("bare echo, 64 in flight", format!("{:.0}/s", median(echo_rates)), "(the ceiling)", true),
        figure(
            "AddCount, durable, 64 in flight, 10,000 counters",
            format!("{add_rate:.0}/s = {ratio:.2} of the echo"),
            ">= 0.55, goal 0.75",
            ratio >= 0.55,
        ),
        half.figure(),
        figure("GetCount, cached", ratio_text(cached), ">= 0.8 of the echo", cached.1 >= 0.8),
        figure(
            "GetCount UP_TO_DATE, 100 events in the tail",
            ratio_text(newest),
            ">= 0.4 of the echo",
            newest.1 >= 0.4,
        ),
    ])
}

/// Latencies at half the highest rate, of several rounds.
#[derive(Default)]
struct Halves {
    /// p50 and p99 in milliseconds.
    adds: (Vec<f64>, Vec<f64>),
    echoes: (Vec<f64>, Vec<f64>),
    failed: bool,
}

impl Halves {
    fn take(&mut self, echo: &Report, add: &Report) {
        for (report, kept) in [(add, &mut self.adds), (echo, &mut self.echoes)] {
            kept.0.push(report.quantile_ms(0.5));
            kept.1.push(report.quantile_ms(0.99));
        }
        self.failed |= !add.failed.is_empty();
    }

    fn figure(self) -> Figure {
        let least = self.adds.1.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.adds.1.iter().copied().fold(0.0, f64::max);
        let (p50, p99) = (median(self.adds.0), median(self.adds.1));
        let (echo_p50, echo_p99) = (median(self.echoes.0), median(self.echoes.1));
        figure(
            "AddCount p99 at half that load, open loop, the median round",
            format!(
                "{p99:.2} ms ({least:.2} to {most:.2}), the echo at the same rate {echo_p99:.2} ms; p50 {p50:.2} and {echo_p50:.2} ms"
            ),
            "< 5 ms",
            p99 < 5.0 && !self.failed,
        )
    }
}

/// Runs a ceiling and a subject in turns; answers the subject's rate and its ratio to the ceiling.
async fn against<C, S>(ceiling: &impl Fn() -> C, rounds: usize, name: &str, subject: impl Fn() -> S) -> (f64, f64)
where
    C: Future<Output = Report>,
    S: Future<Output = Report>,
{
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (top, subject) = (ceiling().await, subject().await);
        tell(&[("echo", &top), (name, &subject)]);
        rates.push(subject.rate());
        ratios.push(subject.rate() / top.rate());
    }
    (median(rates), median(ratios))
}

/// Streams and batches beside the store library.
async fn throughput(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let span = Span { warm_up: store::WARM_UP, measure: Duration::from_secs(scale.long_seconds) };
    let raw = store::run(folder.path(), rows(SHAPE.streams * SHAPE.window, SHAPE.items, COUNTERS), span).await?;
    let aim = Aim { namespace: PLAIN, first: 0, counters: COUNTERS };
    // Each on a store of its own, as the ceiling.
    let begin = async |name: &str| -> Result<(Target, Connections)> {
        let server = Target::server(binary, &folder.path().join(name))?;
        let connections = Connections::open(&server.url(), CONNECTIONS).await?;
        namespaces::create(&mut connections.catalog(), &Settings::dev(PLAIN)).await?;
        Ok((server, connections))
    };
    let (server, connections) = begin("stream").await?;
    let stream = adds::stream(&connections, aim, SHAPE, span).await?;
    drop(server);
    let (_server, connections) = begin("batch").await?;
    let batch = closed(Batch::workers(&connections, aim, SHAPE.items, IN_FLIGHT), span).await;
    tell(&[("store", &raw), ("stream", &stream), ("batch", &batch)]);
    let line = |report: &Report| {
        format!(
            "{:.0}/s = {:.2} of the raw store, p99 {:.1} ms",
            report.rate(),
            report.rate() / raw.rate(),
            report.quantile_ms(0.99)
        )
    };
    let met = |report: &Report| report.rate() >= 150_000.0 && report.failed.is_empty();
    Ok(vec![
        figure("raw group commit of the store library", format!("{:.0} rows/s", raw.rate()), "(the ceiling)", true),
        figure("StreamAddCounts, durable", line(&stream), ">= 150,000/s, goal 250,000 and 0.8", met(&stream)),
        figure("BatchAddCounts(100), durable", line(&batch), ">= 150,000/s, goal 250,000 and 0.8", met(&batch)),
    ])
}

async fn convergence(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let server = Target::server(binary, folder.path())?;
    let duration = Duration::from_secs(scale.converge_seconds);
    let plan =
        converge::Plan { counters: scale.counters, rate: 20_000, duration, items: 50, settings: converge::settings() };
    let outcome = converge::run(&server, plan).await?;
    eprintln!("{}", outcome.line());
    let mebibytes = outcome.resident_max as f64 / 1_048_576.0;
    let right_at = outcome.convergence.iter().find(|(_, right)| *right >= 1.0).map(|(at, _)| at.as_secs_f64());
    let right_at = right_at.map_or_else(|| "never".to_owned(), |at| format!("after {at:.1} s"));
    let what = format!("{} active counters, {:.0} adds/s", scale.counters, outcome.rate);
    // The same load on a server whose rollups wait for longer than the run.
    drop(server);
    let without = folder.path().join("without");
    let server = Target::server(binary, &without)?;
    let baseline = converge::Plan { duration: duration.min(Duration::from_secs(60)), ..plan };
    let without = converge::cpu_without_rollups(&server, baseline).await?;
    Ok(vec![
        figure(&format!("{what}: resident memory"), format!("{mebibytes:.0} MiB"), "< 1 GiB", mebibytes < 1_024.0),
        figure(
            &format!("{what}: convergence"),
            format!(
                "sample right {right_at}; at {:.1} s {} late, {} wrong after",
                outcome.bound.as_secs_f64(),
                outcome.late,
                outcome.wrong
            ),
            "all right within accept_limit + 3 x coalesce_ms",
            outcome.late == 0 && outcome.wrong == 0,
        ),
        figure(
            &format!("{what}: CPU"),
            format!(
                "{:.2} cores; {without:.2} without rollups, so {:.2} for them; batches under way {:.2} of the time",
                outcome.cpu_cores,
                outcome.cpu_cores - without,
                outcome.batch_share
            ),
            "(reported)",
            true,
        ),
    ])
}

async fn hot_counter(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let server = Target::server(binary, folder.path())?;
    let span = Span { warm_up: Duration::from_secs(2), measure: Duration::from_secs(scale.seconds * 2) };
    let plan = hot::Plan { counters: scale.counters, cold_rate: 2_000.0, hot_in_flight: IN_FLIGHT, span };
    let outcome = hot::run(&server, plan).await?;
    print_hot(&outcome);
    let p99 = |report: &Report| report.quantile_ms(0.99);
    let (alone, spread, hot) = (p99(&outcome.alone), p99(&outcome.beside_spread), p99(&outcome.beside_hot));
    Ok(vec![figure(
        "one hot counter at full speed: p99 of cold ones",
        format!(
            "{hot:.2} ms beside it ({:.0}/s), {spread:.2} ms beside the same load spread out, {alone:.2} ms alone: {:.2} x, {:.2} x",
            outcome.hot.rate(),
            hot / spread,
            hot / alone
        ),
        "within 2 x of without the hot one",
        hot <= 2.0 * alone,
    )])
}

/// The four runs of the hot-counter workload.
pub fn print_hot(outcome: &hot::Outcome) {
    tell(&[
        ("cold alone", &outcome.alone),
        ("cold beside the spread load", &outcome.beside_spread),
        ("cold beside the hot one", &outcome.beside_hot),
        ("the hot one", &outcome.hot),
    ]);
}

async fn recovery(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let plan = recover::Plan { events: scale.recover_events, counters: 100_000 };
    let outcome = recover::run(binary, folder.path(), plan).await?;
    eprintln!("{outcome:?}");
    Ok(vec![figure(
        &format!("ready after kill -9 with {} events", scale.recover_events),
        format!(
            "{:.2} s ({} MiB on disk, logged at {:.0}/s)",
            outcome.ready_after.as_secs_f64(),
            outcome.disk_bytes >> 20,
            outcome.logged_rate
        ),
        "< 3 s",
        outcome.ready_after < Duration::from_secs(3),
    )])
}

/// A line of the table.
pub fn figure(what: &str, measured: String, wanted: &'static str, met: bool) -> Figure {
    Figure { what: what.to_owned(), measured, wanted, met }
}

/// A rate and its ratio to the echo.
pub fn ratio_text((rate, ratio): (f64, f64)) -> String {
    format!("{rate:.0}/s = {ratio:.2} of the echo")
}

/// Tells what was measured as it comes.
pub fn tell(reports: &[(&str, &Report)]) {
    for (name, report) in reports {
        eprintln!("{}", report.line(name));
    }
}
