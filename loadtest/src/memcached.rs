//! Calls that end in memcached, beside what they are made of: the bare echo, and memcached asked by its own client.
//!
//! A read of a cached count is a call and a `mg`; a best-effort add is a call and a `ma`. So the first is compared with the
//! sum of both by latency, at one rate, and the second with the slower of both by throughput. All of them run in turns.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use memcache::exp::{Arithmetic, AsyncMetaClient, Get as MetaGet, Set};
use tallystone_client::proto::admin::v1::CounterType;
use tallystone_client::proto::counter::v1::Freshness;

use crate::adds::{Aim, Unary};
use crate::client::{Connections, counter_name};
use crate::gets::{self, Get};
use crate::load::{Call, Dice, Span, closed, open};
use crate::namespaces::{self, Settings};
use crate::report::median;
use crate::target::Target;

/// Cached counts.
const CACHED: &str = "cached";
/// Best-effort counters.
const FAST: &str = "fast";
const IN_FLIGHT: usize = 64;
const CONNECTIONS: usize = 4;
/// The bytes of a cached count.
const VALUE_BYTES: usize = 40;

/// What to run.
#[derive(Clone)]
pub struct Plan {
    /// The memcached, HOST:PORT.
    pub memcached: String,
    /// Counters.
    pub counters: u64,
    /// Reads in a second.
    pub rate: f64,
    /// Rounds.
    pub rounds: usize,
    /// A round.
    pub span: Span,
}

/// One command at a time over memcached's own client.
struct Raw {
    client: Arc<AsyncMetaClient>,
    counters: u64,
    what: Command,
    dice: Dice,
}

#[derive(Clone, Copy)]
enum Command {
    Get,
    Add,
}

impl Raw {
    fn workers(client: &Arc<AsyncMetaClient>, counters: u64, what: Command) -> Vec<Self> {
        let worker = |number| Self { client: Arc::clone(client), counters, what, dice: Dice::new(number as u64 + 1) };
        (0..IN_FLIGHT).map(worker).collect()
    }
}

impl Call for Raw {
    async fn call(&mut self) -> Result<u64, String> {
        let name = counter_name(self.dice.below(self.counters));
        let done = match self.what {
            Command::Get => self.client.run(MetaGet::new(format!("raw/{name}"))).await.map(|_| 1),
            Command::Add => {
                let add = Arithmetic::new(format!("sum/{name}")).delta(1).initial(1, 3_600);
                self.client.run(add).await.map(|_| 1)
            }
        };
        done.map_err(|error| error.to_string())
    }
}

/// Runs all of it and prints what it found.
pub async fn run(binary: &Path, folder: &Path, plan: &Plan) -> Result<()> {
    let echo = Target::echo()?;
    let server = Target::server_with(binary, folder, &["--memcached", &plan.memcached])?;
    let echo_connections = Connections::open(&echo.url(), CONNECTIONS).await?;
    let connections = Connections::open(&server.url(), CONNECTIONS).await?;
    let cluster = Some("memcached");
    namespaces::create(&mut connections.catalog(), &Settings { cache_cluster: cluster, ..Settings::dev(CACHED) })
        .await?;
    let fast = Settings { cache_cluster: cluster, counter_type: CounterType::BestEffort, ..Settings::dev(FAST) };
    namespaces::create(&mut connections.catalog(), &fast).await?;
    let client = AsyncMetaClient::builder().max_idle(IN_FLIGHT).connect_async(plan.memcached.as_str()).await;
    let client = Arc::new(client.context("memcached does not answer")?);
    for number in 0..plan.counters {
        client.run(Set::new(format!("raw/{}", counter_name(number)), vec![7; VALUE_BYTES])).await?;
    }
    let aim = Aim { namespace: CACHED, first: 0, counters: plan.counters };
    gets::fill(&connections, aim, 1).await?;
    gets::settled(&connections, aim, Duration::from_secs(60)).await?;
    reads(plan, &echo_connections, &connections, &client).await;
    adds(plan, &echo_connections, &connections, &client).await;
    Ok(())
}

/// p99 of a cached read beside the sum of the echo's and of a raw get's, at one rate.
async fn reads(plan: &Plan, echo: &Connections, server: &Connections, client: &Arc<AsyncMetaClient>) {
    let aim = |namespace| Aim { namespace, first: 0, counters: plan.counters };
    let mut ratios = Vec::new();
    for _ in 0..plan.rounds {
        let call = open(Unary::workers(echo, aim(CACHED), IN_FLIGHT), plan.rate, plan.span).await;
        let get = open(Raw::workers(client, plan.counters, Command::Get), plan.rate, plan.span).await;
        let workers = Get::workers(server, aim(CACHED), Freshness::RolledUp, IN_FLIGHT);
        let cached = open(workers, plan.rate, plan.span).await;
        for (name, report) in [("echo", &call), ("raw get", &get), ("GetCount from memcached", &cached)] {
            println!("{}", report.line(name));
        }
        ratios.push(cached.quantile_ms(0.99) / (call.quantile_ms(0.99) + get.quantile_ms(0.99)));
    }
    let ratio = median(ratios);
    println!("GetCount from memcached, p99: {ratio:.2} x (echo + raw get) at {:.0}/s; wanted <= 1.3", plan.rate);
}

/// The rate of best-effort adds beside the slower of the echo and a raw `ma`.
async fn adds(plan: &Plan, echo: &Connections, server: &Connections, client: &Arc<AsyncMetaClient>) {
    let aim = Aim { namespace: FAST, first: 0, counters: plan.counters };
    let mut ratios = Vec::new();
    for _ in 0..plan.rounds {
        let call = closed(Unary::workers(echo, aim, IN_FLIGHT), plan.span).await;
        let raw = closed(Raw::workers(client, plan.counters, Command::Add), plan.span).await;
        let add = closed(Unary::workers(server, aim, IN_FLIGHT), plan.span).await;
        for (name, report) in [("echo", &call), ("raw ma", &raw), ("best-effort add", &add)] {
            println!("{}", report.line(name));
        }
        ratios.push(add.rate() / call.rate().min(raw.rate()));
    }
    println!("best-effort add: {:.2} of the slower of the echo and a raw ma; wanted >= 0.7", median(ratios));
}
