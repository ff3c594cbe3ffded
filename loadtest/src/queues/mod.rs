//! Queues under load beside their ceilings, as the table of `docs/benchmarks.md`.
//!
//! Each part has a server of its own on a fresh directory. What is compared runs in the same part, one after the other on
//! the same machine, so the ratios say more than the numbers.

mod beanstalkd;
pub mod calls;
pub mod cycles;
mod due;
mod finished;
mod hour;
mod many;
pub mod messages;
mod raw;
mod steady;
mod workers;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::adds::{Aim, Unary};
use crate::client::Connections;
use crate::figures::{Figure, figure, print_table, ratio_text, tell};
use crate::load::{Call, Span, closed, open};
use crate::report::{Report, median};
use crate::store;
use crate::target::Target;
use crate::{PLAIN, idle};
use beanstalkd::Beanstalkd;
use calls::{Enqueue, Pair, Take};
use messages::{Kind, Queues, create, fill};
use raw::Raw;

/// How much to run.
#[derive(Args, Clone, Copy)]
pub struct Scale {
    /// Rounds of each comparison
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a round
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Messages pending in the runs with a backlog
    #[arg(long, default_value_t = 1_000_000)]
    pending: u64,
    /// Messages of one exclusivity value that are blocked
    #[arg(long, default_value_t = 100_000)]
    blocked: u64,
    /// Messages a second that fall due
    #[arg(long, default_value_t = 5_000)]
    due_rate: u64,
    /// Workers that wait and get nothing
    #[arg(long, default_value_t = 10_000)]
    idle_workers: usize,
    /// Messages pending in the run of memory and restart
    #[arg(long, default_value_t = 10_000_000)]
    many: u64,
    /// Messages that are over in the run of finished ones
    #[arg(long, default_value_t = 3_000_000)]
    finished: u64,
    /// Minutes of the runs that are to stay as they begin
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Lives a second of the steady run
    #[arg(long, default_value_t = 5_000)]
    lives: u64,
    /// A beanstalkd that runs already, HOST:PORT; without it two are started, if it is installed
    #[arg(long)]
    beanstalkd: Option<SocketAddr>,
    /// Run this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the table.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Single calls beside the echo
    Calls,
    /// Work streams and batches beside the raw store
    Cycles,
    /// Typed messages and workers of the client library
    Workers,
    /// Exclusive queues with blocked messages ahead, filters, both
    Backlog,
    /// From due time to delivery
    Due,
    /// Workers that wait
    Idle,
    /// Memory and restart with many messages
    Many,
    /// Memory and restart with many finished messages
    Finished,
    /// beanstalkd doing the same, where it is installed
    Beanstalkd,
    /// An hour at half the highest rate; not run unless it is asked for
    Hour,
    /// A steady rate of lives with the settings of a new queue; not run unless it is asked for
    Steady,
}

pub const IN_FLIGHT: usize = 64;
pub const CONNECTIONS: usize = 4;

