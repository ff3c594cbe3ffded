//! memcached servers, by meta commands (protocol.txt of memcached): best-effort counters in `fast_counts`, the cache in
//! front of the checkpoints in `count_cache`.
//!
//! Every replica holds all keys, spread over its servers by rendezvous of our own: writes go to all replicas, reads to
//! the first that answers. A server that does not answer is paused and fails its callers at once; nothing waits for it.

mod backoff;
mod command_batcher;
mod count_cache;
mod error_mapping;
mod fast_counts;
mod key;
pub mod limits;
mod server;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use memcache::exp::Op;

use crate::Opened;
use crate::memcached::limits::MEMCACHED_START_WITHIN;
use crate::memcached::server::{CallCounters, MemcachedServer, RetrySafety};
use crate::memcached::wire::{CommandResponse, Network, Tcp};
use tallystone_coalesce::DetachedTasks;
use tallystone_domain::counter::Counter;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_ports::{CacheCluster, Clock, CountCache, FastCounts, Metric, StoreError, StoreHandle, metrics};

/// The settings of a cluster of memcached servers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The replicas, at least one; each is its servers as HOST:PORT, at least one, in any order.
    pub replicas: Vec<Vec<String>>,
    /// The prefix of all keys: two services that share servers need one each.
    pub key_prefix: String,
    /// How long a call waits for a place, a connection and an answer, each.
    pub timeout: Duration,
    /// For how many seconds the tokens of best-effort adds are remembered; 0: not at all.
    pub dedupe_seconds: u32,
}

/// A cluster of memcached servers.
pub struct Cluster {
    replicas: Vec<Vec<Arc<MemcachedServer>>>,
    key_prefix: String,
    dedupe_seconds: u32,
    clock: Arc<dyn Clock>,
    rules: ProtocolRules,
    call_counters: Arc<CallCounters>,
    /// Adds that go on whether or not their callers wait.
    tasks: DetachedTasks,
}

/// The calls so far and the state of the servers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Health {
    /// Calls of a server; one add on two replicas is two.
    pub calls: u64,
    /// The calls that failed, whatever became of them.
    pub failed: u64,
    /// Failed calls to memcached servers that may have been applied.
    pub unknown: u64,
    /// The failed calls that were not sent, because the server did not answer before.
    pub refused: u64,
    pub servers: u64,
    /// The servers that are not asked for the moment.
    pub servers_down: u64,
    /// The servers that answer, and had no memory for a value a moment ago.
    pub servers_full: u64,
}

/// The metrics of a cluster.
pub const METRICS: &[Metric<Health>] = metrics! { health:
    Count "tallystone_memcached_calls" = health.calls, "Calls to memcached servers; an add on two replicas counts as two";
    Count "tallystone_memcached_calls_failed" = health.failed, "Failed calls to memcached servers";
    Count "tallystone_memcached_calls_unknown" = health.unknown, "Failed calls to memcached servers that may have been applied";
    Count "tallystone_memcached_calls_refused" = health.refused,
        "Failed calls to memcached servers that were not sent, because the server was paused";
    Gauge "tallystone_memcached_servers" = health.servers as f64, "memcached servers in use";
    Gauge "tallystone_memcached_servers_down" = health.servers_down as f64,
        "memcached servers paused because they did not answer";
    Gauge "tallystone_memcached_servers_full" = health.servers_full as f64,
        "memcached servers that had no memory for a value in the last 30 s";
};

/// Servers that were not there at the start, each with what is wrong.
pub type UnreachableServers = Vec<(String, String)>;

impl Cluster {
    /// Looks for the servers, within `MEMCACHED_START_WITHIN`. Some may be absent and come later. If none answers, or
    /// one answers that is no memcached, nothing is opened.
    pub async fn open(
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, UnreachableServers), UnreachableServers> {
        Self::open_on(Arc::new(Tcp), options, clock, ProtocolRules::default()).await
    }

    /// The same through a network of the caller's, with all rules or, in a simulation, all but one.
    pub async fn open_on(
        network: Arc<dyn Network>,
        options: Options,
        clock: Arc<dyn Clock>,
        rules: ProtocolRules,
    ) -> Result<(Self, UnreachableServers), UnreachableServers> {
        let tally = Arc::new(CallCounters::default());
        let node = |address| {
            let (network, clock, tally) = (Arc::clone(&network), Arc::clone(&clock), Arc::clone(&tally));
            Arc::new(MemcachedServer::new(address, options.timeout, network, clock, tally))
        };
        let replicas: Vec<Vec<Arc<MemcachedServer>>> =
            options.replicas.iter().map(|servers| servers.iter().cloned().map(node).collect()).collect();
        let probe_key = format!("{}/probe/{:x}", options.key_prefix, clock.now().micros());
        let probes = replicas.iter().flatten().map(|node| async {
            let probed = tokio::select! {
                biased;
                probed = node.probe(&probe_key) => probed,
                () = clock.sleep(MEMCACHED_START_WITHIN) => Err("no answer in time".to_owned()),
            };
            probed.err().map(|why| (node.address().to_owned(), why))
        });
        let probed = join_all(probes).await;
        let servers = probed.len();
        let absent: UnreachableServers = probed.into_iter().flatten().collect();
        if absent.len() == servers {
            return Err(absent);
        }
        let Options { key_prefix, dedupe_seconds, .. } = options;
        let tasks = DetachedTasks::default();
        Ok((Self { replicas, key_prefix, dedupe_seconds, clock, rules, call_counters: tally, tasks }, absent))
    }

    /// The stores of the cluster by role: a count cache and best-effort counters.
    pub fn opened(self: &Arc<Self>, name: &str) -> Opened {
        let cache = Arc::clone(self) as Arc<dyn CountCache>;
        Opened {
            counters: None,
            queues: None,
            history: None,
            cache: Some(CacheCluster { cache, fast: Arc::clone(self) as Arc<dyn FastCounts> }),
            backups: None,
            handle: Arc::new(ClusterHandle { name: name.to_owned() }),
        }
    }

    /// The calls so far, and the state of the servers.
    pub fn health(&self) -> Health {
        let read = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
        let nodes = || self.replicas.iter().flatten();
        Health {
            calls: read(&self.call_counters.calls),
            failed: read(&self.call_counters.failed),
            unknown: read(&self.call_counters.unknown),
            refused: read(&self.call_counters.refused),
            servers: nodes().count() as u64,
            servers_down: nodes().filter(|node| node.is_down()).count() as u64,
            servers_full: nodes().filter(|node| node.is_full()).count() as u64,
        }
    }

    /// The server of a counter on each replica.
    fn nodes(&self, counter: &Counter) -> impl Iterator<Item = &Arc<MemcachedServer>> {
        self.replicas.iter().filter_map(|servers| {
            let at = key::server_index(counter, servers.iter().map(|node| node.address()))?;
            servers.get(at)
        })
    }

    /// Sends commands to every replica at once.
    async fn everywhere(
        &self,
        op: &'static str,
        counter: &Counter,
        commands: &[Op],
        repeat: RetrySafety,
    ) -> Vec<Result<CommandResponse, StoreError>> {
        join_all(self.nodes(counter).map(|node| node.call(op, commands, repeat))).await
    }
}

/// An opened cluster. Calls find out by themselves which server is down, so the cluster as a whole always answers.
struct ClusterHandle {
    name: String,
}

#[async_trait::async_trait]
impl StoreHandle for ClusterHandle {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn description(&self) -> String {
        format!("memcached cluster {}", self.name)
    }

    async fn close(&self) {}
}
