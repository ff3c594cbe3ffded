//! Restores a backup into a new data directory.
//!
//! The whole backup is checked before anything is created. A file named `restoring` exists in the directory from
//! beginning to end of the restore, and no store opens a directory that has it. When all rows are durable, the store is
//! opened once, with every check of a startup; only then is the file deleted.
//!
//! Queues get a new epoch. A restore goes back in time, so serials of leases and messages given after the backup are
//! given again. Their fences and keys begin with the epoch, so they still differ.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backup_format::{BackupBlock, BackupDecoder, BackupError, BackupHeader};
use crate::disk::acknowledged_file::AcknowledgedFile;
use crate::disk::disk_space::DiskSpaceMonitor;
use crate::disk::library::{KeyspaceError, KeyspaceKind, Library};
use crate::disk::manifest::{Manifest, sync_folder};
use crate::disk::memtable_reclaimer::MemtableReclaimer;
use crate::disk::writer::{SyncMode, Writer};
use crate::disk::{library, meta};
use crate::error::{OpenError, ReadError};
use crate::limits::COMMIT_BYTES_MAX;
use crate::{Options, lock, open_locked, refuse_open_volume};
use tallystone_adapters::codec::queues::settings::{decode_header, encode_header};
use tallystone_domain::Timestamp;

/// Contents of a backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupSummary {
    pub header: BackupHeader,
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Number of rows.
    pub rows: u64,
    /// Size in bytes.
    pub bytes: u64,
}

/// The reason why a backup was not checked or restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup cannot be used.
    #[error("the backup {path} {fault}")]
    Backup {
        /// The backup file.
        path: PathBuf,
        /// The fault found.
        fault: BackupError,
    },
    /// The directory is not empty.
    #[error("{0} is not empty; name a directory that does not exist yet")]
    NotEmpty(PathBuf),
    /// The file system has too little free space.
    #[error(
        "{path} has {free} bytes free, but the restored store needs about {wanted} bytes; free some space, or choose \
         another disk"
    )]
    NoRoom {
        /// The target directory.
        path: PathBuf,
        /// Free bytes.
        free: u64,
        /// Required bytes.
        wanted: u64,
    },
    /// The backup has a keyspace of a newer release.
    #[error(
        "the backup contains {0:?}, which this release does not know; restore it with the release that wrote the backup"
    )]
    Unknown(String),
    /// The new store could not be created or opened.
    #[error("cannot create the store")]
    Store(#[from] OpenError),
}

/// Reads a backup to its end and verifies its checksums and counts.
pub fn check(path: &Path) -> Result<BackupSummary, RestoreError> {
    let of = |fault| RestoreError::Backup { path: path.to_owned(), fault };
    let mut decoder = begin(path)?;
    let mut found = None;
    while let Some(block) = decoder.next().map_err(of)? {
        if let BackupBlock::Header(header) = block {
            found = Some(header);
        }
    }
    let header = found.ok_or_else(|| of(BackupError::Damaged("it has no header".to_owned())))?;
    Ok(BackupSummary { header, keyspaces: decoder.keyspaces, rows: decoder.rows, bytes: decoder.bytes })
}

/// Decodes the header from the first piece of a backup.
pub fn header_of(piece: &[u8]) -> Option<BackupHeader> {
    match BackupDecoder::begin(piece).and_then(|mut decoder| decoder.next()) {
        Ok(Some(BackupBlock::Header(header))) => Some(header),
        Ok(_) | Err(_) => None,
    }
}

fn begin(path: &Path) -> Result<BackupDecoder<BufReader<File>>, RestoreError> {
    let of = |fault| RestoreError::Backup { path: path.to_owned(), fault };
    let file = File::open(path).map_err(|error| of(error.into()))?;
    BackupDecoder::begin(BufReader::with_capacity(1 << 20, file)).map_err(of)
}

/// Returns whether an earlier restore into the directory was not finished.
pub fn is_unfinished(dir: &Path) -> bool {
    marker(dir).exists()
}