/// Runs everything and prints the table.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let mut table = Vec::new();
    let wanted = |part| scale.only.is_none_or(|only| only == part);
    if wanted(Part::Calls) {
        table.extend(single_calls(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Cycles) {
        table.extend(through_streams(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Workers) {
        table.push(by_the_client_library(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Backlog) {
        table.extend(with_backlog(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Due) {
        table.push(falling_due(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Idle) {
        table.push(waiting(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Many) {
        table.extend(with_many(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Finished) {
        table.extend(with_finished(binary, &folder()?, scale).await?);
    }
    if wanted(Part::Beanstalkd) {
        table.extend(beside_beanstalkd(&folder()?, scale).await?);
    }
    if scale.only == Some(Part::Hour) {
        table.extend(for_an_hour(binary, &folder()?, scale).await?);
    }
    if scale.only == Some(Part::Steady) {
        table.extend(at_a_steady_rate(binary, &folder()?, scale).await?);
    }
    print_table(table);
    Ok(())
}

impl Scale {
    fn span(&self) -> Span {
        Span { warm_up: Duration::from_secs(1), measure: Duration::from_secs(self.seconds) }
    }
}

/// Starts a server on a folder, and connects.
pub async fn begin(binary: &Path, folder: &Path) -> Result<(Target, Connections)> {
    let server = Target::server(binary, folder)?;
    let connections = Connections::open(&server.url(), CONNECTIONS).await?;
    Ok((server, connections))
}

/// Single calls beside the echo.
async fn single_calls(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let echo = Target::echo()?;
    let top = Connections::open(&echo.url(), CONNECTIONS).await?;
    let (server, connections) = begin(binary, folder.path()).await?;
    let (queue, span) = ("calls", scale.span());
    create(&connections, Queues::simple(queue)).await?;
    let aim = Aim { namespace: PLAIN, first: 0, counters: 1 };
    let (mut tops, mut enqueues, mut pairs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        let ceiling = closed(Unary::workers(&top, aim, IN_FLIGHT), span).await;
        let enqueue = closed(Enqueue::workers(&connections, queue, IN_FLIGHT), span).await;
        fill(&connections, queue, Kind::Plain, enqueue.done / 4).await?; // so that the pairs never run dry
        let pair = closed(Pair::workers(&connections, queue, IN_FLIGHT), span).await;
        tell(&[("echo", &ceiling), ("enqueue", &enqueue), ("dequeue and complete", &pair)]);
        tops.push(ceiling.rate());
        enqueues.push(enqueue.rate());
        pairs.push(pair.rate());
    }
    let (top, enqueue, pair) = (median(tops), median(enqueues), median(pairs));
    fill(&connections, queue, Kind::Plain, (pair * scale.seconds as f64) as u64).await?;
    let half = rested(Take::workers(&connections, queue, 256, Kind::Plain), pair / 2.0, span).await;
    tell(&[("dequeue at half load", &half)]);
    drop(server);
    let floor = Raw::with(&folder.path().join("raw"), 0).await?.heads_at(pair, span).await;
    Ok(vec![
        figure("bare echo, 64 in flight", format!("{top:.0}/s"), "(the ceiling)", true),
        figure("Enqueue, durable, 64 in flight", of_echo(enqueue, top), ">= 30,000/s", enqueue >= 30_000.0),
        figure("Dequeue and Complete, 64 in flight", of_echo(pair, top), ">= 15,000 pairs/s", pair >= 15_000.0),
        latency("Dequeue p99 at half that load, open loop", &half, "< 5 ms", 5.0),
        beneath(&floor),
    ])
}

fn of_echo(rate: f64, echo: f64) -> String {
    ratio_text((rate, rate / echo))
}

fn latency(what: &str, report: &Report, wanted: &'static str, below_ms: f64) -> Figure {
    let (p50, p99) = (report.quantile_ms(0.5), report.quantile_ms(0.99));
    let failed = if report.failed.is_empty() { String::new() } else { format!(", failed {:?}", report.failed) };
    let text = format!("{p99:.2} ms, p50 {p50:.2} ms, at {:.0}/s{failed}", report.rate());
    figure(what, text, wanted, p99 < below_ms && report.failed.is_empty())
}

/// An open loop after what was filled in before has come to rest.
async fn rested<C: Call>(workers: Vec<C>, rate: f64, span: Span) -> Report {
    tokio::time::sleep(raw::REST).await;
    open(workers, rate, span).await
}

/// What of a latency is the store library's: commits of one row, as often as dequeues and completions made them.
fn beneath(floor: &Report) -> Figure {
    let (p50, p99) = (floor.quantile_ms(0.5), floor.quantile_ms(0.99));
    let text = format!("{p99:.2} ms, p50 {p50:.2} ms, at {:.0}/s", floor.rate());
    figure("the store library alone, a row for each of those calls: p99", text, "(the floor)", true)
}

/// Work streams and batches beside the library of the store doing the same writes.
async fn through_streams(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let blind = store::run(folder.path(), cycles::rows_of_a_cycle(), scale.span()).await?;
    let blind = blind.rate() / cycles::ROWS_OF_A_CYCLE as f64;
    let cycle = Raw::with(&folder.path().join("cycles"), scale.pending).await?;
    tokio::time::sleep(raw::REST).await;
    let cycle = cycle.cycles(scale.span()).await?;
    tell(&[("the store's cycles", &cycle)]);
    let raw = cycle.rate();
    let (_server, connections) = begin(binary, &folder.path().join("server")).await?;
    let queue = "cycles";
    create(&connections, Queues::simple(queue)).await?;
    fill(&connections, queue, Kind::Plain, scale.pending).await?;
    tokio::time::sleep(raw::REST).await;
    let report = cycles::run(&connections, queue, Kind::Plain, scale.span()).await?;
    tell(&[("cycles", &report)]);
    let (rate, ratio) = (report.rate(), report.rate() / raw);
    Ok(vec![
        figure("the store library, four rows for a cycle, none read", format!("{blind:.0}/s"), "(reported)", true),
        figure(
            &format!("the store library, the same cycle, {} pending", scale.pending),
            format!("{raw:.0} cycles/s"),
            "(the ceiling)",
            true,
        ),
        figure(
            &format!("enqueue, dequeue, complete through Work and batches, {} pending", scale.pending),
            format!("{rate:.0} cycles/s = {ratio:.2} of the store"),
            ">= 30,000/s and >= 0.5 of the store, goal 60,000/s",
            rate >= 30_000.0 && ratio >= 0.5,
        ),
    ])
}

/// Typed messages, workers, sessions and settlements as an application has them.
async fn by_the_client_library(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Figure> {
    let (server, connections) = begin(binary, folder.path()).await?;
    create(&connections, Queues::simple("jobs")).await?;
    let report = workers::run(&server.url(), "jobs", scale.span()).await?;
    tell(&[("jobs", &report)]);
    let (p50, p99) = (report.quantile_ms(0.5), report.quantile_ms(0.99));
    let text = format!("{:.0} jobs/s, from enqueue to job p50 {p50:.1} ms, p99 {p99:.1} ms", report.rate());
    Ok(figure("typed messages sent and worked off by the client library, 1,000 jobs at once", text, "(reported)", true))
}

/// Exclusive queues, filters, and both.
async fn with_backlog(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let (server, connections) = begin(binary, folder.path()).await?;
    let span = scale.span();
    create(&connections, Queues::simple("simple")).await?;
    create(&connections, Queues::exclusive("exclusive", false)).await?;
    messages::block(&connections, "exclusive", scale.blocked).await?;
    let (mut simple, mut exclusive) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        for (queue, kind, rates) in [("simple", Kind::Plain, &mut simple), ("exclusive", Kind::Valued, &mut exclusive)]
        {
            fill(&connections, queue, kind, 20_000 * (scale.seconds + 2)).await?;
            let report = closed(Pair::workers(&connections, queue, IN_FLIGHT), span).await;
            tell(&[(queue, &report)]);
            rates.push(report.rate());
        }
    }
    let (simple, exclusive) = (median(simple), median(exclusive));
    let rate = exclusive / 2.0;
    fill(&connections, "exclusive", Kind::Valued, (rate * (scale.seconds + 2) as f64) as u64).await?;
    let ahead = rested(Take::workers(&connections, "exclusive", 256, Kind::Valued), rate, span).await;
    let mut figures = vec![
        figure(
            &format!("exclusive queue, {} blocked ahead, beside a simple one", scale.blocked),
            format!("{exclusive:.0} pairs/s = {:.2} of {simple:.0}", exclusive / simple),
            ">= 0.7",
            exclusive >= 0.7 * simple,
        ),
        latency("Dequeue p99 there", &ahead, "< 3 ms", 3.0),
    ];
    for (queue, kind, what, below) in [
        ("filtered", Kind::Filtered, "Dequeue p99 by a declared filter", 3.0),
        ("both", Kind::Both, "Dequeue p99 by a declared filter on an exclusive queue", 5.0),
    ] {
        let settings = if kind == Kind::Both { Queues::exclusive(queue, true) } else { Queues::filtered(queue) };
        create(&connections, settings).await?;
        if kind == Kind::Both {
            messages::block(&connections, queue, scale.blocked).await?;
        }
        fill(&connections, queue, kind, scale.pending).await?;
        let report = rested(Take::workers(&connections, queue, 256, kind), rate.min(5_000.0), span).await;
        let wanted = if kind == Kind::Both { "< 5 ms" } else { "< 3 ms" };
        figures.push(latency(&format!("{what}, {} pending", scale.pending), &report, wanted, below));
    }
    drop(server);
    let store = Raw::with(&folder.path().join("raw"), scale.pending).await?;
    tokio::time::sleep(raw::REST).await;
    figures.push(beneath(&store.heads_at(2.0 * rate, span).await));
    figures.push(beneath(&store.heads_at(2.0 * rate.min(5_000.0), span).await));
    Ok(figures)
}

async fn falling_due(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Figure> {
    let (_server, connections) = begin(binary, folder.path()).await?;
    create(&connections, Queues::simple("due")).await?;
    let report = due::run(&connections, "due", scale.due_rate, scale.span()).await?;
    let what = format!("due time to delivery on open streams, {} due a second", scale.due_rate);
    let kept_up = report.rate() >= 0.95 * scale.due_rate as f64;
    let mut figure = latency(&what, &report, "p99 < 10 ms", 10.0);
    figure.met &= kept_up;
    Ok(figure)
}

async fn waiting(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Figure> {
    let server = Target::server(binary, folder.path())?;
    let watched = Duration::from_secs(scale.seconds);
    let plan = idle::Plan { workers: scale.idle_workers, watched, messages: 100 };
    let cost = idle::run(&server, plan).await?;
    eprintln!("{}", cost.line());
    let share = cost.cpu;
    let what = format!("{} connected workers that get nothing", scale.idle_workers);
    Ok(figure(&what, format!("{:.1} % of a core", share * 100.0), "< 5 % of a core", share < 0.05))
}

async fn with_many(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let outcome = many::run(binary, folder.path(), scale.many).await?;
    eprintln!("{outcome:?}");
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let text = format!(
        "{:.2} GiB resident at most, {:.0} bytes a message, {:.2} GiB on disk, filled at {:.0}/s",
        gib(outcome.resident_max),
        outcome.resident_max as f64 / scale.many as f64,
        gib(outcome.disk_bytes),
        outcome.filled_rate
    );
    let ready = outcome.ready_after.as_secs_f64();
    Ok(vec![
        figure(
            &format!("{} messages of 100 bytes pending", scale.many),
            text,
            "< 3 GiB",
            gib(outcome.resident_max) < 3.0,
        ),
        figure(
            "ready after kill -9 with them",
            format!("{ready:.1} s, {:.2} GiB resident at most", gib(outcome.resident_after)),
            "< 20 s",
            ready < 20.0,
        ),
    ])
}

async fn with_finished(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let outcome = finished::run(binary, folder.path(), scale.finished).await?;
    let finished::Outcome { finished, resident: [empty, resident], ready_after, resident_after, looks } = &outcome;
    let each = resident.saturating_sub(*empty) as f64 / *finished as f64;
    let (ready, mib) = (ready_after.as_secs_f64(), |bytes: &u64| bytes >> 20);
    let text = format!("{} MiB resident, {each:.0} bytes above an empty server for each", mib(resident));
    Ok(vec![
        figure(&format!("{finished} finished messages"), text, "<= 500 MiB with 3 million", *resident <= 500 << 20),
        figure(
            "ready after kill -9 with them",
            format!("{ready:.1} s, {} MiB resident", mib(resident_after)),
            "<= 2 s with 3 million, <= 4 s with 10",
            ready <= if *finished > 5_000_000 { 4.0 } else { 2.0 },
        ),
        latency("GetMessage of a finished one, one after the other", looks, "p99 <= 2 ms", 2.0),
    ])
}

/// What another queue server does on the same machine, for comparison.
async fn beside_beanstalkd(folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let log = folder.path().join("beanstalkd");
    let mut servers = Vec::new();
    match scale.beanstalkd {
        Some(address) => servers.push(("as it is set up", Beanstalkd::at(address))),
        None => {
            let durable = Beanstalkd::start(Some(&log)).await?;
            servers.extend(durable.map(|server| ("an fsync for each write", server)));
            servers.extend(Beanstalkd::start(None).await?.map(|server| ("in memory", server)));
        }
    }
    let mut figures = Vec::new();
    for (how, server) in servers {
        let beanstalkd::Outcome { puts, pairs } = server.run(scale.span()).await?;
        tell(&[("beanstalkd put", &puts), ("beanstalkd reserve and delete", &pairs)]);
        let text = format!("{:.0}/s put, {:.0}/s reserved and deleted", puts.rate(), pairs.rate());
        figures.push(figure(&format!("beanstalkd, {how}, 64 connections"), text, "(beside)", true));
    }
    Ok(figures)
}

/// How much a latency may differ between the ends of the hour before it counts as a slow-down; calm runs differ by this.
const DRIFT_MAX: f64 = 1.3;

async fn for_an_hour(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let parts = hour::run(binary, folder.path(), scale.minutes).await?;
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(Vec::new()) };
    // Memory and disk are compared from the second part on: in the first, what is kept for a time still adds up.
    let begin = parts.get(1).unwrap_or(first);
    let (p50, p99) =
        (|part: &hour::Part| part.report.quantile_ms(0.5), |part: &hour::Part| part.report.quantile_ms(0.99));
    let kept_up = last.report.rate() >= 0.99 * first.report.rate() && last.report.failed.is_empty();
    let size = |part: &hour::Part| format!("{} MiB resident, {} MiB on disk", part.resident >> 20, part.disk >> 20);
    let is_flat =
        last.resident as f64 <= DRIFT_MAX * begin.resident as f64 && last.disk as f64 <= DRIFT_MAX * begin.disk as f64;
    Ok(vec![
        figure(
            &format!("{} minutes of cycles at half the highest rate, last twelfth beside the first", scale.minutes),
            format!(
                "{:.0}/s and {:.0}/s, p50 {:.2} and {:.2} ms, p99 {:.2} and {:.2} ms",
                last.report.rate(),
                first.report.rate(),
                p50(last),
                p50(first),
                p99(last),
                p99(first)
            ),
            "no slow-down",
            kept_up && p50(last) <= DRIFT_MAX * p50(first),
        ),
        figure(
            "the same, last twelfth beside the second",
            format!("{} and {}", size(last), size(begin)),
            "flat",
            is_flat,
        ),
    ])
}

/// A steady rate of lives with the settings of a new queue.
async fn at_a_steady_rate(binary: &Path, folder: &TempDir, scale: Scale) -> Result<Vec<Figure>> {
    let steady::Outcome { parts, acknowledged, found, ready_after } =
        steady::run(binary, folder.path(), scale.lives, scale.minutes).await?;
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(Vec::new()) };
    let most = parts.iter().map(|part| part.resident).max().unwrap_or_default();
    let p999 = |part: &hour::Part| part.report.quantile_ms(0.999);
    let refused: u64 = parts.iter().flat_map(|part| part.report.failed.values()).sum();
    Ok(vec![
        figure(
            &format!("{} minutes of {} lives a second, settings of a new queue", scale.minutes, scale.lives),
            format!("{} MiB resident at most, {} MiB on disk, {refused} calls refused", most >> 20, last.disk >> 20),
            "< 1 GiB in an hour of 5,000",
            most < 1 << 30,
        ),
        figure(
            "a life in calls of 50, last twelfth beside the first",
            format!("p99.9 {:.1} and {:.1} ms", p999(last), p999(first)),
            "does not rise",
            p999(last) <= DRIFT_MAX * p999(first),
        ),
        figure(
            "acknowledged messages after kill -9",
            format!("{found} of {acknowledged}, ready after {:.1} s", ready_after.as_secs_f64()),
            "all",
            found >= acknowledged,
        ),
    ])
}
