//! The memory that queues take in this process, and the most that they may take.

use crate::MEMORY_TOLD_FROM_PERCENT;
use tallystone_domain::queue::shard::memory::{MemoryPart, ShardMemory};

/// The memory of the queues of a store that keeps them in the memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueMemory {
    /// The bytes in use, by what takes them.
    pub used: ShardMemory,
    /// The bytes beyond which no message is taken.
    pub limit_bytes: u64,
    /// The source of this bound.
    pub limited_by: MemoryLimit,
}

/// The source of the bound on the memory of queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryLimit {
    /// The setting `queues.memory_bytes`.
    Setting,
    /// The memory of the whole process, which has less left.
    Process {
        /// The bytes that the process takes, caches and buffers included, pages of files not.
        taken_bytes: u64,
        /// The bytes that the machine or its control group has for it.
        may_take_bytes: u64,
    },
}

impl QueueMemory {
    /// Whether no message is taken.
    pub fn is_full(&self) -> bool {
        self.used.total() >= self.limit_bytes
    }

    /// How much of the bound is in use.
    pub fn used_percent(&self) -> u64 {
        let percent = u128::from(self.used.total()) * 100 / u128::from(self.limit_bytes.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }

    /// Whether so much is in use that an operator is told.
    pub fn is_short(&self) -> bool {
        self.used_percent() >= MEMORY_TOLD_FROM_PERCENT
    }

    /// The part that takes the most, and its share of all in percent.
    pub fn largest_part(&self) -> (MemoryPart, u64) {
        let part = self.used.largest_part();
        (part, part.bytes.saturating_mul(100) / self.used.total().max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stubs: u64, heads: u64) -> QueueMemory {
        let used = ShardMemory { stubs, heads, ..ShardMemory::default() };
        QueueMemory { used, limit_bytes: 1_000, limited_by: MemoryLimit::Setting }
    }

    #[test]
    fn memory_is_short_from_85_percent_on_and_full_at_the_bound() {
        assert!(!of(849, 0).is_short() && of(600, 250).is_short() && !of(999, 0).is_full());
        assert!(of(700, 300).is_full() && of(2_000, 0).is_full());
        assert_eq!((of(0, 0).used_percent(), of(2_000, 500).used_percent()), (0, 250));
        assert_eq!(QueueMemory { limit_bytes: 0, ..of(5, 0) }.used_percent(), 500);
    }

    #[test]
    fn what_takes_the_most_is_named() {
        let largest = |memory: QueueMemory| {
            let (part, share) = memory.largest_part();
            (part.name, share)
        };
        assert_eq!(largest(of(600, 200)), ("finished messages", 75));
        assert_eq!(largest(of(0, 200)), ("messages that are not over", 100));
        assert_eq!(of(0, 0).largest_part().1, 0);
    }
}
