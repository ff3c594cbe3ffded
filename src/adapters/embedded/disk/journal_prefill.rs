//! Writes zeros ahead of the end of the journal.
//!
//! The store library creates each journal as one long hole. A sync of bytes written into a hole waits until the file
//! system has allocated blocks and written the inode. A sync of bytes written over zeros waits for these bytes alone,
//! and takes less than half the time. So zeros are written where the next commits will go.
//!
//! A hole reads as zeros, so the contents of the file do not change. The committer writes the zeros, so never while the
//! library writes. A file system that reports a hole where there are bytes must not make us overwrite them. So the
//! first hole of a journal is read to check it, and later ones must lie behind the zeros written earlier.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};

/// Step of zeros: large enough that few syncs write zeros, and small enough that none writes many.
const STEP_BYTES: usize = 256 * 1024;
/// The next step is written when about this much of the last one is left.
const LEFT_BYTES: usize = 128 * 1024;

/// The zeros ahead of one journal.
#[derive(Debug)]
pub struct JournalPrefill {
    file: File,
    /// Estimated bytes of zeros still ahead.
    bytes_ahead: usize,
    zeros: Vec<u8>,
    /// End of the zeros written here; there is no hole before it.
    zeroed_to: Option<u64>,
}

impl JournalPrefill {
    pub fn open(journal: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(journal)?;
        Ok(Self { file, bytes_ahead: 0, zeros: vec![0; STEP_BYTES], zeroed_to: None })
    }

    /// Records a commit of about `bytes` bytes, and writes more zeros when the next step is due.
    ///
    /// Zeros never go beyond the end of the file: the library appends to a journal without a hole.
    pub fn extend_after(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes_ahead = self.bytes_ahead.saturating_sub(bytes);
        if self.bytes_ahead > LEFT_BYTES {
            return Ok(());
        }
        let end = self.file.metadata()?.len();
        let hole = seek(&self.file, SeekFrom::Hole(0))?;
        let length = STEP_BYTES.min(usize::try_from(end.saturating_sub(hole)).unwrap_or(STEP_BYTES));
        if length == 0 {
            // The journal has no hole left.
            self.bytes_ahead = usize::MAX;
            return Ok(());
        }
        if !self.is_hole(hole, length)? {
            return Err(io::Error::other(format!("the file system reports a hole at {hole}, where there is none")));
        }
        self.file.write_all_at(&self.zeros[..length], hole)?;
        self.zeroed_to = Some(hole + length as u64);
        self.bytes_ahead += length;
        Ok(())
    }

    /// Reads the range once for each journal, because the read takes milliseconds (the system reads ahead).
    fn is_hole(&self, place: u64, length: usize) -> io::Result<bool> {
        if let Some(to) = self.zeroed_to {
            return Ok(place >= to);
        }
        let mut found = vec![0; length];
        self.file.read_exact_at(&mut found, place)?;
        Ok(found == self.zeros[..length])
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_journal_reads_the_same_and_has_blocks_ahead_of_its_end() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("0.jnl");
        let mut journal = File::create(&path).expect("a new file");
        journal.set_len(1 << 20).expect("a hole");
        let mut expected = vec![0; 1 << 20];
        let mut ahead = JournalPrefill::open(&path).expect("there");
        for commit in 0..50_usize {
            ahead.extend_after(if commit == 0 { 0 } else { 20_000 }).expect("writable");
            let from = commit * 20_000;
            let hole = seek(&ahead.file, SeekFrom::Hole(from as u64)).expect("known");
            assert!(hole >= (from as u64 + 20_000).min(1 << 20), "commit {commit} would go into a hole");
            journal.write_all(&[commit as u8; 20_000]).expect("writable");
            expected[from..from + 20_000].fill(commit as u8);
        }
        assert_eq!(std::fs::read(&path).expect("readable"), expected);
    }

    #[test]
    fn a_journal_that_is_appended_to_is_left_alone() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("0.jnl");
        std::fs::write(&path, [7; 100]).expect("writable");
        let mut ahead = JournalPrefill::open(&path).expect("there");
        ahead.extend_after(1 << 20).expect("nothing to do");
        assert_eq!(std::fs::read(&path).expect("readable"), [7; 100]);
    }
}
