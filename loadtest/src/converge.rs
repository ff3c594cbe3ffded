//! Many active counters at a steady rate: memory, CPU, and whether every served count is right in time.

use std::time::Duration;

use anyhow::{Result, ensure};
use tallystone_client::proto::admin::v1::Cardinality;
use tallystone_client::proto::counter::v1::Freshness;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Connections;
use crate::ledger::{self, Difference, Writer};
use crate::load::{Call, Dice};
use crate::namespaces::{self, Settings};
use crate::target::{self, Target, Usage};

/// What to run.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Active counters.
    pub counters: u64,
    /// Adds per second.
    pub rate: u64,
    /// How long.
    pub duration: Duration,
    /// Items of one batch.
    pub items: usize,
    /// Of the namespace.
    pub settings: Settings,
}

/// A namespace as `dev` has it, for more counters.
pub fn settings() -> Settings {
    Settings { cardinality: Cardinality::High, ..Settings::dev(NAMESPACE) }
}

/// What came of it.
pub struct Outcome {
    /// Adds that were applied, per second.
    pub rate: f64,
    /// The most resident memory of the server.
    pub resident_max: u64,
    /// CPU of the server under load, in cores.
    pub cpu_cores: f64,
    /// How many rollup batches were under way, on average.
    pub batch_share: f64,
    /// The server's metrics before the load and at its end.
    pub metrics: [String; 2],
    /// How much of a sample was right, by the time since the end of the load.
    pub convergence: Vec<(Duration, f64)>,
    /// The time that all counters have.
    pub bound: Duration,
    /// Counters of a sample that were wrong at the bound.
    pub late: usize,
    /// Counters that were wrong when all were read after the bound.
    pub wrong: usize,
}

impl Outcome {
    /// One line for people.
    pub fn line(&self) -> String {
        let steps: Vec<String> = self
            .convergence
            .iter()
            .map(|(at, right)| format!("{:.1} s {:.1} %", at.as_secs_f64(), right * 100.0))
            .collect();
        format!(
            "converge: {:.0} adds/s, {} MiB at most, {:.2} cores, {:.2} batches under way; right after the end: {}; \
             {} of a sample late at {:.1} s, {} wrong in the end",
            self.rate,
            self.resident_max >> 20,
            self.cpu_cores,
            self.batch_share,
            steps.join(", "),
            self.late,
            self.bound.as_secs_f64(),
            self.wrong
        )
    }
}

const NAMESPACE: &str = "converge";
const WORKERS: u64 = 16;
const SAMPLE: usize = 2_000;
const BATCH_SECONDS: &str = "tallystone_rollup_batch_seconds_total";

/// Runs it on a server.
pub async fn run(target: &Target, plan: Plan) -> Result<Outcome> {
    let connections = Connections::open(&target.url(), 4).await?;
    namespaces::create(&mut connections.catalog(), &plan.settings).await?;
    let bound = Duration::from_millis(plan.settings.accept_limit_ms + 3 * u64::from(plan.settings.coalesce_ms));

    let before = (target::usage(target.pid())?, target.metrics()?);
    let begun = Instant::now();
    let writers = load(&connections, plan).await?;
    let ended = Instant::now();
    let after = (target::usage(target.pid())?, target.metrics()?);
    let seconds = (ended - begun).as_secs_f64();
    let refused: u64 = writers.iter().map(|writer| writer.refused).sum();
    ensure!(refused == 0, "{refused} adds were refused for good");

    let wanted: Vec<(u64, i64)> = writers
        .iter()
        .flat_map(|writer| writer.sums.iter().enumerate().map(|(own, sum)| (writer.number(own), *sum)))
        .collect();
    let (convergence, late) = watch(&connections, &wanted, ended, bound).await?;
    let wrong = compare_all(&connections, wanted).await?;
    Ok(Outcome {
        rate: plan.rate as f64 * plan.duration.as_secs_f64() / seconds,
        resident_max: target::usage(target.pid())?.resident_max,
        cpu_cores: cores(before.0, after.0, seconds),
        batch_share: (target::metric(&after.1, BATCH_SECONDS) - target::metric(&before.1, BATCH_SECONDS)) / seconds,
        metrics: [before.1, after.1],
        convergence,
        bound,
        late,
        wrong,
    })
}

