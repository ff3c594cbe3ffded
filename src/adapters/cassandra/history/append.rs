//! Appends: rows and gaps of a batch first, then its cursor. Batches of one shard go one after the other.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use quick_cache::sync::Cache;

use crate::history::keys::{FoundChunk, HistoryWrites, chunk_row, cursor_row, gap_row};
use crate::limits::{
    HISTORY_CHUNKS_REMEMBERED_MAX, HISTORY_SHARDS_AT_ONCE_MAX, HISTORY_STEP_ROWS_MAX, HISTORY_WRITES_AT_ONCE_MAX,
};
use crate::request_runner::RequestRunner;
use crate::value::CqlRow;
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::HistoryRow;
use tallystone_ports::{HistoryBatch, StoreError};

const OP: &str = "append history";

/// A partition with rows of a term: shard, term, partition.
type TermChunk = (ShardId, String, FoundChunk);

/// Rows of one partition, and the name of the statement that writes them.
struct PartitionWrite {
    statement: &'static str,
    rows: Vec<CqlRow>,
}

/// The writes of the history of this process.
pub struct HistoryWriter {
    /// Partitions that are known to be listed. They stay listed longer than their rows.
    listed: Cache<TermChunk, ()>,
    /// The lifetime of rows in seconds.
    ttl: i32,
}

/// The rows and bytes that were written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WrittenRows {
    pub rows: u64,
    pub bytes: u64,
}

impl PartitionWrite {
    fn of(statement: &'static str, rows: Vec<CqlRow>) -> Self {
        Self { statement, rows }
    }
}

impl HistoryWriter {
    /// No partition is known to be listed.
    pub fn new(ttl: i32) -> Self {
        Self { listed: Cache::new(HISTORY_CHUNKS_REMEMBERED_MAX), ttl }
    }

    /// Writes batches. All shards are written, even if one fails. `written` hears of rows as they become durable.
    pub async fn append(
        &self,
        requests: &RequestRunner,
        batches: Vec<HistoryBatch>,
        written: &(dyn Fn(WrittenRows) + Sync),
    ) -> Result<(), StoreError> {
        let mut by_shard: BTreeMap<ShardId, Vec<HistoryBatch>> = BTreeMap::new();
        for batch in batches {
            by_shard.entry(batch.shard).or_default().push(batch);
        }
        let writing = by_shard.into_values().map(|batches| self.append_shard(requests, batches, written));
        let mut writing = stream::iter(writing).buffer_unordered(HISTORY_SHARDS_AT_ONCE_MAX);
        let mut failed = Ok(());
        while let Some(ended) = writing.next().await {
            failed = failed.and(ended);
        }
        failed
    }

    /// Writes batches of one shard in their order, so that no cursor is written before rows below it.
    async fn append_shard(
        &self,
        requests: &RequestRunner,
        batches: Vec<HistoryBatch>,
        written: &(dyn Fn(WrittenRows) + Sync),
    ) -> Result<(), StoreError> {
        for HistoryBatch { shard, rows, gaps, cursor } in batches {
            for rows in rows.chunks(HISTORY_STEP_ROWS_MAX) {
                written(self.write_rows(requests, shard, rows).await?);
            }
            for gaps in gaps.chunks(HISTORY_STEP_ROWS_MAX) {
                let row = |gap: &_| PartitionWrite::of("insert_gap", vec![gap_row(shard.queue, *gap, self.ttl)]);
                write_all(requests, gaps.iter().map(row).collect()).await?;
            }
            let statement = requests.statement("set_history_cursor");
            requests.write_rows(OP, statement, vec![cursor_row(shard, &cursor)]).await?;
        }
        Ok(())
    }

    async fn write_rows(
        &self,
        requests: &RequestRunner,
        shard: ShardId,
        rows: &[HistoryRow],
    ) -> Result<WrittenRows, StoreError> {
        let HistoryWrites { trace, ids, found, record_bytes } = HistoryWrites::of(shard, rows, self.ttl);
        let keys = found.keys().map(|(term, chunk)| (shard, term.clone(), *chunk));
        let unlisted: Vec<TermChunk> = keys.filter(|key| self.listed.get(key).is_none()).collect();
        let lists = unlisted.iter().map(|(_, term, chunk)| chunk_row(shard, term, *chunk, self.ttl));
        let lists = lists.map(|row| PartitionWrite::of("insert_chunk", vec![row]));
        let trace = trace.into_values().map(|rows| PartitionWrite::of("insert_history_row", rows));
        let ids = ids.into_iter().map(|row| PartitionWrite::of("insert_message_id", vec![row]));
        let found = found.into_values().map(|rows| PartitionWrite::of("insert_found", rows));
        write_all(requests, lists.chain(trace).chain(ids).chain(found).collect()).await?;
        for key in unlisted {
            self.listed.insert(key, ());
        }
        Ok(WrittenRows { rows: rows.len() as u64, bytes: record_bytes })
    }
}

/// Writes partitions, several at once; returns when all are durable, or with the first failure.
async fn write_all(requests: &RequestRunner, writes: Vec<PartitionWrite>) -> Result<(), StoreError> {
    let writing = writes
        .into_iter()
        .map(|PartitionWrite { statement, rows }| requests.write_rows(OP, requests.statement(statement), rows));
    let mut writing = stream::iter(writing).buffer_unordered(HISTORY_WRITES_AT_ONCE_MAX);
    while let Some(ended) = writing.next().await {
        ended?;
    }
    Ok(())
}
