//! The contents of the outboxes on disk, by shard. Only the committer changes them.
//!
//! Together they have a bound. Beyond it the largest outbox gives way, its oldest entries first, so a shard with little
//! traffic does not lose its rows to a busy one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::{OUTBOX_BYTES_MAX, OUTBOX_KEPT_PERCENT};
use tallystone_domain::queue::ShardId;
use tallystone_domain::queue::transition::RowPosition;

/// The rows of one commit in a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutboxEntry {
    /// The position of the first row.
    pub first: u64,
    /// The place of the last row.
    pub last: RowPosition,
    /// Bytes of key and value.
    pub bytes: u32,
}

#[derive(Default)]
struct Outbox {
    /// Oldest first.
    entries: VecDeque<OutboxEntry>,
    bytes: u64,
}

/// The outboxes of all shards.
#[derive(Default)]
pub struct Outboxes {
    outboxes: BTreeMap<ShardId, Outbox>,
    /// The outboxes by size.
    sizes: BTreeSet<(u64, ShardId)>,
    /// Bytes of all outboxes, shared with readers.
    bytes: Arc<AtomicU64>,
}

impl Outboxes {
    /// The bytes of all outboxes, as they change.
    pub fn shared_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes)
    }

    /// The shards whose outboxes have entries. O(shards).
    pub fn shards(&self) -> Vec<ShardId> {
        self.outboxes.keys().copied().collect()
    }

    /// Adds an entry; returns the entries beyond the bound, which the caller has to remove. O(log shards) each.
    pub fn add(&mut self, shard: ShardId, entry: OutboxEntry) -> Vec<(ShardId, OutboxEntry)> {
        self.restore(shard, entry);
        let mut gone = Vec::new();
        while self.bytes.load(Ordering::Relaxed) > OUTBOX_BYTES_MAX / 100 * OUTBOX_KEPT_PERCENT
            && let Some((_, largest)) = self.sizes.last().copied()
        {
            gone.extend(self.pop(largest).map(|entry| (largest, entry)));
        }
        gone
    }

    /// Adds an entry that is on disk already.
    pub fn restore(&mut self, shard: ShardId, entry: OutboxEntry) {
        let outbox = self.outboxes.entry(shard).or_default();
        self.sizes.remove(&(outbox.bytes, shard));
        outbox.entries.push_back(entry);
        outbox.bytes += u64::from(entry.bytes);
        self.sizes.insert((outbox.bytes, shard));
        self.bytes.fetch_add(entry.bytes.into(), Ordering::Relaxed);
    }

    /// Takes the entries whose last row lies at or before a position. O(log shards) each.
    pub fn take_through(&mut self, shard: ShardId, through: RowPosition) -> Vec<OutboxEntry> {
        let mut taken = Vec::new();
        while let Some(outbox) = self.outboxes.get(&shard)
            && outbox.entries.front().is_some_and(|entry| entry.last <= through)
        {
            taken.extend(self.pop(shard));
        }
        taken
    }

    fn pop(&mut self, shard: ShardId) -> Option<OutboxEntry> {
        let outbox = self.outboxes.get_mut(&shard)?;
        self.sizes.remove(&(outbox.bytes, shard));
        let entry = outbox.entries.pop_front();
        let bytes = entry.map_or(0, |entry| u64::from(entry.bytes));
        outbox.bytes -= bytes;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if outbox.entries.is_empty() {
            self.outboxes.remove(&shard);
        } else {
            self.sizes.insert((outbox.bytes, shard));
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::QueueId;

    fn shard(number: u32) -> ShardId {
        ShardId { queue: QueueId(1), number }
    }

    fn entry(position: u64, bytes: u64) -> OutboxEntry {
        let bytes = u32::try_from(bytes).expect("fits");
        OutboxEntry { first: position, last: RowPosition { epoch: 1, position }, bytes }
    }

    #[test]
    fn the_largest_outbox_gives_way_and_small_ones_keep_their_rows() {
        let kept = OUTBOX_BYTES_MAX / 100 * OUTBOX_KEPT_PERCENT;
        let mut outboxes = Outboxes::default();
        assert_eq!(outboxes.add(shard(0), entry(1, 1)), []);
        assert_eq!(outboxes.add(shard(1), entry(1, kept / 2)), []);
        assert_eq!(outboxes.add(shard(1), entry(2, kept / 2)), [(shard(1), entry(1, kept / 2))]);
        assert_eq!(outboxes.add(shard(0), entry(2, 1)), []);
        assert_eq!(outboxes.shards(), [shard(0), shard(1)]);
        assert_eq!(outboxes.shared_bytes().load(Ordering::Relaxed), kept / 2 + 2);
    }

    #[test]
    fn entries_leave_up_to_a_position() {
        let mut outboxes = Outboxes::default();
        (1..=4).for_each(|position| drop(outboxes.add(shard(0), entry(position, 10))));
        let through = RowPosition { epoch: 1, position: 2 };
        assert_eq!(outboxes.take_through(shard(0), through), [entry(1, 10), entry(2, 10)]);
        assert_eq!(outboxes.take_through(shard(0), through), []);
        let later = RowPosition { epoch: 2, position: 0 };
        assert_eq!(outboxes.take_through(shard(0), later).len(), 2);
        assert_eq!((outboxes.shards(), outboxes.shared_bytes().load(Ordering::Relaxed)), (vec![], 0));
    }
}
