//! The history of messages in ordered maps, all of it read for every search: the oracle.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::codec::queues::history::encode_row;
use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryBatch, HistoryStore, HistoryUsage, QueueShards, StoreError};

/// The history of all queues. Rows leave by age only.
#[derive(Default)]
pub struct MemoryHistory {
    state: Mutex<MemoryHistoryState>,
}

#[derive(Default)]
struct MemoryHistoryState {
    rows: BTreeMap<(ShardId, RowPosition), HistoryRow>,
    gaps: BTreeSet<(QueueId, HistoryGap)>,
    cursors: BTreeMap<ShardId, HistoryCursor>,
    starts_at: Option<Timestamp>,
    usage: HistoryUsage,
}

impl MemoryHistoryState {
    /// The rows of a queue, by shard and position.
    fn rows_of(&self, queue: QueueId) -> impl DoubleEndedIterator<Item = (ShardId, &HistoryRow)> {
        let first = (ShardId { queue, number: 0 }, RowPosition::default());
        let last = (ShardId { queue, number: u32::MAX }, RowPosition { epoch: u32::MAX, position: u64::MAX });
        self.rows.range(first..=last).map(|((shard, _), row)| (*shard, row))
    }

    /// The rows of a message, in the order of their positions.
    fn rows_of_message(&self, queue: QueueId, message: MessageKey) -> impl DoubleEndedIterator<Item = &HistoryRow> {
        self.rows_of(queue).map(|(_, row)| row).filter(move |row| row.transition.key == message)
    }

    fn write(&mut self, batch: HistoryBatch) {
        let HistoryBatch { shard, rows, gaps, cursor } = batch;
        for row in rows {
            self.usage.rows_written += 1;
            self.usage.row_bytes_written += encode_row(&row).len() as u64;
            self.rows.entry((shard, row.position())).or_insert(row);
        }
        self.gaps.extend(gaps.into_iter().map(|gap| (shard.queue, gap)));
        if self.cursors.get(&shard).is_none_or(|known| known.position < cursor.position) {
            self.cursors.insert(shard, cursor);
        }
    }
}

fn found(shard: ShardId, row: &HistoryRow) -> HistoryHit {
    let (at, message) = (row.transition.at, row.transition.key);
    HistoryHit { at, shard: shard.number, position: row.position(), message }
}

#[async_trait]
impl HistoryStore for MemoryHistory {
    async fn append(&self, batches: Vec<HistoryBatch>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        batches.into_iter().for_each(|batch| state.write(batch));
        Ok(())
    }

    async fn cursor(&self, shard: ShardId) -> Result<Option<HistoryCursor>, StoreError> {
        Ok(self.state.lock().cursors.get(&shard).cloned())
    }

    async fn trace(
        &self,
        queue: QueueId,
        message: MessageKey,
        after: Option<RowPosition>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, StoreError> {
        let state = self.state.lock();
        let rows = state.rows_of_message(queue, message).filter(|row| Some(row.position()) > after);
        Ok(rows.take(limit).cloned().collect())
    }

    async fn last(&self, queue: QueueId, messages: Vec<MessageKey>) -> Result<Vec<Option<HistoryRow>>, StoreError> {
        let state = self.state.lock();
        Ok(messages.into_iter().map(|message| state.rows_of_message(queue, message).next_back().cloned()).collect())
    }

    async fn lives(&self, queue: QueueId, id: &MessageId, limit: usize) -> Result<Vec<MessageKey>, StoreError> {
        let state = self.state.lock();
        let is_enqueue = |row: &HistoryRow| row.enqueued.as_ref().is_some_and(|message| message.id == *id);
        let enqueues = state.rows_of(queue).filter(|(_, row)| is_enqueue(row));
        let mut enqueues: Vec<HistoryHit> = enqueues.map(|(shard, row)| found(shard, row)).collect();
        enqueues.sort_unstable();
        let mut lives = Vec::new();
        for HistoryHit { message, .. } in enqueues.into_iter().rev() {
            if lives.len() < limit && !lives.contains(&message) {
                lives.push(message);
            }
        }
        Ok(lives)
    }

    async fn find(
        &self,
        queue: QueueShards,
        term: &HistoryTerm,
        before: Option<HistoryHit>,
        limit: usize,
    ) -> Result<Vec<HistoryHit>, StoreError> {
        let state = self.state.lock();
        let has_term = |row: &HistoryRow| HistoryTerm::of(row).contains(term);
        let rows = state.rows_of(queue.queue).filter(|(_, row)| has_term(row));
        let rows = rows.map(|(shard, row)| found(shard, row));
        let mut rows: Vec<HistoryHit> = rows.filter(|row| before.is_none_or(|before| *row < before)).collect();
        rows.sort_unstable_by(|one, other| other.cmp(one));
        rows.truncate(limit);
        Ok(rows)
    }

    async fn gaps(&self, queue: QueueShards, limit: usize) -> Result<Vec<HistoryGap>, StoreError> {
        let state = self.state.lock();
        let gaps = state.gaps.iter().filter(|(of, _)| *of == queue.queue);
        let mut gaps: Vec<HistoryGap> = gaps.map(|(_, gap)| *gap).collect();
        gaps.sort_unstable_by_key(|gap| (std::cmp::Reverse(gap.to_time), *gap));
        gaps.truncate(limit);
        Ok(gaps)
    }

    async fn starts_at(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.state.lock().starts_at)
    }

    async fn trim(&self, before: Timestamp) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let held = state.rows.len() + state.gaps.len();
        state.rows.retain(|_, row| row.transition.at >= before);
        state.gaps.retain(|(_, gap)| gap.to_time >= before);
        if state.rows.len() + state.gaps.len() < held {
            state.starts_at = state.starts_at.max(Some(before));
        }
        Ok(())
    }

    fn usage(&self) -> HistoryUsage {
        self.state.lock().usage
    }
}
