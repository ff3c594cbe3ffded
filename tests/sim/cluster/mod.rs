//! A cluster of three replicas, as Cassandra runs one: any node coordinates, quorums decide, hints follow.
//!
//! A write is acknowledged when two replicas have it; what a replica missed is brought by a hint, later. A read asks two
//! replicas (all, at level ALL), merges cell by cell, and repairs those that it asked before it answers. Conditional writes
//! go through Paxos in `paxos`. What is not here: losing what a replica has acknowledged, and nodes that come and go.

pub mod gather;
pub mod net;
pub mod paxos;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::chance::Chance;
use crate::cluster::gather::Gather;
use crate::cluster::net::{Net, Site};
use crate::cql::plan::Key;
use crate::cql::{Datum, Partition, Plan, Reading, Schema, parse};
use crate::world::World;

/// How many replicas there are, and how many are a quorum.
pub const REPLICAS: usize = 3;
pub const QUORUM: usize = 2;
/// How long a coordinator waits for replicas.
const REPLICA_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The coordinator knew at once that too few replicas are there, and did nothing.
    Unavailable,
    /// It waited in vain; a write may have happened, or happen yet.
    Timeout,
}

/// A partition's name: its table and its key.
pub type Name = Arc<(Arc<str>, Key)>;

/// What a replica holds.
#[derive(Default)]
struct Replica {
    partitions: HashMap<Name, Partition>,
    promises: HashMap<Name, paxos::Promise>,
}

/// The cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub world: World,
    pub net: Net,
    shared: Arc<Mutex<Shared>>,
}

struct Shared {
    replicas: [Replica; REPLICAS],
    chance: Chance,
    schema: Schema,
    /// How far the clock of each node is off, in microseconds.
    skews: [i64; REPLICAS],
    ballots: u64,
}

impl Cluster {
    /// An empty cluster whose nodes' clocks are off by so many microseconds.
    pub fn new(world: &World, net: &Net, chance: Chance, skews: [i64; REPLICAS]) -> Self {
        let shared = Shared { replicas: Default::default(), chance, schema: Schema::new(), skews, ballots: 0 };
        Self { world: world.clone(), net: net.clone(), shared: Arc::new(Mutex::new(shared)) }
    }

    /// The tables of this moment.
    pub fn schema(&self) -> Schema {
        self.shared.lock().schema.clone()
    }

    /// Changes the tables; all nodes agree at once.
    pub fn change_schema(&self, change: impl FnOnce(&mut Schema)) {
        change(&mut self.shared.lock().schema);
    }

    /// What all replicas together hold at this moment, without a network.
    pub fn peek(&self, text: &str, values: &[Datum]) -> Vec<Vec<Datum>> {
        let shared = self.shared.lock();
        let Ok(Plan::Read(reading)) = parse::statement(text, &shared.schema) else { panic!("{text} is no read") };
        let name: Name =
            Arc::new((Arc::clone(&reading.table.name), reading.key(values).expect("one partition is looked at")));
        let mut merged = Partition::default();
        for held in shared.replicas.iter().filter_map(|replica| replica.partitions.get(&name)) {
            merged.merge(&reading.part(values, held));
        }
        reading.rows(values, &name.1, &merged)
    }

    /// A node's clock, in microseconds since the beginning of the world.
    fn clock_of(&self, node: usize) -> i64 {
        let now = i64::try_from(self.world.now().as_micros()).expect("a short run");
        now + self.shared.lock().skews[node]
    }

    /// A node that coordinates for somebody; none if it knows that it reaches none.
    pub fn coordinator_for(&self, site: Site) -> Option<usize> {
        let first = self.shared.lock().chance.index(REPLICAS);
        let nodes = (0..REPLICAS).map(|at| (first + at) % REPLICAS);
        let mut reached = nodes.filter(|node| !self.net.is_known_cut(site, Site::Node(*node)));
        reached.next()
    }

