//! Giving messages to workers: over all shards best head first, and waiting inside the server.
//!
//! A shard is asked only if it may have something; so "empty" costs nothing. With several shards that have messages each
//! is asked for its share, so the order over shards is near, and exact within each. A worker that goes away while it is
//! answered loses no lease: those are released.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::Timestamp;
use crate::domain::limits::{
    DEQUEUE_MESSAGES_MAX, DEQUEUE_ROUNDS_MAX, DEQUEUE_WAIT_MAX, LEASE_MAX, LEASE_MIN, QUEUE_MESSAGE_BYTES_MAX,
    QUEUE_REPLY_BYTES_MAX,
};
use crate::domain::queue::command::{self, Completeness, Invalid, Leased, MessageRef, Refusal};
use crate::domain::queue::filter::Filter;
use crate::domain::queue::{Command, QueueId, QueueName, Reply};
use crate::engine::queues::Queues;
use crate::engine::queues::core::Shared;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::live::LiveQueue;
use crate::engine::queues::unexpected;
use crate::ports::{ShardCommand, StoredMessage};

/// What a worker asks for.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// How many messages at most, 1 to 100.
    pub max: usize,
    /// The lease.
    pub lease: Option<Duration>,
    /// How long to wait for the first message; more than `DEQUEUE_WAIT_MAX` counts as that.
    pub wait: Duration,
    /// What the messages must have.
    pub filter: Filter,
    /// This message only; the filter is not looked at.
    pub message: Option<MessageRef>,
    /// What to do while dequeues are blocked.
    pub blocked: Blocked,
}

/// What to do while dequeues are blocked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Blocked {
    /// Refuse.
    #[default]
    Refuse,
    /// Wait, as for messages.
    Wait,
}

/// One lease with its message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    /// The lease.
    pub lease: Leased,
    /// The message.
    pub message: StoredMessage,
    /// The shard's time.
    pub at: Timestamp,
}

/// What a worker gets. Dropped without `take`, it releases its leases.
pub struct Dequeued {
    shared: Arc<Shared>,
    queue: Arc<LiveQueue>,
    leases: Vec<Given>,
    /// Whether fewer than asked for are all there are.
    pub completeness: Completeness,
}

impl Dequeued {
    /// The queue, whose number lease tokens carry.
    pub fn queue(&self) -> QueueId {
        self.queue.record.load().id
    }

    /// How long nothing changes by itself.
    pub fn next_event_in(&self) -> Option<Duration> {
        self.queue.next_event_in(self.shared.clock.elapsed())
    }

    /// Hands the leases over to whoever answers them, best priority first.
    pub fn take(mut self) -> Vec<Given> {
        let mut leases = std::mem::take(&mut self.leases);
        leases.sort_by_key(|given| given.message.head.priority);
        leases
    }

    fn bytes(&self) -> usize {
        self.leases.iter().map(|given| given.message.body.payload.len() + QUEUE_MESSAGE_BYTES_MAX / 16).sum()
    }
}

impl Drop for Dequeued {
    fn drop(&mut self) {
        self.shared.release_all(&self.queue, self.leases.iter().map(|given| given.lease.token));
    }
}

