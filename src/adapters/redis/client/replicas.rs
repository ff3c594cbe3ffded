//! Waits until replicas have what their primary answered, on connections of their own: WAIT holds up its connection.
//!
//! WAIT covers what its own connection wrote, and since Redis 7.2 a connection that wrote nothing waits for nothing. So
//! each round trip writes a key first: everything that the primary answered on other connections before lies before it
//! in the stream of replication. Callers that come while round trips are out share the next one.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::client::command::RedisCommand;
use crate::client::connection::{RedisConnection, ServedBy};
use crate::client::connection_slot::Outage;
use crate::client::deadline::Deadline;
use crate::client::directory::Directory;
use crate::client::failure::{CallFailure, FailureCause, judge};
use crate::client::node::Node;
use crate::limits::{
    REDIS_CONNECT_WITHIN, REDIS_NODES_MAX, REDIS_WAIT_KEY_KEPT, REDIS_WAIT_MAX, REDIS_WAITERS_MAX, REDIS_WAITS_AT_ONCE,
};
use tallystone_coalesce::{CallQueue, DetachedTasks, PendingWork};
use tallystone_ports::Clock;

/// The waits of all nodes.
pub(super) struct ReplicaWaits {
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
    tasks: Arc<DetachedTasks>,
    nodes: Mutex<HashMap<Arc<str>, Arc<NodeWaits>>>,
}

/// The waits of one node.
struct NodeWaits {
    node: Arc<Node>,
    clock: Arc<dyn Clock>,
    outage: Arc<Outage>,
    queue: CallQueue<ReplicaWaiters>,
}

/// Callers that wait for the next round trip.
#[derive(Default)]
struct ReplicaWaiters(Vec<Waiter>);

struct Waiter {
    served: ServedBy,
    key: Bytes,
    replicas: u32,
    told: oneshot::Sender<Result<(), CallFailure>>,
}

impl PendingWork for ReplicaWaiters {
    type Batch = Vec<Waiter>;

    fn next(&mut self, in_flight: usize) -> Option<Vec<Waiter>> {
        (in_flight < REDIS_WAITS_AT_ONCE && !self.0.is_empty()).then(|| std::mem::take(&mut self.0))
    }
}

impl ReplicaWaits {
    pub(super) fn new(directory: Arc<Directory>, clock: Arc<dyn Clock>, tasks: Arc<DetachedTasks>) -> Self {
        Self { directory, clock, tasks, nodes: Mutex::default() }
    }

    /// Waits until so many replicas have what the node answered before. Every failure says that they may have it.
    pub(super) async fn wait(
        &self,
        served: &ServedBy,
        key: Bytes,
        replicas: u32,
        deadline: &Deadline,
    ) -> Result<(), CallFailure> {
        let Some(waits) = self.waits(served) else {
            let text = format!("Redis at {}: another node has taken its place", served.address());
            return Err(CallFailure::new(FailureCause::NoAnswer, text));
        };
        let (told, answer) = oneshot::channel();
        let started = {
            let mut queue = waits.queue.lock();
            if queue.0.len() >= REDIS_WAITERS_MAX {
                let text = format!("too many calls wait for the replicas of Redis at {}", served.address());
                return Err(CallFailure::new(FailureCause::Busy, text).unknown());
            }
            queue.0.push(Waiter { served: served.clone(), key, replicas, told });
            queue.start()
        };
        if let Some(batch) = started {
            let waits = Arc::clone(&waits);
            self.tasks.spawn(async move {
                // ReplicaWaiters of a call that panicked see their channel closed.
                waits.queue.run(Some(batch), |batch| waits.round_trip(batch), || {}).await;
            });
        }
        let answered = tokio::select! {
            biased;
            // A replica may have it, and the next primary not.
            () = waits.node.retired() => return Err(waits.node.replaced(FailureCause::NoAnswer)),
            answered = deadline.meet(answer) => answered,
        };
        match answered {
            Some(Ok(answer)) => answer,
            Some(Err(_)) | None => {
                let text = format!("Redis at {}: no word of its replicas in time", served.address());
                Err(CallFailure::new(FailureCause::NoAnswer, text))
            }
        }
    }

