//! Load generator and figures for tallystone.
//!
//! Each subcommand runs one workload against a server that it starts itself (`tallystone dev` on a fresh directory and a
//! free port) or finds at `--server`. `figures` runs all of them beside their ceilings and prints the table of
//! `docs/benchmarks.md`. Figures of a debug build mean nothing: `cargo build --release --workspace` first.

mod access;
mod adds;
mod attacks;
mod bridge;
mod callgrind;
mod cassandra;
mod client;
mod converge;
mod echo;
mod fairness;
mod figures;
mod gets;
mod hot;
mod idle;
mod instructions;
mod keyed;
mod ledger;
mod load;
mod memcached;
mod namespaces;
mod queues;
mod recover;
mod redis;
mod report;
mod store;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tallystone_client::proto::counter::v1::Freshness;
use tallystone_client::{ClientTls, Credential};

use adds::{Aim, Batch, StreamShape, Unary};
use client::Connections;
use gets::Get;
use load::Span;
use namespaces::Settings;
use target::Target;

#[derive(Parser)]
#[command(about = "Load generator and figures for tallystone")]
struct Cli {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Command,
}

/// Where the server is, or how to start one.
#[derive(Args)]
struct Place {
    /// A running server, for example http://127.0.0.1:7450; without it one is started
    #[arg(long, global = true)]
    server: Option<String>,
    /// The authorities that a running server with https:// is trusted by, in PEM form
    #[arg(long, global = true, requires = "server")]
    ca_file: Option<PathBuf>,
    /// The server's binary; default: `tallystone` beside this program
    #[arg(long, global = true)]
    binary: Option<PathBuf>,
    /// Where data directories are made; default: beside this program, because a temporary directory may be memory
    #[arg(long, global = true)]
    data: Option<PathBuf>,
}

#[derive(Args, Clone, Copy)]
struct Load {
    /// Calls under way at once
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Connections
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Counters, all hit alike
    #[arg(long, default_value_t = 10_000)]
    counters: u64,
    /// Calls per second; without it as fast as answers come
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds to measure
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Seconds to run before
    #[arg(long, default_value_t = 2)]
    warm_up_seconds: u64,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the bare echo that is the ceiling
    #[command(hide = true)]
    EchoServe,
    /// Measure the bare echo
    Echo(Load),
    /// Add with one call for each
    Add(Load),
    /// Add in batches
    Batch {
        #[command(flatten)]
        load: Load,
        /// Items of a batch
        #[arg(long, default_value_t = 100)]
        items: usize,
    },
    /// Add over streams
    Stream {
        #[command(flatten)]
        load: Load,
        /// Items of a message
        #[arg(long, default_value_t = 100)]
        items: usize,
        /// Streams at once
        #[arg(long, default_value_t = 4)]
        streams: usize,
        /// Messages of a stream without acknowledgement
        #[arg(long, default_value_t = 16)]
        window: usize,
    },
    /// Read counts
    Get {
        #[command(flatten)]
        load: Load,
        /// How new the count has to be
        #[arg(long, value_enum, default_value_t = Newness::RolledUp)]
        freshness: Newness,
        /// Events of each counter that wait in the tail
        #[arg(long, default_value_t = 0)]
        tail: u64,
    },
    /// Commit rows of the same size with the store library alone
    Store {
        #[command(flatten)]
        load: Load,
        /// Rows that a producer waits for together
        #[arg(long, default_value_t = 100)]
        items: usize,
    },
    /// Many active counters: memory, CPU, and whether each count is right in time
    Converge {
        /// Active counters
        #[arg(long, default_value_t = 1_000_000)]
        counters: u64,
        /// Adds per second
        #[arg(long, default_value_t = 20_000)]
        rate: u64,
        /// Seconds of load
        #[arg(long, default_value_t = 300)]
        seconds: u64,
    },
    /// One hot counter beside many cold ones
    Hot {
        /// Cold counters
        #[arg(long, default_value_t = 1_000_000)]
        counters: u64,
        /// Adds to cold counters per second
        #[arg(long, default_value_t = 2_000.0)]
        rate: f64,
        /// Seconds of each of the three runs
        #[arg(long, default_value_t = 20)]
        seconds: u64,
    },
    /// Kill -9 after many events, and how long until ready again
    Recover {
        /// Logged events
        #[arg(long, default_value_t = 10_000_000)]
        events: u64,
        /// Counters they belong to
        #[arg(long, default_value_t = 100_000)]
        counters: u64,
    },
    /// Cached reads and best-effort adds beside memcached itself
    Memcached {
        /// A running memcached, HOST:PORT
        #[arg(long)]
        memcached: String,
        /// Counters, all hit alike
        #[arg(long, default_value_t = 10_000)]
        counters: u64,
        /// Reads in a second, for their latency
        #[arg(long, default_value_t = 5_000.0)]
        rate: f64,
        /// Rounds of each comparison
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Seconds of a round
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Workers whose streams wait: CPU and memory of the server, then how soon a message reaches one of them
    IdleWorkers {
        /// Open streams
        #[arg(long, default_value_t = 10_000)]
        workers: usize,
        /// Seconds to watch the server while they wait
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Messages that are sent then
        #[arg(long, default_value_t = 1_000)]
        messages: u32,
    },
    /// Attacks on a server, each beside a well-behaved caller, as a table
    Attacks(attacks::Scale),
    /// Counters on Cassandra beside the node itself, as a table
    Cassandra(cassandra::Scale),
    /// Queues beside their ceilings, as a table
    Queues(queues::Scale),
    /// Queues on Redis, and what they cost it, as a table
    Redis(redis::Scale),
    /// The bridge from queues to counters and history, as a table
    Bridge(bridge::Scale),
    /// What checking keys and TLS cost adds, in turns
    Access(access::Scale),
    /// A tenant that settles, beside one that floods enqueues
    Fairness(fairness::Scale),
    /// Counters on the embedded store beside their ceilings, as a table
    Figures(figures::Scale),
    /// Instructions of single calls by callgrind, of one build or of two, as a table
    Instructions(instructions::Scale),
}

#[derive(Clone, Copy, ValueEnum)]
enum Newness {
    RolledUp,
    UpToDate,
}

impl Place {
    /// What connections to the running server need.
    fn tls(&self) -> Result<ClientTls> {
        match &self.ca_file {
            None => Ok(ClientTls::default()),
            Some(file) => {
                let pem = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
                Ok(ClientTls::default().trusting(pem)?)
            }
        }
    }