/// CPU of the server under the same load while no rollup runs, in cores.
pub async fn cpu_without_rollups(target: &Target, plan: Plan) -> Result<f64> {
    let connections = Connections::open(&target.url(), 4).await?;
    let settings = Settings { coalesce_ms: 600_000, ..plan.settings };
    namespaces::create(&mut connections.catalog(), &settings).await?;
    let before = target::usage(target.pid())?;
    let begun = Instant::now();
    load(&connections, plan).await?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok(cores(before, target::usage(target.pid())?, seconds))
}

fn cores(before: Usage, after: Usage, seconds: f64) -> f64 {
    (after.cpu - before.cpu).as_secs_f64() / seconds
}

/// Sends at the rate until the time is over; answers the writers with their ledgers.
async fn load(connections: &Connections, plan: Plan) -> Result<Vec<Writer>> {
    let batches_per_second = plan.rate as f64 / plan.items as f64 / WORKERS as f64;
    let batches = (batches_per_second * plan.duration.as_secs_f64()) as u64;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for residue in 0..WORKERS {
        let client = connections.counters(usize::try_from(residue)?);
        let mut writer = Writer::new(client, NAMESPACE, plan.counters, plan.items, (residue, WORKERS));
        tasks.spawn(async move {
            for batch in 0..batches {
                // The workers take turns, so that batches come evenly.
                let turn = batch as f64 + residue as f64 / WORKERS as f64;
                tokio::time::sleep_until(begin + Duration::from_secs_f64(turn / batches_per_second)).await;
                writer.call().await.map_err(|reason| anyhow::anyhow!(reason))?;
            }
            anyhow::Ok(writer)
        });
    }
    let mut writers = Vec::new();
    while let Some(writer) = tasks.join_next().await {
        writers.push(writer??);
    }
    Ok(writers)
}

/// Reads a sample again and again until the bound has passed; answers how much was right when, and what was late.
async fn watch(
    connections: &Connections,
    wanted: &[(u64, i64)],
    ended: Instant,
    bound: Duration,
) -> Result<(Vec<(Duration, f64)>, usize)> {
    let mut dice = Dice::new(1);
    let mut pick = || wanted[usize::try_from(dice.below(wanted.len() as u64)).expect("an index")];
    // Reading a counter wakes its rollup, so the sample that is watched is not the one that is judged.
    let watched: Vec<_> = (0..SAMPLE).map(|_| pick()).collect();
    let judged: Vec<_> = (0..SAMPLE * 10).map(|_| pick()).collect();
    let mut client = connections.counters(0);
    let mut convergence = Vec::new();
    while ended.elapsed() < bound {
        let at = ended.elapsed();
        let wrong = ledger::compare(&mut client, NAMESPACE, &watched, Freshness::RolledUp).await?;
        convergence.push((at, 1.0 - wrong.len() as f64 / watched.len() as f64));
        let next = ended + at + Duration::from_millis(250);
        tokio::time::sleep_until(next.min(ended + bound)).await;
    }
    let late = ledger::compare(&mut client, NAMESPACE, &judged, Freshness::RolledUp).await?;
    Ok((convergence, late.len()))
}

async fn compare_all(connections: &Connections, wanted: Vec<(u64, i64)>) -> Result<usize> {
    const READERS: usize = 4;
    let mut tasks = JoinSet::new();
    for (reader, part) in wanted.chunks(wanted.len().div_ceil(READERS)).enumerate() {
        let (mut client, part) = (connections.counters(reader), part.to_vec());
        tasks.spawn(async move { ledger::compare(&mut client, NAMESPACE, &part, Freshness::RolledUp).await });
    }
    let mut wrong = 0;
    while let Some(differences) = tasks.join_next().await {
        let differences = differences??;
        for difference in differences.iter().take(5) {
            let Difference { name, wanted, read } = difference;
            eprintln!("wrong: {name} reads {read}, wanted {wanted}");
        }
        wrong += differences.len();
    }
    Ok(wrong)
}
