//! Reads of rows. They block, and see everything that was committed before they began.

use fjall::{Guard, Keyspace};

use super::key::{self, KeyRange};
use crate::error::ReadError;
use tallystone_ports::ScanOrder;

/// A key and its value.
pub type RawRow = (fjall::UserKey, fjall::UserValue);

/// Reads the rows of a range in an order.
pub fn rows(
    keyspace: &Keyspace,
    range: KeyRange,
    order: ScanOrder,
) -> Box<dyn Iterator<Item = Result<RawRow, ReadError>> + Send> {
    if key::is_empty(&range) {
        return Box::new(std::iter::empty());
    }
    let read = |guard: Guard| guard.into_inner().map_err(ReadError::from);
    match order {
        ScanOrder::OldestFirst => Box::new(keyspace.range(range).map(read)),
        ScanOrder::NewestFirst => Box::new(keyspace.range(range).rev().map(read)),
    }
}
