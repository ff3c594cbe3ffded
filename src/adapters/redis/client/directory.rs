//! The owner of each slot, and how it is found. A single server is what the settings say, Sentinels know the address of
//! the primary, and each node of a cluster knows the owners of all slots.
//!
//! Several callers that look at the same time share one look-up. Its result replaces what was known before, unless it
//! is older. Invariant: once another node owns the slots of one, nothing more is sent to that one, and its connections
//! are closed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};

use crate::client::command::RedisCommand;
use crate::client::connection::{Endpoint, Login, NodeKind};
use crate::client::deadline::Deadline;
use crate::client::failure::{CallFailure, FailureCause};
use crate::client::node::Node;
use crate::client::reply::RedisReply;
use crate::client::sentinels::{self, Believed, SentinelWord};
use crate::client::slot::Slot;
use crate::client::slot_map::SlotMap;
use crate::limits::{REDIS_ASKED_AT_ONCE_MAX, REDIS_LOOK_UP_EVERY, REDIS_LOOK_UP_WITHIN, REDIS_NODES_MAX};
use tallystone_adapters::store_tls::StoreTls;
use tallystone_ports::Clock;

/// The kind of a deployment and the addresses of its nodes, each HOST:PORT.
#[derive(Clone, Debug)]
pub enum Deployment {
    /// One server.
    Single {
        /// Its address.
        address: String,
    },
    /// A primary that Sentinels watch.
    Sentinel {
        /// The addresses of the Sentinels.
        sentinels: Vec<String>,
        /// The name of the primary in their settings.
        primary: String,
        /// The log-in of the Sentinels.
        login: Option<Login>,
    },
    /// A cluster.
    Cluster {
        /// The addresses of some nodes.
        seeds: Vec<String>,
    },
}

/// The nodes and who serves which slot.
pub(super) struct Directory {
    deployment: Deployment,
    login: Option<Login>,
    tls: Option<StoreTls>,
    clock: Arc<dyn Clock>,
    map: RwLock<SlotMap>,
    nodes: Mutex<HashMap<Arc<str>, Arc<Node>>>,
    sentinels: Vec<Arc<Node>>,
    believed: Mutex<Believed>,
    /// Whether the user of the nodes of a cluster may not ask for config epochs.
    is_epoch_denied: AtomicBool,
    /// One at a time looks.
    looking: Semaphore,
    lookups: AtomicU64,
    /// When the last look-up ended, on `Clock::elapsed`.
    looked_at: Mutex<Option<Duration>>,
    /// The place of the node that is asked first. Another one each time, because one may be cut off from the others.
    asked_first: AtomicUsize,
    changes: watch::Sender<u64>,
}

impl Directory {
    pub(super) fn new(
        deployment: Deployment,
        login: Option<Login>,
        tls: Option<StoreTls>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (map, sentinels) = match &deployment {
            Deployment::Single { address } => (SlotMap::of_one(address), Vec::new()),
            Deployment::Sentinel { sentinels, login, .. } => {
                let sentinel = |address: &String| {
                    let (address, login, tls) = (Arc::from(address.as_str()), login.clone(), tls.clone());
                    Arc::new(Node::new(Endpoint { address, login, tls, kind: NodeKind::Sentinel }, Arc::clone(&clock)))
                };
                (SlotMap::empty(), sentinels.iter().take(REDIS_NODES_MAX).map(sentinel).collect())
            }
            Deployment::Cluster { .. } => (SlotMap::empty(), Vec::new()),
        };
        Self {
            deployment,
            login,
            tls,
            clock,
            map: RwLock::new(map),
            nodes: Mutex::default(),
            believed: Mutex::new(Believed::new(sentinels.len())),
            sentinels,
            is_epoch_denied: AtomicBool::new(false),
            looking: Semaphore::new(1),
            lookups: AtomicU64::new(0),
            looked_at: Mutex::default(),
            asked_first: AtomicUsize::new(0),
            changes: watch::Sender::new(0),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster { .. })
    }

    pub(super) fn fails_over(&self) -> bool {
        !matches!(self.deployment, Deployment::Single { .. })
    }

    /// The node that serves a slot, as far as is known.
    pub(super) fn node_of(&self, slot: Slot) -> Option<Arc<Node>> {
        // Under one lock: a node that loses its slots meanwhile is retired, and not made anew here.
        let map = self.map.read();
        Some(self.node(map.owner(slot)?))
    }

    /// The node of an address, if it serves slots.
    pub(super) fn serving(&self, address: &str) -> Option<Arc<Node>> {
        let map = self.map.read();
        Some(self.node(map.serving(address)?))
    }

