//! The outboxes of shards in memory. Together they have a bound; beyond it the largest gives way, oldest rows first.

use std::collections::{BTreeMap, VecDeque};

use tallystone_domain::limits::MEMORY_OUTBOX_ROWS_MAX;
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_ports::OutboxUsage;

#[derive(Default)]
pub struct MemoryOutboxes {
    rows: BTreeMap<ShardId, VecDeque<HistoryRow>>,
    count: usize,
}

/// The memory of a row, roughly, in bytes.
const ROW_BYTES: usize = 256;

impl MemoryOutboxes {
    /// Adds the rows of a command. O(rows), and O(shards) for each row that gives way.
    pub fn add(&mut self, shard: ShardId, rows: Vec<HistoryRow>) {
        if rows.is_empty() {
            return;
        }
        self.count += rows.len();
        self.rows.entry(shard).or_default().extend(rows);
        while self.count > MEMORY_OUTBOX_ROWS_MAX
            && let Some(largest) = self.rows.values_mut().max_by_key(|rows| rows.len())
        {
            // A hundredth at a time, so that the search for the largest stays rare.
            let gone = (largest.len() / 100).max(1);
            largest.drain(..gone);
            self.count -= gone;
            self.rows.retain(|_, rows| !rows.is_empty());
        }
    }

    pub fn read(&self, shard: ShardId, after: RowPosition, limit: usize) -> Vec<HistoryRow> {
        let rows = self.rows.get(&shard).into_iter().flatten();
        rows.filter(|row| row.position() > after).take(limit).cloned().collect()
    }

    pub fn forget(&mut self, shard: ShardId, through: RowPosition) {
        let Some(rows) = self.rows.get_mut(&shard) else { return };
        while rows.front().is_some_and(|row| row.position() <= through) {
            rows.pop_front();
            self.count -= 1;
        }
        if rows.is_empty() {
            self.rows.remove(&shard);
        }
    }

    pub fn shards(&self) -> Vec<ShardId> {
        self.rows.keys().copied().collect()
    }

    pub fn usage(&self) -> OutboxUsage {
        OutboxUsage { bytes: (self.count * ROW_BYTES) as u64, capacity: (MEMORY_OUTBOX_ROWS_MAX * ROW_BYTES) as u64 }
    }
}
