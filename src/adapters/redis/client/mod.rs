//! A client of Redis and Valkey: a single server, a primary behind Sentinels, or a cluster.
//!
//! Every call goes to the primary of one slot and ends by its deadline. Its failure has a cause of a closed list and
//! says whether its effect may have happened. A call is sent again only if the server refused it before it had an
//! effect.

mod calls;
mod command;
mod connection;
mod connection_slot;
mod deadline;
mod directory;
mod failure;
mod function_library;
mod health;
mod info;
mod node;
mod pending;
mod primary_watch;
mod replicas;
mod reply;
mod sentinels;
mod slot;
mod slot_map;
mod subscriptions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use crate::client::calls::Calls;
use crate::client::connection::{Endpoint, NodeKind};
use crate::client::deadline::Deadline;
use crate::client::directory::Directory;
use crate::client::node::Node;
use crate::client::primary_watch::PrimaryWatch;
use crate::client::replicas::ReplicaWaits;
use crate::client::subscriptions::Subscriptions;
use crate::limits::{REDIS_ASKED_AT_ONCE_MAX, REDIS_MOVING_PAUSE_MAX, REDIS_START_WITHIN};
use tallystone_adapters::store_tls::StoreTls;
use tallystone_coalesce::DetachedTasks;
use tallystone_ports::Clock;

pub use calls::CallAnswers;
pub use command::RedisCommand;
pub use connection::{Login, ServedBy};
pub use directory::Deployment;
pub use failure::{CallFailure, FailureCause, write_advice};
pub use function_library::FunctionLibrary;
pub use health::{NodeConfig, NodeFacts, NodeMemory, NodeReading, Product, Role};
pub use reply::RedisReply;
pub use slot::Slot;
pub use subscriptions::NewsListener;

/// The options with which a client is opened.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The deployment, with the addresses of its nodes.
    pub deployment: Deployment,
    /// The user of the nodes, if they require one.
    pub login: Option<Login>,
    /// The TLS of connections; none: they are in clear text.
    pub tls: Option<StoreTls>,
    /// How long a call may take, connecting and waiting for a slot that moves included.
    pub timeout: Duration,
    /// The library that is loaded where a call finds its function missing.
    pub library: FunctionLibrary,
}

/// A client. All callers of a process use one.
pub struct RedisClient {
    timeout: Duration,
    clock: Arc<dyn Clock>,
    directory: Arc<Directory>,
    calls: Arc<Calls>,
    waits: ReplicaWaits,
    subscriptions: Arc<Subscriptions>,
    primaries: PrimaryWatch,
    /// Look-ups and subscriptions, which nobody waits for.
    tasks: Arc<DetachedTasks>,
    /// Whether one of them looks.
    looks: Arc<AtomicBool>,
    closed: AtomicBool,
}

