//! Best-effort counters on memcached servers, by meta commands (protocol.txt of memcached, "Meta Arithmetic").
//!
//! An add is one round trip of two commands: `ma` with the delta as two's complement, N and J to make the counter, and
//! `mg` with T to begin its TTL anew. T on `ma` would not do: memcached 1.6.18 forgets it when the number outgrows its
//! place or is being read, and N knows neither 0 nor more than 30 days. Sums are modulo 2^64 on the server, so 5, -3, -3
//! is stored as 2^64 - 1, which is -1. Every replica holds all counters, spread over its servers by rendezvous: writes go
//! to all replicas, reads to the first that answers. Nothing here is exact, durable or idempotent.
//!
//! A counter's key is never read with a lease: a placeholder without digits would make every later add fail.

mod backoff;
mod fault;
mod key;
mod node;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use memcache::exp::{Arithmetic, Delete, Get, Op, OpResult};

use crate::adapters::memcached::node::{Node, Repeat, Tally};
use crate::domain::counter::{Counter, CounterName, NamespaceId};
use crate::domain::limits::MEMCACHED_START_WITHIN;
use crate::ports::{Clock, Expiry, FastCapabilities, FastCounts, Outcome, Overflow, StoreError, StoreErrorKind};

/// What a cluster of memcached servers is.
#[derive(Clone, Debug)]
pub struct Options {
    /// The replicas, at least one; each is its servers as HOST:PORT, at least one, in any order.
    pub replicas: Vec<Vec<String>>,
    /// What all keys begin with: two services that share servers need one each.
    pub key_prefix: String,
    /// How long a call waits for a place, a connection and an answer, each.
    pub timeout: Duration,
}

/// Best-effort counters on a cluster of memcached servers.
pub struct Cluster {
    replicas: Vec<Vec<Node>>,
    key_prefix: String,
    clock: Arc<dyn Clock>,
    tally: Arc<Tally>,
}

/// What was done and how the servers are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Health {
    /// Calls of a server; one add on two replicas is two.
    pub calls: u64,
    /// Those that failed, whatever became of them.
    pub failed: u64,
    /// Those of them that may have had their effect.
    pub unknown: u64,
    /// Those of them that were not sent, because the server did not answer before.
    pub refused: u64,
    /// The servers.
    pub servers: u64,
    /// The servers that are not asked for the moment.
    pub servers_down: u64,
}

/// Servers that were not there at the start, each with what is wrong.
pub type Absent = Vec<(String, String)>;

impl Cluster {
    /// Looks for the servers, within `MEMCACHED_START_WITHIN`. Some may be absent and come later; if none answers, or one
    /// answers that is no memcached, nothing is opened.
    pub async fn open(options: Options, clock: Arc<dyn Clock>) -> Result<(Self, Absent), Absent> {
        let tally = Arc::new(Tally::default());
        let node = |address| Node::new(address, options.timeout, Arc::clone(&clock), Arc::clone(&tally));
        let replicas: Vec<Vec<Node>> =
            options.replicas.into_iter().map(|servers| servers.into_iter().map(node).collect()).collect();
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
        let absent: Absent = probed.into_iter().flatten().collect();
        if absent.len() == servers {
            return Err(absent);
        }
        Ok((Self { replicas, key_prefix: options.key_prefix, clock, tally }, absent))
    }

    /// What was done so far, and how the servers are.
    pub fn health(&self) -> Health {
        let read = |value: &std::sync::atomic::AtomicU64| value.load(Ordering::Relaxed);
        let nodes = || self.replicas.iter().flatten();
        Health {
            calls: read(&self.tally.calls),
            failed: read(&self.tally.failed),
            unknown: read(&self.tally.unknown),
            refused: read(&self.tally.refused),
            servers: nodes().count() as u64,
            servers_down: nodes().filter(|node| node.is_down()).count() as u64,
        }
    }

    /// The server of a counter on each replica.
    fn nodes(&self, counter: &Counter) -> impl Iterator<Item = &Node> {
        self.replicas.iter().filter_map(|servers| {
            let at = key::place(counter, servers.iter().map(Node::address))?;
            servers.get(at)
        })
    }

    /// Sends commands to every replica at once.
    async fn everywhere(
        &self,
        op: &'static str,
        counter: &Counter,
        commands: &[Op],
        repeat: Repeat,
    ) -> Vec<Result<OpResult, StoreError>> {
        join_all(self.nodes(counter).map(|node| node.call(op, commands, repeat))).await
    }
}

