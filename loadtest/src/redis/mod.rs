//! Queues on Redis: what a message costs Redis in CPU and memory, and how fast the whole is, as a table.
//!
//! Each part has a Redis and a server of its own. CPU is that of the Redis process, by INFO. Times of functions are the upper
//! bounds of the buckets of LATENCY HISTOGRAM.

mod gate;
pub mod lives;
mod many;
mod peers;
mod phases;
pub mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use tallystone_client::proto::queue::v1::{DeleteQueueRequest, FilterShape, Queue, Retention};
use tempfile::TempDir;
use tonic::Code;

use crate::client::Connections;
use crate::figures::{Figure, figure, print_table, tell};
use crate::load::{Span, closed, open};
use crate::queues::calls::{Enqueue, Pair, Take};
use crate::queues::messages::{self, Kind, Queues, client, create, fill};
use crate::queues::{CONNECTIONS, cycles};
use crate::report::Report;
use crate::target::Target;
use lives::{Life, Lives, finish_all, until_forgotten};
use server::Redis;

const IN_FLIGHT: usize = 200;
/// The queues with a caller each whose calls of one message are measured.
const QUEUES_AT_ONCE: usize = 16;
/// The most keys that a queue leaves behind with its name, without those of its messages.
const KEYS_OF_A_NAME: u64 = 8;
/// How long the removal of the messages of a deleted queue may take.
const REMOVED_WITHIN: Duration = Duration::from_secs(300);
/// The shortest retention and window of repeats.
const MINUTE: prost_types::Duration = prost_types::Duration { seconds: 60, nanos: 0 };

/// How much to run.
#[derive(Args, Clone)]
pub struct Scale {
    /// The program of Redis or Valkey
    #[arg(long, default_value = "redis-server")]
    redis_server: PathBuf,
    /// Seconds of a measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Messages pending in the runs with a backlog
    #[arg(long, default_value_t = 1_000_000)]
    pending: u64,
    /// Messages pending in the run with very many
    #[arg(long, default_value_t = 10_000_000)]
    very_many: u64,
    /// Messages of one exclusivity value that are blocked
    #[arg(long, default_value_t = 100_000)]
    blocked: u64,
    /// Queues with a worker that waits: as many as a server takes beside the template that it makes
    #[arg(long, default_value_t = 9_999)]
    queues: usize,
    #[command(flatten)]
    instructions: phases::KeptFigures,
    /// Run this part only
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// A part of the table.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Redis CPU of a message, from its enqueue to the end of its retention
    Lives,
    /// Memory of pending and finished messages
    Memory,
    /// Memory of very many pending messages with two declared filters
    VeryMany,
    /// Calls and streams, with a backlog
    Calls,
    /// Enqueues that are on the disk before they are answered
    Safe,
    /// Dequeues with blocked messages ahead, and by a declared filter
    Backlog,
    /// The deletion of a queue with all its pending messages
    Deletion,
    /// Two servers and many queues, each with a worker that waits
    Many,
    /// Queue libraries on the same machine: BullMQ and asynq, where Node.js and Go are installed
    Peers,
    /// Instructions of Redis for a life, by callgrind; not run unless it is asked for
    Instructions,
}

/// A Redis, a server on it, and connections to the server.
struct Bench {
    connections: Connections,
    _server: Target,
    redis: Redis,
    _data: TempDir,
}

impl Bench {
    async fn start(binary: &Path, folder: &impl Fn() -> Result<TempDir>, scale: &Scale, fsync: &str) -> Result<Self> {
        let (redis, data) = (Redis::start(&scale.redis_server, folder()?, fsync)?, folder()?);
        let server = Target::server_with(binary, data.path(), &["--redis", &redis.address.to_string()])?;
        let connections = Connections::open(&server.url(), CONNECTIONS).await?;
        Ok(Self { connections, _server: server, redis, _data: data })
    }
}

impl Scale {
    fn span(&self) -> Span {
        Span { warm_up: Duration::from_secs(1), measure: Duration::from_secs(self.seconds) }
    }
}

