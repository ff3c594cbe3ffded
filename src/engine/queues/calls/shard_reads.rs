//! Reads of shards for several services: totals, and the shard of a message.
//!
//! A read of totals first applies the due sweeps of the shards, so that it counts no expired window or lease.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::queues::error::QueueError;
use crate::queues::state::context::QueueContext;
use crate::queues::state::depth::Depth;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::limits::BULK_MESSAGES_MAX;
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::shard::UndeclaredFilter;
use tallystone_domain::queue::shard_routing::shard_of;
use tallystone_domain::queue::totals::Total;
use tallystone_domain::queue::{Command, MessageState};
use tallystone_ports::ShardCommand;

/// The most sweeps of one shard that a read waits for; the sweeper does the rest.
const SWEEPS_BEFORE_A_LOOK: usize = 4;

impl QueueContext {
    /// Counts the messages that match a filter with a declared shape; their bytes are not known.
    pub async fn filtered_depth(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        filter: Filter,
    ) -> Result<Depth, QueueError> {
        self.sweep_all_due_shards(queue).await?;
        let mut depth = Depth::default();
        let reader = &self.stores.reader;
        let reads = (0..queue.shards()).map(|number| reader.depth(queue.shard(number).id, filter.clone()));
        for read in join_all(reads).await {
            let counts = read.map_err(|error| self.translate_store_error(queue, error))?;
            let counts = counts.map_err(|UndeclaredFilter { nearest, is_filling }| QueueError::FilterNotDeclared {
                nearest,
                is_filling,
            })?;
            depth.by_shard.push(counts.map(|messages| Total { messages, bytes: 0 }));
        }
        Ok(depth)
    }

    /// Counts the messages of a queue, from the totals of the store.
    pub async fn depth_of(self: &Arc<Self>, queue: &Arc<ServedQueue>) -> Result<Depth, QueueError> {
        self.sweep_all_due_shards(queue).await?;
        let mut depth = Depth::default();
        let reads = (0..queue.shards()).map(|number| self.stores.reader.totals(queue.shard(number).id));
        for read in join_all(reads).await {
            let read = read.map_err(|error| self.translate_store_error(queue, error))?;
            depth.by_shard.push(MessageState::ALL.map(|state| read.totals.of(state)));
        }
        Ok(depth)
    }

    /// Applies the due sweeps of all shards, up to a bound.
    pub async fn sweep_all_due_shards(self: &Arc<Self>, queue: &Arc<ServedQueue>) -> Result<(), QueueError> {
        let overdue = queue.overdue(self.elapsed());
        self.sweep_due_shards(queue, &overdue).await
    }

    /// Applies the due sweeps of shards, up to a bound.
    pub async fn sweep_due_shards(
        self: &Arc<Self>,
        queue: &Arc<ServedQueue>,
        shards: &[u32],
    ) -> Result<(), QueueError> {
        for _ in 0..SWEEPS_BEFORE_A_LOOK {
            let mut overdue = queue.overdue(self.elapsed());
            overdue.retain(|shard| shards.contains(shard));
            if overdue.is_empty() {
                return Ok(());
            }
            for shard in overdue {
                let sweep = Command::Sweep { max: BULK_MESSAGES_MAX };
                self.call(queue, shard, ShardCommand::of(sweep)).await?;
            }
        }
        Ok(())
    }

    /// The shard of a message: that of its key, else that of its routing value, else that of its id. If the shard of
    /// the id does not have the message, the other shards are asked. For a message that no shard has, the shard of the
    /// id.
    pub async fn shard_of(self: &Arc<Self>, queue: &ServedQueue, message: &MessageRef) -> Result<u32, QueueError> {
        let id = match message {
            MessageRef::Key(key) if key.shard < queue.shards() => return Ok(key.shard),
            MessageRef::Key(_) => return Err(Refusal::NotFound.into()),
            MessageRef::Id(_, Some(routing)) => return Ok(shard_of(queue.shards(), routing.as_str())),
            MessageRef::Id(id, None) => id,
        };
        let own = shard_of(queue.shards(), &id.text());
        if queue.shards() == 1 || self.shard_has(queue, own, message).await? {
            return Ok(own);
        }
        let others: Vec<u32> = (0..queue.shards()).filter(|number| *number != own).collect();
        let looks = join_all(others.iter().map(|number| self.shard_has(queue, *number, message))).await;
        for (number, has) in others.into_iter().zip(looks) {
            if has? {
                return Ok(number);
            }
        }
        Ok(own)
    }

    async fn shard_has(
        self: &Arc<Self>,
        queue: &ServedQueue,
        number: u32,
        message: &MessageRef,
    ) -> Result<bool, QueueError> {
        let found = self.stores.reader.get(queue.shard(number).id, message.clone()).await;
        Ok(found.map_err(|error| self.translate_store_error(queue, error))?.is_some())
    }
}
