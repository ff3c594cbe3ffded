//! The parts of a served queue that the history needs: its shards, its present messages, and the rows that are not in
//! the history yet.

use std::sync::Arc;

use crate::queues::error::QueueError;
use crate::queues::inspect::InspectService;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::limits::{OUTBOX_PAGE_ROWS_MAX, TRACE_OUTBOX_ROWS_MAX};
use tallystone_domain::queue::messages::message::{MessageKey, MessageRef};
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, QueueName, ShardId};

/// A queue whose history is read.
#[derive(Clone)]
pub struct HistorySource {
    inspect: InspectService,
    queue: Arc<ServedQueue>,
    pub id: QueueId,
    pub shards: u32,
    /// The metadata keys by whose values the queue counts.
    pub counted_keys: Vec<Box<str>>,
}

/// A message that is in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PresentMessage {
    pub key: MessageKey,
    pub version: u64,
}

/// The newest rows of a shard.
#[derive(Clone, Debug)]
pub struct RecentRows {
    pub rows: Vec<HistoryRow>,
    /// The position up to which the rows are complete.
    pub through: RowPosition,
}

impl InspectService {
    /// A queue that holds messages, as the source of its history.
    pub async fn history_source(&self, name: &QueueName) -> Result<HistorySource, QueueError> {
        let queue = self.catalog.queue(name).await?;
        let record = queue.record.load();
        let (id, shards, counted_keys) = (record.id, queue.shards(), record.spec.settings.count_by.clone());
        drop(record);
        Ok(HistorySource { inspect: self.clone(), queue, id, shards, counted_keys })
    }
}

impl HistorySource {
    /// The message in the queue, if it is there. For an id every shard may be asked.
    pub async fn present(&self, message: &MessageRef) -> Result<Option<PresentMessage>, QueueError> {
        if let MessageRef::Key(key) = message
            && key.shard >= self.shards
        {
            return Ok(None);
        }
        let shard = self.inspect.context.shard_of(&self.queue, message).await?;
        let context = &self.inspect.context;
        let found = context.stores.reader.get(self.queue.shard(shard).id, message.clone()).await;
        let found = found.map_err(|error| context.translate_store_error(&self.queue, error))?;
        Ok(found.map(|(message, _)| PresentMessage { key: message.head.key, version: message.head.version }))
    }

    /// The rows of a shard after a position that are in its outbox, at most `TRACE_OUTBOX_ROWS_MAX`, rounded up to
    /// whole pages.
    pub async fn recent(&self, shard: u32, after: RowPosition) -> Result<RecentRows, QueueError> {
        let context = &self.inspect.context;
        let id = ShardId { queue: self.id, number: shard };
        let mut recent = RecentRows { rows: Vec::new(), through: after };
        while recent.rows.len() < TRACE_OUTBOX_ROWS_MAX {
            let read = context.stores.outbox.outbox(id, recent.through, OUTBOX_PAGE_ROWS_MAX).await;
            let page = read.map_err(|error| context.translate_store_error(&self.queue, error))?;
            let is_end = page.rows.len() < OUTBOX_PAGE_ROWS_MAX || page.through <= recent.through;
            recent.rows.extend(page.rows);
            recent.through = recent.through.max(page.through);
            if is_end {
                break;
            }
        }
        Ok(recent)
    }
}