impl RedisClient {
    /// Opens a client once a node that serves slots answers, within `REDIS_START_WITHIN`.
    pub async fn open(options: ClientOptions, clock: Arc<dyn Clock>) -> Result<Arc<Self>, CallFailure> {
        let ClientOptions { deployment, login, tls, timeout, library } = options;
        let directory = Arc::new(Directory::new(deployment, login, tls, Arc::clone(&clock)));
        let deadline = Deadline::after(REDIS_START_WITHIN, &clock);
        let mut tried = reach(&directory, &deadline).await;
        while let Err(failure) = &tried
            && !deadline.is_over()
            && !matches!(failure.cause, FailureCause::Unauthenticated | FailureCause::Denied | FailureCause::NotRedis)
        {
            deadline.pause(REDIS_MOVING_PAUSE_MAX).await;
            // Once the deadline has passed, the failure before it says more.
            if !deadline.is_over() {
                tried = reach(&directory, &deadline).await;
            }
        }
        tried?;
        let tasks: Arc<DetachedTasks> = Arc::default();
        Ok(Arc::new(Self {
            timeout,
            calls: Arc::new(Calls { directory: Arc::clone(&directory), library }),
            waits: ReplicaWaits::new(Arc::clone(&directory), Arc::clone(&clock), Arc::clone(&tasks)),
            subscriptions: Subscriptions::new(Arc::clone(&directory), Arc::clone(&clock), Arc::clone(&tasks)),
            primaries: PrimaryWatch::start(&directory, &clock),
            directory,
            clock,
            tasks,
            looks: Arc::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Sends commands to the primary of their slot, in their order on one connection. Each has its own answer, in their
    /// order. At most `REDIS_COMMANDS_A_CALL_MAX`, whose keys all have this slot.
    ///
    /// A command that failed without an effect is never done later. One that was refused for the moment is not sent
    /// again once a later one of the call was done: the order is never turned round.
    pub async fn call(&self, slot: Slot, commands: Vec<RedisCommand>) -> CallAnswers {
        self.call_within(slot, commands, self.timeout).await
    }

    /// The same with a time limit of the caller's.
    pub async fn call_within(&self, slot: Slot, commands: Vec<RedisCommand>, within: Duration) -> CallAnswers {
        if self.closed.load(Ordering::Relaxed) {
            let failure = CallFailure::new(FailureCause::Closed, "the client is closed");
            return CallAnswers { replies: vec![Err(failure); commands.len()], served: None };
        }
        let answers = self.calls.run(slot, commands, &Deadline::after(within, &self.clock)).await;
        if answers.replies.iter().any(|reply| reply.as_ref().is_err_and(is_silence)) {
            self.look_up_soon();
        }
        answers
    }

    /// Sends one command.
    pub async fn call_one(&self, slot: Slot, command: RedisCommand) -> Result<RedisReply, CallFailure> {
        let mut answers = self.call(slot, vec![command]).await;
        answers.replies.pop().expect("each command has an answer")
    }

    /// Makes sure that at least `replicas` replicas have everything that the node of `served` had answered before. The
    /// key is one of the caller's own, of the slot of the call. It gets a new value, because only a connection that
    /// wrote waits.
    ///
    /// The effect of a failure is always unknown: the replicas may have it, or get it yet. A node that was restarted or
    /// demoted meanwhile is such a failure.
    pub async fn replicated(
        &self,
        served: &ServedBy,
        key: Bytes,
        replicas: u32,
        within: Duration,
    ) -> Result<(), CallFailure> {
        let deadline = Deadline::after(within, &self.clock);
        self.waits.wait(served, key, replicas, &deadline).await
    }

    /// Sets who is told of news and of subscriptions. Only the first one set counts.
    pub fn listen(&self, listener: Arc<dyn NewsListener>) {
        self.subscriptions.listen(listener);
    }

    /// Subscribes to a channel of a slot. Returns at once; the listener is told once it holds.
    pub fn subscribe(&self, slot: Slot, channel: &str) {
        self.subscriptions.subscribe(slot, channel);
    }

    /// Leaves a channel.
    pub fn unsubscribe(&self, channel: &str) {
        self.subscriptions.unsubscribe(channel);
    }

    /// The command that publishes to the channels of these subscriptions.
    pub fn publish_command(&self) -> &'static str {
        if self.is_cluster() { "SPUBLISH" } else { "PUBLISH" }
    }

    /// Whether it calls the nodes of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.directory.is_cluster()
    }

    /// The name of its user; none for the default user.
    pub fn user(&self) -> Option<&str> {
        self.directory.user()
    }

    /// Whether a replica may take the place of a primary: a Sentinel or a cluster may promote one.
    pub fn fails_over(&self) -> bool {
        self.directory.fails_over()
    }

    /// Reads how each primary is, by address.
    pub async fn health(&self) -> Vec<NodeReading> {
        let deadline = Deadline::after(self.timeout, &self.clock);
        let owners = self.directory.owners().into_iter();
        let nodes = owners.map(|(address, _)| self.directory.node(&address));
        join_all(nodes.map(|node| health::read(node, &deadline))).await
    }

    /// Reads the memory of each primary, by address.
    pub async fn memory(&self) -> Vec<(String, Result<NodeMemory, CallFailure>)> {
        let deadline = Deadline::after(self.timeout, &self.clock);
        let owners = self.directory.owners().into_iter();
        let nodes = owners.map(|(address, _)| self.directory.node(&address));
        join_all(nodes.map(|node| health::read_memory(node, &deadline))).await
    }

    /// The primaries that are known, by address, each with one of its slots.
    pub fn primaries(&self) -> Vec<(String, Slot)> {
        let owners = self.directory.owners().into_iter();
        owners.map(|(address, slot)| (address.to_string(), slot)).collect()
    }

    /// Comes back once an attempt to connect to the server of a slot has found that it became a replica, where no other
    /// one is asked in its place. Calls go on trying until their deadlines, since it may be a primary again. A caller
    /// that only asks how the server is need not wait for that. A caller that waits for it bounds the wait.
    pub async fn lone_replica(&self, slot: Slot) -> CallFailure {
        let last = || self.directory.node_of(slot).map_or((0, None), |node| node.last_failure());
        let (seen, _) = last();
        loop {
            self.clock.sleep(REDIS_MOVING_PAUSE_MAX).await;
            let (failures, why) = last();
            if let Some(why) = why.filter(|why| failures != seen && why.lone_replica().is_some()) {
                return why;
            }
        }
    }

    /// The primary of a slot, by address, as far as is known.
    pub fn owner(&self, slot: Slot) -> Option<String> {
        self.directory.owner(slot).map(|address| address.to_string())
    }

    /// Ends subscriptions, tasks and connections. Calls in flight end by their deadlines.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.subscriptions.close();
        self.primaries.close().await;
        self.directory.close();
        self.tasks.join().await;
    }

    /// Looks for the owners of slots, without a caller that waits for it.
    fn look_up_soon(&self) {
        if self.looks.swap(true, Ordering::Relaxed) {
            return;
        }
        let (directory, looks, seen) = (Arc::clone(&self.directory), Arc::clone(&self.looks), self.directory.lookups());
        self.tasks.spawn(async move {
            // What fails here is tried again by the next call that fails.
            let _ = directory.look_up(seen).await;
            looks.store(false, Ordering::Relaxed);
        });
    }
}

/// Asks a node of a deployment for which no client can be opened, because its user lacks a right. It needs only the
/// right to the command, and the right to load the library where a function is missing. None if no node is known.
pub async fn ask_unopened(
    options: &ClientOptions,
    command: &RedisCommand,
    clock: &Arc<dyn Clock>,
) -> Option<Result<RedisReply, CallFailure>> {
    let ClientOptions { deployment, login, tls, library, .. } = options;
    let directory = Directory::new(deployment.clone(), login.clone(), tls.clone(), Arc::clone(clock));
    let deadline = Deadline::after(REDIS_START_WITHIN, clock);
    // Without an answer the configured addresses are asked.
    let _ = deadline.meet(directory.look_up(directory.lookups())).await;
    let owners = directory.owners().into_iter().map(|(address, _)| address);
    let configured: Vec<Arc<str>> = match deployment {
        Deployment::Cluster { seeds } => seeds.iter().map(|seed| Arc::from(seed.as_str())).collect(),
        Deployment::Single { .. } | Deployment::Sentinel { .. } => Vec::new(),
    };
    let mut last = None;
    for address in owners.chain(configured).take(REDIS_ASKED_AT_ONCE_MAX) {
        let endpoint = Endpoint { address, login: login.clone(), tls: tls.clone(), kind: NodeKind::Unchecked };
        let node = Node::new(endpoint, Arc::clone(clock));
        let answer = ask_loaded(&node, command, library, &deadline).await;
        node.close();
        if answer.is_ok() {
            return Some(answer);
        }
        last = Some(answer);
    }
    last
}

/// Asks a node; again with the library if it lacks the function.
async fn ask_loaded(
    node: &Node,
    command: &RedisCommand,
    library: &FunctionLibrary,
    deadline: &Deadline,
) -> Result<RedisReply, CallFailure> {
    match node.ask(command.clone(), deadline).await {
        Err(failure) if failure.text.contains("Function not found") => {
            node.load(library, node.loads(), deadline).await?;
            node.ask(command.clone(), deadline).await
        }
        answered => answered,
    }
}

/// Whether a node may be gone, so that another one may have its slots.
fn is_silence(failure: &CallFailure) -> bool {
    matches!(failure.cause, FailureCause::Unreachable | FailureCause::NoAnswer | FailureCause::Moving)
}

/// Looks for the owners of slots and asks them until one answers.
async fn reach(directory: &Directory, deadline: &Deadline) -> Result<(), CallFailure> {
    let late = || CallFailure::new(FailureCause::Unreachable, "no Redis node that serves slots answers in time");
    deadline.meet(directory.look_up(directory.lookups())).await.ok_or_else(late)??;
    let mut failure = late();
    for (address, _) in directory.owners() {
        match directory.node(&address).ask(RedisCommand::new("PING"), deadline).await {
            Ok(_) => return Ok(()),
            Err(why) => failure = why,
        }
    }
    Err(failure)
}
