//! Attacks on a server, each beside a well-behaved caller: what the caller still gets, and what the server holds.
//!
//! Loopback only. Each attack is bounded in count and time; `docs/fuzzing.md` has the table and what each one wants.
//! Without `--server` each attack meets a server of its own on a fresh directory. That server asks for keys: the attacker has
//! that of an admin, the caller one for its calls.

mod bodies;
mod connections;
mod counters;
mod memory;
mod probe;
mod queues;
mod raw;
mod table;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use tempfile::TempDir;
use tokio::time::{Instant, timeout_at};

use crate::client::Connections;
use crate::keyed;
use crate::target::Target;

use memory::Watched;
use probe::Probe;
use table::Row;

/// Which attacks, and how long.
#[derive(Args)]
pub struct Scale {
    /// Only these attacks, by name; default: all
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Attack>,
    /// Seconds of each attack
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seconds after each attack within which memory has to be back; it is looked at all the time
    #[arg(long, default_value_t = 60)]
    settle_seconds: u64,
    /// The process of the server at --server, for its memory
    #[arg(long)]
    pid: Option<u32>,
    /// Events of the counter that is recounted
    #[arg(long, default_value_t = 1_000_000)]
    events: u64,
    /// The whole table as JSON
    #[arg(long)]
    json: bool,
}

/// The attacks of the review that a server did not stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Attack {
    /// No attack: the caller alone
    Calm,
    /// 1,000 PeekMessages whose answers nobody takes, window 0
    Unread,
    /// BatchEnqueue of 2 M empty messages in 4 MiB, from 8 clients
    EmptyMessages,
    /// 1,100 idle connections beside adds; a server of its own gets 1,024 descriptors
    Descriptors,
    /// 16 recounts of one counter
    Recount,
    /// Late adds with deadlines of 8 to 15 ms in slices of 10 s, beside another namespace of the dataset
    LateAdds,
    /// 64 streams of messages of 1,000 adds
    Streams,
    /// 100,500 sessions of 12 h
    Sessions,
    /// 10,000 purges
    Purges,
    /// Enqueues to queues of a template, each to another
    Templates,
    /// 500 messages of 4 MiB that never end, on one connection
    Unfinished,
    /// Bodies of a byte a second with a grpc-timeout of 99,999,999 h
    SlowBodies,
    /// 16,400 idle HTTP/2 connections, or as many as descriptors allow
    Idle,
    /// 10,000 WatchQueue each 100 ms
    WatchQueue,
    /// 2,000 WatchQueue of a queue of 256 shards
    WatchShards,
    /// 10,000 WatchCounts of the same 100 counters, dropped at once
    WatchCounts,
    /// 40,000 of them
    WatchCountsMore,
    /// JSON with an unknown field of 4 MiB, from 8 clients
    UnknownField,
    /// TopCounters from 64 callers
    TopCounters,
    /// 442 datasets with slices of 10 s
    Datasets,
    /// Batches that are refused while descriptors are short; a server of its own gets 1,024
    RefusedBatches,
}

/// The keys of an attack. The attacker may call everything, so nothing but quotas and bounds stands in its way.
struct Keys {
    attacker: String,
    caller: String,
}

impl Keys {
    /// The roles that the calls of the well-behaved caller need.
    const CALLER: [&str; 3] = ["counter-writer", "enqueuer", "worker"];

    fn make(binary: &Path, server: &Target, admin: &str) -> Result<Self> {
        let key = |name: &str, roles: &[&str]| keyed::new_key(binary, &server.url(), admin, name, roles);
        Ok(Self { attacker: key("attacker", &["admin"])?, caller: key("caller", &Self::CALLER)? })
    }
}

/// Where an attack happens, and what it tells.
pub struct Site {
    address: SocketAddr,
    keys: Option<Keys>,
    events: u64,
    seconds: u64,
    told: Arc<Mutex<BTreeMap<String, u64>>>,
    began: Mutex<Option<Instant>>,
}