    fn binary(&self) -> Result<PathBuf> {
        match &self.binary {
            Some(binary) => Ok(binary.clone()),
            None => Ok(beside()?.join("tallystone")),
        }
    }

    /// A fresh directory that vanishes in the end.
    fn folder(&self) -> Result<tempfile::TempDir> {
        let parent = match &self.data {
            Some(data) => data.clone(),
            None => beside()?,
        };
        Ok(tempfile::Builder::new().prefix("loadtest-").tempdir_in(parent)?)
    }
}

fn beside() -> Result<PathBuf> {
    Ok(std::env::current_exe()?.parent().context("a program lies in a folder")?.to_owned())
}

impl Load {
    fn span(&self) -> Span {
        Span { warm_up: Duration::from_secs(self.warm_up_seconds), measure: Duration::from_secs(self.seconds) }
    }
}

/// The namespace of the plain workloads.
pub const PLAIN: &str = "load";
/// A namespace whose events stay in the tail for the length of a run.
pub const LONG_TAIL: &str = "tail";

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let place = &cli.place;
    match cli.command {
        Command::EchoServe => echo::serve().await,
        Command::Echo(load) => {
            let echo = Target::echo()?;
            let connections = Connections::open(&echo.url(), load.connections).await?;
            let report = unary(&connections, load).await;
            println!("{}", report.line("echo"));
            Ok(())
        }
        Command::Store { load, items } => {
            let folder = place.folder()?;
            let rows = figures::rows(load.in_flight.div_ceil(items).max(16), items, load.counters);
            println!("{}", store::run(folder.path(), rows, load.span()).await?.line("store"));
            Ok(())
        }
        Command::Recover { events, counters } => {
            let folder = place.folder()?;
            let plan = recover::Plan { events, counters };
            println!("{:?}", recover::run(&place.binary()?, folder.path(), plan).await?);
            Ok(())
        }
        Command::Memcached { memcached, counters, rate, rounds, seconds } => {
            let folder = place.folder()?;
            let span = Span { warm_up: Duration::from_secs(2), measure: Duration::from_secs(seconds) };
            let plan = memcached::Plan { memcached, counters, rate, rounds, span };
            memcached::run(&place.binary()?, folder.path(), &plan).await
        }
        Command::Attacks(scale) => {
            attacks::run(place.server.as_deref(), &place.binary()?, || place.folder(), scale).await
        }
        Command::Cassandra(scale) => cassandra::run(&place.binary()?, scale).await,
        Command::Queues(scale) => queues::run(&place.binary()?, || place.folder(), scale).await,
        Command::Redis(scale) => redis::run(&place.binary()?, || place.folder(), scale).await,
        Command::Bridge(scale) => bridge::run(&place.binary()?, || place.folder(), scale).await,
        Command::Access(scale) => access::run(&place.binary()?, || place.folder(), scale).await,
        Command::Fairness(scale) => fairness::run(&place.binary()?, || place.folder(), scale).await,
        Command::Figures(scale) => figures::run(&place.binary()?, || place.folder(), scale).await,
        Command::Instructions(scale) => instructions::run(&place.binary()?, || place.folder(), scale).await,
        command @ (Command::Add(_)
        | Command::Batch { .. }
        | Command::Stream { .. }
        | Command::Get { .. }
        | Command::Converge { .. }
        | Command::IdleWorkers { .. }
        | Command::Hot { .. }) => on_a_server(place, command).await,
    }
}

