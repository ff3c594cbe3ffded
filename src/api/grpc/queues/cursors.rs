//! The cursors of page tokens of queues.

use crate::errors::ApiError;
use crate::paging;
use tallystone_domain::Timestamp;
use tallystone_domain::queue::QueueName;
use tallystone_engine::queues::ListCursor;
use tallystone_ports::OperationPlace;

pub fn name(cursor: &[u8]) -> Result<QueueName, ApiError> {
    let name = std::str::from_utf8(cursor).ok().and_then(|name| QueueName::new(name).ok());
    name.ok_or_else(|| paging::refuse().into())
}

pub fn number(cursor: &[u8]) -> Result<u64, ApiError> {
    cursor.try_into().map(u64::from_be_bytes).map_err(|_| paging::refuse().into())
}

/// The cursor of a list of operations: the start, then the id.
pub fn operation(cursor: &[u8]) -> Result<OperationPlace, ApiError> {
    let parts = cursor.split_first_chunk::<8>().and_then(|(began, id)| {
        let id = std::str::from_utf8(id).ok()?;
        Some((Timestamp::from_micros(i64::from_be_bytes(*began)), id.into()))
    });
    parts.ok_or_else(|| paging::refuse().into())
}

/// The cursor of a list of messages: the shard, then the sequence.
pub fn list(cursor: &[u8]) -> Result<ListCursor, ApiError> {
    let parts = cursor.split_first_chunk::<4>().and_then(|(shard, after)| {
        let after = u64::from_be_bytes(after.try_into().ok()?);
        Some(ListCursor { shard: u32::from_be_bytes(*shard), after })
    });
    parts.ok_or_else(|| paging::refuse().into())
}
