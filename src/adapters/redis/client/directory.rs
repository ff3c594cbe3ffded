//! Which node serves a slot, and how that is found out: a single server is what the settings say, Sentinels know the
//! address of the primary, and each node of a cluster knows the owners of all slots.
//!
//! Several callers that look at the same time share one look-up. What is found replaces what was known before.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};

use crate::client::command::RedisCommand;
use crate::client::deadline::Deadline;
use crate::client::failure::{CallFailure, FailureCause};
use crate::client::node::Node;
use crate::client::slot::Slot;
use crate::client::slot_map::{SlotMap, address_of};
use crate::client::wire::{Door, Login, NodeKind};
use crate::limits::{REDIS_ASKED_AT_ONCE_MAX, REDIS_LOOK_UP_EVERY, REDIS_LOOK_UP_WITHIN, REDIS_NODES_MAX};
use tallystone_adapters::store_tls::StoreTls;
use tallystone_ports::Clock;

/// Where the nodes are. Addresses are HOST:PORT.
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
    /// One at a time looks.
    looking: Semaphore,
    lookups: AtomicU64,
    /// When the last look-up ended, on `Clock::elapsed`.
    looked_at: Mutex<Option<Duration>>,
    /// Which of the nodes is asked first. Another one each time, because one may be cut off from the others.
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
                    Arc::new(Node::new(Door { address, login, tls, kind: NodeKind::Sentinel }, Arc::clone(&clock)))
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
            sentinels,
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
        let owner = self.map.read().owner(slot).cloned()?;
        Some(self.node(&owner))
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
    pub(super) fn door(&self, address: &Arc<str>) -> Door {
        let kind = if self.is_cluster() { NodeKind::Member } else { NodeKind::Alone };
        Door { address: Arc::clone(address), login: self.login.clone(), tls: self.tls.clone(), kind }
    }

    /// The node of an address.
    pub(super) fn node(&self, address: &Arc<str>) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(Arc::clone(address));
        Arc::clone(known.or_insert_with(|| Arc::new(Node::new(self.door(address), Arc::clone(&self.clock)))))
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

    /// Looks for owners anew, unless somebody has since `seen` look-ups had ended. A look-up that fails changes nothing.
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
            Deployment::Cluster { seeds } => self.ask_members(seeds).await,
        };
        *self.looked_at.lock() = Some(self.clock.elapsed());
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.install(found?);
        Ok(())
    }

    fn install(&self, found: SlotMap) {
        let is_new = *self.map.read() != found;
        if is_new {
            // Nodes that are gone end with their last call.
            self.nodes.lock().retain(|address, _| found.nodes().any(|node| node == address));
            *self.map.write() = found;
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// The primary that most Sentinels name, as soon as more than half of all do.
    async fn ask_sentinels(&self, primary: &str) -> Result<SlotMap, CallFailure> {
        let deadline = Deadline::after(REDIS_LOOK_UP_WITHIN, &self.clock);
        let asked = self.sentinels.iter().map(|sentinel| ask_sentinel(sentinel, primary, &deadline));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut votes: Vec<(String, usize)> = Vec::new();
        let mut failure = CallFailure::new(FailureCause::Unreachable, "no Sentinel is named");
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(address) => match votes.iter_mut().find(|(known, _)| *known == address) {
                    Some((_, count)) => *count += 1,
                    None => votes.push((address, 1)),
                },
                Err(why) => failure = why,
            }
            if votes.iter().any(|(_, count)| 2 * count > self.sentinels.len()) {
                break;
            }
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(address, _)| SlotMap::of_one(&address)).ok_or(failure)
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
            let asked = some.iter().map(|address| ask_member(self.node(address), deadline.clone()));
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

    /// Lets go of all connections.
    pub(super) fn hang_up(&self) {
        self.nodes.lock().drain().for_each(|(_, node)| node.hang_up());
        self.sentinels.iter().for_each(|sentinel| sentinel.hang_up());
    }
}

async fn ask_sentinel(sentinel: &Node, primary: &str, deadline: &Deadline) -> Result<String, CallFailure> {
    let command = RedisCommand::new("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(primary);
    let reply = sentinel.ask(command, deadline).await?;
    if reply.is_nil() {
        let text = format!("the Sentinel at {} does not know the primary {primary}", sentinel.door().address);
        return Err(CallFailure::new(FailureCause::Unreachable, text));
    }
    let mut parts = reply.into_list()?.into_iter();
    match (parts.next(), parts.next()) {
        (Some(host), Some(port)) => Ok(address_of(&host.into_text()?, &port.into_text()?)),
        (_, _) => Err(CallFailure::new(FailureCause::Protocol, "the answer of a Sentinel is not complete")),
    }
}

async fn ask_member(node: Arc<Node>, deadline: Deadline) -> Result<SlotMap, CallFailure> {
    let reply = node.ask(RedisCommand::new("CLUSTER").arg("SLOTS"), &deadline).await?;
    let map = SlotMap::read(reply, &node.door().address)?;
    if map.owners().is_empty() {
        let text = format!("the node at {} knows no owner of any slot", node.door().address);
        return Err(CallFailure::new(FailureCause::Unreachable, text));
    }
    Ok(map)
}
