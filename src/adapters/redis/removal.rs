//! The drop of a queue: its shards refuse everything at once, and its messages are removed behind that.
//!
//! A removal takes seconds for a million messages, and longer on a busy store. So a drop ends when each shard says in
//! its header that it is not there any more, and when the registry says the same of the queue. The removal goes on by
//! itself. The server that does it claims the queue for a time, again and again. If the claim ends, because that server
//! or its Redis went away, another server goes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::functions::RedisQueues;
use super::limits::{REDIS_REMOVAL_AWAITED, REDIS_REMOVAL_CLAIMED, REDIS_REMOVAL_CLAIMED_EVERY};
use super::registry::{QueuePresence, RegisteredQueue};
use super::wire::WireReply;
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_ports::{QueueTime as _, StoreError, StoreErrorKind};

/// The name of a drop in errors.
pub(super) const DROP: &str = "drop queue";

/// The text of the log for a removal that could not go on.
const GOES_ON: &str = "the messages of a deleted queue are not all removed; a server tries again within two minutes";

/// The data of a shard that are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RemovedData {
    /// The whole shard. It refuses everything from the first call on.
    Shard,
    /// The messages that a deletion left; the answers to tokens stay.
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
    /// Drops a queue: every shard refuses everything from then on. Then waits for the removal of its messages, for
    /// `REDIS_REMOVAL_AWAITED` at most. If the removal fails, a later one goes on.
    pub(super) async fn drop_now(self: Arc<Self>, queue: QueueId) -> Result<(), StoreError> {
        let registered = self.registered(queue, DROP).await?;
        self.forget_queue(queue); // if the store has lost it, it is given up
        let Some(known) = registered.filter(|known| known.presence != QueuePresence::Dropped) else { return Ok(()) };
        // First, so that a server goes on if this one ends in between.
        self.claim(queue, known).await;
        // A server that has not heard of the drop acknowledges nothing that is removed later.
        self.bury(queue, known).await?;
        if let Some(removal) = self.begin_removal(queue, known) {
            tokio::select! {
                _ended = removal => {}
                () = self.clock.sleep(REDIS_REMOVAL_AWAITED) => {}
            }
        }
        Ok(())
    }

    /// Makes every shard refuse everything.
    async fn bury(&self, queue: QueueId, known: RegisteredQueue) -> Result<(), StoreError> {
        for number in 0..known.shards {
            self.remove_some(ShardId { queue, number }, RemovedData::Shard, DROP).await?;
        }
        Ok(())
    }

    /// Says that this process removes the messages of a queue. A full Redis refuses that, and the removal makes room in
    /// it. So it goes on without a claim.
    async fn claim(&self, queue: QueueId, known: RegisteredQueue) {
        let claimed = async {
            let removed_until = self.clock().await?.now + REDIS_REMOVAL_CLAIMED;
            self.register_drop(queue, known, QueuePresence::Dropping { removed_until }, DROP).await
        };
        if let Err(error) = claimed.await {
            tracing::debug!(%queue, %error, "the removal of a deleted queue has no claim");
        }
    }

    /// Begins to remove the messages of a dropped queue; none if this process does so already.
    fn begin_removal(self: &Arc<Self>, queue: QueueId, known: RegisteredQueue) -> Option<oneshot::Receiver<()>> {
        if !self.removals.lock().insert(queue) {
            return None;
        }
        let running = Running { queues: Arc::clone(self), queue };
        Some(self.begin(|this| async move {
            let removed = this.remove_queue(queue, known).await;
            drop(running);
            match removed {
                Ok(()) => {}
                Err(error) if error.kind == StoreErrorKind::Closed => tracing::debug!(%queue, "{GOES_ON}"),
                Err(error) => tracing::warn!(%queue, %error, "{GOES_ON}"),
            }
        }))
    }

    async fn remove_queue(&self, queue: QueueId, known: RegisteredQueue) -> Result<(), StoreError> {
        let _turn = self.removal_turns.acquire().await;
        self.claim(queue, known).await;
        let mut claimed = self.clock.elapsed();
        // A server that ended may have claimed the queue only.
        let mut failure = self.bury(queue, known).await.err();
        // A node that came back with older data has a shard again. So all shards have to be gone in one pass.
        loop {
            let mut rest = RemovalStep::Done;
            for number in 0..known.shards {
                match self.remove_shard(ShardId { queue, number }, known, &mut claimed).await {
                    Ok(RemovalStep::Done) => {}
                    Ok(RemovalStep::More) => rest = RemovalStep::More,
                    Err(error) => failure = failure.or(Some(error)), // other shards may have nodes that answer
                }
            }
            match failure {
                Some(error) => return Err(error),
                None if rest == RemovalStep::Done => break,
                None => {}
            }
        }
        self.register_drop(queue, known, QueuePresence::Dropped, DROP).await
    }

    /// Removes a shard; `More` if there was something left of it.
    async fn remove_shard(
        &self,
        shard: ShardId,
        known: RegisteredQueue,
        claimed: &mut Duration,
    ) -> Result<RemovalStep, StoreError> {
        let first = self.remove_some(shard, RemovedData::Shard, DROP).await?;
        let mut step = first;
        while step == RemovalStep::More {
            if self.clock.elapsed().saturating_sub(*claimed) >= REDIS_REMOVAL_CLAIMED_EVERY {
                *claimed = self.clock.elapsed();
                self.claim(shard.queue, known).await;
            }
            step = self.remove_some(shard, RemovedData::Shard, DROP).await?;
        }
        Ok(first)
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
                && self.begin_removal(queue, known).is_some()
            {
                tracing::info!(%queue, "going on to remove the messages of a deleted queue");
            }
        }
        Ok(())
    }

    /// Removes what the deletion of a shard left.
    pub(super) async fn remove_messages(&self, shard: ShardId, op: &'static str) -> Result<(), StoreError> {
        while self.remove_some(shard, RemovedData::Messages, op).await? == RemovalStep::More {}
        Ok(())
    }

    /// Removes some of this data of a shard, in one call that is short enough not to hold up others.
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
