//! What checking keys costs AddCount: a server that asks for keys, with many of them, in turns beside one that asks for none.
//!
//! Both servers stay up for all rounds and idle while the other one is measured. The order changes with each round, so that
//! neither gains from what came before. TLS is measured in the same way, as a third server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use tallystone_client::proto::access::v1::{Grant, Role};
use tallystone_client::proto::admin::v1::CreateKeyRequest;
use tallystone_client::proto::admin::v1::key_service_client::KeyServiceClient;
use tallystone_client::{ClientTls, Credential};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::adds::{Aim, Unary};
use crate::client::Connections;
use crate::load::{Span, closed, open};
use crate::namespaces::{self, Settings};
use crate::report::{Report, median};
use crate::target::{Target, usage};
use crate::{PLAIN, keyed};

/// How many keys, and how long.
#[derive(Args, Clone, Copy)]
pub struct Scale {
    /// Keys of the server that asks for them
    #[arg(long, default_value_t = 10_000)]
    keys: u64,
    /// Keys that calls show, in turn
    #[arg(long, default_value_t = 64)]
    shown: usize,
    /// Adds in a second for the latencies
    #[arg(long, default_value_t = 10_000.0)]
    rate: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds of all measurements
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

const IN_FLIGHT: usize = 64;
const CONNECTIONS: usize = 4;
const COUNTERS: u64 = 10_000;
/// Keys that are made at once.
const MADE_AT_ONCE: usize = 64;
const READY_WITHIN: Duration = Duration::from_secs(60);
const WARM_UP: Duration = Duration::from_secs(1);

/// A server, and connections to it.
struct Candidate {
    name: &'static str,
    workers: Vec<Connections>,
    server: Target,
    /// Adds per second, one number for each round.
    rates: Vec<f64>,
    /// The 0.99 quantile in milliseconds, one for each round.
    p99_ms: Vec<f64>,
    /// The median in milliseconds, one for each round.
    p50_ms: Vec<f64>,
    /// Processor time of the server for an add at the fixed rate, in microseconds, one for each round.
    cpu_us: Vec<f64>,
}

/// Runs the rounds, and prints them and their medians.
pub async fn run(binary: &Path, folder: impl Fn() -> Result<TempDir>, scale: Scale) -> Result<()> {
    let folders = [folder()?, folder()?, folder()?];
    let [plain, with_keys, by_tls] = folders.each_ref().map(TempDir::path);
    let mut candidates = vec![
        without_keys(binary, plain).await?,
        with_many_keys(binary, with_keys, scale).await?,
        over_tls(binary, by_tls).await?,
    ];
    for round in 0..scale.rounds {
        for turn in 0..candidates.len() {
            let at = (round + turn) % candidates.len();
            candidates[at].measure(scale, round + 1).await?;
        }
    }
    let bare = &candidates[0];
    for candidate in &candidates {
        let ratio =
            |ours: &[f64], bare: &[f64]| median(ours.iter().zip(bare).map(|(ours, bare)| ours / bare).collect());
        println!(
            "{:10} {:.0}/s, {:.3} of the first; at {:.0}/s p99 {:.2} ms, p50 {:.3} ms; processor time {:.1} us an add, {:.3} of the first",
            candidate.name,
            median(candidate.rates.clone()),
            ratio(&candidate.rates, &bare.rates),
            scale.rate,
            median(candidate.p99_ms.clone()),
            median(candidate.p50_ms.clone()),
            median(candidate.cpu_us.clone()),
            ratio(&candidate.cpu_us, &bare.cpu_us),
        );
    }
    Ok(())
}

impl Candidate {
    async fn new(name: &'static str, server: Target, workers: Vec<Connections>) -> Result<Self> {
        let first = workers.first().context("there are connections")?;
        namespaces::create(&mut first.catalog(), &Settings::dev(PLAIN)).await?;
        Ok(Self {
            name,
            workers,
            server,
            rates: Vec::new(),
            p99_ms: Vec::new(),
            p50_ms: Vec::new(),
            cpu_us: Vec::new(),
        })
    }

