//! What this process takes of the memory that it may take.
//!
//! The bound of queues counts what queues take. Caches, buffers, memory tables and what the allocator keeps come on top, so on a
//! small machine the system may end the process before the bound is reached. Near that point the queues may grow no further.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::param::page_size;

/// This part of the memory stays free of the process: the system keeps the files there that the store reads and writes.
const FREE_PART: u64 = 8;
/// The least that stays free, unless that is more than `FREE_PART_MAX` of all. With less, a store under load was seen to wait for
/// its disk.
const FREE_BYTES_MIN: u64 = 128 * 1024 * 1024;
const FREE_PART_MAX: u64 = 4;
/// Once the process has reached its mark, queues may grow again when it is below by this part of what stays free. What it takes
/// goes up and down with each memory table.
const BELOW_PART: u64 = 4;

/// What the process takes, as it was read last.
#[derive(Debug)]
pub struct ProcessMemory {
    statm: File,
    may_take_bytes: u64,
    resident_bytes: AtomicU64,
    is_at_mark: AtomicBool,
}

impl ProcessMemory {
    /// Watches this process, which may take so many bytes. None where the system does not tell what it takes.
    pub fn open(may_take_bytes: u64) -> Option<Self> {
        let statm = File::open("/proc/self/statm").ok()?;
        let (resident_bytes, is_at_mark) = (AtomicU64::new(0), AtomicBool::new(false));
        let opened = Self { statm, may_take_bytes, resident_bytes, is_at_mark };
        opened.read();
        Some(opened)
    }

    /// Reads what the process takes now: a system call of about a microsecond. A failed read leaves what was known.
    pub fn read(&self) {
        let mut text = [0; 128];
        let Ok(length) = self.statm.read_at(&mut text, 0) else { return };
        let Some(resident) = resident_pages(&text[..length]).map(|pages| pages.saturating_mul(page_size() as u64))
        else {
            return;
        };
        let was_at_mark = self.is_at_mark.load(Ordering::Relaxed);
        self.resident_bytes.store(resident, Ordering::Relaxed);
        self.is_at_mark.store(is_at_mark(resident, self.may_take_bytes, was_at_mark), Ordering::Relaxed);
    }

    /// By how many bytes queues may grow.
    pub fn left_bytes(&self) -> u64 {
        if self.is_at_mark.load(Ordering::Relaxed) {
            return 0;
        }
        mark(self.may_take_bytes).saturating_sub(self.resident_bytes())
    }

    /// What the process takes, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Relaxed)
    }

    /// What the process may take, in bytes.
    pub fn may_take_bytes(&self) -> u64 {
        self.may_take_bytes
    }
}

fn free_bytes(may_take: u64) -> u64 {
    (may_take / FREE_PART).max(FREE_BYTES_MIN.min(may_take / FREE_PART_MAX))
}

/// What the process takes when queues may grow no further.
fn mark(may_take: u64) -> u64 {
    may_take - free_bytes(may_take)
}

fn is_at_mark(resident: u64, may_take: u64, was_at_mark: bool) -> bool {
    let below = if was_at_mark { free_bytes(may_take) / BELOW_PART } else { 0 };
    resident >= mark(may_take).saturating_sub(below)
}

/// The second number of `/proc/self/statm`.
fn resident_pages(statm: &[u8]) -> Option<u64> {
    str::from_utf8(statm).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn an_eighth_stays_free_or_128_mib_up_to_a_quarter() {
        let marks = [64, 200, 512, 1_024, 4_096, 65_536].map(|mib| mark(mib * MIB) / MIB);
        assert_eq!(marks, [48, 150, 384, 896, 3_584, 57_344]);
        assert_eq!(mark(0), 0);
    }

    #[test]
    fn at_the_mark_queues_grow_again_once_the_process_takes_clearly_less() {
        let mut was = false;
        let taken = [300, 383, 384, 390, 360, 353, 352, 351, 370, 384];
        let at_mark = taken.map(|mib| {
            was = is_at_mark(mib * MIB, 512 * MIB, was);
            was
        });
        assert_eq!(at_mark, [false, false, true, true, true, true, true, false, false, true]);
    }

    #[test]
    fn it_reads_what_this_process_takes() {
        let process = ProcessMemory::open(u64::MAX).expect("this system tells");
        assert!(process.resident_bytes() > MIB, "{process:?}");
        assert!(process.left_bytes() > u64::MAX / 2);
        assert_eq!(ProcessMemory::open(MIB).expect("this system tells").left_bytes(), 0);
        for (text, pages) in [("9 7 3 1 0 2 0\n", Some(7)), ("9", None), ("9 x", None), ("", None)] {
            assert_eq!(resident_pages(text.as_bytes()), pages, "{text:?}");
        }
    }
}
