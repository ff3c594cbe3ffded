//! Instructions of a call, counted by callgrind: a figure that does not swing with what else the machine does.
//!
//! A server runs under callgrind, and one caller makes the same call many times, one after the other. What follows a call counts as
//! a part of it: rollups, reports to counters, the history. What the server does in as much time without calls is subtracted. Two
//! builds are measured in turns. Calls of a server that is alone with one caller cost more than those of a busy one, where many share
//! a commit: the figure is for comparing builds, not for capacity.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, value_parser};
use tallystone_client::proto::counter::v1::Freshness;
use tallystone_client::proto::queue::v1::{DequeueRequest, GetDepthRequest};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::PLAIN;
use crate::adds::{Aim, Unary};
use crate::callgrind::{self, Callgrind};
use crate::client::{Connections, reason_of};
use crate::gets::{self, Get};
use crate::load::Call;
use crate::namespaces::{self, Settings};
use crate::queues::calls::{Enqueue, Pair};
use crate::queues::messages::{Client, Kind, Queues, client, create, fill};
use crate::redis::lives::Life;
use crate::redis::server::Redis;
use crate::report::median;
use crate::target::{Target, ensure_built};

/// What is compared, and how often.
#[derive(Args, Clone)]
pub struct Scale {
    /// The binary of another build, measured in turns with this one
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Calls of each measurement
    #[arg(long, default_value_t = 300, value_parser = value_parser!(u64).range(1..))]
    calls: u64,
    /// Rounds; the table has the medians
    #[arg(long, default_value_t = 3, value_parser = value_parser!(u32).range(1..))]
    rounds: u32,
    /// The program of Redis, for a life of a message there
    #[arg(long, default_value = "redis-server")]
    redis_server: PathBuf,
}

const COUNTERS: u64 = 1_000;
/// Calls that are not measured: a program that callgrind has not seen yet is translated first.
const WARM_UP: u64 = 30;
/// Calls that may fail before so many have not: the first ones may take longer than the server gives a call.
const FAILED_MAX: u64 = 60;
const CALL_WITHIN: Duration = Duration::from_secs(60);
/// What follows a call is over after it: longer than an event may be late, a rollup waits for others, and a report takes.
const SETTLES_WITHIN: Duration = Duration::from_secs(5);
const QUEUE: &str = "load";
const EMPTY: &str = "empty";

/// A build, and what its calls cost: instructions by the name of the call, one number for each round.
struct Build {
    binary: PathBuf,
    rows: Vec<(&'static str, Vec<f64>)>,
}

impl Build {
    fn note(&mut self, calls: &[&'static str], instructions: Vec<f64>) {
        for (call, instructions) in calls.iter().zip(instructions) {
            match self.rows.iter_mut().find(|(name, _)| name == call) {
                Some((_, rounds)) => rounds.push(instructions),
                None => self.rows.push((call, vec![instructions])),
            }
        }
    }
}

/// Measures and prints the table.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let binaries = [Some(binary.to_owned()), scale.beside.clone()];
    for binary in binaries.iter().flatten() {
        ensure_built(binary)?;
    }
    callgrind::find()?;
    let redis = Command::new(&scale.redis_server).arg("--version").output();
    ensure!(
        redis.is_ok(),
        "{} does not start: install it (apt-get install redis-server)",
        scale.redis_server.display()
    );
    let build = |binary| Build { binary, rows: Vec::new() };
    let mut builds: Vec<Build> = binaries.into_iter().flatten().map(build).collect();
    for round in 0..scale.rounds {
        for build in &mut builds {
            println!("round {} of {}: {}", round + 1, scale.rounds, build.binary.display());
            on_embedded(build, &folder()?, &scale).await?;
            on_redis(build, &folder, &scale).await?;
        }
    }
    print(&builds);
    Ok(())
}

/// A server under callgrind.
struct Bench {
    connections: Connections,
    /// The server first, then what else is counted beside it.
    counted: Vec<Callgrind>,
    calls: u64,
    _server: Target,
}

impl Bench {
    async fn start(binary: &Path, folder: &TempDir, arguments: &[&str], calls: u64) -> Result<Self> {
        let data = folder.path().join("data");
        let mut command = Callgrind::command(binary, folder.path());
        command.args(["dev", "--listen", "127.0.0.1:0", "--data"]).arg(data).args(arguments);
        let server = Target::ready(command)?;
        let counted = vec![Callgrind::of(server.pid(), folder.path())];
        let connections = Connections::open(&server.url(), 1).await?;
        Ok(Self { connections, counted, calls, _server: server })
    }