    /// Whether a coordinator knows that it does not reach a quorum.
    fn knows_too_few(&self, coordinator: usize) -> bool {
        let reached =
            |node: &usize| *node == coordinator || !self.net.is_known_cut(Site::Node(coordinator), Site::Node(*node));
        (0..REPLICAS).filter(reached).count() < QUORUM
    }

    /// When a message between nodes arrives; a node reaches itself at once.
    fn arrives(&self, from: usize, to: usize) -> Option<Duration> {
        if from == to { Some(self.world.now()) } else { self.net.send(Site::Node(from), Site::Node(to)) }
    }

    /// Does something on a replica and brings its answer back, each way through the network.
    fn ask<T: Send + 'static>(
        &self,
        coordinator: usize,
        node: usize,
        answers: &Gather<T>,
        work: impl FnOnce(&Self, usize) -> T + Send + 'static,
    ) -> bool {
        let Some(at) = self.arrives(coordinator, node) else { return false };
        let (this, answers) = (self.clone(), answers.clone());
        self.world.spawn(async move {
            this.world.until(at).await;
            let answer = work(&this, node);
            if let Some(back) = this.arrives(node, coordinator) {
                this.world.until(back).await;
                answers.put(answer);
            }
        });
        true
    }

    fn apply(&self, node: usize, name: &Name, change: &Partition) {
        let mut shared = self.shared.lock();
        let replica = &mut shared.replicas[node];
        match replica.partitions.get_mut(name) {
            Some(held) => held.merge(change),
            None => {
                replica.partitions.insert(name.clone(), change.clone());
            }
        }
    }

    /// Brings a change to one replica alone.
    pub fn bring(&self, node: usize, name: &Name, change: &Partition) {
        self.apply(node, name, change);
    }

    /// Writes at a quorum.
    pub async fn write(&self, coordinator: usize, name: Name, change: Partition) -> Result<(), Refusal> {
        if self.knows_too_few(coordinator) {
            return Err(Refusal::Unavailable);
        }
        self.deliver(coordinator, &Arc::new((name, change)), QUORUM).await
    }

    /// Brings a change to all replicas and waits for so many. What a replica does not acknowledge in time goes there again
    /// as a hint.
    async fn deliver(&self, coordinator: usize, change: &Arc<(Name, Partition)>, wanted: usize) -> Result<(), Refusal> {
        let acknowledged = Gather::new();
        for node in 0..REPLICAS {
            let brought = Arc::clone(change);
            let work = move |this: &Self, node: usize| this.apply(node, &brought.0, &brought.1);
            if !self.ask(coordinator, node, &acknowledged, work) {
                self.hint(coordinator, node, Arc::clone(change));
            }
        }
        let until = self.world.until(self.world.now() + REPLICA_TIMEOUT);
        match acknowledged.take(wanted, until).await.len() >= wanted {
            true => Ok(()),
            false => Err(Refusal::Timeout),
        }
    }

    /// Keeps a change for a replica that did not get it, until a while later.
    fn hint(&self, coordinator: usize, node: usize, change: Arc<(Name, Partition)>) {
        let this = self.clone();
        let wait = self.shared.lock().chance.between(Duration::from_secs(3), Duration::from_secs(60));
        self.world.spawn(async move {
            this.world.sleep(wait).await;
            match this.arrives(coordinator, node) {
                Some(at) => {
                    this.world.until(at).await;
                    this.apply(node, &change.0, &change.1);
                }
                None => this.hint(coordinator, node, change),
            }
        });
    }

    /// Reads at a quorum or from all replicas.
    pub async fn read(
        &self,
        coordinator: usize,
        reading: &Arc<Reading>,
        values: &Arc<Vec<Datum>>,
        all: bool,
    ) -> Result<Vec<Vec<Datum>>, Refusal> {
        let Some(key) = reading.key(values) else { return self.read_table(coordinator, reading, values).await };
        let name: Name = Arc::new((Arc::clone(&reading.table.name), key));
        let wanted = if all { REPLICAS } else { QUORUM };
        let parts = self.parts(coordinator, &name, reading, values, wanted).await?;
        let mut merged = Partition::default();
        parts.iter().for_each(|(_, part)| merged.merge(part));
        let behind: Vec<usize> = parts.iter().filter(|(_, part)| *part != merged).map(|(node, _)| *node).collect();
        if !behind.is_empty() {
            self.repair(coordinator, &name, &behind, &merged).await?;
        }
        Ok(reading.rows(values, &name.1, &merged))
    }

    /// What so many replicas hold of a partition.
    async fn parts(
        &self,
        coordinator: usize,
        name: &Name,
        reading: &Arc<Reading>,
        values: &Arc<Vec<Datum>>,
        wanted: usize,
    ) -> Result<Vec<(usize, Partition)>, Refusal> {
        if self.knows_too_few(coordinator) {
            return Err(Refusal::Unavailable);
        }
        let answers = Gather::new();
        // Two at first; the third when one of them is slow.
        let skipped = if wanted == REPLICAS { REPLICAS } else { self.shared.lock().chance.index(REPLICAS) };
        let ask = |node: usize| {
            let (name, reading, values) = (name.clone(), Arc::clone(reading), Arc::clone(values));
            let work = move |this: &Self, node: usize| {
                let shared = this.shared.lock();
                let held = shared.replicas[node].partitions.get(&name);
                (node, held.map_or_else(Partition::default, |held| reading.part(&values, held)))
            };
            self.ask(coordinator, node, &answers, work);
        };
        (0..REPLICAS).filter(|node| *node != skipped).for_each(ask);
        let begun = self.world.now();
        let mut parts = answers.take(wanted, self.world.until(begun + REPLICA_TIMEOUT / 20)).await;
        if parts.len() < wanted {
            if skipped < REPLICAS {
                ask(skipped);
            }
            parts.extend(answers.take(wanted - parts.len(), self.world.until(begun + REPLICA_TIMEOUT)).await);
        }
        if parts.len() < wanted { Err(Refusal::Timeout) } else { Ok(parts) }
    }

    /// Brings what was read to those that had less, and waits for them.
    async fn repair(
        &self,
        coordinator: usize,
        name: &Name,
        behind: &[usize],
        merged: &Partition,
    ) -> Result<(), Refusal> {
        let acknowledged = Gather::new();
        let change = Arc::new((name.clone(), merged.clone()));
        for node in behind {
            let brought = Arc::clone(&change);
            self.ask(coordinator, *node, &acknowledged, move |this, node| this.apply(node, &brought.0, &brought.1));
        }
        let until = self.world.until(self.world.now() + REPLICA_TIMEOUT);
        match acknowledged.take(behind.len(), until).await.len() >= behind.len() {
            true => Ok(()),
            false => Err(Refusal::Timeout),
        }
    }

    /// Reads every partition of a table, from all that a quorum holds; without repair, as range reads of rarely used paths.
    async fn read_table(
        &self,
        coordinator: usize,
        reading: &Arc<Reading>,
        values: &Arc<Vec<Datum>>,
    ) -> Result<Vec<Vec<Datum>>, Refusal> {
        let first = Arc::clone(&reading.table.name);
        let keys: Vec<Key> = {
            let shared = self.shared.lock();
            let of_table = |replica: &Replica| {
                let names = replica.partitions.keys().filter(|name| name.0 == first);
                names.map(|name| name.1.clone()).collect::<Vec<_>>()
            };
            let mut keys: Vec<Key> = shared.replicas.iter().flat_map(of_table).collect();
            keys.sort();
            keys.dedup();
            keys
        };
        let mut rows = Vec::new();
        for key in keys {
            let name: Name = Arc::new((Arc::clone(&first), key));
            let parts = self.parts(coordinator, &name, reading, values, QUORUM).await?;
            let mut merged = Partition::default();
            parts.iter().for_each(|(_, part)| merged.merge(part));
            rows.extend(reading.rows(values, &name.1, &merged));
        }
        Ok(rows)
    }
}