fn marker(dir: &Path) -> PathBuf {
    dir.join("restoring")
}

/// Restores a backup into an empty or missing directory. The epoch of the queues is derived from `now`.
pub fn restore(path: &Path, options: &Options, now: Timestamp) -> Result<BackupSummary, RestoreError> {
    let summary = check(path)?;
    let dir = options.dir.as_path();
    let lock = claim(dir)?;
    let free = DiskSpaceMonitor::of(dir, 0).free_bytes().map_err(OpenError::io(dir))?;
    let wanted = summary.bytes.saturating_add(options.journal_bytes);
    if free < wanted {
        remove_leftovers(dir).map_err(OpenError::io(dir))?;
        return Err(RestoreError::NoRoom { path: dir.to_owned(), free, wanted });
    }
    let manifest = Manifest::default();
    manifest.write(dir).map_err(OpenError::io(Manifest::path(dir)))?;
    let mark = AcknowledgedFile::create(dir).map_err(OpenError::io(AcknowledgedFile::path(dir)))?;
    let library = Arc::new(Library::open(manifest, options)?);
    // Commit numbers continue, because rows of queues refer to commits.
    let writer = Writer::new(dir, Arc::clone(&library), mark, summary.header.commit, MemtableReclaimer::start()?);
    let mut loading =
        RestoreLoader { writer: writer.map_err(OpenError::library(library::folder(dir)))?, library, dir, now };
    loading.load(path)?;
    loading.writer.finish().map_err(OpenError::library(library::folder(dir)))?;
    drop(loading);
    // Run every startup check, so that a fault shows now and not at the next start.
    open_locked(options, lock)?.close();
    fs::remove_file(marker(dir)).and_then(|()| sync_folder(dir)).map_err(OpenError::io(marker(dir)))?;
    Ok(summary)
}

/// Claims an empty directory and marks it as unfinished, durably.
fn claim(dir: &Path) -> Result<File, RestoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(OpenError::io(dir))?;
    refuse_open_volume(dir)?;
    if fs::read_dir(dir).map_err(OpenError::io(dir))?.next().is_some() {
        return Err(RestoreError::NotEmpty(dir.to_owned()));
    }
    let marked = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(marker(dir))?;
        file.write_all(
            b"a restore into this directory is running or was interrupted; no server opens the directory \
            while this file exists\n",
        )?;
        file.sync_all()?;
        sync_folder(dir)?;
        dir.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), sync_folder)
    };
    marked().map_err(OpenError::io(marker(dir)))?;
    Ok(lock(dir)?)
}

/// Empties the directory again.
fn remove_leftovers(dir: &Path) -> io::Result<()> {
    fs::remove_file(dir.join("lock"))?;
    fs::remove_file(marker(dir))
}

/// State of loading rows into a new store.
struct RestoreLoader<'a> {
    writer: Writer,
    library: Arc<Library>,
    dir: &'a Path,
    now: Timestamp,
}