    /// Notes the thousands of instructions of a call, by a name for each process that is counted.
    async fn note(&mut self, build: &mut Build, names: &[&'static str], call: impl Call) -> Result<()> {
        let counted = self.count(call).await.with_context(|| format!("{} cannot be measured", names[0]))?;
        build.note(names, counted);
        Ok(())
    }

    async fn count(&mut self, mut call: impl Call) -> Result<Vec<f64>> {
        let (mut made, mut failed) = (0, 0);
        while made < WARM_UP {
            match timeout(CALL_WITHIN, call.call()).await? {
                Ok(_) => made += 1,
                Err(_) if failed < FAILED_MAX => failed += 1,
                Err(reason) => bail!("calls fail during the warm-up: {reason}"),
            }
        }
        sleep(SETTLES_WITHIN).await;
        self.take()?;
        let begun = Instant::now();
        for _ in 0..self.calls {
            if let Err(reason) = timeout(CALL_WITHIN, call.call()).await? {
                bail!("a call failed: {reason}");
            }
        }
        sleep(SETTLES_WITHIN).await;
        let took = begun.elapsed();
        let with_calls = self.take()?;
        sleep(took).await;
        let at_rest = self.take()?;
        let of_calls = with_calls.into_iter().zip(at_rest).map(|(with, rest)| {
            let sum =
                with.checked_sub(rest).context("the process did more at rest than with calls: measure it again")?;
            Ok(sum as f64 / self.calls as f64 / 1_000.0)
        });
        of_calls.collect()
    }

    fn take(&mut self) -> Result<Vec<u64>> {
        self.counted.iter_mut().map(Callgrind::take).collect()
    }
}

/// Calls of counters and queues on the embedded store.
async fn on_embedded(build: &mut Build, folder: &TempDir, scale: &Scale) -> Result<()> {
    let mut bench = Bench::start(&build.binary, folder, &[], scale.calls).await?;
    let connections = bench.connections.clone();
    namespaces::create(&mut connections.catalog(), &Settings::dev(PLAIN)).await?;
    let all = Aim { namespace: PLAIN, first: 0, counters: COUNTERS };
    let one = Aim { counters: 1, ..all };
    let get = |aim| first(Get::workers(&connections, aim, Freshness::RolledUp, 1));
    gets::fill(&connections, all, 1).await?;
    gets::settled(&connections, all, CALL_WITHIN).await?;
    bench.note(build, &["AddCount"], first(Unary::workers(&connections, all, 1))).await?;
    bench.note(build, &["GetCount"], get(all)).await?;
    bench.note(build, &["GetCount of one counter"], get(one)).await?;
    for name in [QUEUE, EMPTY] {
        create(&connections, Queues::simple(name)).await?;
    }
    bench.note(build, &["Enqueue"], first(Enqueue::workers(&connections, QUEUE, 1))).await?;
    bench.note(build, &["GetDepth"], Depth(client(&connections, 0))).await?;
    // Some for calls that fail, which leave their message leased.
    fill(&connections, QUEUE, Kind::Plain, WARM_UP + FAILED_MAX).await?;
    bench.note(build, &["Dequeue and Complete"], first(Pair::workers(&connections, QUEUE, 1))).await?;
    bench.note(build, &["Dequeue of nothing"], DequeueOfNothing(client(&connections, 0))).await?;
    bench.note(build, &["Enqueue, Dequeue, Complete"], first(Life::workers(&connections, QUEUE, 1))).await
}

/// A life of a message on Redis: what the server executes, and what Redis does.
async fn on_redis(build: &mut Build, folder: &impl Fn() -> Result<TempDir>, scale: &Scale) -> Result<()> {
    let (of_server, of_redis) = (folder()?, folder()?);
    let redis = Redis::start_by(Callgrind::command(&scale.redis_server, of_redis.path()), folder()?, "everysec")?;
    // Redis takes seconds beneath callgrind to load the functions.
    let patience = format!("clusters.redis.request_timeout_ms={}", CALL_WITHIN.as_millis());
    let arguments = ["--redis", &redis.address.to_string(), "--set", &patience];
    let mut bench = Bench::start(&build.binary, &of_server, &arguments, scale.calls).await?;
    bench.counted.push(Callgrind::of(redis.pid(), of_redis.path()));
    let connections = bench.connections.clone();
    create(&connections, Queues::simple(QUEUE)).await?;
    let life = first(Life::workers(&connections, QUEUE, 1));
    bench.note(build, &["Enqueue, Dequeue, Complete with Redis", "the same, in Redis itself"], life).await
}

fn first<C>(workers: Vec<C>) -> C {
    workers.into_iter().next().expect("one worker was asked for")
}

struct Depth(Client);

impl Call for Depth {
    async fn call(&mut self) -> Result<u64, String> {
        let request = GetDepthRequest { queue: QUEUE.to_owned(), ..GetDepthRequest::default() };
        self.0.get_depth(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}

struct DequeueOfNothing(Client);

impl Call for DequeueOfNothing {
    async fn call(&mut self) -> Result<u64, String> {
        let request = DequeueRequest { queue: EMPTY.to_owned(), ..DequeueRequest::default() };
        self.0.dequeue(request).await.map(|_| 1).map_err(|status| reason_of(&status))
    }
}

fn print(builds: &[Build]) {
    println!();
    println!("Thousands of instructions for what a row names, medians; of the server, and in the last row of Redis:");
    println!();
    match builds {
        [build] => {
            println!("| call | {} |", build.binary.display());
            println!("|---|---|");
            for (call, rounds) in &build.rows {
                println!("| {call} | {:.0} |", median(rounds.clone()));
            }
        }
        builds => {
            let names: Vec<String> = builds.iter().map(|build| build.binary.display().to_string()).collect();
            println!("| call | {} | ratio |", names.join(" | "));
            println!("|---|---|---|---|");
            for ((call, rounds), (_, beside)) in builds[0].rows.iter().zip(&builds[1].rows) {
                let (one, other) = (median(rounds.clone()), median(beside.clone()));
                println!("| {call} | {one:.0} | {other:.0} | {:.3} |", one / other);
            }
        }
    }
}