    /// As many workers as there may be calls under way; each shows the key of its connections.
    fn adders(&self) -> Vec<Unary> {
        let aim = Aim { namespace: PLAIN, first: 0, counters: COUNTERS };
        (0..IN_FLIGHT).flat_map(|at| Unary::workers(&self.workers[at % self.workers.len()], aim, 1)).collect()
    }

    async fn measure(&mut self, scale: Scale, round: usize) -> Result<()> {
        let span = Span { warm_up: WARM_UP, measure: Duration::from_secs(scale.seconds) };
        let highest = closed(self.adders(), span).await;
        let before = usage(self.server.pid())?.cpu;
        let calm = open(self.adders(), scale.rate, span).await;
        let cpu = usage(self.server.pid())?.cpu - before;
        for report in [&highest, &calm] {
            ensure!(report.failed.is_empty(), "{}: {:?}", self.name, report.failed);
        }
        println!("{}", highest.line(&format!("round {round}, {}, highest", self.name)));
        println!("{}", calm.line(&format!("round {round}, {}, {:.0}/s", self.name, scale.rate)));
        self.note(&highest, &calm);
        let adds = scale.rate * (span.warm_up + span.measure).as_secs_f64();
        self.cpu_us.push(cpu.as_secs_f64() * 1e6 / adds);
        Ok(())
    }

    fn note(&mut self, highest: &Report, calm: &Report) {
        self.rates.push(highest.rate());
        self.p99_ms.push(calm.quantile_ms(0.99));
        self.p50_ms.push(calm.quantile_ms(0.5));
    }
}

async fn without_keys(binary: &Path, data: &Path) -> Result<Candidate> {
    let server = Target::server(binary, data)?;
    let connections = Connections::open(&server.url(), CONNECTIONS).await?;
    Candidate::new("no keys", server, vec![connections]).await
}

/// All callers share the same few connections, as many as those without keys.
async fn with_many_keys(binary: &Path, data: &Path, scale: Scale) -> Result<Candidate> {
    let (server, admin) = keyed::server(binary, data)?;
    let shared = keyed::connections(&server.url(), Some(&admin), CONNECTIONS).await?;
    let keys = make_keys(&shared, scale.keys).await?;
    let shown = keys.iter().step_by((keys.len() / scale.shown.max(1)).max(1)).take(scale.shown.max(1));
    let workers = std::iter::once(Ok(shared.clone()))
        .chain(shown.map(|key| Ok(shared.showing(Credential::of_key(key)?))))
        .collect::<Result<Vec<_>>>()?;
    Candidate::new("keys", server, workers).await
}

async fn over_tls(binary: &Path, data: &Path) -> Result<Candidate> {
    let server = Target::by_tls(binary, data)?;
    let tls = ClientTls::default().trusting(std::fs::read(data.join("tls").join("ca.pem"))?)?;
    let url = format!("https://{}", server.address);
    let connections = Connections::open_as(&url, &tls, Credential::default(), CONNECTIONS).await?;
    ready(&connections).await?;
    Candidate::new("TLS", server, vec![connections]).await
}

/// Waits until the server takes changes of its catalog.
async fn ready(connections: &Connections) -> Result<()> {
    let began = Instant::now();
    loop {
        match namespaces::create(&mut connections.catalog(), &Settings::dev(PLAIN)).await {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > READY_WITHIN => return Err(error),
            Err(_not_yet) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Makes keys that may add, and answers them.
async fn make_keys(connections: &Connections, count: u64) -> Result<Vec<String>> {
    let make = async |number: u64| {
        let grant = Grant { role: Role::CounterWriter.into(), ..Grant::default() };
        let request =
            CreateKeyRequest { name: format!("adder-{number:05}"), grants: vec![grant], ..Default::default() };
        let made = KeyServiceClient::new(connections.channel(number as usize)).create_key(request).await?;
        anyhow::Ok(made.into_inner().api_key)
    };
    let numbers: Vec<u64> = (0..count).collect();
    let mut keys = Vec::with_capacity(numbers.len());
    for some in numbers.chunks(MADE_AT_ONCE) {
        keys.extend(try_join_all(some.iter().map(|number| make(*number))).await?);
    }
    Ok(keys)
}