impl Site {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Connections of the attacker.
    async fn connections(&self, count: usize) -> Result<Connections> {
        let key = self.keys.as_ref().map(|keys| keys.attacker.as_str());
        keyed::connections(&self.url(), key, count).await
    }

    /// The key of the well-behaved caller.
    fn callers_key(&self) -> Option<String> {
        self.keys.as_ref().map(|keys| keys.caller.clone())
    }

    /// What the attacker's raw requests show in `authorization`.
    fn bearer(&self) -> Option<String> {
        self.keys.as_ref().map(|keys| format!("Bearer {}", keys.attacker))
    }

    /// Counts something that happened.
    fn tell(&self, what: impl Into<String>) {
        *self.told.lock().expect("no teller panics").entry(what.into()).or_default() += 1;
    }

    /// When the attack ends; it begins with the first who asks.
    fn until(&self) -> Instant {
        let began = *self.began.lock().expect("no asker panics").get_or_insert_with(Instant::now);
        began + Duration::from_secs(self.seconds)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until()
    }
}

/// Runs the attacks one after another and prints their table.
pub async fn run(
    server: Option<&str>,
    binary: &Path,
    folder: impl Fn() -> Result<TempDir>,
    scale: Scale,
) -> Result<()> {
    connections::raise_descriptors()?;
    let chosen = if scale.only.is_empty() { Attack::value_variants().to_vec() } else { scale.only.clone() };
    let mut rows = Vec::new();
    for attack in chosen {
        let folder = folder()?;
        let started = match server {
            Some(_) => None,
            None => Some(start(binary, folder.path(), attack)?),
        };
        let (address, pid) = match (&started, server) {
            (Some((target, _)), _) => (target.address, Some(target.pid())),
            (None, Some(server)) => (address_of(server)?, scale.pid),
            (None, None) => bail!("there is neither a server nor one that was started"),
        };
        ensure!(IpAddr::is_loopback(&address.ip()), "attacks go to loopback only, not to {address}");
        eprintln!("{attack:?} ...");
        let (target, keys) = started.unzip();
        let mut row = one(attack, address, keys, pid, &scale).await?;
        row.printed_bytes = target.as_ref().map(Target::printed_bytes);
        eprintln!("{}", row.line());
        rows.push(row);
    }
    match scale.json {
        true => println!("{}", serde_json::to_string_pretty(&table::json(&rows))?),
        false => println!("{}", table::text(&rows)),
    }
    Ok(())
}

/// A server of the attack's own, which asks for keys.
fn start(binary: &Path, data: &Path, attack: Attack) -> Result<(Target, Keys)> {
    let admin = keyed::first_key(binary, data)?;
    let asks = &keyed::ASKS_FOR_KEYS;
    let server = match attack {
        Attack::Descriptors | Attack::RefusedBatches => Target::server_with_descriptors(binary, data, asks, 1_024)?,
        _ => Target::server_with(binary, data, asks)?, // the others want nothing of their server
    };
    let keys = Keys::make(binary, &server, &admin)?;
    Ok((server, keys))
}

fn address_of(server: &str) -> Result<SocketAddr> {
    let plain = server.strip_prefix("http://").unwrap_or(server).trim_end_matches('/');
    plain.parse().with_context(|| format!("--server is an address of loopback and a port, not `{server}`"))
}

