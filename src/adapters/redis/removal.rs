//! The drop of a queue: its shards refuse everything at once, and its messages are removed behind that.
//!
//! A removal takes seconds for a million messages, and longer on a busy store. So a drop ends when each shard says in its header
//! that it is not there any more, and when the registry says the same of the queue. The removal goes on by itself. The server that
//! does it claims the queue for a time, again and again. If the claim ends, because that server or its Redis went away, another
//! server goes on.

use std::sync::Arc;

use super::calls::RedisQueues;
use super::limits::{REDIS_REMOVAL_AWAITED, REDIS_REMOVAL_CLAIMED, REDIS_REMOVAL_CLAIMED_EVERY};
use super::registry::{QueuePresence, RegisteredQueue};
use super::wire::WireReply;
use crate::domain::queue::name::{QueueId, ShardId};
use crate::ports::{QueueTime as _, StoreError, StoreErrorKind};

/// The name of a drop in errors.
pub(super) const DROP: &str = "drop queue";

/// What the log says of a removal that could not go on.
const GOES_ON: &str = "the messages of a deleted queue are not all removed yet; a server goes on within two minutes";

/// What is removed of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RemovedData {
    /// The whole shard. It refuses everything from the first call on.
    Shard,
    /// What a deletion left; the answers to tokens stay.
    Messages,
}

/// Whether anything is left to remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemovalStep {
    Done,
    More,
}

/// A removal that runs in this process. It ends with its value.
struct Running {
    queues: Arc<RedisQueues>,
    queue: QueueId,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.queues.removals.lock().remove(&self.queue);
    }
}

impl RedisQueues {
    /// Drops a queue. Waits for the removal of its messages for `REDIS_REMOVAL_AWAITED` at most.
    pub(super) async fn drop_now(self: Arc<Self>, queue: QueueId) -> Result<(), StoreError> {
        let registered = self.registered(queue, DROP).await?;
        self.forget_queue(queue); // if the store has lost it, it is given up
        let Some(known) = registered else { return Ok(()) };
        match known.presence {
            QueuePresence::Present => self.bury(queue, known).await?,
            QueuePresence::Dropping { .. } => {}
            QueuePresence::Dropped => return Ok(()),
        }
        let Some(removal) = Arc::clone(&self).begin_removal(queue, known) else { return Ok(()) };
        tokio::select! {
            biased;
            removed = removal => removed.unwrap_or_else(|_| Err(StoreError::unknown(StoreErrorKind::Closed, DROP))),
            () = self.clock.sleep(REDIS_REMOVAL_AWAITED) => Ok(()),
        }
    }

    /// Makes every shard refuse everything, before any message is removed: a server that has not heard of the drop acknowledges
    /// nothing that is removed later.
    async fn bury(&self, queue: QueueId, known: RegisteredQueue) -> Result<(), StoreError> {
        for number in 0..known.shards {
            self.remove_some(ShardId { queue, number }, RemovedData::Shard, DROP).await?;
        }
        self.claim(queue, known).await
    }

    /// Says that this process removes the messages of a queue.
    async fn claim(&self, queue: QueueId, known: RegisteredQueue) -> Result<(), StoreError> {
        let removed_until = self.clock().await?.now + REDIS_REMOVAL_CLAIMED;
        self.register_drop(queue, known, QueuePresence::Dropping { removed_until }, DROP).await
    }

    /// Begins to remove the messages of a dropped queue; none if this process does so already.
    fn begin_removal(
        self: Arc<Self>,
        queue: QueueId,
        known: RegisteredQueue,
    ) -> Option<tokio::sync::oneshot::Receiver<Result<(), StoreError>>> {
        if !self.removals.lock().insert(queue) {
            return None;
        }
        let running = Running { queues: Arc::clone(&self), queue };
        Some(self.begin(|this| async move {
            let removed = this.remove_queue(queue, known).await;
            drop(running);
            removed.inspect_err(|error| {
                if error.kind == StoreErrorKind::Closed {
                    tracing::debug!(%queue, "{GOES_ON}");
                } else {
                    tracing::warn!(%queue, %error, "{GOES_ON}");
                }
            })
        }))
    }

    async fn remove_queue(&self, queue: QueueId, known: RegisteredQueue) -> Result<(), StoreError> {
        let mut claimed = self.clock.elapsed();
        for number in 0..known.shards {
            while self.remove_some(ShardId { queue, number }, RemovedData::Shard, DROP).await? == RemovalStep::More {
                if self.clock.elapsed().saturating_sub(claimed) >= REDIS_REMOVAL_CLAIMED_EVERY {
                    claimed = self.clock.elapsed();
                    self.claim(queue, known).await?;
                }
            }
        }
        self.register_drop(queue, known, QueuePresence::Dropped, DROP).await
    }

    /// Goes on with removals that no server does any more. They run by themselves.
    pub async fn resume_removals(self: &Arc<Self>) {
        if let Err(error) = self.resume_unclaimed().await {
            tracing::debug!(%error, "cannot look for deleted queues whose messages are still there; the next look does");
        }
    }

    async fn resume_unclaimed(self: &Arc<Self>) -> Result<(), StoreError> {
        let now = self.clock().await?.now;
        for (queue, known) in self.all_registered(DROP).await? {
            if let QueuePresence::Dropping { removed_until } = known.presence
                && removed_until <= now
            {
                self.claim(queue, known).await?;
                if Arc::clone(self).begin_removal(queue, known).is_some() {
                    tracing::info!(%queue, "going on to remove the messages of a deleted queue");
                }
            }
        }
        Ok(())
    }

    /// Removes all of this data of a shard.
    pub(super) async fn remove_data(
        &self,
        shard: ShardId,
        data: RemovedData,
        op: &'static str,
    ) -> Result<(), StoreError> {
        while self.remove_some(shard, data, op).await? == RemovalStep::More {}
        Ok(())
    }

    /// Removes some of it, in one call that is short enough not to hold up others.
    async fn remove_some(
        &self,
        shard: ShardId,
        data: RemovedData,
        op: &'static str,
    ) -> Result<RemovalStep, StoreError> {
        let what: &[u8] = match data {
            RemovedData::Shard => b"0",
            RemovedData::Messages => b"1",
        };
        match self.call((shard, op), "del", vec![what.to_vec()]).await {
            Ok(WireReply::Int(0)) => Ok(RemovalStep::More),
            Ok(_) => Ok(RemovalStep::Done),
            Err(stop) => Err(stop.into_error(op)),
        }
    }
}
