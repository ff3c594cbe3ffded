//! Lists the open sessions: their labels, when they were last heard from, and how many leases they hold.
//!
//! The id of a session is the secret of its worker and is not shown; its alias is the same wherever it is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::domain::Timestamp;
use crate::domain::limits::SESSION_SHARDS_AT_ONCE_MAX;
use crate::domain::queue::messages::message::SessionId;
use crate::domain::queue::{QueueName, ShardId};
use crate::engine::queues::Queues;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::session_registry::{ListedSession, shown_label};

/// An open session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveSession {
    pub alias: String,
    /// Its label; empty if it has none, or was opened before the server started.
    pub label: Box<str>,
    /// When it was opened.
    pub opened: Timestamp,
    /// When it was last heard from.
    pub last_heard_at: Timestamp,
    /// How long it lives after each of its calls.
    pub lease: Duration,
    /// The remaining lifetime without another call.
    pub expires_in: Duration,
    /// The leases that it holds; within one queue if the list is of a queue.
    pub leases: u64,
}

impl Queues {
    /// Lists the open sessions after a position, in the order of their registration. With a queue, lists only those
    /// that may hold leases there. Also returns where the next page begins, if there is more.
    pub async fn list_sessions(
        &self,
        queue: Option<&QueueName>,
        after: u64,
        rows: usize,
    ) -> Result<(Vec<LiveSession>, Option<u64>), QueueError> {
        let of = queue.map(|name| self.context.queue(name)).transpose()?.map(|queue| queue.record.load().id);
        let (wall, now) = (self.context.engine.now(), self.context.engine.clock.elapsed());
        let (listed, next) = self.context.sessions.list(after, rows, of, now);
        let held = self.leases_held(&listed).await?;
        let shown = listed.into_iter().map(|one| LiveSession {
            alias: self.context.session_alias(one.id),
            label: shown_label(&one.label).into(),
            opened: one.id.opened(),
            last_heard_at: wall - now.saturating_sub(one.last_heard_at),
            lease: one.lease,
            expires_in: (one.last_heard_at + one.lease).saturating_sub(now),
            leases: held.get(&one.id).copied().unwrap_or(0),
        });
        Ok((shown.collect(), next))
    }

    /// The number of leases of sessions; asks each shard once.
    async fn leases_held(&self, listed: &[ListedSession]) -> Result<BTreeMap<SessionId, u64>, QueueError> {
        let mut by_shard: BTreeMap<ShardId, Vec<SessionId>> = BTreeMap::new();
        for one in listed {
            one.shards.iter().for_each(|shard| by_shard.entry(*shard).or_default().push(one.id));
        }
        // The leases of a deleted queue are gone with it.
        by_shard.retain(|shard, _| self.context.by_id(shard.queue).is_some());
        let reads = stream::iter(by_shard)
            .map(async |(shard, ids)| (self.context.stores.reader.leases_of(shard, ids.clone()).await, ids, shard));
        let mut reads = std::pin::pin!(reads.buffer_unordered(SESSION_SHARDS_AT_ONCE_MAX));
        let mut held = BTreeMap::new();
        while let Some((counts, ids, shard)) = reads.next().await {
            let counts = match (counts, self.context.by_id(shard.queue)) {
                (Ok(counts), _) => counts,
                (Err(error), Some(queue)) => return Err(self.context.translate_store_error(&queue, error)),
                (Err(_gone), None) => continue,
            };
            for (id, count) in ids.into_iter().zip(counts) {
                *held.entry(id).or_insert(0) += count as u64;
            }
        }
        Ok(held)
    }
}
