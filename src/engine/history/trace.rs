//! The trace of a message: its lives, the newest first, page by page.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use crate::history::{HistoryExtent, HistoryReader, shards_of};
use crate::queues::{HistorySource, PresentMessage, QueueError, RecentRows};
use tallystone_domain::history::HistoryGap;
use tallystone_domain::history::trace::{LaterEpochs, LifeCursor, LifeFacts, LifePage, LifeRows, assemble};
use tallystone_domain::limits::{TRACE_EPOCHS_MAX, TRACE_LIVES_MAX};
use tallystone_domain::queue::messages::message::{MessageKey, MessageRef};
use tallystone_domain::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueName, ShardId};
use tallystone_domain::time::Timestamp;

/// The place at which the next page of a trace begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceCursor {
    pub life: MessageKey,
    pub at: LifeCursor,
}

/// A page of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageTrace {
    /// The lives, the newest first.
    pub lives: Vec<TracedLife>,
    pub extent: HistoryExtent,
    /// The place at which the next page begins; none after the last.
    pub next: Option<TraceCursor>,
}

/// The part of a life that is on a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedLife {
    pub key: MessageKey,
    /// The message as it was enqueued, and when; none if that row is missing.
    pub enqueued: Option<(Box<EnqueuedMessage>, Timestamp)>,
    pub page: LifePage,
    /// Whether no row is missing up to the end of this page.
    pub is_complete: bool,
}

/// The facts about a life that are known before its rows are read.
struct LifeContext<'a> {
    source: &'a HistorySource,
    key: MessageKey,
    /// Its version in the queue, if it is there.
    version: Option<u64>,
    /// The rows of its shard that the history may not have yet.
    recent: &'a RecentRows,
    gaps: &'a [HistoryGap],
}

impl HistoryReader {
    /// Reads at most `limit` rows of the lives of a message. Cost: O(rows), and the rows that wait for the history.
    pub async fn trace(
        &self,
        name: &QueueName,
        message: &MessageRef,
        from: Option<TraceCursor>,
        limit: usize,
    ) -> Result<MessageTrace, QueueError> {
        let source = self.queues.inspect.history_source(name).await?;
        let mut keys = self.lives(&source, message).await?;
        if let Some(from) = from {
            let start = keys.iter().position(|key| *key == from.life).unwrap_or(keys.len());
            keys.drain(..start);
        }
        // The queue first, then the outboxes, then the history: each read knows all that the one before it knew.
        let present = try_join_all(keys.iter().map(|key| self.present(&source, *key))).await?;
        let recent = self.recent(&source, &keys).await?;
        let extent = self.extent(shards_of(&source)).await?;
        let (mut lives, mut left, mut next) = (Vec::new(), limit, None);
        for (at, key) in keys.iter().enumerate() {
            let cursor = from.filter(|from| from.life == *key).map(|from| from.at).unwrap_or_default();
            if left == 0 {
                next = Some(TraceCursor { life: *key, at: cursor });
                break;
            }
            let (version, recent) = (present[at].map(|present| present.version), &recent[&key.shard]);
            let known = LifeContext { source: &source, key: *key, version, recent, gaps: &extent.gaps };
            let life = self.life(&known, cursor, left).await?;
            left = left.saturating_sub(life.page.rows.len());
            next = life.page.next.map(|at| TraceCursor { life: *key, at });
            if !life.page.rows.is_empty() {
                lives.push(life);
            }
            if next.is_some() {
                break;
            }
        }
        Ok(MessageTrace { lives, extent, next })
    }

    /// The keys of the lives of a message, the newest first. The one that is in the queue may not be in the history
    /// yet.
    async fn lives(&self, source: &HistorySource, message: &MessageRef) -> Result<Vec<MessageKey>, QueueError> {
        let id = match message {
            MessageRef::Key(key) if key.shard < source.shards => return Ok(vec![*key]),
            MessageRef::Key(_) => return Ok(Vec::new()),
            MessageRef::Id(id, _) => id,
        };
        let present = source.present(message).await?;
        let mut keys = self.store.lives(source.id, id, TRACE_LIVES_MAX).await?;
        keys.retain(|key| key.shard < source.shards);
        if let Some(present) = present.filter(|present| !keys.contains(&present.key)) {
            keys.insert(0, present.key);
            keys.truncate(TRACE_LIVES_MAX);
        }
        Ok(keys)
    }

