//! What the embedded store does with queues, without a network: cycles of enqueue, dequeue and complete with many messages
//! pending, and how long a store with so many takes to open again and what it weighs in memory.
//!
//! `cargo bench --bench queues -- --pending 1000000 --workers 64 --batch 16 --seconds 10 --payload 100 --dir DIR`

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tallystone::adapters::embedded::{self, Embedded, Options};
use tallystone::adapters::system::SystemClock;
use tallystone::domain::queue::command::{Dequeue, FailureReport, NewMessage};
use tallystone::domain::queue::messages::message::Metadata;
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::domain::queue::setup::settings::{MessageRetryPolicy, Retention};
use tallystone::domain::queue::{Command, QueueId, Reply, Settings, ShardId};
use tallystone::ports::{MessageBody, QueueStores, ShardCommand};

/// As the server has it, because what is measured is memory too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SHARD: ShardId = ShardId { queue: QueueId(1), number: 0 };

/// What is measured.
struct Plan {
    pending: u64,
    workers: u64,
    batch: usize,
    seconds: u64,
    payload: usize,
    dir: String,
}

fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(run(plan))
}

impl Plan {
    fn from_args(args: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut given = BTreeMap::new();
        let mut args = args.filter(|arg| arg != "--bench");
        while let Some(name) = args.next() {
            let value = args.next().with_context(|| format!("{name} needs a value"))?;
            given.insert(name, value);
        }
        let mut number = |name: &str, default: u64| -> anyhow::Result<u64> {
            given.remove(name).map_or(Ok(default), |text| text.parse().with_context(|| format!("{name} {text}")))
        };
        let (pending, workers) = (number("--pending", 100_000)?, number("--workers", 64)?);
        let (batch, seconds, payload) = (number("--batch", 1)?, number("--seconds", 5)?, number("--payload", 100)?);
        let dir = given.remove("--dir").unwrap_or_default();
        if let Some(unknown) = given.keys().next() {
            bail!("there is no {unknown}; see the head of this file");
        }
        Ok(Self { pending, workers, batch: usize::try_from(batch)?, seconds, payload: usize::try_from(payload)?, dir })
    }
}

async fn run(plan: Plan) -> anyhow::Result<()> {
    let own = tempfile::tempdir()?;
    let dir = if plan.dir.is_empty() { own.path() } else { Path::new(&plan.dir) };
    let (store, stores) = open(dir)?;
    stores.shards.create(SHARD.queue, 1, settings().into()).await?;
    let began = Instant::now();
    fill(&stores, &plan).await?;
    println!("filled {} messages in {:.1} s, {} MiB resident", plan.pending, began.elapsed().as_secs_f64(), resident());
    cycles(&stores, &plan).await?;
    drop(stores);
    store.close();
    drop(store);
    let before = resident();
    let began = Instant::now();
    let (store, stores) = open(dir)?;
    let pending = stores.reader.totals(SHARD).await?.totals.all().messages;
    println!(
        "opened {pending} messages in {:.2} s, {} MiB resident, {before} before",
        began.elapsed().as_secs_f64(),
        resident()
    );
    store.close();
    Ok(())
}

fn open(dir: &Path) -> anyhow::Result<(Embedded, QueueStores)> {
    let store = embedded::open(Options { reserve_bytes: 0, ..Options::new(dir) })?;
    let stores = store.queue_stores(Arc::new(SystemClock));
    Ok((store, stores))
}

fn settings() -> Settings {
    let hour = Duration::from_secs(3_600);
    Settings {
        default_lease: hour,
        max_run_time: 12 * hour,
        retry: MessageRetryPolicy { initial: hour, factor_percent: 100, max: hour, jitter_percent: 0 },
        retention: Retention { completed: Duration::ZERO, canceled: Duration::ZERO, errored: hour },
        dedupe_window: Duration::ZERO,
        dedupe_max_bytes: 1 << 30,
        quota_messages: u64::MAX,
        quota_bytes: u64::MAX,
        ..Settings::default()
    }
}

