//! Backups of a running store, and restores.
//!
//! The committer takes the snapshot between two commits. The snapshot spans all keyspaces of the store library and
//! keeps rows that are later overwritten or dropped. Its rows are read in key order and written as blocks
//! (`backup_format`); a restore (`restore`) writes them to a new store. Invariant: a backup is exactly one commit
//! state, complete, or is refused.

mod backup_format;
mod restore;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use fjall::{Iter, Readable};

use super::disk::backup_snapshot::BackupSnapshot;
use super::error::ReadError;
use super::inbox::command::StoreCommand;
use super::store_core::StoreCore;
use crate::limits::BACKUP_PIECE_BYTES_MAX;
use backup_format::BackupEncoder;
use tallystone_ports::{BackupPieces, Backups, Clock, StoreError};

pub use backup_format::{BackupError, BackupHeader};
pub use restore::{BackupSummary, RestoreError, check, header_of, is_unfinished, restore};

/// Backs up an open store.
pub struct EmbeddedBackups {
    core: Arc<StoreCore>,
    clock: Arc<dyn Clock>,
}

impl EmbeddedBackups {
    /// Creates the backups of this store; the clock dates them.
    pub fn new(core: Arc<StoreCore>, clock: Arc<dyn Clock>) -> Self {
        Self { core, clock }
    }
}

#[async_trait]
impl Backups for EmbeddedBackups {
    async fn begin(&self) -> Result<Box<dyn BackupPieces>, StoreError> {
        let frozen = self.core.inbox.request("back up", StoreCommand::Snapshot).await?;
        let header = BackupHeader {
            release: env!("CARGO_PKG_VERSION").to_owned(),
            commit: frozen.commit,
            time: self.clock.now(),
            disk_bytes: frozen.disk_bytes,
        };
        Ok(Box::new(BackupStream { core: Arc::clone(&self.core), reading: Some(SnapshotReader::new(frozen, header)) }))
    }
}

/// The pieces of one backup.
struct BackupStream {
    core: Arc<StoreCore>,
    /// `None` once the last piece was read or a read failed.
    reading: Option<SnapshotReader>,
}

#[async_trait]
impl BackupPieces for BackupStream {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(mut reading) = self.reading.take() else { return Ok(None) };
        let read = self.core.read_long("back up", move |_, _| {
            let piece = reading.next()?;
            Ok((piece, reading))
        });
        let (piece, reading) = read.await?;
        self.reading = piece.is_some().then_some(reading);
        Ok(piece)
    }
}

/// Read position within a backup.
struct SnapshotReader {
    frozen: BackupSnapshot,
    encoder: BackupEncoder,
    at: ReadPosition,
    keyspaces: u64,
    rows: u64,
}

enum ReadPosition {
    Header(BackupHeader),
    /// Before the keyspace with this index.
    Before(usize),
    /// Inside a keyspace: its index, its iterator, and the number of rows read.
    Inside(usize, Iter, u64),
    Ended,
}

impl SnapshotReader {
    fn new(frozen: BackupSnapshot, header: BackupHeader) -> Self {
        Self { frozen, encoder: BackupEncoder::default(), at: ReadPosition::Header(header), keyspaces: 0, rows: 0 }
    }

    /// Reads the next block.
    fn next(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        match std::mem::replace(&mut self.at, ReadPosition::Ended) {
            ReadPosition::Header(header) => {
                self.at = ReadPosition::Before(0);
                Ok(Some(self.encoder.header(&header)))
            }
            ReadPosition::Before(number) => match self.frozen.keyspaces.get(number) {
                Some((name, keyspace)) => {
                    self.keyspaces += 1;
                    self.at = ReadPosition::Inside(number, self.frozen.snapshot.iter(keyspace), 0);
                    Ok(Some(self.encoder.keyspace(name)))
                }
                None => Ok(Some(self.encoder.end(self.keyspaces, self.rows))),
            },
            ReadPosition::Inside(number, iter, rows) => self.next_rows(number, iter, rows).map(Some),
            ReadPosition::Ended => Ok(None),
        }
    }

    fn next_rows(&mut self, number: usize, mut iter: Iter, before: u64) -> Result<Vec<u8>, ReadError> {
        let (mut payload, mut rows) = (Vec::with_capacity(BACKUP_PIECE_BYTES_MAX), before);
        while payload.len() < BACKUP_PIECE_BYTES_MAX {
            let Some(row) = iter.next() else { break };
            let (key, value) = row.into_inner()?;
            backup_format::push_row(&mut payload, &key, &value);
            rows += 1;
        }
        if payload.is_empty() {
            self.at = ReadPosition::Before(number + 1);
            self.rows += rows;
            return Ok(self.encoder.keyspace_end(rows));
        }
        self.at = ReadPosition::Inside(number, iter, rows);
        Ok(self.encoder.rows(&payload))
    }
}
