//! A purge, redrive or discard of many messages, which walks over the shards of its queue in steps.

use crate::queue::filter::Filter;
use crate::time::Timestamp;

/// The command that an operation repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkKind {
    Purge,
    Redrive,
    Discard,
}

/// What an operation does to which messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkOperation {
    pub kind: BulkKind,
    /// The filter that messages must match.
    pub filter: Filter,
    /// For a discard: the signature that the last error must have; none for any.
    pub signature: Option<Box<str>>,
    /// For a discard: the time by which messages must have failed for good, if the caller named one.
    pub until: Option<Timestamp>,
    /// Whether it only counts.
    pub dry_run: bool,
    /// The most messages a second; 0 for no limit.
    pub rate: u32,
}

/// The step that an operation does next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct BulkCursor {
    /// The shard. Those with lower numbers are done.
    pub shard: u32,
    /// The last sequence of earlier steps in the shard; 0 before the first.
    pub after: u64,
}
