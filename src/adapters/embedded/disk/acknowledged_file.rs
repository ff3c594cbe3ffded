//! The number of the last acknowledged commit, in a file of its own (the mark).
//!
//! The file is overwritten after each synced commit, without a sync of its own. After a crash of the process it is
//! exact; after a power cut it may be older. If the last commit of a store is below the mark, acknowledged work is
//! lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::disk::manifest::sync_folder;

const HEAD: &[u8; 8] = b"tlymark1";
const BYTES: usize = 24;

/// The open file.
#[derive(Debug)]
pub struct AcknowledgedFile {
    file: File,
}

impl AcknowledgedFile {
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("acknowledged")
    }

    /// Creates the file of a new store, durably.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(Self::path(dir))?;
        let mark = Self { file };
        mark.write(0)?;
        mark.sync()?;
        sync_folder(dir)?;
        Ok(mark)
    }

    /// Opens the file and reads its number; the inner error describes damage.
    pub fn open(dir: &Path) -> io::Result<Result<(Self, u64), String>> {
        let file = match OpenOptions::new().read(true).write(true).open(Self::path(dir)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Err("missing".to_owned())),
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        if length != BYTES as u64 {
            return Ok(Err(format!("{length} bytes long instead of {BYTES}")));
        }
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, 0)?;
        let number = u64::from_be_bytes(bytes[8..16].try_into().expect("8 of 24 bytes"));
        if bytes != Self::bytes(number) {
            return Ok(Err("wrong checksum".to_owned()));
        }
        Ok(Ok((Self { file }, number)))
    }

    /// Overwrites the number without waiting for the disk.
    pub fn write(&self, number: u64) -> io::Result<()> {
        self.file.write_all_at(&Self::bytes(number), 0)
    }

    /// Makes the number durable.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn bytes(number: u64) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(HEAD);
        bytes[8..16].copy_from_slice(&number.to_be_bytes());
        let checksum = xxh3_64(&bytes[..16]);
        bytes[16..].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mark = AcknowledgedFile::create(dir.path()).expect("a new mark");
        mark.write(7).expect("writable");
        let (_, number) = AcknowledgedFile::open(dir.path()).expect("readable").expect("whole");
        assert_eq!(number, 7);
    }

    #[test]
    fn a_missing_cut_or_flipped_mark_is_seen() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = AcknowledgedFile::path(dir.path());
        assert!(AcknowledgedFile::open(dir.path()).expect("asked").is_err(), "missing");
        AcknowledgedFile::create(dir.path()).expect("a new mark").write(300).expect("writable");
        let whole = fs::read(&path).expect("readable");
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            for bytes in [&flipped[..], &whole[..at]] {
                fs::write(&path, bytes).expect("writable");
                assert!(AcknowledgedFile::open(dir.path()).expect("asked").is_err(), "byte {at}");
            }
        }
    }
}