impl RestoreLoader<'_> {
    fn load(&mut self, path: &Path) -> Result<(), RestoreError> {
        let of = |fault| RestoreError::Backup { path: path.to_owned(), fault };
        let mut decoder = begin(path)?;
        let mut keyspace = None;
        let mut batch = self.writer.batch(0);
        while let Some(block) = decoder.next().map_err(of)? {
            match block {
                BackupBlock::Keyspace(name) => {
                    let kind = kind_of(&name).ok_or_else(|| RestoreError::Unknown(name.clone()))?;
                    let made = self.library.make(&name, kind).map_err(|error| self.failed(error))?;
                    keyspace = Some((name, made));
                }
                BackupBlock::Rows(rows) => {
                    let (name, keyspace) = keyspace.as_ref().expect("the decoder lets rows follow a keyspace only");
                    for (key, value) in rows {
                        if let Some(value) = self.as_restored(name, &key, value)? {
                            batch.put(keyspace, key, value);
                        }
                    }
                }
                BackupBlock::Header(_) | BackupBlock::KeyspaceEnd | BackupBlock::End => {}
            }
            if batch.bytes() >= COMMIT_BYTES_MAX {
                let full = std::mem::replace(&mut batch, self.writer.batch(0));
                self.writer.commit(full, SyncMode::No).map_err(OpenError::library(library::folder(self.dir)))?;
            }
        }
        // Also commits an empty batch, which has the commit number.
        Ok(self.writer.commit(batch, SyncMode::Yes).map_err(OpenError::library(library::folder(self.dir)))?)
    }

    /// Converts a row for the new store; `None` for rows that the new store writes itself.
    fn as_restored(&self, keyspace: &str, key: &[u8], value: Vec<u8>) -> Result<Option<Vec<u8>>, OpenError> {
        match (keyspace, key.first()) {
            ("meta", _) if key == meta::COMMIT || key == meta::NEWEST_ROWS => Ok(None),
            ("queue.shards", Some(b'h')) => {
                // The shard number is in the key, not in the value.
                let damaged = |error: tallystone_adapters::codec::CorruptValue| {
                    crate::recover::unreadable(self.dir, ReadError::from(error))
                };
                let mut header = decode_header(0, &value).map_err(damaged)?;
                header.epoch = epoch_after(header.epoch, self.now);
                Ok(Some(encode_header(&header)))
            }
            _ => Ok(Some(value)), // every other row is copied
        }
    }

    fn failed(&self, error: KeyspaceError) -> OpenError {
        let folder = library::folder(self.dir);
        match error {
            KeyspaceError::Library(error) => OpenError::library(folder)(error),
            KeyspaceError::Manifest(error) => OpenError::io(Manifest::path(self.dir))(error),
        }
    }
}

/// Returns an epoch that no earlier restore of any backup had, if restores are a minute apart: the minutes since 2025
/// began. Epochs stay below 2^24, the space in a fence, until the year 2056.
fn epoch_after(epoch: u32, now: Timestamp) -> u32 {
    const YEAR_2025: i64 = 1_735_689_600;
    let minutes = (now.micros().div_euclid(1_000_000) - YEAR_2025).div_euclid(60);
    u32::try_from(minutes).unwrap_or(0).max(epoch + 1)
}

/// Returns the settings of a keyspace by its name.
fn kind_of(name: &str) -> Option<KeyspaceKind> {
    let begins = |start: &str| name.starts_with(start);
    Some(match name {
        "meta" | "catalog" | "registers" | "queue.shards" | "queue.catalog" | "history.state" => KeyspaceKind::Small,
        "names" | "rollups" => KeyspaceKind::Rows,
        "queue.heads" | "queue.over" | "queue.stubs" | "queue.outbox" => KeyspaceKind::QueueRanges,
        "queue.bodies" => KeyspaceKind::QueueRows,
        _ if begins("queue.answers.") => KeyspaceKind::QueueRanges,
        _ if begins("events.") || begins(library::HISTORY_PREFIX) => KeyspaceKind::Events,
        _ if begins("touches.") || begins("buckets.") || begins("series.") => KeyspaceKind::Ranges,
        _ => return None, // a keyspace of a newer release
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_restore_gives_an_epoch_again_that_it_or_an_earlier_one_gave() {
        let now = Timestamp::from_secs(1_800_000_000);
        let minute = Duration::from_secs(60);
        let (first, second) = (epoch_after(1, now), epoch_after(1, now + minute));
        assert!(first > 1 && second > first, "two restores of one backup: {first} and {second}");
        assert!(epoch_after(first, now) > first, "a backup of a restored store, with a clock that stands still");
        assert_eq!(epoch_after(7, Timestamp::from_secs(0)), 8, "a clock before its time");
        let last = Timestamp::from_secs(2_713_910_400); // the year 2056
        assert!(epoch_after(1, last) < 1 << 24, "a fence has room for it");
    }
}
