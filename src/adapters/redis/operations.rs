//! `OperationDirectory`: rows of purges, redrives, discards and cancels, each behind its version and its place.
//!
//! The place of an operation in the list of its queue is the number of the queue, the start, and the id. In the order
//! of bytes, the operations of a queue are next to each other by their starts. Dry runs have none.

use std::sync::Arc;

use async_trait::async_trait;

use super::functions::RedisQueues;
use super::keys::OPERATIONS;
use super::limits::REDIS_ROWS_A_CALL_MAX;
use super::packed::{PackedBytes, PackedReader};
use super::store_calls::{StoreReply, text_of, unreadable};
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::operation::{decode_operation, encode_operation};
use tallystone_domain::queue::QueueId;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{OperationDirectory, OperationPlace, OperationRow, StoreError, StoreErrorKind};

/// In place of the time of an end: there is none.
const NO_END: Timestamp = Timestamp::from_micros(-1);

/// The bytes of a place before the id; the functions have the same number.
const PLACE_BYTES: usize = 24;
/// In place of the place of a dry run.
const NO_PLACE: [u8; PLACE_BYTES] = [0; PLACE_BYTES];
/// Behind the number of a queue: after every start.
const AFTER_ALL: u8 = u8::MAX;

/// The operations on the queues of a deployment.
pub struct RedisOperations {
    store: Arc<RedisQueues>,
}

impl RedisOperations {
    /// The operations beside the shards.
    pub fn new(store: Arc<RedisQueues>) -> Self {
        Self { store }
    }
}

fn read_row(id: &str, bytes: &[u8]) -> Result<OperationRow, CorruptValue> {
    let mut reader = PackedReader::new("operation", bytes);
    let version = reader.whole()?;
    reader.raw(PLACE_BYTES)?;
    decode_operation(id, version, reader.rest())
}

/// The place of a start among the operations of a queue, without the id.
fn place_of(queue: QueueId, began: Timestamp) -> [u8; PLACE_BYTES] {
    // Bytes are compared without a sign.
    let start = began.micros().cast_unsigned() ^ (1 << 63);
    let mut place = NO_PLACE;
    place[..16].copy_from_slice(&queue.0.to_be_bytes());
    place[16..].copy_from_slice(&start.to_be_bytes());
    place
}

/// The rows of a page: ids and rows in turn.
fn read_page(mut page: StoreReply, read: &'static str) -> Result<Vec<OperationRow>, StoreError> {
    let mut rows = Vec::new();
    while !page.is_empty() {
        let (id, stored) = (page.bytes()?, page.bytes()?);
        let id = std::str::from_utf8(&id).map_err(|_| unreadable("the id of an operation", read))?;
        rows.push(read_row(id, &stored).map_err(|damaged| damaged.into_store_error(read))?);
    }
    Ok(rows)
}

#[async_trait]
impl OperationDirectory for RedisOperations {
    async fn put(&self, row: &OperationRow) -> Result<bool, StoreError> {
        const PUT: &str = "note operation";
        let end = row.end.as_ref().map_or(NO_END, |end| end.at);
        let numbers = PackedBytes::default().whole(row.version).time(end).0;
        let place = if row.work.dry_run { NO_PLACE } else { place_of(row.queue, row.began) };
        let arguments = vec![row.id.as_bytes().to_vec(), numbers, encode_operation(row), place.to_vec()];
        match self.store.call_store(("opr", PUT), arguments).await?.int()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(StoreError::not_applied(StoreErrorKind::Busy, PUT)), // no row has ended
        }
    }

    async fn get(&self, id: &str) -> Result<Option<OperationRow>, StoreError> {
        const READ: &str = "read operation";
        let place = vec![OPERATIONS.as_bytes().to_vec(), id.as_bytes().to_vec()];
        let Some(stored) = text_of(self.store.on_store(("HGET", READ), place).await?, READ)? else { return Ok(None) };
        read_row(id, &stored).map(Some).map_err(|damaged| damaged.into_store_error(READ))
    }

    async fn running(&self) -> Result<Vec<OperationRow>, StoreError> {
        const READ: &str = "read operations";
        let mut rows: Vec<OperationRow> = Vec::new();
        loop {
            let after = rows.last().map_or_else(Vec::new, |row| row.id.as_bytes().to_vec());
            let page = self.store.call_store(("look", READ), vec![b"running".to_vec(), after]).await?;
            let page = read_page(page, READ)?;
            let is_last = page.len() < REDIS_ROWS_A_CALL_MAX;
            rows.extend(page);
            if is_last {
                return Ok(rows);
            }
        }
    }

    async fn of_queue(
        &self,
        queue: QueueId,
        behind: Option<&OperationPlace>,
        rows: usize,
    ) -> Result<Vec<OperationRow>, StoreError> {
        const READ: &str = "list operations";
        let own = queue.0.to_be_bytes();
        let place = |began: Timestamp, id: &str| [&place_of(queue, began)[..], id.as_bytes()].concat();
        let mut before = match behind {
            Some((began, id)) => place(*began, id),
            None => [&own[..], &[AFTER_ALL]].concat(),
        };
        let mut found: Vec<OperationRow> = Vec::new();
        loop {
            let count = (rows - found.len()).min(REDIS_ROWS_A_CALL_MAX);
            let asked = PackedBytes::default().whole(count as u64).0;
            let arguments = vec![b"operations".to_vec(), before, own.to_vec(), asked];
            let page = read_page(self.store.call_store(("look", READ), arguments).await?, READ)?;
            let is_last = page.len() < count;
            found.extend(page);
            let Some(last) = found.last().filter(|_| !is_last && found.len() < rows) else { return Ok(found) };
            before = place(last.began, &last.id);
        }
    }

    async fn forget(&self, before: Timestamp) -> Result<(), StoreError> {
        const FORGET: &str = "forget operations";
        loop {
            let arguments = vec![Vec::new(), PackedBytes::default().time(before).0];
            let forgotten = self.store.call_store(("opr", FORGET), arguments).await?.int()?;
            if forgotten < REDIS_ROWS_A_CALL_MAX as i64 {
                return Ok(());
            }
        }
    }
}
