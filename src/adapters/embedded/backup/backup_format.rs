//! The bytes of a backup: blocks, each with a checksum over its content and its place, so that none can be changed, left
//! out, doubled or moved unseen.
//!
//! ```text
//! backup    "tlyback1" block ...
//! block     kind u8 | length u32 | payload | checksum u64 of (number of the block u64, kind, length, payload)
//! H         text: format, release, commit, time, size of the store       the first block
//! K         name                                                         a keyspace begins
//! R         (key length u32 | value length u32 | key | value) ...        rows of it
//! E         rows u64                                                     the keyspace ends
//! Z         keyspaces u64 | rows u64                                     the last block; nothing follows
//! ```
//! Numbers are big endian.

use std::io::Read;

use xxhash_rust::xxh3::Xxh3;

use crate::domain::Timestamp;
use crate::domain::limits::BACKUP_BLOCK_BYTES_MAX;

/// What a backup begins with.
pub const MAGIC: &[u8; 8] = b"tlyback1";
/// The format that is written, and the newest that is read.
pub const FORMAT: u32 = 1;

/// What a backup says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupHeader {
    /// The release that wrote it.
    pub release: String,
    /// The number of the commit whose state it holds.
    pub commit: u64,
    /// When it was begun.
    pub time: Timestamp,
    /// The bytes of the store's files then.
    pub disk_bytes: u64,
}

/// Why bytes are no backup that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// They cannot be read.
    #[error("cannot be read")]
    Io(#[from] std::io::Error),
    /// They are not as they were written.
    #[error("is damaged: {0}; use another backup")]
    Damaged(String),
    /// A newer release wrote them.
    #[error("has format {0}, and this release reads format {FORMAT}; use the release that wrote it or a newer one")]
    Newer(u32),
}

/// A block as it was read.
pub enum BackupBlock {
    /// What the backup says of itself.
    Header(BackupHeader),
    /// A keyspace begins.
    Keyspace(String),
    /// Rows of it.
    Rows(Vec<(Vec<u8>, Vec<u8>)>),
    /// The keyspace ends.
    KeyspaceEnd,
    /// The backup ends.
    End,
}

/// Makes blocks.
#[derive(Default)]
pub struct BackupEncoder {
    number: u64,
}

impl BackupEncoder {
    /// The beginning of a backup.
    pub fn header(&mut self, header: &BackupHeader) -> Vec<u8> {
        let BackupHeader { release, commit, time, disk_bytes } = header;
        let micros = time.micros();
        let text =
            format!("format {FORMAT}\ntallystone {release}\ncommit {commit}\ntime {micros}\ndisk-bytes {disk_bytes}\n");
        [&MAGIC[..], &self.block(b'H', text.as_bytes())].concat()
    }

    /// A keyspace begins.
    pub fn keyspace(&mut self, name: &str) -> Vec<u8> {
        self.block(b'K', name.as_bytes())
    }

    /// Rows, as `push_row` put them together.
    pub fn rows(&mut self, rows: &[u8]) -> Vec<u8> {
        self.block(b'R', rows)
    }

    /// The keyspace ends after so many rows.
    pub fn keyspace_end(&mut self, rows: u64) -> Vec<u8> {
        self.block(b'E', &rows.to_be_bytes())
    }

    /// The backup ends.
    pub fn end(&mut self, keyspaces: u64, rows: u64) -> Vec<u8> {
        self.block(b'Z', &[keyspaces.to_be_bytes(), rows.to_be_bytes()].concat())
    }

    fn block(&mut self, kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("rows are far shorter than 4 GiB");
        let mut bytes = Vec::with_capacity(payload.len() + 13);
        bytes.push(kind);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(payload);
        let checksum = checksum(self.number, &bytes);
        bytes.extend_from_slice(&checksum.to_be_bytes());
        self.number += 1;
        bytes
    }
}

/// Adds a row to the rows of a block.
pub fn push_row(rows: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    for part in [key, value] {
        let length = u32::try_from(part.len()).expect("rows are far shorter than 4 GiB");
        rows.extend_from_slice(&length.to_be_bytes());
    }
    rows.extend_from_slice(key);
    rows.extend_from_slice(value);
}

fn checksum(number: u64, block: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&number.to_be_bytes());
    hash.update(block);
    hash.digest()
}

/// Reads blocks and holds them to the order of a backup.
pub struct BackupDecoder<R> {
    input: R,
    number: u64,
    inside: bool,
    ended: bool,
    rows_of_keyspace: u64,
    /// The rows that were read.
    pub rows: u64,
    /// The keyspaces that were begun.
    pub keyspaces: u64,
    /// The bytes that were read.
    pub bytes: u64,
}

