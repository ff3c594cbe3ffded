//! `OperationDirectory`: rows of purges, redrives and discards, each behind its version.

use std::sync::Arc;

use async_trait::async_trait;

use super::calls::RedisQueues;
use super::keys::OPERATIONS;
use super::limits::REDIS_ROWS_A_CALL_MAX;
use super::packed::{PackedBytes, PackedReader};
use super::store_calls::{text_of, unreadable};
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::queues::operation::{decode_operation, encode_operation};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{OperationDirectory, OperationRow, StoreError, StoreErrorKind};

/// In place of the time of an end: there is none.
const NO_END: Timestamp = Timestamp::from_micros(-1);

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
    decode_operation(id, version, reader.rest())
}

#[async_trait]
impl OperationDirectory for RedisOperations {
    async fn put(&self, row: &OperationRow) -> Result<bool, StoreError> {
        const PUT: &str = "note operation";
        let end = row.end.as_ref().map_or(NO_END, |end| end.at);
        let numbers = PackedBytes::default().whole(row.version).time(end).0;
        let arguments = vec![row.id.as_bytes().to_vec(), numbers, encode_operation(row)];
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
            let mut page = self.store.call_store(("look", READ), vec![b"running".to_vec(), after]).await?;
            let before = rows.len();
            while !page.is_empty() {
                let (id, stored) = (page.bytes()?, page.bytes()?);
                let id = std::str::from_utf8(&id).map_err(|_| unreadable("the id of an operation", READ))?;
                rows.push(read_row(id, &stored).map_err(|damaged| damaged.into_store_error(READ))?);
            }
            if rows.len() - before < REDIS_ROWS_A_CALL_MAX {
                return Ok(rows);
            }
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
