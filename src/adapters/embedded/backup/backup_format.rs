//! The byte format of a backup: blocks, each with a checksum over its content and position. A block that was changed,
//! left out, duplicated or moved is detected.
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

use crate::limits::BACKUP_BLOCK_BYTES_MAX;
use tallystone_domain::Timestamp;

/// Magic bytes at the beginning of a backup.
pub const MAGIC: &[u8; 8] = b"tlyback1";
/// The format that is written, and the newest that can be read.
pub const FORMAT: u32 = 1;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupHeader {
    /// Release that wrote the backup.
    pub release: String,
    /// Number of the commit that the backup contains.
    pub commit: u64,
    /// Start time of the backup.
    pub time: Timestamp,
    /// Bytes of the store's files at the start time.
    pub disk_bytes: u64,
}

/// The reason why a backup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The bytes cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// The bytes differ from those written.
    #[error("is damaged: {0}; use another backup")]
    Damaged(String),
    /// A newer release wrote the backup, in this format.
    #[error(
        "has format {0}, but this release reads format {FORMAT}; use the release that wrote the backup, or a newer one"
    )]
    Newer(u32),
}

/// A decoded block.
pub enum BackupBlock {
    Header(BackupHeader),
    /// Begin of a keyspace with this name.
    Keyspace(String),
    /// Rows of the keyspace, as keys and values.
    Rows(Vec<(Vec<u8>, Vec<u8>)>),
    KeyspaceEnd,
    End,
}

/// Encodes blocks.
#[derive(Default)]
pub struct BackupEncoder {
    number: u64,
}

impl BackupEncoder {
    /// Encodes the magic bytes and the header block.
    pub fn header(&mut self, header: &BackupHeader) -> Vec<u8> {
        let BackupHeader { release, commit, time, disk_bytes } = header;
        let micros = time.micros();
        let text =
            format!("format {FORMAT}\ntallystone {release}\ncommit {commit}\ntime {micros}\ndisk-bytes {disk_bytes}\n");
        [&MAGIC[..], &self.block(b'H', text.as_bytes())].concat()
    }

    /// Encodes the begin of a keyspace.
    pub fn keyspace(&mut self, name: &str) -> Vec<u8> {
        self.block(b'K', name.as_bytes())
    }

    /// Encodes a block of rows collected by `push_row`.
    pub fn rows(&mut self, rows: &[u8]) -> Vec<u8> {
        self.block(b'R', rows)
    }

    /// Encodes the end of a keyspace with its number of rows.
    pub fn keyspace_end(&mut self, rows: u64) -> Vec<u8> {
        self.block(b'E', &rows.to_be_bytes())
    }

    /// Encodes the end of the backup.
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

/// Appends a row to the rows of a block.
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

/// Decodes blocks and checks their order.
pub struct BackupDecoder<R> {
    input: R,
    number: u64,
    inside: bool,
    ended: bool,
    rows_of_keyspace: u64,
    /// Number of rows read so far.
    pub rows: u64,
    /// Number of keyspaces begun so far.
    pub keyspaces: u64,
    /// Number of bytes read so far.
    pub bytes: u64,
}

impl<R: Read> BackupDecoder<R> {
    /// Starts a decoder; checks the magic bytes.
    pub fn begin(mut input: R) -> Result<Self, BackupError> {
        let mut magic = [0; MAGIC.len()];
        input.read_exact(&mut magic).map_err(cut_off)?;
        if magic != *MAGIC {
            return Err(damaged("it is not a backup of tallystone"));
        }
        let (inside, ended, bytes) = (false, false, MAGIC.len() as u64);
        Ok(Self { input, number: 0, inside, ended, rows_of_keyspace: 0, rows: 0, keyspaces: 0, bytes })
    }

    /// Decodes the next block; returns `None` after the last one.
    pub fn next(&mut self) -> Result<Option<BackupBlock>, BackupError> {
        if self.ended {
            return match self.input.read(&mut [0])? {
                0 => Ok(None),
                _ => Err(damaged("it has data after its end")), // one more byte
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
        _ => error.into(), // every other kind is an IO error
    }
}

fn damaged(detail: impl Into<String>) -> BackupError {
    BackupError::Damaged(detail.into())
}