/// Runs everything and prints the table.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let has_figures = scale.instructions.gate.is_some() || scale.instructions.write.is_some();
    ensure!(!has_figures || scale.only == Some(Part::Instructions), "--gate and --write go with --only instructions");
    if scale.only == Some(Part::Instructions) {
        return phases::run(binary, &folder, &scale.redis_server, &scale.instructions).await;
    }
    let mut table = Vec::new();
    let wanted = |part| scale.only.is_none_or(|only| only == part);
    println!("{}", Redis::start(&scale.redis_server, folder()?, "everysec")?.version()?);
    if wanted(Part::Lives) {
        table.extend(cpu_of_lives(&Bench::start(binary, &folder, &scale, "everysec").await?, &scale).await?);
    }
    if wanted(Part::Memory) {
        for shapes in [0, 2] {
            let bench = Bench::start(binary, &folder, &scale, "everysec").await?;
            table.extend(memory(&bench, &scale, shapes).await?);
        }
    }
    if wanted(Part::VeryMany) {
        table.push(very_many(&Bench::start(binary, &folder, &scale, "everysec").await?, scale.very_many).await?);
    }
    if wanted(Part::Calls) {
        table.extend(calls(&Bench::start(binary, &folder, &scale, "everysec").await?, &scale).await?);
    }
    if wanted(Part::Safe) {
        table.push(safe(&Bench::start(binary, &folder, &scale, "always").await?, &scale).await?);
    }
    if wanted(Part::Backlog) {
        table.extend(backlog(&Bench::start(binary, &folder, &scale, "everysec").await?, &scale).await?);
    }
    if wanted(Part::Deletion) {
        table.extend(deletion(&Bench::start(binary, &folder, &scale, "everysec").await?, &scale).await?);
    }
    if wanted(Part::Many) {
        let redis = Redis::start(&scale.redis_server, folder()?, "everysec")?;
        table.extend(many::run(binary, &folder, &redis, scale.queues, scale.seconds).await?);
    }
    if wanted(Part::Peers) {
        let redis = Redis::start(&scale.redis_server, folder()?, "everysec")?;
        table.extend(peers::run(&redis, &folder()?, scale.seconds).await?);
    }
    print_table(table);
    Ok(())
}

/// A queue that forgets what is finished as early as it may.
fn forgetful(name: &str, shapes: &[&str]) -> Queue {
    let shape = |key: &&str| FilterShape { keys: vec![(*key).to_owned()] };
    Queue {
        dedupe_window: Some(MINUTE),
        retention: Some(Retention { completed: Some(MINUTE), canceled: Some(MINUTE), errored: Some(MINUTE) }),
        filter_shapes: shapes.iter().map(shape).collect(),
        ..Queues::simple(name)
    }
}

/// CPU of Redis for a message, with calls of one message, of many, and with a filter shape.
async fn cpu_of_lives(bench: &Bench, scale: &Scale) -> Result<Vec<Figure>> {
    let Bench { connections, redis, .. } = bench;
    // Calls of one message: calls of one queue that arrive together would share a call of Redis.
    let queues: Vec<String> = (0..QUEUES_AT_ONCE).map(|number| format!("one-{number}")).collect();
    for queue in &queues {
        create(connections, forgetful(queue, &[])).await?;
    }
    let lives = queues.iter().flat_map(|queue| Life::workers(connections, queue, 1)).collect();
    let one = cpu_of_a_life(bench, &queues, closed(lives, scale.span())).await?;
    let lone = closed(Life::workers(connections, &queues[0], 1), scale.span());
    let lone = cpu_of_a_life(bench, &queues[..1], lone).await?;
    let batches = |queue, kind| closed(Lives::workers(connections, queue, 4, kind, 64), scale.span());
    create(connections, forgetful("many", &[])).await?;
    let many = cpu_of_a_life(bench, &["many".to_owned()], batches("many", Kind::Plain)).await?;
    // The same messages with and without the shape.
    create(connections, forgetful("unshaped", &[])).await?;
    let plain = cpu_of_a_life(bench, &["unshaped".to_owned()], batches("unshaped", Kind::Filtered)).await?;
    create(connections, forgetful("shaped", &["team"])).await?;
    let shaped = cpu_of_a_life(bench, &["shaped".to_owned()], batches("shaped", Kind::Filtered)).await?;
    let slowest = redis.fcall_ms(0.999)?;
    let micros = |what: &str, value: f64, wanted: &'static str, most: f64| {
        figure(what, format!("{value:.0} us"), wanted, value <= most)
    };
    Ok(vec![
        micros(
            &format!("Redis CPU of a life, calls of one message to {QUEUES_AT_ONCE} queues"),
            one,
            "<= 170 us",
            170.0,
        ),
        micros("Redis CPU of a life, calls of one message by a lone caller", lone, "(reported)", f64::INFINITY),
        micros("Redis CPU of a life, calls of 64 messages", many, "<= 75 us", 75.0),
        micros("the same, more for one filter shape", shaped - plain, "<= 15 us", 15.0),
        figure("p99.9 of fcall in these runs", format!("<= {slowest:.2} ms"), "< 5 ms", slowest < 5.0),
    ])
}

