//! Conditional writes: one Paxos instance for each partition, as Cassandra runs them.
//!
//! Prepare, read, propose, commit; an accepted proposal that somebody left behind is finished by the next one. A proposal
//! carries its ballot as the timestamp of its cells, and a ballot is the coordinator's clock: it may lie below the time of
//! the event it is about. The read of the condition repairs nobody.

use std::sync::Arc;
use std::time::Duration;

use super::{Cluster, Name, QUORUM, REPLICA_TIMEOUT, REPLICAS, Refusal};
use crate::cluster::gather::Gather;
use crate::cql::{Datum, Partition, Writing};

/// A ballot: the coordinator's clock, and a number that tells two of one moment apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ballot(i64, u64);

const NONE: Ballot = Ballot(i64::MIN, 0);

/// What a replica has promised of a partition.
#[derive(Clone, Debug)]
pub struct Promise {
    promised: Ballot,
    accepted: Option<(Ballot, Arc<(Name, Partition)>)>,
    committed: Ballot,
}

impl Default for Promise {
    fn default() -> Self {
        Self { promised: NONE, accepted: None, committed: NONE }
    }
}

/// What a conditional write came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decided {
    Applied,
    /// The row that stood in its way, by column.
    Held(Vec<(String, Datum)>),
}

/// What a replica answers to a prepare.
enum Prepared {
    Promised(Promise, Partition),
    Refused(Ballot),
}

/// After how many contended rounds a coordinator gives up.
const ROUNDS: u32 = 8;

impl Cluster {
    /// Writes if the conditions of all writes hold, all of them of one partition.
    pub async fn decide(
        &self,
        coordinator: usize,
        name: Name,
        writes: Arc<Vec<(Arc<Writing>, Vec<Datum>)>>,
    ) -> Result<Decided, Refusal> {
        if self.knows_too_few(coordinator) {
            return Err(Refusal::Unavailable);
        }
        let mut above = NONE;
        for _ in 0..ROUNDS {
            let ballot = self.ballot(coordinator, above);
            let (promises, highest) = self.prepare(coordinator, &name, ballot).await;
            above = above.max(highest);
            if promises.len() < QUORUM {
                if highest == NONE {
                    return Err(Refusal::Timeout);
                }
                self.step_aside().await;
                continue;
            }
            let committed = promises.iter().map(|(promise, _)| promise.committed).max().unwrap_or(NONE);
            let left = promises.iter().filter_map(|(promise, _)| promise.accepted.clone()).max_by_key(|(of, _)| *of);
            if let Some((_, change)) = left.filter(|(of, _)| *of > committed) {
                let mut change = (*change).clone();
                change.1.stamp(ballot.0);
                if self.propose(coordinator, ballot, &Arc::new(change)).await? {
                    continue;
                }
                self.step_aside().await;
                continue;
            }
            let mut merged = Partition::default();
            promises.iter().for_each(|(_, part)| merged.merge(part));
            let held = writes.iter().find_map(|(write, values)| write.decide(values, &merged).err());
            if let Some(held) = held {
                return Ok(Decided::Held(held));
            }
            let mut change = Partition::default();
            writes.iter().for_each(|(write, values)| change.merge(&write.change(values, ballot.0)));
            if self.propose(coordinator, ballot, &Arc::new((name.clone(), change))).await? {
                return Ok(Decided::Applied);
            }
            self.step_aside().await;
        }
        Err(Refusal::Timeout)
    }

    fn ballot(&self, coordinator: usize, above: Ballot) -> Ballot {
        let clock = self.clock_of(coordinator);
        let mut shared = self.shared.lock();
        shared.ballots += 1;
        Ballot(clock.max(above.0.saturating_add(1)), shared.ballots)
    }

    async fn step_aside(&self) {
        let wait = self.shared.lock().chance.between(Duration::from_millis(1), Duration::from_millis(50));
        self.world.sleep(wait).await;
    }

    /// Asks all replicas for a promise; answers what those hold that gave it, and the highest ballot met elsewhere.
    async fn prepare(&self, coordinator: usize, name: &Name, ballot: Ballot) -> (Vec<(Promise, Partition)>, Ballot) {
        let answers = Gather::new();
        for node in 0..REPLICAS {
            let name = name.clone();
            self.ask(coordinator, node, &answers, move |this, node| {
                let mut shared = this.shared.lock();
                let replica = &mut shared.replicas[node];
                let promise = replica.promises.entry(name.clone()).or_default();
                if promise.promised > ballot {
                    return Prepared::Refused(promise.promised);
                }
                promise.promised = ballot;
                let promise = promise.clone();
                Prepared::Promised(promise, replica.partitions.get(&name).cloned().unwrap_or_default())
            });
        }
        let until = self.world.until(self.world.now() + REPLICA_TIMEOUT);
        let (mut promises, mut highest) = (Vec::new(), NONE);
        for answer in answers.take(QUORUM, until).await {
            match answer {
                Prepared::Promised(promise, part) => promises.push((promise, part)),
                Prepared::Refused(by) => highest = highest.max(by),
            }
        }
        (promises, highest)
    }

    /// Asks all replicas to accept a change, and commits it when a quorum has. Answers whether it was accepted; an error
    /// leaves open whether it was, or will be.
    async fn propose(
        &self,
        coordinator: usize,
        ballot: Ballot,
        change: &Arc<(Name, Partition)>,
    ) -> Result<bool, Refusal> {
        let answers = Gather::new();
        for node in 0..REPLICAS {
            let proposed = Arc::clone(change);
            self.ask(coordinator, node, &answers, move |this, node| {
                let mut shared = this.shared.lock();
                let promise = shared.replicas[node].promises.entry(proposed.0.clone()).or_default();
                let accepts = promise.promised <= ballot;
                if accepts {
                    promise.promised = ballot;
                    promise.accepted = Some((ballot, proposed));
                }
                accepts
            });
        }
        let until = self.world.until(self.world.now() + REPLICA_TIMEOUT);
        let answers = answers.take(QUORUM, until).await;
        if answers.len() < QUORUM {
            return Err(Refusal::Timeout);
        }
        if answers.iter().filter(|accepts| **accepts).count() < QUORUM {
            return Ok(false);
        }
        self.commit(coordinator, ballot, change).await.map(|()| true)
    }

    async fn commit(&self, coordinator: usize, ballot: Ballot, change: &Arc<(Name, Partition)>) -> Result<(), Refusal> {
        let acknowledged = Gather::new();
        for node in 0..REPLICAS {
            let brought = Arc::clone(change);
            let work = move |this: &Self, node: usize| {
                this.apply(node, &brought.0, &brought.1);
                let mut shared = this.shared.lock();
                let promise = shared.replicas[node].promises.entry(brought.0.clone()).or_default();
                promise.committed = promise.committed.max(ballot);
            };
            if !self.ask(coordinator, node, &acknowledged, work) {
                self.hint(coordinator, node, Arc::clone(change));
            }
        }
        let until = self.world.until(self.world.now() + REPLICA_TIMEOUT);
        match acknowledged.take(QUORUM, until).await.len() >= QUORUM {
            true => Ok(()),
            false => Err(Refusal::Timeout),
        }
    }
}