impl<R: Read> BackupDecoder<R> {
    /// Begins with the first byte.
    pub fn begin(mut input: R) -> Result<Self, BackupError> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic).map_err(cut_off)?;
        if magic != *MAGIC {
            return Err(damaged("does not begin as a backup does"));
        }
        let (inside, ended, bytes) = (false, false, MAGIC.len() as u64);
        Ok(Self { input, number: 0, inside, ended, rows_of_keyspace: 0, rows: 0, keyspaces: 0, bytes })
    }

    /// The next block; nothing after the last one.
    pub fn next(&mut self) -> Result<Option<BackupBlock>, BackupError> {
        if self.ended {
            return match self.input.read(&mut [0])? {
                0 => Ok(None),
                _ => Err(damaged("something follows its end")), // one byte
            };
        }
        let (kind, payload) = self.block()?;
        let block = match (kind, self.number, self.inside) {
            (b'H', 0, false) => BackupBlock::Header(header(&payload)?),
            (b'K', 1.., false) => {
                let name = String::from_utf8(payload).map_err(|_| damaged("a keyspace without a name"))?;
                (self.inside, self.rows_of_keyspace) = (true, 0);
                self.keyspaces += 1;
                BackupBlock::Keyspace(name)
            }
            (b'R', _, true) => {
                let rows = rows(&payload).ok_or_else(|| damaged("rows of another length"))?;
                self.rows_of_keyspace += rows.len() as u64;
                self.rows += rows.len() as u64;
                BackupBlock::Rows(rows)
            }
            (b'E', _, true) if payload == self.rows_of_keyspace.to_be_bytes() => {
                self.inside = false;
                BackupBlock::KeyspaceEnd
            }
            (b'Z', 1.., false) if payload == [self.keyspaces.to_be_bytes(), self.rows.to_be_bytes()].concat() => {
                self.ended = true;
                BackupBlock::End
            }
            (_, number, _) => return Err(damaged(format!("block {number} is out of order"))), // any other order
        };
        self.number += 1;
        Ok(Some(block))
    }

    fn block(&mut self) -> Result<(u8, Vec<u8>), BackupError> {
        let mut head = [0; 5];
        self.input.read_exact(&mut head).map_err(cut_off)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let at = self.bytes;
        if length > BACKUP_BLOCK_BYTES_MAX {
            return Err(damaged(format!("a block of {length} bytes at byte {at}")));
        }
        let mut block = head.to_vec();
        block.resize(head.len() + length, 0);
        self.input.read_exact(&mut block[head.len()..]).map_err(cut_off)?;
        let mut kept = [0; 8];
        self.input.read_exact(&mut kept).map_err(cut_off)?;
        if u64::from_be_bytes(kept) != checksum(self.number, &block) {
            return Err(damaged(format!("wrong checksum of the block at byte {at}")));
        }
        self.bytes += (block.len() + kept.len()) as u64;
        Ok((head[0], block.split_off(head.len())))
    }
}

fn header(payload: &[u8]) -> Result<BackupHeader, BackupError> {
    let unreadable = || damaged("its header cannot be read");
    let text = std::str::from_utf8(payload).map_err(|_| unreadable())?;
    let mut lines = text.lines();
    let mut line = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)).ok_or_else(unreadable);
    let format: u32 = line("format ")?.parse().map_err(|_| unreadable())?;
    if format != FORMAT {
        return Err(BackupError::Newer(format));
    }
    let release = line("tallystone ")?.to_owned();
    let commit = line("commit ")?.parse().map_err(|_| unreadable())?;
    let time = Timestamp::from_micros(line("time ")?.parse().map_err(|_| unreadable())?);
    let disk_bytes = line("disk-bytes ")?.parse().map_err(|_| unreadable())?;
    Ok(BackupHeader { release, commit, time, disk_bytes })
}

fn rows(mut payload: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut rows = Vec::new();
    while !payload.is_empty() {
        let (key, rest) = payload.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_at_checked(u32::from_be_bytes(*key) as usize)?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*value) as usize)?;
        rows.push((key.to_vec(), value.to_vec()));
        payload = rest;
    }
    Some(rows)
}

fn cut_off(error: std::io::Error) -> BackupError {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
        _ => error.into(), // the system's word
    }
}

fn damaged(detail: impl Into<String>) -> BackupError {
    BackupError::Damaged(detail.into())
}
