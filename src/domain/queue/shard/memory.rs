//! The memory of a shard, by what takes it.

use std::iter::Sum;
use std::ops::{Add, AddAssign, SubAssign};

use crate::queue::shard::Shard;

/// The bytes of a shard or of many, by what takes them. Counted from the sizes of the parts, close to what they really
/// take: a test compares them with the resident size of a process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShardMemory {
    /// Messages that are not over, with their ids, metadata and attempts; those that are over where their store keeps
    /// all heads.
    pub heads: u64,
    /// Finished messages whose heads only the store has.
    pub stubs: u64,
    /// The order of messages, their timers, ids, states and filters.
    pub indexes: u64,
    /// Answers to enqueues, kept for the dedupe window.
    pub answers: u64,
    /// Sessions of workers and the leases that they hold.
    pub sessions: u64,
}

/// One part of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryPart {
    /// Its name in metrics.
    pub kind: &'static str,
    /// The name for people, in words.
    pub name: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// The steps that make it smaller.
    pub remedy: &'static str,
}

impl ShardMemory {
    /// The parts.
    pub const fn parts(&self) -> [MemoryPart; 5] {
        const MESSAGES: &str = "settle or purge messages, shorten retention and dedupe_window, send less metadata";
        const STUBS: &str = "shorten dedupe_window and retention, purge finished messages once the window is over";
        const ANSWERS: &str = "shorten dedupe_window; they leave once they are older than that";
        const SESSIONS: &str = "close the sessions of workers that are gone";
        let Self { heads, stubs, indexes, answers, sessions } = *self;
        [
            MemoryPart { kind: "heads", name: "messages that are not over", bytes: heads, remedy: MESSAGES },
            MemoryPart { kind: "stubs", name: "finished messages", bytes: stubs, remedy: STUBS },
            MemoryPart { kind: "indexes", name: "indexes of messages", bytes: indexes, remedy: MESSAGES },
            MemoryPart { kind: "answers", name: "answers to enqueues", bytes: answers, remedy: ANSWERS },
            MemoryPart { kind: "sessions", name: "sessions of workers", bytes: sessions, remedy: SESSIONS },
        ]
    }

    /// The part that takes the most.
    pub fn largest_part(&self) -> MemoryPart {
        self.parts().into_iter().max_by_key(|part| part.bytes).unwrap_or_default()
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|part| part.bytes).sum()
    }
}

impl AddAssign for ShardMemory {
    fn add_assign(&mut self, more: Self) {
        self.heads += more.heads;
        self.stubs += more.stubs;
        self.indexes += more.indexes;
        self.answers += more.answers;
        self.sessions += more.sessions;
    }
}

impl Add for ShardMemory {
    type Output = Self;

    fn add(mut self, more: Self) -> Self {
        self += more;
        self
    }
}

impl SubAssign for ShardMemory {
    fn sub_assign(&mut self, less: Self) {
        self.heads -= less.heads;
        self.stubs -= less.stubs;
        self.indexes -= less.indexes;
        self.answers -= less.answers;
        self.sessions -= less.sessions;
    }
}

impl Sum for ShardMemory {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl Shard {
    /// The memory of the shard. O(shapes).
    pub fn memory(&self) -> ShardMemory {
        let indexes = self.id_index.memory_bytes() + self.index.memory_bytes() + self.messages.page_bytes();
        ShardMemory {
            heads: self.messages.head_bytes() as u64,
            stubs: self.messages.stub_bytes() as u64,
            indexes: indexes as u64,
            answers: self.dedupe.memory_bytes() as u64,
            sessions: self.sessions.memory_bytes() as u64,
        }
    }
}