/// Microseconds of CPU for each life, until all of them are forgotten, less what Redis uses when it rests.
async fn cpu_of_a_life(bench: &Bench, queues: &[String], load: impl Future<Output = Report>) -> Result<f64> {
    let rest = Duration::from_secs(3);
    let before = bench.redis.used()?;
    tokio::time::sleep(rest).await;
    let begun = (bench.redis.used()?, std::time::Instant::now());
    let at_rest = (begun.0.cpu - before.cpu).as_secs_f64() / rest.as_secs_f64();
    let report = load.await;
    tell(&[(&queues[0], &report)]);
    for queue in queues {
        finish_all(&bench.connections, queue).await?;
        until_forgotten(&bench.connections, queue).await?;
    }
    let used = (bench.redis.used()?.cpu - begun.0.cpu).as_secs_f64() - at_rest * begun.1.elapsed().as_secs_f64();
    // The warm-up makes lives too, at the same rate.
    let lives = report.rate() * (report.measured.as_secs_f64() + 1.0);
    Ok(used / lives * 1_000_000.0)
}

/// Bytes of a message: pending, then finished.
async fn memory(bench: &Bench, scale: &Scale, shapes: usize) -> Result<Vec<Figure>> {
    let Bench { connections, redis, .. } = bench;
    create(connections, shaped("memory", shapes)).await?;
    let before = redis.used()?.memory;
    match shapes {
        0 => fill(connections, "memory", Kind::Plain, scale.pending).await?,
        _ => messages::fill_with_two_keys(connections, "memory", scale.pending).await?,
    }
    let each = |bytes: u64| bytes.saturating_sub(before) as f64 / scale.pending as f64;
    let pending = each(redis.used()?.memory);
    finish_all(connections, "memory").await?;
    let finished = each(redis.used()?.memory);
    let (wanted, most) = if shapes == 0 { ("<= 480 B", 480.0) } else { ("<= 620 B", 620.0) };
    let what = format!("{} messages of 100 bytes with {shapes} filter shapes", scale.pending);
    Ok(vec![
        figure(&format!("{what}, pending"), format!("{pending:.0} B each"), wanted, pending <= most),
        figure(&format!("{what}, finished"), format!("{finished:.0} B each"), "<= 110 B", finished <= 110.0),
    ])
}

/// A queue that keeps what is finished, with some declared filters.
fn shaped(name: &str, shapes: usize) -> Queue {
    Queue { filter_shapes: forgetful("", &["team", "tier"][..shapes]).filter_shapes, ..Queues::simple(name) }
}

/// What Redis has allocated for all of them, with everything else in it.
async fn very_many(bench: &Bench, count: u64) -> Result<Figure> {
    create(&bench.connections, shaped("many", 2)).await?;
    messages::fill_with_two_keys(&bench.connections, "many", count).await?;
    let used = bench.redis.used()?.memory as f64;
    let gib = used / 1_073_741_824.0;
    let text = format!("{gib:.2} GiB, {:.0} B each", used / count as f64);
    let most = 5.8 * count as f64 / 10_000_000.0;
    Ok(figure(&format!("{count} messages pending with 2 filter shapes"), text, "<= 5.8 GiB of 10,000,000", gib <= most))
}