/// One attack with its probe: what is prepared is not measured.
async fn one(attack: Attack, address: SocketAddr, keys: Option<Keys>, pid: Option<u32>, scale: &Scale) -> Result<Row> {
    let (told, began) = (Arc::default(), Mutex::new(None));
    let site = Site { address, keys, events: scale.events, seconds: scale.seconds, told, began };
    prepare(attack, &site).await.with_context(|| format!("preparing {attack:?}"))?;
    let watched = Watched::begin(pid);
    let probe = Probe::begin(&site).await.context("the probe's queue")?;
    let until = site.until();
    let ended = timeout_at(until + Duration::from_secs(5), attack_on(attack, &site)).await;
    if let Ok(Err(error)) = ended {
        site.tell(format!("the attack ended early: {error:#}"));
    }
    tokio::time::sleep_until(until).await;
    let seen = probe.end().await.context("the well-behaved caller")?;
    let peak = watched.peak();
    watched.settle(Duration::from_secs(scale.settle_seconds)).await;
    let memory = watched.end(peak).await;
    let answers_after = probe::health(address).await.iter().all(|(_, answer)| answer.is_ok());
    let told = site.told.lock().expect("no teller panics").clone();
    let name = attack.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    Ok(Row { name, seen, memory, answers_after, told, printed_bytes: None })
}

/// What has to be there first.
async fn prepare(attack: Attack, site: &Site) -> Result<()> {
    match attack {
        Attack::Unread => queues::fill_for_peeks(site).await,
        Attack::Recount => counters::fill_one(site).await,
        Attack::LateAdds => counters::make_late(site).await,
        Attack::Streams | Attack::WatchCounts | Attack::WatchCountsMore | Attack::TopCounters => {
            counters::fill_many(site).await
        }
        Attack::EmptyMessages | Attack::Purges | Attack::WatchQueue | Attack::Unfinished | Attack::SlowBodies => {
            queues::make(site, queues::NAME, 1).await
        }
        Attack::WatchShards => queues::make(site, queues::SHARDED, 256).await,
        Attack::Calm
        | Attack::Descriptors
        | Attack::Sessions
        | Attack::Templates
        | Attack::Idle
        | Attack::UnknownField
        | Attack::Datasets
        | Attack::RefusedBatches => Ok(()),
    }
}

async fn attack_on(attack: Attack, site: &Site) -> Result<()> {
    match attack {
        Attack::Calm => Ok(()),
        Attack::Unread => raw::unread_answers(site, 1_000).await,
        Attack::EmptyMessages => bodies::empty_messages(site, 8).await,
        Attack::Descriptors => connections::beside_adds(site, 1_100, 30_000).await,
        Attack::Recount => counters::recounts(site, 16).await,
        Attack::LateAdds => counters::late_adds(site).await,
        Attack::Streams => counters::streams(site, 64).await,
        Attack::Sessions => queues::sessions(site, 100_500).await,
        Attack::Purges => queues::purges(site, 10_000).await,
        Attack::Templates => queues::templates(site, 10_100).await,
        Attack::Unfinished => raw::unfinished(site, 500).await,
        Attack::SlowBodies => raw::slow_bodies(site, 500).await,
        Attack::Idle => connections::idle(site, 16_400).await,
        Attack::WatchQueue => queues::watches(site, queues::NAME, 10_000).await,
        Attack::WatchShards => queues::watches(site, queues::SHARDED, 2_000).await,
        Attack::WatchCounts => counters::watches(site, 10_000).await,
        Attack::WatchCountsMore => counters::watches(site, 40_000).await,
        Attack::UnknownField => bodies::unknown_field(site, 8).await,
        Attack::TopCounters => counters::tops(site, 64).await,
        Attack::Datasets => counters::datasets(site, 442).await,
        Attack::RefusedBatches => connections::refused_batches(site, 1_100).await,
    }
}

/// Calls `call` from some callers at once until the time or the calls are over, and tells each outcome.
async fn flood<F>(site: &Site, callers: usize, calls: u64, call: impl Fn(u64) -> F)
where
    F: Future<Output = std::result::Result<(), String>>,
{
    let next = std::sync::atomic::AtomicU64::new(0);
    let caller = async |_: usize| {
        while !site.is_over() {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if number >= calls {
                break;
            }
            match timeout_at(site.until(), call(number)).await {
                Ok(Ok(())) => site.tell("ok"),
                Ok(Err(reason)) => site.tell(reason),
                Err(_elapsed) => site.tell("unanswered at the end"),
            }
        }
    };
    futures_util::future::join_all((0..callers).map(caller)).await;
}
