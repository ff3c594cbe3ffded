//! The counts and outboxes of the shards of an open store.

use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::queues::EmbeddedQueues;
use crate::disk::read::rows;
use crate::error::{ReadError, malformed_key};
use crate::inbox::queue_command::QueueStoreCommand;
use crate::limits::OUTBOX_BYTES_MAX;
use crate::queues::key;
use crate::queues::keyspaces::QueueKeyspaces;
use tallystone_adapters::codec::queues::history::decode_rows;
use tallystone_domain::limits::OUTBOX_PAGE_ROWS_MAX;
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::{HistoryRow, RowPosition};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    OutboxPage, OutboxUsage, ScanOrder, ShardGlance, ShardOutbox, ShardReport, StoreError, StoreErrorKind,
};

/// After every row: a dropped shard has no more.
const NO_MORE_ROWS: RowPosition = RowPosition { epoch: u32::MAX, position: u64::MAX - 1 };

#[async_trait]
impl ShardOutbox for EmbeddedQueues {
    async fn report(&self, shard: ShardId, since: Option<u64>) -> Result<ShardReport, StoreError> {
        self.read_shard(shard, move |kept, at| ShardReport::of(&kept.shard, since, at)).await
    }

    async fn glance(&self, shard: ShardId, known: Option<RowPosition>) -> Result<Option<ShardGlance>, StoreError> {
        self.read_shard(shard, move |kept, _| ShardGlance::of(&kept.shard, kept.view, known)).await
    }

    async fn outbox(&self, shard: ShardId, after: RowPosition, limit: usize) -> Result<OutboxPage, StoreError> {
        const OP: &str = "read outbox";
        // The answer of this read comes after its commit, so all rows up to the position are durable. Commands after
        // the read may be in the same commit; then the entry of the commit ends beyond the position.
        let newest = match self.read_shard(shard, |kept, at| (kept.shard.position(), at)).await {
            Err(error) if error.kind == StoreErrorKind::Conflict => (NO_MORE_ROWS, Timestamp::MAX),
            newest => newest?,
        };
        let (through, at) = newest;
        let Some(spaces) = self.keyspaces() else { return Ok(OutboxPage { rows: Vec::new(), through, at }) };
        let limit = limit.min(OUTBOX_PAGE_ROWS_MAX);
        let read = move |_: &_, _: &_| read_rows(&spaces, shard, (after, through), limit);
        let (rows, is_whole) = self.core().read_long(OP, read).await?;
        let (through, at) = match rows.last() {
            Some(last) if !is_whole || through == NO_MORE_ROWS || last.position() > through => {
                (last.position(), last.transition.at)
            }
            None if through == NO_MORE_ROWS => (after, at),
            Some(_) | None => (through, at),
        };
        Ok(OutboxPage { rows, through, at })
    }

    async fn forget_outbox(&self, shard: ShardId, through: RowPosition) -> Result<(), StoreError> {
        self.request("forget outbox", |answer| QueueStoreCommand::ForgetOutbox(shard, through, answer)).await
    }

    async fn outboxes(&self) -> Result<Vec<ShardId>, StoreError> {
        self.request("list outboxes", QueueStoreCommand::ListOutboxes).await
    }

    fn outbox_usage(&self) -> OutboxUsage {
        let bytes = self.core().queues.outbox_bytes.load(Ordering::Relaxed);
        OutboxUsage { bytes, capacity: OUTBOX_BYTES_MAX }
    }
}

/// The rows of all commits that have rows after a position and up to another, and whether these are all.
fn read_rows(
    spaces: &QueueKeyspaces,
    shard: ShardId,
    (after, through): (RowPosition, RowPosition),
    limit: usize,
) -> Result<(Vec<HistoryRow>, bool), ReadError> {
    let mut found = Vec::new();
    for row in rows(&spaces.outbox, key::outbox_after(shard, after), ScanOrder::OldestFirst) {
        let (key, value) = row?;
        let (_, last, first) = key::to_outbox(&key).ok_or_else(|| malformed_key("outbox", &key))?;
        if (RowPosition { position: first, ..last }) > through {
            break;
        }
        if found.len() >= limit {
            return Ok((found, false));
        }
        let rows = decode_rows(shard.number, &value)?;
        found.extend(rows.into_iter().filter(|row| row.position() > after));
    }
    Ok((found, true))
}