async fn on_a_server(place: &Place, command: Command) -> Result<()> {
    let folder = place.folder()?;
    let started = match &place.server {
        Some(_) => None,
        None => Some(Target::server(&place.binary()?, folder.path())?),
    };
    let url = place.server.clone().or_else(|| started.as_ref().map(Target::url)).context("a server")?;
    match (command, &started) {
        (Command::Converge { counters, rate, seconds }, Some(target)) => {
            let plan = converge::Plan {
                counters,
                rate,
                duration: Duration::from_secs(seconds),
                items: 50,
                settings: converge::settings(),
            };
            println!("{}", converge::run(target, plan).await?.line());
            Ok(())
        }
        (Command::Hot { counters, rate, seconds }, Some(target)) => {
            let span = Span { warm_up: Duration::from_secs(2), measure: Duration::from_secs(seconds) };
            let plan = hot::Plan { counters, cold_rate: rate, hot_in_flight: 64, span };
            figures::print_hot(&hot::run(target, plan).await?);
            Ok(())
        }
        (Command::IdleWorkers { workers, seconds, messages }, Some(target)) => {
            let plan = idle::Plan { workers, watched: Duration::from_secs(seconds), messages };
            println!("{}", idle::run(target, plan).await?.line());
            Ok(())
        }
        (Command::Converge { .. } | Command::Hot { .. } | Command::IdleWorkers { .. }, None) => {
            anyhow::bail!("this workload looks at the server's process: leave --server out, so that it starts one")
        }
        (command, _) => plain(&url, &place.tls()?, command).await,
    }
}

async fn plain(url: &str, tls: &ClientTls, command: Command) -> Result<()> {
    let (Command::Add(load) | Command::Batch { load, .. } | Command::Stream { load, .. } | Command::Get { load, .. }) =
        command
    else {
        unreachable!("the caller has taken the others")
    };
    let connections = Connections::open_as(url, tls, shown_credential()?, load.connections).await?;
    namespaces::create(&mut connections.catalog(), &Settings::dev(PLAIN)).await?;
    let aim = Aim { namespace: PLAIN, first: 0, counters: load.counters };
    let (name, report) = match command {
        Command::Batch { items, .. } => {
            let workers = Batch::workers(&connections, aim, items, load.in_flight);
            ("batch", run(workers, load).await)
        }
        Command::Stream { items, streams, window, .. } => {
            let shape = StreamShape { streams, items, window };
            ("stream", adds::stream(&connections, aim, shape, load.span()).await?)
        }
        Command::Get { freshness, tail, .. } => ("get", get(&connections, load, freshness, tail).await?),
        _ => ("add", unary(&connections, load).await), // the caller passes no others
    };
    println!("{}", report.line(name));
    Ok(())
}

/// The key in `TALLYSTONE_KEY`, as the command line shows it; nothing without it.
fn shown_credential() -> Result<Credential> {
    match std::env::var("TALLYSTONE_KEY") {
        Ok(key) => Ok(Credential::of_key(&key)?),
        Err(_unset) => Ok(Credential::default()),
    }
}

async fn unary(connections: &Connections, load: Load) -> report::Report {
    let aim = Aim { namespace: PLAIN, first: 0, counters: load.counters };
    run(Unary::workers(connections, aim, load.in_flight), load).await
}

async fn get(connections: &Connections, load: Load, freshness: Newness, tail: u64) -> Result<report::Report> {
    let aim = prepared(connections, load.counters, tail).await?;
    let freshness = match freshness {
        Newness::RolledUp => Freshness::RolledUp,
        Newness::UpToDate => Freshness::UpToDate,
    };
    Ok(run(Get::workers(connections, aim, freshness, load.in_flight), load).await)
}

/// Counters to read: rolled up, or with some events each that stay in the tail.
pub async fn prepared(connections: &Connections, counters: u64, tail: u64) -> Result<Aim> {
    let namespace = if tail == 0 { PLAIN } else { LONG_TAIL };
    let accept_limit_ms = if tail == 0 { 1_000 } else { 600_000 };
    let settings = Settings { accept_limit_ms, ..Settings::dev(namespace) };
    namespaces::create(&mut connections.catalog(), &settings).await?;
    let aim = Aim { namespace, first: 0, counters };
    gets::fill(connections, aim, tail.max(1)).await?;
    if tail == 0 {
        gets::settled(connections, aim, Duration::from_secs(60)).await?;
    }
    Ok(aim)
}

async fn run<C: load::Call>(workers: Vec<C>, load: Load) -> report::Report {
    match load.rate {
        Some(rate) => load::open(workers, rate, load.span()).await,
        None => load::closed(workers, load.span()).await,
    }
}
