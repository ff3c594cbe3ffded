//! Lists the open sessions: their labels, when they were last heard from, and how many leases they hold.
//!
//! The id of a session is the secret of its worker and is not shown; its alias is the same wherever it is shown. If
//! several servers share a store, the list has the sessions of all of them, as the session directory knows them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::queues::error::QueueError;
use crate::queues::inspect::InspectService;
use crate::queues::state::session_registry::{ListedSession, opened_at, shown_label};
use tallystone_domain::Timestamp;
use tallystone_domain::limits::{SESSION_ROWS_LOOKED_AT_MAX, SESSION_SHARDS_AT_ONCE_MAX};
use tallystone_domain::queue::messages::message::SessionId;
use tallystone_domain::queue::session_rows::SessionRow;
use tallystone_domain::queue::{QueueId, QueueName, ShardId};
use tallystone_ports::SessionDirectory;

/// An open session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveSession {
    pub alias: String,
    /// Its label; empty if it has none, or was opened before a server that owns its store started.
    pub label: Box<str>,
    /// When it was opened.
    pub opened: Timestamp,
    /// When it was last heard from; of a session that another server serves, up to a quarter of its lease too early.
    pub last_heard_at: Timestamp,
    /// How long it lives after each of its calls.
    pub lease: Duration,
    /// The remaining lifetime without another call.
    pub expires_in: Duration,
    /// The leases that it holds; within one queue if the list is of a queue.
    pub leases: u64,
}

impl InspectService {
    /// Lists the open sessions after a position, in the order of their registration. With a queue, lists only those
    /// that may hold leases there. Also returns where the next page begins, if there is more.
    pub async fn list_sessions(
        &self,
        queue: Option<&QueueName>,
        after: u64,
        rows: usize,
    ) -> Result<(Vec<LiveSession>, Option<u64>), QueueError> {
        let of = match queue {
            Some(name) => Some(self.catalog.queue(name).await?.record.load().id),
            None => None,
        };
        let (listed, next) = match self.context.session_directory().map(Arc::clone) {
            Some(directory) => self.list_directory(&directory, after, rows, of).await?,
            None => self.context.sessions.list(after, rows, of, self.context.elapsed()),
        };
        let held = self.leases_held(&listed).await?;
        let now = self.context.now();
        let shown = listed.into_iter().map(|one| LiveSession {
            alias: self.context.session_alias(one.id),
            label: shown_label(&one.label).into(),
            opened: opened_at(one.id),
            last_heard_at: now - one.silent_for,
            lease: one.lease,
            expires_in: one.lease.saturating_sub(one.silent_for),
            leases: held.get(&one.id).copied().unwrap_or(0),
        });
        Ok((shown.collect(), next))
    }

    /// The same of the directory. O(examined sessions), at most `SESSION_ROWS_LOOKED_AT_MAX`.
    async fn list_directory(
        &self,
        directory: &Arc<dyn SessionDirectory>,
        mut after: u64,
        rows: usize,
        of: Option<QueueId>,
    ) -> Result<(Vec<ListedSession>, Option<u64>), QueueError> {
        let (mut listed, mut looked) = (Vec::new(), 0);
        loop {
            let most = (rows - listed.len()).min(SESSION_ROWS_LOOKED_AT_MAX - looked);
            let page = directory.list(after, most).await?;
            looked += page.rows.len();
            listed.extend(page.rows.into_iter().filter_map(|row| self.live_row(row, page.at, of)));
            match page.next {
                Some(next) if listed.len() < rows && looked < SESSION_ROWS_LOOKED_AT_MAX => after = next,
                next => return Ok((listed, next)),
            }
        }
    }

    /// A row of the directory that has not ended, for one queue if it may hold leases there.
    fn live_row(&self, mut row: SessionRow, at: Timestamp, of: Option<QueueId>) -> Option<ListedSession> {
        row.check_alive(at).ok()?;
        let shards: Vec<ShardId> =
            row.shards.into_iter().filter(|shard| of.is_none_or(|queue| shard.queue == queue)).collect();
        if of.is_some() && shards.is_empty() {
            return None;
        }
        // This server may have heard of it later than the directory did.
        let here = self.context.sessions.silent_for(row.id, self.context.elapsed());
        let silent_for = at.since(row.heard).min(here.unwrap_or(Duration::MAX));
        Some(ListedSession { id: row.id, label: row.label, lease: row.lease, silent_for, shards })
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
