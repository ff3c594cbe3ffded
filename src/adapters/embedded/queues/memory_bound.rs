//! The bound of the memory that the shards of queues take in this process.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::process_memory::ProcessMemory;
use tallystone_domain::queue::shard::memory::ShardMemory;
use tallystone_ports::{MemoryLimit, QueueMemory};

/// The share of the bound below which memory counts as no longer full. So the log has a line for each time that it
/// fills up, and not for each message at the bound.
const ROOM_AGAIN_PERCENT: u64 = 95;

/// The memory that the shards take, as the readers see it, and the most that they may take.
#[derive(Debug)]
pub struct MemoryBound {
    limit_bytes: u64,
    /// The whole process, where the memory that it may take is known.
    process: Option<ProcessMemory>,
    used: Mutex<ShardMemory>,
    is_told_full: AtomicBool,
}

impl MemoryBound {
    /// A bound in bytes, with what a start has found, and what the process may take if that is known.
    pub fn new(limit_bytes: u64, process_bytes: Option<u64>, used: ShardMemory) -> Self {
        let process = process_bytes.and_then(|bytes| ProcessMemory::open(bytes, used.total()));
        Self { limit_bytes, process, used: Mutex::new(used), is_told_full: AtomicBool::new(false) }
    }

    /// Reads what the process takes.
    pub fn read_process(&self) {
        let used = self.used.lock().total();
        self.process.iter().for_each(|process| process.read(used));
    }

    /// The present use, the bound, and what limits it.
    pub fn memory(&self) -> QueueMemory {
        // No commit may have come for a while.
        self.read_process();
        self.of(*self.used.lock())
    }

    /// The bound with this use of it. It is less than the setting where the process has less left.
    pub fn of(&self, used: ShardMemory) -> QueueMemory {
        let setting = QueueMemory { used, limit_bytes: self.limit_bytes, limited_by: MemoryLimit::Setting };
        let Some(process) = &self.process else { return setting };
        let limit_bytes = process.queues_may_take(used.total());
        if limit_bytes >= self.limit_bytes {
            return setting;
        }
        let (taken_bytes, may_take_bytes) = (process.taken_bytes(), process.may_take_bytes());
        QueueMemory { used, limit_bytes, limited_by: MemoryLimit::Process { taken_bytes, may_take_bytes } }
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
                limit_bytes = memory.limit_bytes,
                "the memory of queues has room again; new messages are accepted"
            );
        }
    }
}

/// The reason for which a message is refused at the bound, with the largest use of the memory and the remedy.
pub fn refusal_text(memory: &QueueMemory) -> String {
    let (part, percent) = memory.largest_part();
    let (name, remedy, limit) = (part.name, part.remedy, size(memory.limit_bytes));
    match memory.limited_by {
        MemoryLimit::Setting => format!(
            "queues.memory_bytes is {limit} and all of it is used, {percent} % for {name}; {remedy}, or raise \
             queues.memory_bytes"
        ),
        MemoryLimit::Process { taken_bytes, may_take_bytes } => format!(
            "this process takes {} of {} of memory, and the rest stays free for files; so queues may take {limit} and do, \
             {percent} % for {name}; {remedy}, or give the process more memory and restart it",
            size(taken_bytes),
            size(may_take_bytes)
        ),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_024 => format!("{bytes} bytes"),
        1_024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stubs(bytes: u64) -> ShardMemory {
        ShardMemory { stubs: bytes, ..ShardMemory::default() }
    }

    #[test]
    fn it_is_told_once_that_memory_is_full_and_once_that_there_is_room() {
        let bound = MemoryBound::new(1_000, None, stubs(10));
        let mut told = Vec::new();
        for used in [999, 1_000, 990, 1_200, 950, 949, 1_000] {
            bound.publish(stubs(used));
            told.push(bound.is_told_full.load(Ordering::Relaxed));
        }
        assert_eq!(told, [false, true, true, true, true, false, true]);
        let limited_by = MemoryLimit::Setting;
        assert_eq!(bound.memory(), QueueMemory { used: stubs(1_000), limit_bytes: 1_000, limited_by });
    }

    #[test]
    fn a_refusal_names_the_memory_what_takes_it_and_the_settings() {
        let of = |used, limit_bytes| QueueMemory { used, limit_bytes, limited_by: MemoryLimit::Setting };
        let text = refusal_text(&of(stubs(1 << 30), 1 << 30));
        for part in ["queues.memory_bytes is 1024 MiB", "100 % for finished messages", "retention"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let answers = ShardMemory { answers: 9, ..stubs(1) };
        let text = refusal_text(&of(answers, 1));
        assert!(text.contains("shorten dedupe_window; they leave") && !text.contains("purge"), "{text}");
    }

    #[test]
    fn a_process_that_has_less_left_bounds_the_queues_and_says_so() {
        let ballast = std::hint::black_box(vec![1_u8; 8 << 20]);
        let bound = |process_bytes| MemoryBound::new(1 << 40, process_bytes, stubs(2 << 20));
        let full = bound(Some(1 << 20)).of(stubs(2 << 20));
        assert!(full.is_full() && full.limit_bytes == 2 << 20, "{full:?}");
        let text = refusal_text(&full);
        for part in ["this process takes", " of 1 MiB of memory", "may take 2 MiB and do, 100 % for", "retention"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let roomy = bound(Some(1 << 38)).of(stubs(7));
        let MemoryLimit::Process { taken_bytes, may_take_bytes } = roomy.limited_by else { panic!("{roomy:?}") };
        assert!(!roomy.is_full() && may_take_bytes == 1 << 38, "{roomy:?}");
        assert_eq!(roomy.limit_bytes, 7 + (1 << 38) / 8 * 7 - taken_bytes);
        for unbounded in [None, Some(1 << 50)] {
            assert_eq!(bound(unbounded).of(stubs(7)).limited_by, MemoryLimit::Setting);
        }
        drop(ballast);
    }
}