impl Queues {
    /// Leases messages, waiting for the first if asked to.
    pub async fn dequeue(&self, name: &QueueName, ask: Ask) -> Result<Dequeued, QueueError> {
        if !(1..=DEQUEUE_MESSAGES_MAX).contains(&ask.max) {
            return Err(Invalid::Count.into());
        }
        if ask.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(Invalid::Lease.into());
        }
        let queue = self.shared.queue(name)?;
        if let Some(message) = ask.message.clone() {
            return self.dequeue_one(&queue, message, &ask).await;
        }
        let until = self.shared.clock.elapsed() + ask.wait.min(DEQUEUE_WAIT_MAX);
        let mut rounds = 0;
        let place = queue.waiters.enter();
        loop {
            let looked = place.look();
            let found = self.gather(&queue, &ask).await?;
            let left = until.saturating_sub(self.shared.clock.elapsed());
            if !found.leases.is_empty() {
                return Ok(found);
            }
            if found.completeness != Completeness::Complete && (rounds < DEQUEUE_ROUNDS_MAX || !left.is_zero()) {
                // A bound left something over: nobody is told "empty" before all was looked at.
                rounds += 1;
                continue;
            }
            if left.is_zero() {
                return Ok(found);
            }
            place.rest(looked);
            tokio::select! {
                () = place.woken() => {}
                () = self.shared.drain.cancelled() => return Ok(found),
                () = self.shared.clock.sleep(left) => {}
            }
            self.shared.queue(name)?;
        }
    }

    /// Takes what there is, over all shards.
    async fn gather(&self, queue: &Arc<LiveQueue>, ask: &Ask) -> Result<Dequeued, QueueError> {
        let mut found = self.nothing(queue);
        match (self.refuse_blocked(queue), ask.blocked) {
            (Err(QueueError::Refused(Refusal::DequeueBlocked(_))), Blocked::Wait) => return Ok(found),
            (refused, _) => refused?,
        }
        let mut exhausted = vec![false; queue.shards() as usize];
        while found.leases.len() < ask.max {
            let mut offers = queue.offers(self.shared.clock.elapsed());
            offers.retain(|offer| !exhausted[offer.shard as usize]);
            let Some(best) = offers.first() else { break };
            let room = QUEUE_REPLY_BYTES_MAX.saturating_sub(found.bytes()) / QUEUE_MESSAGE_BYTES_MAX;
            if room == 0 {
                found.completeness = Completeness::More;
                break;
            }
            let share = (ask.max - found.leases.len()).div_ceil(offers.len()).min(room);
            let shard = best.shard;
            let asked = command::Dequeue {
                max: share,
                lease: ask.lease,
                cursor: queue.shard(shard).walks.cursor(&ask.filter),
                filter: ask.filter.clone(),
                ..command::Dequeue::default()
            };
            let (count, completeness) = self.ask_shard(queue, shard, asked, &mut found).await?;
            if count < share {
                exhausted[shard as usize] = true;
                if completeness != Completeness::Complete {
                    found.completeness = completeness;
                }
            }
        }
        if found.leases.is_empty() {
            self.shared.stats.dequeues_empty.one();
        }
        Ok(found)
    }

    /// Leases one message by name.
    async fn dequeue_one(
        &self,
        queue: &Arc<LiveQueue>,
        message: MessageRef,
        ask: &Ask,
    ) -> Result<Dequeued, QueueError> {
        self.refuse_blocked(queue)?;
        let shard = self.shard_of(queue, &message)?;
        let mut found = self.nothing(queue);
        let asked =
            command::Dequeue { max: 1, lease: ask.lease, message: Some(message), ..command::Dequeue::default() };
        self.ask_shard(queue, shard, asked, &mut found).await?;
        Ok(found)
    }

    async fn ask_shard(
        &self,
        queue: &Arc<LiveQueue>,
        shard: u32,
        asked: command::Dequeue,
        found: &mut Dequeued,
    ) -> Result<(usize, Completeness), QueueError> {
        let filter = asked.filter.clone();
        let answer = self.shared.call(queue, shard, ShardCommand::of(Command::Dequeue(asked))).await?;
        match answer.reply? {
            Reply::Leases { leases, completeness, cursor } => {
                let count = leases.len();
                queue.shard(shard).walks.keep(filter, cursor);
                self.shared.stats.leases_given.add(count as u64);
                let given = leases.into_iter().zip(answer.messages);
                found.leases.extend(given.map(|(lease, message)| Given { lease, message, at: answer.at }));
                Ok((count, completeness))
            }
            other => Err(unexpected("dequeue", &other)),
        }
    }

    fn nothing(&self, queue: &Arc<LiveQueue>) -> Dequeued {
        Dequeued {
            shared: Arc::clone(&self.shared),
            queue: Arc::clone(queue),
            leases: Vec::new(),
            completeness: Completeness::Complete,
        }
    }

    fn refuse_blocked(&self, queue: &LiveQueue) -> Result<(), QueueError> {
        if self.shared.drain.is_cancelled() {
            return Err(QueueError::ShuttingDown);
        }
        match &queue.record.load().spec.dequeue_blocked {
            Some(why) => Err(Refusal::DequeueBlocked(why.clone()).into()),
            None => Ok(()),
        }
    }
}
