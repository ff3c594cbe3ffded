//! Verifies the files of one keyspace of the store library (lsm-tree 3.1). `current` names a version file and its
//! checksum. The version file names the tables and their checksums, which cover each table to the last byte. The
//! library itself compares neither when it opens.
//!
//! ```text
//! current   version u64 | checksum u128 | 0
//! v<n>      sections ... | "TOC!" | count u32 | (position u64, length u64, name) ... | trailer
//! trailer   "SFA!" | 1 | 0 | checksum u128 | position of TOC u64 | length u64
//! tables    levels u8 | (runs u8 | (tables u32 | (id u64, 0, checksum u128, seqno u64) ...) ...) ...
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

use super::byte_reader::ByteReader;
use super::read_through;
use crate::error::OpenError;

/// A file and its checksum.
#[derive(Debug)]
pub struct ChecksummedFile {
    path: PathBuf,
    checksum: u128,
    /// Length in bytes.
    pub bytes: u64,
    /// Modification time.
    pub written: SystemTime,
}

impl ChecksummedFile {
    /// Compares the file with its checksum.
    pub fn check(&self) -> Result<(), OpenError> {
        let mut hasher = Xxh3Default::new();
        read_through(&self.path, |piece| hasher.update(piece)).map_err(OpenError::io(&self.path))?;
        if hasher.digest128() == self.checksum {
            return Ok(());
        }
        Err(OpenError::damaged(&self.path, "wrong checksum"))
    }
}

/// Lists the tables of a keyspace from its verified version file.
pub fn files(folder: &Path) -> Result<Vec<ChecksummedFile>, OpenError> {
    let current = folder.join("current");
    let (version, checksum) =
        parse_current(&read(&current)?).ok_or_else(|| OpenError::damaged(&current, "not as it was written"))?;
    let path = folder.join(format!("v{version}"));
    let bytes = read(&path)?;
    if xxh3_128(&bytes) != checksum {
        return Err(OpenError::damaged(path, format!("wrong checksum, or {} names another", current.display())));
    }
    let tables = parse_tables(&bytes).ok_or_else(|| OpenError::damaged(&path, "not as it was written"))?;
    tables.into_iter().map(|(id, checksum)| file(folder.join("tables").join(id.to_string()), checksum)).collect()
}

fn file(path: PathBuf, checksum: u128) -> Result<ChecksummedFile, OpenError> {
    let found = fs::metadata(&path).and_then(|found| Ok((found.len(), found.modified()?)));
    match found {
        Ok((bytes, written)) => Ok(ChecksummedFile { path, checksum, bytes, written }),
        Err(error) => Err(missing_or(path)(error)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, OpenError> {
    fs::read(path).map_err(missing_or(path))
}

fn missing_or(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> OpenError {
    let path = path.into();
    move |error| match error.kind() {
        std::io::ErrorKind::NotFound => OpenError::damaged(path, "missing"),
        // Any other kind means that the file could not be read.
        _ => OpenError::io(path)(error),
    }
}

fn parse_current(bytes: &[u8]) -> Option<(u64, u128)> {
    let mut bytes = ByteReader { rest: bytes };
    let (version, checksum) = (bytes.u64()?, bytes.u128()?);
    (bytes.u8()? == 0 && bytes.rest.is_empty()).then_some((version, checksum))
}

fn parse_tables(file: &[u8]) -> Option<Vec<(u64, u128)>> {
    const TRAILER_BYTES: usize = 4 + 1 + 1 + 16 + 8 + 8;
    let mut trailer = ByteReader { rest: file.get(file.len().checked_sub(TRAILER_BYTES)?..)? };
    trailer.take(4 + 1 + 1 + 16)?;
    let contents = usize::try_from(trailer.u64()?).ok()?;
    let mut contents = ByteReader { rest: file.get(contents..)? };
    contents.take(4)?;
    for _ in 0..contents.u32()? {
        let position = usize::try_from(contents.u64()?).ok()?;
        let length = usize::try_from(contents.u64()?).ok()?;
        let name_length = usize::from(contents.u16()?);
        if contents.take(name_length)? == b"tables" {
            return parse_levels(file.get(position..position.checked_add(length)?)?);
        }
    }
    None
}

fn parse_levels(section: &[u8]) -> Option<Vec<(u64, u128)>> {
    let mut section = ByteReader { rest: section };
    let mut tables = Vec::new();
    for _ in 0..section.u8()? {
        for _ in 0..section.u8()? {
            for _ in 0..section.u32()? {
                let id = section.u64()?;
                let is_known = section.u8()? == 0;
                tables.push((id, section.u128().filter(|_| is_known)?));
                section.u64()?;
            }
        }
    }
    section.rest.is_empty().then_some(tables)
}