    /// The nodes that serve slots, by address, each with its first slot.
    pub(super) fn owners(&self) -> Vec<(Arc<str>, Slot)> {
        self.map.read().owners()
    }

    /// The address of the node that serves a slot.
    pub(super) fn owner(&self, slot: Slot) -> Option<Arc<str>> {
        self.map.read().owner(slot).cloned()
    }

    /// The name of the user of the nodes of the data, if it has one.
    pub(super) fn user(&self) -> Option<&str> {
        self.login.as_ref()?.user.as_deref()
    }

    /// How to reach a node of the data.
    pub(super) fn endpoint(&self, address: &Arc<str>) -> Endpoint {
        let kind = match self.deployment {
            Deployment::Single { .. } => NodeKind::Alone,
            Deployment::Sentinel { .. } => NodeKind::Watched,
            Deployment::Cluster { .. } => NodeKind::Member,
        };
        Endpoint { address: Arc::clone(address), login: self.login.clone(), tls: self.tls.clone(), kind }
    }

    /// The node of an address.
    pub(super) fn node(&self, address: &Arc<str>) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(Arc::clone(address));
        Arc::clone(known.or_insert_with(|| Arc::new(Node::new(self.endpoint(address), Arc::clone(&self.clock)))))
    }

    /// Notes what a node said about a slot.
    pub(super) fn assign(&self, slot: Slot, address: &str) {
        self.map.write().assign(slot, address);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Told of each change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// How many look-ups have ended.
    pub(super) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// Looks for owners again, unless another caller has done so since `seen` look-ups had ended. A look-up that fails
    /// changes nothing.
    pub(super) async fn look_up(&self, seen: u64) -> Result<(), CallFailure> {
        if !self.fails_over() {
            return Ok(());
        }
        let _turn = self.looking.acquire().await.expect("the semaphore is never closed");
        if self.lookups() != seen {
            return Ok(());
        }
        let last = *self.looked_at.lock();
        let rest =
            last.map_or(Duration::ZERO, |last| (last + REDIS_LOOK_UP_EVERY).saturating_sub(self.clock.elapsed()));
        if !rest.is_zero() {
            self.clock.sleep(rest).await;
        }
        let found = match &self.deployment {
            Deployment::Single { .. } => return Ok(()),
            Deployment::Sentinel { primary, .. } => self.ask_sentinels(primary).await,
            Deployment::Cluster { seeds } => self.ask_members(seeds).await.map(|found| {
                let now = self.clock.elapsed();
                self.install(|known| found.over(known, now));
            }),
        };
        *self.looked_at.lock() = Some(self.clock.elapsed());
        self.lookups.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Replaces what was known. Nodes that serve no slots any more are retired.
    fn install(&self, found: impl FnOnce(&SlotMap) -> SlotMap) {
        let mut map = self.map.write();
        let found = found(&map);
        let is_new = !found.has_owners_of(&map);
        *map = found;
        if is_new {
            let owners: HashSet<Arc<str>> = map.owners().into_iter().map(|(owner, _)| owner).collect();
            self.nodes.lock().retain(|address, node| {
                let serves = owners.contains(address);
                if !serves {
                    node.retire();
                }
                serves
            });
            drop(map);
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// How many Sentinels are asked.
    pub(super) fn sentinels(&self) -> usize {
        self.sentinels.len()
    }

    /// How to reach a Sentinel, by its place.
    pub(super) fn sentinel_endpoint(&self, at: usize) -> &Endpoint {
        self.sentinels[at].endpoint()
    }

    /// The name of the primary in the settings of the Sentinels.
    pub(super) fn primary_name(&self) -> &str {
        match &self.deployment {
            Deployment::Sentinel { primary, .. } => primary,
            Deployment::Single { .. } | Deployment::Cluster { .. } => "",
        }
    }

    /// Takes in what a Sentinel said, and moves if it names another primary and is believed.
    pub(super) fn hear(&self, sentinel: usize, word: SentinelWord) {
        let mut believed = self.believed.lock();
        believed.hear(sentinel, word, self.clock.elapsed());
        self.go_by(&mut believed);
    }

    fn go_by(&self, believed: &mut Believed) {
        if let Some(primary) = believed.primary(self.clock.elapsed()) {
            self.install(|_| SlotMap::of_one(&primary));
        }
    }

    /// Leaves a primary that has become a replica: it answers reads from what it has. A new connection is refused until
    /// it is a primary again. One of a cluster refuses calls by itself.
    pub(super) fn leave(&self, address: &Arc<str>) {
        if !self.is_cluster()
            && let Some(node) = self.nodes.lock().remove(address)
        {
            node.retire();
        }
    }

    /// Asks the Sentinels until more than half of all name the same primary, and goes by what they said.
    async fn ask_sentinels(&self, primary: &str) -> Result<(), CallFailure> {
        let deadline = Deadline::after(REDIS_LOOK_UP_WITHIN, &self.clock);
        let asked =
            self.sentinels.iter().enumerate().map(|(at, sentinel)| ask_sentinel(at, sentinel, primary, &deadline));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut words: Vec<(usize, SentinelWord)> = Vec::new();
        let mut failure = CallFailure::new(FailureCause::Unreachable, "no Sentinel is named");
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(word) => words.push(word),
                Err(why) => failure = why,
            }
            let votes = |named: &SentinelWord| words.iter().filter(|(_, word)| word.address == named.address).count();
            if words.iter().any(|(_, word)| 2 * votes(word) > self.sentinels.len()) {
                break;
            }
        }
        if words.is_empty() {
            return Err(failure);
        }
        let mut believed = self.believed.lock();
        for (at, word) in words {
            believed.hear(at, word, self.clock.elapsed());
        }
        self.go_by(&mut believed);
        Ok(())
    }

    /// The first answer of a few nodes at a time.
    async fn ask_members(&self, seeds: &[String]) -> Result<SlotMap, CallFailure> {
        let mut known: Vec<Arc<str>> = self.map.read().nodes().cloned().collect();
        for seed in seeds.iter().take(REDIS_NODES_MAX) {
            if !known.iter().any(|address| **address == **seed) {
                known.push(Arc::from(seed.as_str()));
            }
        }
        let first = self.asked_first.fetch_add(1, Ordering::Relaxed) % known.len().max(1);
        known.rotate_left(first);
        let mut failure = CallFailure::new(FailureCause::Unreachable, "no node of the cluster is named");
        for some in known.chunks(REDIS_ASKED_AT_ONCE_MAX) {
            let deadline = Deadline::after(REDIS_LOOK_UP_WITHIN, &self.clock);
            let asked = some.iter().map(|address| self.ask_member(self.node(address), deadline.clone()));
            let mut asked: FuturesUnordered<_> = asked.collect();
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(map) => return Ok(map),
                    Err(why) => failure = why,
                }
            }
        }
        Err(failure)
    }

    /// Asks a node for the owners of all slots. If its answer is news, it is asked again with their config epochs.
    async fn ask_member(&self, node: Arc<Node>, deadline: Deadline) -> Result<SlotMap, CallFailure> {
        let address = &node.endpoint().address;
        let slots = || RedisCommand::new("CLUSTER").arg("SLOTS");
        let map = SlotMap::read(node.ask(slots(), &deadline).await?, address)?;
        if map.owners().is_empty() {
            let text = format!("the node at {address} knows no owner of any slot");
            return Err(CallFailure::new(FailureCause::Unreachable, text));
        }
        let is_known = {
            let known = self.map.read();
            map.has_owners_of(&known) && !known.lacks_epochs()
        };
        if is_known || self.is_epoch_denied.load(Ordering::Relaxed) {
            return Ok(map);
        }
        // The epochs come first, so they are not newer than the owners.
        let questions = vec![RedisCommand::new("CLUSTER").arg("NODES"), slots()];
        let mut answers = node.ask_all(questions, &deadline).await?.into_iter();
        let incomplete = || CallFailure::new(FailureCause::Protocol, "an answer about slots is missing");
        let epochs = answers.next().ok_or_else(incomplete)?;
        let mut map = SlotMap::read(answers.next().ok_or_else(incomplete)??, address)?;
        match epochs.and_then(RedisReply::into_text) {
            Ok(nodes) => map.learn_epochs(&nodes),
            // Without this right the last reading counts.
            Err(failure) if failure.cause == FailureCause::Denied => {
                self.is_epoch_denied.store(true, Ordering::Relaxed);
            }
            Err(failure) => return Err(failure),
        }
        Ok(map)
    }

    /// Lets go of all connections.
    pub(super) fn close(&self) {
        self.nodes.lock().drain().for_each(|(_, node)| node.close());
        self.sentinels.iter().for_each(|sentinel| sentinel.close());
    }
}

/// Asks a Sentinel, and answers its word with its place.
async fn ask_sentinel(
    at: usize,
    sentinel: &Node,
    primary: &str,
    deadline: &Deadline,
) -> Result<(usize, SentinelWord), CallFailure> {
    let answers = sentinel.ask_all(sentinels::questions(primary), deadline).await?;
    Ok((at, sentinels::read(answers, &sentinel.endpoint().address, primary)?))
}