#[async_trait]
impl FastCounts for Cluster {
    fn capabilities(&self) -> FastCapabilities {
        FastCapabilities { overflow: Overflow::Wraps, expiry: Expiry::WholeSeconds, lists_names: false }
    }

    /// One round trip. Applied if any replica applied it; the answer is that of the first one that did.
    async fn add(&self, counter: &Counter, delta: i64, ttl: Option<Duration>) -> Result<i64, StoreError> {
        const OP: &str = "best-effort add";
        let key = key::of(&self.key_prefix, counter);
        let lifetime = key::lifetime(ttl, self.clock.now());
        let delta = delta.cast_unsigned();
        let commands = [
            Arithmetic::new(&key).delta(delta).initial(delta, lifetime.created_seconds).into(),
            Get::new(&key).without_value().touch(lifetime.ttl).into(),
        ];
        let answers = self.everywhere(OP, counter, &commands, Repeat::Counts).await;
        let values = answers.into_iter().map(|answer| match answer? {
            OpResult::Arithmetic(result) if result.applied() => {
                let value = result.value.ok_or_else(|| StoreError::unknown(StoreErrorKind::Corrupt, OP))?;
                Ok(value.cast_signed())
            }
            _ => Err(StoreError::unknown(StoreErrorKind::Corrupt, OP)), // no other answer belongs to this command
        });
        first_good(values, OP)
    }

    /// One round trip. The first replica that answers is believed.
    async fn get(&self, counter: &Counter) -> Result<Option<i64>, StoreError> {
        const OP: &str = "best-effort read";
        let commands = [Get::new(key::of(&self.key_prefix, counter)).into()];
        let mut failed = StoreError::not_applied(StoreErrorKind::Unavailable, OP);
        for node in self.nodes(counter) {
            match node.call(OP, &commands, Repeat::Harmless).await {
                Ok(OpResult::Get(result)) => return number(result.value.as_deref(), OP),
                Ok(_) => failed = StoreError::not_applied(StoreErrorKind::Corrupt, OP), // not the answer to a read
                // A read has no effect that could be in doubt.
                Err(error) => failed = StoreError { outcome: Outcome::NotApplied, ..error },
            }
        }
        Err(failed)
    }

    /// One round trip. Done when every replica has done it: one that could not would show the old value again.
    async fn clear(&self, counter: &Counter) -> Result<(), StoreError> {
        const OP: &str = "best-effort clear";
        let commands = [Delete::new(key::of(&self.key_prefix, counter)).into()];
        let answers = self.everywhere(OP, counter, &commands, Repeat::Harmless).await;
        let total = answers.len();
        let mut failures: Vec<StoreError> = answers.into_iter().filter_map(Result::err).collect();
        let some_did = failures.len() < total || failures.iter().any(|error| error.outcome == Outcome::Unknown);
        match failures.pop() {
            None => Ok(()),
            Some(error) if some_did => Err(StoreError { outcome: Outcome::Unknown, ..error }),
            Some(error) => Err(error),
        }
    }

    /// None: memcached lists no keys.
    async fn names(
        &self,
        _namespace: NamespaceId,
        _prefix: &str,
        _above: Option<&CounterName>,
        _limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        Ok(Vec::new())
    }
}

/// The value of the first replica that has one; else the failure that says most: one that may have had its effect.
fn first_good(values: impl Iterator<Item = Result<i64, StoreError>>, op: &'static str) -> Result<i64, StoreError> {
    let mut failed: Option<StoreError> = None;
    for value in values {
        match value {
            Ok(value) => return Ok(value),
            Err(error) if failed.is_none() || error.outcome == Outcome::Unknown => failed = Some(error),
            Err(_) => {} // says no more than the one before
        }
    }
    Err(failed.unwrap_or_else(|| StoreError::not_applied(StoreErrorKind::Unavailable, op)))
}

/// A stored value. memcached pads a number with spaces when it becomes shorter than it was.
fn number(value: Option<&[u8]>, op: &'static str) -> Result<Option<i64>, StoreError> {
    let Some(value) = value else { return Ok(None) };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.trim_end().parse::<u64>().ok());
    match number {
        Some(number) => Ok(Some(number.cast_signed())),
        None => Err(StoreError::not_applied(StoreErrorKind::Corrupt, op).because("the key holds something else")),
    }
}