fn enqueue(id: u64, payload: usize) -> ShardCommand {
    let message = NewMessage {
        id: MessageId::new(&format!("{id:08x}-0000-7000-8000-{id:012x}")).expect("a valid id"),
        token_time: None,
        routing: None,
        metadata: Metadata::default(),
        payload_bytes: u32::try_from(payload).expect("a small payload"),
        fingerprint: id,
        // Neither in the order of arrival nor all alike.
        priority: Some(i64::try_from(id.wrapping_mul(0x9E37_79B9) % 1_000_000).expect("a small number")),
        class: None,
        invisibility: None,
        visible_at: None,
        lease_duration: None,
        max_attempts: None,
        ttl: None,
    };
    let body = MessageBody { payload: vec![7; payload].into(), kind: None, trace_context: None };
    ShardCommand { command: Command::Enqueue(Box::new(message)), body }
}

async fn fill(stores: &QueueStores, plan: &Plan) -> anyhow::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    let share = plan.pending.div_ceil(16);
    for worker in 0..16 {
        let (stores, payload) = (stores.clone(), plan.payload);
        let ids: Vec<u64> = (worker * share..((worker + 1) * share).min(plan.pending)).collect();
        tasks.spawn(async move {
            for page in ids.chunks(100) {
                let sent = page.iter().map(|id| enqueue(*id, payload)).collect();
                for answer in stores.shards.apply(SHARD, sent).await {
                    answer?.reply.map_err(|refused| anyhow::anyhow!("{refused:?}"))?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(joined) = tasks.join_next().await {
        joined??;
    }
    Ok(())
}

/// Each worker enqueues, dequeues and completes as many as a batch has, in three calls, again and again.
async fn cycles(stores: &QueueStores, plan: &Plan) -> anyhow::Result<()> {
    let next = Arc::new(AtomicU64::new(1 << 40));
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..plan.workers {
        let (stores, next, done, stop) = (stores.clone(), Arc::clone(&next), Arc::clone(&done), Arc::clone(&stop));
        let (batch, payload) = (plan.batch, plan.payload);
        tasks.spawn(async move {
            let mut slowest = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                let first = next.fetch_add(batch as u64, Ordering::Relaxed);
                let sent = (first..first + batch as u64).map(|id| enqueue(id, payload)).collect();
                for answer in stores.shards.apply(SHARD, sent).await {
                    answer?;
                }
                let began = Instant::now();
                let asked = vec![ShardCommand::of(Command::Dequeue(Dequeue { max: batch, ..Dequeue::default() }))];
                let answer = stores.shards.apply(SHARD, asked).await.remove(0)?;
                slowest = slowest.max(began.elapsed());
                let Ok(Reply::Leases { leases, .. }) = answer.reply else { bail!("no leases") };
                let settle = |token| {
                    ShardCommand::of(Command::Settle {
                        token,
                        verb: SettleAction::Complete,
                        failure: FailureReport::default(),
                    })
                };
                let mut sent: Vec<_> = leases.iter().map(|lease| settle(lease.token)).collect();
                sent.push(ShardCommand::of(Command::Sweep { max: 2 * batch }));
                for answer in stores.shards.apply(SHARD, sent).await {
                    answer?;
                }
                done.fetch_add(leases.len() as u64, Ordering::Relaxed);
            }
            anyhow::Ok(slowest)
        });
    }
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(plan.seconds)).await;
    stop.store(true, Ordering::Relaxed);
    let mut slowest = Duration::ZERO;
    while let Some(joined) = tasks.join_next().await {
        slowest = slowest.max(joined??);
    }
    let (done, elapsed) = (done.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    println!(
        "{:.0} cycles/s with {} workers, {} a call; slowest dequeue {:.1} ms; {} MiB resident",
        done as f64 / elapsed,
        plan.workers,
        plan.batch,
        slowest.as_secs_f64() * 1e3,
        resident()
    );
    Ok(())
}

/// Resident memory in MiB; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) / 1024
}