async fn calls(bench: &Bench, scale: &Scale) -> Result<Vec<Figure>> {
    let Bench { connections, redis, .. } = bench;
    create(connections, forgetful("calls", &[])).await?;
    fill(connections, "calls", Kind::Plain, scale.pending).await?;
    redis.forget_latencies()?;
    let enqueues = closed(Enqueue::workers(connections, "calls", IN_FLIGHT), scale.span()).await;
    let pairs = closed(Pair::workers(connections, "calls", IN_FLIGHT), scale.span()).await;
    let streams = cycles::run(connections, "calls", Kind::Plain, scale.span()).await?;
    tell(&[("enqueue", &enqueues), ("dequeue and complete", &pairs), ("cycles", &streams)]);
    let slowest = redis.fcall_ms(0.999)?;
    let with = format!("{} pending, {IN_FLIGHT} in flight", scale.pending);
    let rate = |what: &str, report: &Report, wanted: &'static str, least: f64| {
        let text = format!("{:.0}/s, p99 {:.1} ms", report.rate(), report.quantile_ms(0.99));
        figure(what, text, wanted, report.rate() >= least)
    };
    Ok(vec![
        rate(&format!("Enqueue, FAST, {with}"), &enqueues, ">= 15,000/s", 15_000.0),
        rate(&format!("Dequeue and Complete, FAST, {with}"), &pairs, ">= 8,000/s", 8_000.0),
        rate("cycles through Work and batches, retention running", &streams, ">= 8,000/s", 8_000.0),
        figure("p99.9 of fcall in these runs", format!("<= {slowest:.2} ms"), "< 5 ms", slowest < 5.0),
    ])
}

async fn safe(bench: &Bench, scale: &Scale) -> Result<Figure> {
    create(&bench.connections, Queues::simple("safe")).await?;
    let report = closed(Enqueue::workers(&bench.connections, "safe", IN_FLIGHT), scale.span()).await;
    tell(&[("enqueue, SAFE", &report)]);
    let text = format!("{:.0}/s, p99 {:.1} ms", report.rate(), report.quantile_ms(0.99));
    Ok(figure(&format!("Enqueue, SAFE, {IN_FLIGHT} in flight"), text, ">= 10,000/s", report.rate() >= 10_000.0))
}

/// Dequeues at a rate that leaves Redis idle most of the time.
async fn backlog(bench: &Bench, scale: &Scale) -> Result<Vec<Figure>> {
    let Bench { connections, redis, .. } = bench;
    let rate = 500.0;
    let enough = (rate * (scale.seconds + 2) as f64) as u64;
    create(connections, Queues::exclusive("exclusive", false)).await?;
    messages::block(connections, "exclusive", scale.blocked).await?;
    fill(connections, "exclusive", Kind::Valued, enough).await?;
    create(connections, Queues::filtered("filtered")).await?;
    fill(connections, "filtered", Kind::Filtered, scale.pending.max(enough)).await?;
    let mut figures = Vec::new();
    for (queue, kind, what) in [
        ("exclusive", Kind::Valued, format!("Dequeue with {} blocked ahead", scale.blocked)),
        ("filtered", Kind::Filtered, format!("Dequeue by a declared filter, {} pending", scale.pending)),
    ] {
        redis.forget_latencies()?;
        let report = open(Take::workers(connections, queue, 64, kind), rate, scale.span()).await;
        tell(&[(queue, &report)]);
        let (inside, outside) = (redis.fcall_ms(0.99)?, report.quantile_ms(0.99));
        let text = format!("<= {inside:.2} ms in Redis, {outside:.2} ms end to end");
        figures.push(figure(&format!("{what}: p99"), text, "< 0.5 ms in Redis", inside < 0.5));
    }
    Ok(figures)
}

/// How long Redis serves nobody else while a large queue goes.
async fn deletion(bench: &Bench, scale: &Scale) -> Result<Vec<Figure>> {
    let Bench { connections, redis, .. } = bench;
    let keys = redis.keys()? + KEYS_OF_A_NAME;
    create(connections, Queues::simple("deleted")).await?;
    fill(connections, "deleted", Kind::Plain, scale.pending).await?;
    redis.forget_latencies()?;
    let begun = std::time::Instant::now();
    let request = DeleteQueueRequest { queue: "deleted".to_owned(), ..DeleteQueueRequest::default() };
    let answer = client(connections, 0).delete_queue(request).await;
    // The removal goes on although the deadline of the call has passed.
    if let Some(status) = answer.err().filter(|status| status.code() != Code::DeadlineExceeded) {
        return Err(status.into());
    }
    while redis.keys()? > keys {
        ensure!(begun.elapsed() < REMOVED_WITHIN, "the messages are still there after {REMOVED_WITHIN:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (took, longest) = (begun.elapsed().as_secs_f64(), redis.fcall_ms(0.999)?);
    let what = format!("deletion of {} messages", scale.pending);
    Ok(vec![
        figure(&format!("{what}: p99.9 of fcall"), format!("<= {longest:.2} ms"), "< 5 ms", longest < 5.0),
        figure(&format!("{what}: until they were removed"), format!("{took:.1} s"), "(reported)", true),
    ])
}