    /// The waits of the node that answered; none if another one has taken its place.
    fn waits(&self, served: &ServedBy) -> Option<Arc<NodeWaits>> {
        let node = self.directory.serving(served.address())?;
        let mut nodes = self.nodes.lock();
        if nodes.len() >= REDIS_NODES_MAX {
            // Round trips that are out keep their nodes.
            nodes.clear();
        }
        let address = Arc::clone(&node.endpoint().address);
        let known = nodes.get(&address).filter(|known| Arc::ptr_eq(&known.node, &node));
        Some(known.cloned().unwrap_or_else(|| {
            let (clock, outage, queue) = (Arc::clone(&self.clock), Arc::default(), CallQueue::default());
            let waits = Arc::new(NodeWaits { node, clock, outage, queue });
            nodes.insert(address, Arc::clone(&waits));
            waits
        }))
    }
}

impl NodeWaits {
    /// Tells callers how many replicas have what they wait for. Those of a retired node see their channels closed.
    async fn round_trip(&self, waiters: Vec<Waiter>) {
        tokio::select! {
            biased;
            () = self.node.retired() => {}
            () = self.count(waiters) => {}
        }
    }

    async fn count(&self, mut waiters: Vec<Waiter>) {
        let deadline = Deadline::after(REDIS_CONNECT_WITHIN + 2 * REDIS_WAIT_MAX, &self.clock);
        let slot =
            self.node.wait_connections().iter().min_by_key(|slot| slot.in_flight()).expect("a node has connections");
        let connection = match deadline.meet(slot.connection(self.node.endpoint(), &self.outage, &self.clock)).await {
            Some(Ok(connection)) => connection,
            Some(Err(failure)) => return tell(waiters, &failure.unknown()),
            None => return tell(waiters, &self.failure(FailureCause::NoAnswer, "no connection in time")),
        };
        // What another process answered, or one with another history, is not on this connection.
        let (mine, others): (Vec<_>, Vec<_>) =
            waiters.into_iter().partition(|waiter| waiter.served == *connection.served_by());
        if !others.is_empty() {
            // Either of the connections may be the older one: new ones know better.
            self.node.close();
            tell(others, &self.failure(FailureCause::NoAnswer, "the server was restarted, or became a primary anew"));
        }
        waiters = mine;
        while let Some(replicas) = waiters.iter().map(|waiter| waiter.replicas).max() {
            let asked = deadline.meet(self.ask(&connection, waiters[0].key.clone(), replicas)).await;
            match asked {
                Some(Ok(count)) => return self.tell_count(waiters, count),
                // The key cannot be written: that says nothing of the keys of others.
                Some(Err(failure)) if failure.cause != FailureCause::NoAnswer => {
                    tell(vec![waiters.remove(0)], &failure.unknown());
                }
                Some(Err(failure)) => {
                    slot.close();
                    return tell(waiters, &failure.unknown());
                }
                None => {
                    slot.close();
                    return tell(waiters, &self.failure(FailureCause::NoAnswer, "no word of the replicas in time"));
                }
            }
        }
    }

    /// The number of replicas that have what was written up to a write of this key.
    async fn ask(&self, connection: &RedisConnection, key: Bytes, replicas: u32) -> Result<i64, CallFailure> {
        let kept = i64::try_from(REDIS_WAIT_KEY_KEPT.as_secs()).unwrap_or(i64::MAX);
        let write = RedisCommand::new("SET").arg(key).int(1).arg("EX").int(kept);
        let within = i64::try_from(REDIS_WAIT_MAX.as_millis()).unwrap_or(i64::MAX);
        let wait = RedisCommand::new("WAIT").int(i64::from(replicas)).int(within);
        let mut answers = connection.send(&[write, wait]).await?.into_iter();
        let mut next = || {
            let answer = answers.next().ok_or_else(|| self.failure(FailureCause::Protocol, "an answer is missing"))?;
            answer.map_err(|text| judge(self.address(), &text).0)
        };
        next()?;
        next()?.into_int()
    }

    fn address(&self) -> &str {
        &self.node.endpoint().address
    }

    fn tell_count(&self, waiters: Vec<Waiter>, count: i64) {
        for waiter in waiters {
            let answer = match count >= i64::from(waiter.replicas) {
                true => Ok(()),
                false => {
                    let why = format!("{count} of {} replicas have the write", waiter.replicas);
                    Err(self.failure(FailureCause::TooFewReplicas, &why))
                }
            };
            // A caller that has gone wants no answer.
            let _ = waiter.told.send(answer);
        }
    }

    fn failure(&self, cause: FailureCause, why: &str) -> CallFailure {
        CallFailure::new(cause, format!("Redis at {}: {why}", self.address())).unknown()
    }
}

fn tell(waiters: Vec<Waiter>, failure: &CallFailure) {
    for waiter in waiters {
        // A caller that has gone wants no answer.
        let _ = waiter.told.send(Err(failure.clone()));
    }
}
