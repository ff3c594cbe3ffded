//! The memory that this process takes of the memory that it may take, and what that leaves to queues.
//!
//! The bound of queues counts only the memory of queues. Caches, buffers, memory tables and the memory that the
//! allocator keeps come on top. So on a small machine the system may end the process before the bound is reached. Near
//! that point the queues may grow no further.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::param::page_size;

/// This part of the memory stays free of the process: the system keeps the files there that the store reads and writes,
/// and the program itself.
const FREE_PART: u64 = 8;
/// The least that stays free, unless that is more than `FREE_PART_LARGEST` of all. With less, a store under load was
/// seen to wait for its disk.
const FREE_BYTES_MIN: u64 = 160 * 1024 * 1024;
const FREE_PART_LARGEST: u64 = 3;
/// Queues may take this part of the memory whatever the rest of the process takes: then it is not the queues that take
/// too much.
const QUEUES_PART_MIN: u64 = 32;
/// Once the process has reached its mark, queues may grow again when it is below by this part of the memory that stays
/// free. The memory of the process goes up and down with each memory table.
const BELOW_PART: u64 = 4;
/// Queues may keep the memory that they take at the mark, and put new messages in the place of old ones. If the process
/// grows by this part of the memory that stays free even so, the memory that queues take by then is the most.
const GROWTH_PART: u64 = 8;

/// This process, as it was read last.
#[derive(Debug)]
pub struct ProcessMemory {
    statm: File,
    may_take_bytes: u64,
    seen: Mutex<ProcessReading>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct ProcessReading {
    /// The bytes that the process takes, without pages of files, which the system can drop.
    taken: u64,
    /// Set from the moment at which the mark is reached until the process is clearly below it.
    at_mark: Option<AtMark>,
}

/// The memory that was taken when the mark was reached, or since then when the process had grown further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AtMark {
    by_process: u64,
    by_queues: u64,
}

impl ProcessMemory {
    /// Watches this process, which may take so many bytes, while its queues take so many. None where the system does
    /// not report the memory of a process.
    pub fn open(may_take_bytes: u64, queues_take: u64) -> Option<Self> {
        let statm = File::open("/proc/self/statm").ok()?;
        let opened = Self { statm, may_take_bytes, seen: Mutex::default() };
        opened.read(queues_take);
        Some(opened)
    }

    /// Reads the memory that the process takes now, while its queues take so many bytes: a system call of about a
    /// microsecond. A failed read leaves the last reading.
    pub fn read(&self, queues_take: u64) {
        let mut text = [0; 128];
        let Ok(length) = self.statm.read_at(&mut text, 0) else { return };
        let Some(pages) = own_pages(&text[..length]) else { return };
        let taken = pages.saturating_mul(page_size() as u64);
        let mut seen = self.seen.lock();
        *seen = seen.next(taken, queues_take, self.may_take_bytes);
    }

    /// The most that queues may take, in bytes, while they take so many.
    pub fn queues_may_take(&self, queues_take: u64) -> u64 {
        self.seen.lock().queues_may_take(queues_take, self.may_take_bytes)
    }

    /// The memory that the process takes, in bytes.
    pub fn taken_bytes(&self) -> u64 {
        self.seen.lock().taken
    }

    /// The memory that the process may take, in bytes.
    pub fn may_take_bytes(&self) -> u64 {
        self.may_take_bytes
    }
}

impl ProcessReading {
    fn next(self, taken: u64, queues_take: u64, may_take: u64) -> Self {
        let (mark, free) = (mark(may_take), free_bytes(may_take));
        let at_mark = match self.at_mark {
            None if taken < mark => None,
            None => Some(AtMark { by_process: taken, by_queues: queues_take }),
            Some(_) if taken < mark.saturating_sub(free / BELOW_PART) => None,
            Some(at) if taken >= at.by_process.saturating_add(free / GROWTH_PART) => {
                Some(AtMark { by_process: taken, by_queues: at.by_queues.min(queues_take) })
            }
            same => same,
        };
        Self { taken, at_mark }
    }

    fn queues_may_take(self, queues_take: u64, may_take: u64) -> u64 {
        let most = match self.at_mark {
            Some(at) => at.by_queues,
            None => queues_take.saturating_add(mark(may_take).saturating_sub(self.taken)),
        };
        most.max(may_take / QUEUES_PART_MIN)
    }
}

fn free_bytes(may_take: u64) -> u64 {
    (may_take / FREE_PART).max(FREE_BYTES_MIN.min(may_take / FREE_PART_LARGEST))
}

/// The memory of the process, in bytes, at which queues may grow no further.
fn mark(may_take: u64) -> u64 {
    may_take - free_bytes(may_take)
}

/// The second number of `/proc/self/statm`, all pages in memory, without the third, those of files.
fn own_pages(statm: &[u8]) -> Option<u64> {
    let mut numbers = str::from_utf8(statm).ok()?.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(resident.saturating_sub(of_files))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// The memory that queues may take of 512 MiB after each step: the memory of the process, and that of its queues.
    /// In MiB.
    fn bounds(steps: &[(u64, u64)]) -> Vec<u64> {
        let mut seen = ProcessReading::default();
        let bound = |(taken, queues): &(u64, u64)| {
            seen = seen.next(taken * MIB, queues * MIB, 512 * MIB);
            seen.queues_may_take(queues * MIB, 512 * MIB) / MIB
        };
        steps.iter().map(bound).collect()
    }

    #[test]
    fn an_eighth_stays_free_or_160_mib_up_to_a_third() {
        let marks = [64, 300, 512, 1_024, 4_096, 65_536].map(|mib| mark(mib * MIB) / MIB);
        assert_eq!(marks, [42, 200, 352, 864, 3_584, 57_344]);
        assert_eq!((mark(0), mark(7)), (0, 5));
    }

    #[test]
    fn below_the_mark_queues_may_take_what_is_left() {
        assert_eq!(bounds(&[(100, 20), (300, 120), (351, 130)]), [272, 172, 131]);
    }

    #[test]
    fn at_the_mark_queues_keep_what_they_take_until_the_process_takes_clearly_less() {
        let steps = [(352, 130), (360, 130), (355, 90), (312, 60), (311, 60)];
        assert_eq!(bounds(&steps), [130, 130, 130, 130, 101]);
    }

    #[test]
    fn a_process_that_grows_at_its_mark_takes_from_its_queues_what_has_left_them() {
        let steps = [(352, 130), (371, 100), (372, 100), (391, 90), (392, 120), (380, 90)];
        assert_eq!(bounds(&steps), [130, 130, 100, 100, 100, 100]);
    }

    #[test]
    fn queues_that_take_little_are_never_refused_for_what_others_take() {
        assert_eq!(bounds(&[(500, 0), (510, 7), (340, 7)]), [16, 16, 16]);
    }

    #[test]
    fn it_reads_what_this_process_takes() {
        let ballast = std::hint::black_box(vec![1_u8; 64 << 20]);
        let process = ProcessMemory::open(u64::MAX, 0).expect("this system tells");
        assert!(process.taken_bytes() > 48 * MIB, "{process:?}");
        assert!(process.queues_may_take(0) > u64::MAX / 2);
        assert_eq!(ProcessMemory::open(MIB, 900).expect("this system tells").queues_may_take(0), MIB / 32);
        for (text, pages) in
            [("9 7 3 1 0 2 0\n", Some(4)), ("9 3 7", Some(0)), ("9 7", None), ("9 x 1", None), ("", None)]
        {
            assert_eq!(own_pages(text.as_bytes()), pages, "{text:?}");
        }
        drop(ballast);
    }
}