    async fn present(&self, source: &HistorySource, key: MessageKey) -> Result<Option<PresentMessage>, QueueError> {
        source.present(&MessageRef::Key(key)).await
    }

    /// The rows of these messages' shards that the history may not have yet.
    async fn recent(
        &self,
        source: &HistorySource,
        keys: &[MessageKey],
    ) -> Result<BTreeMap<u32, RecentRows>, QueueError> {
        let mut recent = BTreeMap::new();
        for key in keys {
            if recent.contains_key(&key.shard) {
                continue;
            }
            let cursor = self.store.cursor(ShardId { queue: source.id, number: key.shard }).await?;
            let mut rows = source.recent(key.shard, cursor.map(|cursor| cursor.position).unwrap_or_default()).await?;
            rows.rows.retain(|row| keys.contains(&row.transition.key));
            recent.insert(key.shard, rows);
        }
        Ok(recent)
    }

    async fn life(&self, known: &LifeContext<'_>, from: LifeCursor, limit: usize) -> Result<TracedLife, QueueError> {
        let mut rows = self.rows_after(known, from.after, limit + 1).await?;
        let next = (rows.len() > limit).then(|| rows.pop()).flatten();
        let lease = match from.lease {
            Some(lease) => self.row_at(known, lease.row).await?,
            None => None,
        };
        let first = match from.after {
            Some(_) => self.rows_after(known, None, 1).await?.pop(),
            None => rows.first().cloned(),
        };
        let later = self.later_epochs(known, &rows, next.as_ref()).await?;
        let page = assemble(LifeRows { rows: &rows, next: next.as_ref(), lease: lease.as_ref(), from }, &later);
        let is_complete = page.is_complete(LifeFacts { version: known.version, gaps: known.gaps });
        let enqueued = first.and_then(|row| row.enqueued.zip(Some(row.transition.at)));
        Ok(TracedLife { key: known.key, enqueued, page, is_complete })
    }

    /// The rows of a life after a position, at most `limit`, of the history and of the outbox.
    async fn rows_after(
        &self,
        known: &LifeContext<'_>,
        after: Option<RowPosition>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, QueueError> {
        let mut rows = self.store.trace(known.source.id, known.key, after, limit).await?;
        let own = known.recent.rows.iter().filter(|row| row.transition.key == known.key);
        rows.extend(own.filter(|row| Some(row.position()) > after).cloned());
        rows.sort_by_key(HistoryRow::position);
        rows.dedup_by_key(|row| row.position());
        rows.truncate(limit);
        Ok(rows)
    }

    async fn row_at(&self, known: &LifeContext<'_>, place: RowPosition) -> Result<Option<HistoryRow>, QueueError> {
        let before = RowPosition { position: place.position.saturating_sub(1), ..place };
        let row = self.rows_after(known, Some(before), 1).await?.pop();
        Ok(row.filter(|row| row.position() == place))
    }

    /// Reads the facts that are known about the epochs after the first one of these rows.
    async fn later_epochs(
        &self,
        known: &LifeContext<'_>,
        rows: &[HistoryRow],
        next: Option<&HistoryRow>,
    ) -> Result<LaterEpochs, QueueError> {
        let mut later =
            LaterEpochs { first_rows: Vec::new(), shard: Some(known.recent.through), version: known.version };
        let Some(first) = rows.first() else { return Ok(later) };
        let mut epoch = first.position().epoch;
        if next.is_none() && rows.last().is_some_and(|last| last.position().epoch == epoch) {
            return Ok(later);
        }
        while later.first_rows.len() < TRACE_EPOCHS_MAX {
            let end = RowPosition { epoch, position: u64::MAX };
            let Some(row) = self.rows_after(known, Some(end), 1).await?.pop() else { break };
            epoch = row.position().epoch;
            later.first_rows.push(row.transition);
        }
        Ok(later)
    }
}
