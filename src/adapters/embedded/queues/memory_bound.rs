//! The bound of the memory that the shards of queues take in this process.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use tallystone_domain::queue::shard::memory::ShardMemory;
use tallystone_ports::QueueMemory;

/// Below this share of the bound a full memory counts as left behind, so that the log has a line for each time it fills up and
/// not for each message at the bound.
const ROOM_AGAIN_PERCENT: u64 = 95;

/// What the shards take, as the readers see it, and the most that they may take.
#[derive(Debug)]
pub struct MemoryBound {
    limit_bytes: u64,
    used: Mutex<ShardMemory>,
    is_told_full: AtomicBool,
}

impl MemoryBound {
    /// A bound in bytes, with what a start has found.
    pub fn new(limit_bytes: u64, used: ShardMemory) -> Self {
        Self { limit_bytes, used: Mutex::new(used), is_told_full: AtomicBool::new(false) }
    }

    /// What is used of the bound.
    pub fn memory(&self) -> QueueMemory {
        self.of(*self.used.lock())
    }

    /// The bound with this use of it.
    pub fn of(&self, used: ShardMemory) -> QueueMemory {
        QueueMemory { used, limit_bytes: self.limit_bytes }
    }

    /// Publishes what is used, and logs it when it reaches the bound and when there is room again.
    pub fn publish(&self, used: ShardMemory) {
        *self.used.lock() = used;
        let memory = self.of(used);
        let was_told = self.is_told_full.load(Ordering::Relaxed);
        if memory.is_full() && !was_told {
            self.is_told_full.store(true, Ordering::Relaxed);
            tracing::warn!("new messages are refused: {}", refusal_text(&memory));
        } else if was_told && memory.used_percent() < ROOM_AGAIN_PERCENT {
            self.is_told_full.store(false, Ordering::Relaxed);
            tracing::info!(
                used_bytes = used.total(),
                limit_bytes = self.limit_bytes,
                "the memory of queues has room again; new messages are accepted"
            );
        }
    }
}

/// Why a message is refused at the bound, what takes the memory, and what to change.
pub fn refusal_text(memory: &QueueMemory) -> String {
    let (part, percent) = memory.largest_part();
    let bound = match memory.limit_bytes {
        bytes @ 0..1_024 => format!("{bytes} bytes"),
        bytes @ 1_024..1_048_576 => format!("{} KiB", bytes >> 10),
        bytes => format!("{} MiB", bytes >> 20),
    };
    let (name, remedy) = (part.name, part.remedy);
    format!(
        "queues.memory_bytes is {bound} and all of it is used, {percent} % for {name}; {remedy}, or raise queues.memory_bytes"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stubs(bytes: u64) -> ShardMemory {
        ShardMemory { stubs: bytes, ..ShardMemory::default() }
    }

    #[test]
    fn it_is_told_once_that_memory_is_full_and_once_that_there_is_room() {
        let bound = MemoryBound::new(1_000, stubs(10));
        let mut told = Vec::new();
        for used in [999, 1_000, 990, 1_200, 950, 949, 1_000] {
            bound.publish(stubs(used));
            told.push(bound.is_told_full.load(Ordering::Relaxed));
        }
        assert_eq!(told, [false, true, true, true, true, false, true]);
        assert_eq!(bound.memory(), QueueMemory { used: stubs(1_000), limit_bytes: 1_000 });
    }

    #[test]
    fn a_refusal_names_the_memory_what_takes_it_and_the_settings() {
        let text = refusal_text(&QueueMemory { used: stubs(1 << 30), limit_bytes: 1 << 30 });
        for part in ["queues.memory_bytes is 1024 MiB", "100 % for finished messages", "retention"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let answers = ShardMemory { answers: 9, ..stubs(1) };
        let text = refusal_text(&QueueMemory { used: answers, limit_bytes: 1 });
        assert!(text.contains("shorten dedupe_window; they leave") && !text.contains("purge"), "{text}");
    }
}
