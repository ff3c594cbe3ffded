//! The rows of the `meta` keyspace.
//!
//! ```text
//! c                          commit number, number up to which all was synced
//! k                          newest row of each keyspace before the newest journal
//! f dataset u32              limit (frontier) i64
//! w dataset u32 shard u8     watermark i64
//! s dataset u32 start i64    row of a time slice
//! g namespace u64            mark of a forgotten namespace
//! l                          key that seals the lease tokens of queues
//! ```

use std::ops::Bound;

use crate::disk::key::{KeyRange, from_sortable, to_sortable};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{DatasetId, NamespaceId};

/// Key of the commit number.
pub const COMMIT: &[u8] = b"c";
/// Key of the newest row of each keyspace.
pub const NEWEST_ROWS: &[u8] = b"k";

/// Key of the row with the key that seals lease tokens.
pub const LEASE_KEY: &[u8] = b"l";

/// Key of a limit (frontier).
pub fn frontier(dataset: DatasetId) -> Vec<u8> {
    key(b'f', &dataset.0.to_be_bytes())
}

/// Key of a watermark.
pub fn watermark(dataset: DatasetId, shard: u32) -> Vec<u8> {
    let mut key = key(b'w', &dataset.0.to_be_bytes());
    key.push(u8::try_from(shard).expect("there are 64 touch shards"));
    key
}

/// Key of the row of a slice.
pub fn slice(dataset: DatasetId, start: Timestamp) -> Vec<u8> {
    let mut key = key(b's', &dataset.0.to_be_bytes());
    key.extend_from_slice(&to_sortable(start));
    key
}

/// Key of the mark of a forgotten namespace.
pub fn forgotten(namespace: NamespaceId) -> Vec<u8> {
    key(b'g', &namespace.0.to_be_bytes())
}

pub fn all(kind: u8) -> KeyRange {
    (Bound::Included(vec![kind]), Bound::Excluded(vec![kind + 1]))
}

/// Decodes the key of a limit (frontier).
pub fn to_frontier(key: &[u8]) -> Option<DatasetId> {
    Some(DatasetId(u32::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Decodes the key of a watermark.
pub fn to_watermark(key: &[u8]) -> Option<(DatasetId, u32)> {
    let (dataset, shard) = key.get(1..)?.split_first_chunk::<4>()?;
    let [shard] = shard else { return None };
    Some((DatasetId(u32::from_be_bytes(*dataset)), u32::from(*shard)))
}

/// Decodes the key of the mark of a forgotten namespace.
pub fn to_forgotten(key: &[u8]) -> Option<NamespaceId> {
    Some(NamespaceId(u64::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

/// Decodes a value that is a single time.
pub fn to_time(value: &[u8]) -> Option<Timestamp> {
    value.try_into().ok().map(from_sortable)
}

fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len() + 8);
    key.push(kind);
    key.extend_from_slice(rest);
    key
}
