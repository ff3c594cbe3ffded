//! The history of messages: tables by message, by id and by term, with a cursor for each shard.
//!
//! A row is written to all tables before the cursor passes it. Every table row and its cell timestamp follow from the
//! recorded row alone (`keys`). So repeats write equal cells: a clock that steps back cannot hide a row behind an older
//! one. Rows expire by a TTL that does not depend on their times either. It exceeds the retention by what clocks may
//! err.

mod append;
mod kept;
mod keys;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::OnceCell;

use crate::history::append::{HistoryWriter, WrittenRows};
use crate::history::kept::{KeptSince, ttl_of};
use crate::history::keys::{message_from, position_from, stored_id, stored_message, stored_position, stored_queue};
use crate::limits::{FOUND_PAGE_ROWS_MAX, PARTITION_READS_AT_ONCE_MAX, TRACE_PAGE_ROWS_MAX};
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use tallystone_adapters::codec::queues::history::decode_row;
use tallystone_domain::history::{HistoryCursor, HistoryGap, HistoryHit, HistoryTerm};
use tallystone_domain::queue::messages::message::MessageKey;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::queue::{QueueId, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{HistoryBatch, HistoryStore, HistoryUsage, QueueShards, StoreError};

/// The history in a keyspace.
pub struct CqlHistory {
    requests: Arc<RequestRunner>,
    retention: Duration,
    writer: HistoryWriter,
    /// Whether the retention is recorded.
    is_recorded: OnceCell<()>,
    rows_written: AtomicU64,
    row_bytes_written: AtomicU64,
}

/// A row of `history_gaps`: last time, epoch, first and last position, first time.
type GapRow = (i64, i64, i64, i64, i64);

/// A row of `history_ids`: time, shard, position, message.
type LifeRow = (i64, i64, i64, i64, i64, i64);

impl CqlHistory {
    /// Rows written from now on are kept for `retention`.
    pub fn new(requests: Arc<RequestRunner>, retention: Duration) -> Self {
        Self {
            requests,
            retention,
            writer: HistoryWriter::new(ttl_of(retention)),
            is_recorded: OnceCell::new(),
            rows_written: AtomicU64::new(0),
            row_bytes_written: AtomicU64::new(0),
        }
    }

    /// Records for how long rows are kept from now on, before the first one is written.
    async fn record_retention(&self) -> Result<(), StoreError> {
        let newest = self.kept().await?.into_iter().max();
        if newest.is_some_and(|newest| newest.retention == self.retention) {
            return Ok(());
        }
        let seconds = i64::try_from(self.retention.as_secs()).unwrap_or(i64::MAX);
        // After the newest, even if the clock stepped back.
        let since = newest.map_or(i64::MIN, |newest| newest.since.micros().saturating_add(1));
        let values = (self.requests.now().micros().max(since), seconds);
        let statement = self.requests.statement("insert_history_kept");
        self.requests.write("record retention of history", statement, values).await
    }

    async fn kept(&self) -> Result<Vec<KeptSince>, StoreError> {
        const OP: &str = "read retention of history";
        let statement = self.requests.statement("list_history_kept");
        let rows: Vec<(i64, Option<i64>)> = self.requests.rows(OP, statement, ()).await?;
        let kept = rows.into_iter().map(|(since, seconds)| {
            let seconds = u64::try_from(seconds.unwrap_or(0)).unwrap_or(0);
            KeptSince { since: Timestamp::from_micros(since), retention: Duration::from_secs(seconds) }
        });
        Ok(kept.collect())
    }

    /// Reads one page of rows of a message above a position.
    async fn read_trace(
        &self,
        queue: QueueId,
        message: MessageKey,
        after: (i64, i64),
        limit: usize,
    ) -> Result<Vec<HistoryRow>, StoreError> {
        const OP: &str = "read trace";
        let (epoch, sequence) = stored_message(message);
        let most = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (stored_queue(queue), i64::from(message.shard), epoch, sequence, after.0, after.1, most);
        let rows: Vec<(Option<Vec<u8>>,)> =
            self.requests.rows(OP, self.requests.statement("read_trace"), values).await?;
        rows.into_iter().map(|(row,)| recorded(message, row, OP)).collect()
    }

    async fn read_last(&self, queue: QueueId, message: MessageKey) -> Result<Option<HistoryRow>, StoreError> {
        const OP: &str = "read last row of history";
        let (epoch, sequence) = stored_message(message);
        let values = (stored_queue(queue), i64::from(message.shard), epoch, sequence);
        let statement = self.requests.statement("last_history_row");
        let row: Option<(Option<Vec<u8>>,)> = self.requests.first_row(OP, statement, values).await?;
        row.map(|(row,)| recorded(message, row, OP)).transpose()
    }

    /// Reads the newest gaps of one shard.
    async fn read_gaps(&self, queue: QueueId, shard: u32, limit: usize) -> Result<Vec<HistoryGap>, StoreError> {
        const OP: &str = "read gaps of history";
        let statement = self.requests.statement("list_gaps");
        let (queue, number) = (stored_queue(queue), i64::from(shard));
        let mut after = (i64::MAX, i64::MAX, i64::MAX, i64::MAX, i64::MAX);
        let mut gaps = Vec::new();
        while gaps.len() < limit {
            let asked = (limit - gaps.len()).min(FOUND_PAGE_ROWS_MAX);
            let most = i32::try_from(asked).unwrap_or(i32::MAX);
            let (to_time, epoch, from_position, to_position, from_time) = after;
            let values = (queue, number, to_time, epoch, from_position, to_position, from_time, most);
            let rows: Vec<GapRow> = self.requests.rows(OP, statement, values).await?;
            let is_last = rows.len() < asked;
            after = rows.last().copied().unwrap_or(after);
            for row in rows {
                gaps.push(gap_from(shard, row).ok_or_else(|| out_of_range(OP))?);
            }
            if is_last {
                break;
            }
        }
        Ok(gaps)
    }
}

fn gap_from(shard: u32, (to_time, epoch, from_position, to_position, from_time): GapRow) -> Option<HistoryGap> {
    let from = position_from(epoch, from_position)?;
    Some(HistoryGap {
        shard,
        epoch: from.epoch,
        from_position: from.position,
        to_position: position_from(epoch, to_position)?.position,
        from_time: Timestamp::from_micros(from_time),
        to_time: Timestamp::from_micros(to_time),
    })
}

fn recorded(message: MessageKey, row: Option<Vec<u8>>, op: &'static str) -> Result<HistoryRow, StoreError> {
    let row = row.ok_or_else(|| RequestFailure::corrupt("a row of history_trace has no record").during(op))?;
    decode_row(message.shard, &row).map_err(|damaged| damaged.into_store_error(op))
}

fn out_of_range(op: &'static str) -> StoreError {
    RequestFailure::corrupt("a row of the history has a number out of range").during(op)
}

#[async_trait]
impl HistoryStore for CqlHistory {
    async fn append(&self, batches: Vec<HistoryBatch>) -> Result<(), StoreError> {
        self.is_recorded.get_or_try_init(|| self.record_retention()).await?;
        let count = |written: WrittenRows| {
            self.rows_written.fetch_add(written.rows, Ordering::Relaxed);
            self.row_bytes_written.fetch_add(written.bytes, Ordering::Relaxed);
        };
        self.writer.append(&self.requests, batches, &count).await
    }

    async fn cursor(&self, shard: ShardId) -> Result<Option<HistoryCursor>, StoreError> {
        const OP: &str = "read cursor of history";
        let values = (stored_queue(shard.queue), i64::from(shard.number));
        let statement = self.requests.statement("read_history_cursor");
        let row: Option<(i64, Option<i64>, Option<Vec<u8>>)> = self.requests.first_row(OP, statement, values).await?;
        let Some((epoch, Some(position), register)) = row else { return Ok(None) };
        let position = position_from(epoch, position).ok_or_else(|| out_of_range(OP))?;
        Ok(Some(HistoryCursor { position, register: register.unwrap_or_default().into() }))
    }

    async fn trace(
        &self,
        queue: QueueId,
        message: MessageKey,
        after: Option<RowPosition>,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, StoreError> {
        let mut after = after.map_or((i64::MIN, i64::MIN), stored_position);
        let mut found = Vec::new();
        while found.len() < limit {
            let asked = (limit - found.len()).min(TRACE_PAGE_ROWS_MAX);
            let rows = self.read_trace(queue, message, after, asked).await?;
            after = rows.last().map_or(after, |last| stored_position(last.position()));
            let is_last = rows.len() < asked;
            found.extend(rows);
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    async fn last(&self, queue: QueueId, messages: Vec<MessageKey>) -> Result<Vec<Option<HistoryRow>>, StoreError> {
        let reading = messages.into_iter().map(|message| self.read_last(queue, message));
        stream::iter(reading).buffered(PARTITION_READS_AT_ONCE_MAX).try_collect().await
    }

    async fn lives(&self, queue: QueueId, id: &MessageId, limit: usize) -> Result<Vec<MessageKey>, StoreError> {
        const OP: &str = "find id in history";
        let statement = self.requests.statement("list_lives");
        let (queue, id) = (stored_queue(queue), stored_id(id));
        let mut after = (i64::MAX, i64::MAX, i64::MAX, i64::MAX);
        let (mut lives, mut known) = (Vec::new(), BTreeSet::new());
        while lives.len() < limit {
            let asked = limit.min(FOUND_PAGE_ROWS_MAX);
            let most = i32::try_from(asked).unwrap_or(i32::MAX);
            let (at, shard, epoch, position) = after;
            let values = (queue, id.as_str(), at, shard, epoch, position, most);
            let rows: Vec<LifeRow> = self.requests.rows(OP, statement, values).await?;
            let Some((at, shard, epoch, position, ..)) = rows.last().copied() else { break };
            after = (at, shard, epoch, position);
            let is_last = rows.len() < asked;
            for (_, shard, _, _, epoch, sequence) in rows {
                let shard = u32::try_from(shard).map_err(|_| out_of_range(OP))?;
                let message = message_from(shard, epoch, sequence).ok_or_else(|| out_of_range(OP))?;
                if known.insert(message) && lives.len() < limit {
                    lives.push(message);
                }
            }
            if is_last {
                break;
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
        search::find(&self.requests, queue, term, before, limit).await
    }

    async fn gaps(&self, queue: QueueShards, limit: usize) -> Result<Vec<HistoryGap>, StoreError> {
        let reading = (0..queue.shards).map(|shard| self.read_gaps(queue.queue, shard, limit));
        let mut reading = stream::iter(reading).buffer_unordered(PARTITION_READS_AT_ONCE_MAX);
        let mut gaps: Vec<HistoryGap> = Vec::new();
        while let Some(of_shard) = reading.next().await {
            gaps.extend(of_shard?);
            gaps.sort_unstable_by_key(|gap| (std::cmp::Reverse(gap.to_time), *gap));
            gaps.truncate(limit);
        }
        Ok(gaps)
    }

    async fn starts_at(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(kept::starts_at(self.kept().await?, self.requests.now()))
    }

    async fn trim(&self, _before: Timestamp) -> Result<(), StoreError> {
        // Rows expire by themselves.
        Ok(())
    }

    fn usage(&self) -> HistoryUsage {
        HistoryUsage {
            bytes: None,
            rows_written: self.rows_written.load(Ordering::Relaxed),
            row_bytes_written: self.row_bytes_written.load(Ordering::Relaxed),
        }
    }
}
