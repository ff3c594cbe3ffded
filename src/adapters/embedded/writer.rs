//! Commits: numbered batches, synced or not, and the mark behind them.
//!
//! Every batch carries one row with its number, its sequence number in the store library and the number up to which all
//! was synced when it was made. The three make damage visible that the library does not look for: a missing journal is a
//! gap in the numbers, a batch cut away below `synced` or below the mark was acknowledged. From time to time a batch also
//! lists the newest row of every keyspace, so that a journal lost before it was flushed is missed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::{Keyspace, OwnedWriteBatch, PersistMode, Slice};

use super::library::{self, Library};
use super::mark::Mark;
use super::meta;

/// The row that every batch carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitRow {
    /// The number of the commit.
    pub number: u64,
    /// Its sequence number in the store library.
    pub seqno: u64,
    /// Every commit up to here was synced before.
    pub synced: u64,
}

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// It does.
    Yes,
    /// It does not; it is durable with the next one that does.
    No,
}

/// Rows that are committed together.
pub struct Batch {
    rows: OwnedWriteBatch,
    /// The numbers of the keyspaces that are written.
    keyspaces: Vec<u64>,
    bytes: usize,
}

/// Makes and numbers commits.
pub struct Writer {
    library: Arc<Library>,
    mark: Mark,
    number: u64,
    synced: u64,
    newest_rows: BTreeMap<u64, u64>,
    /// The bytes that were committed since the newest rows were listed.
    bytes_unlisted: usize,
    journals: Journals,
}

/// Notices when the store library begins a new journal.
struct Journals {
    folder: PathBuf,
    next: u64,
}

/// The newest rows are listed again after so many bytes.
const LIST_INTERVAL_BYTES: usize = 8 * 1024 * 1024;

impl CommitRow {
    /// Its stored form.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.seqno.to_be_bytes());
        bytes[16..].copy_from_slice(&self.synced.to_be_bytes());
        bytes
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let part = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 of 24 bytes"));
        Some(Self { number: part(0), seqno: part(8), synced: part(16) })
    }
}

impl Batch {
    /// Puts a row.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl Into<Slice>, value: impl Into<Slice>) {
        let (key, value) = (key.into(), value.into());
        self.bytes += key.len() + value.len() + ROW_HEAD_BYTES;
        self.note(keyspace);
        self.rows.insert(keyspace, key, value);
    }

    /// Removes a row.
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl Into<Slice>) {
        self.note(keyspace);
        self.rows.remove(keyspace, key);
    }

    /// Whether nothing would be committed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// About what the batch takes in the journal.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn note(&mut self, keyspace: &Keyspace) {
        let id = keyspace.id();
        if self.keyspaces.last() != Some(&id) && !self.keyspaces.contains(&id) {
            self.keyspaces.push(id);
        }
    }
}

/// What the journal writes before each row.
const ROW_HEAD_BYTES: usize = 21;

impl Writer {
    /// Goes on after the last commit of a store that was opened.
    pub fn new(dir: &Path, library: Arc<Library>, mark: Mark, last: u64) -> Result<Self, fjall::Error> {
        let newest = library.newest_rows()?.into_iter().filter_map(|(id, seqno)| Some((id, seqno?)));
        let folder = library::folder(dir);
        Ok(Self {
            mark,
            number: last,
            synced: last,
            newest_rows: newest.collect(),
            bytes_unlisted: LIST_INTERVAL_BYTES,
            journals: Journals { next: newest_journal(&folder)? + 1, folder },
            library,
        })
    }

    /// The number of the last commit.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The store library.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// An empty batch for about so many rows.
    pub fn batch(&self, rows: usize) -> Batch {
        let rows = OwnedWriteBatch::with_capacity(self.library.db.clone(), rows + 2);
        Batch { rows, keyspaces: Vec::with_capacity(8), bytes: 0 }
    }

    /// Commits a batch. After an error nobody knows what the disk holds, and nothing may be committed any more.
    pub fn commit(&mut self, mut batch: Batch, sync: Sync) -> Result<(), fjall::Error> {
        // The library numbers commits and new keyspaces alike; both happen on this thread only.
        let seqno = self.library.db.seqno();
        let row = CommitRow { number: self.number + 1, seqno, synced: self.synced };
        batch.put(&self.library.meta, meta::COMMIT, row.to_bytes());
        for id in &batch.keyspaces {
            self.newest_rows.insert(*id, seqno);
        }
        self.bytes_unlisted += batch.bytes;
        if self.journals.has_new() || self.bytes_unlisted >= LIST_INTERVAL_BYTES {
            batch.put(&self.library.meta, meta::NEWEST_ROWS, list_of(&self.newest_rows));
            self.bytes_unlisted = 0;
        }
        let mode = match sync {
            Sync::Yes => PersistMode::SyncData,
            Sync::No => PersistMode::Buffer,
        };
        batch.rows.durability(Some(mode)).commit()?;
        self.number = row.number;
        if sync == Sync::Yes {
            self.synced = self.number;
            self.mark.write(self.number)?;
        }
        Ok(())
    }

    /// Forgets keyspaces that are about to be deleted.
    pub fn forget(&mut self, keyspaces: &[Keyspace]) {
        for keyspace in keyspaces {
            self.newest_rows.remove(&keyspace.id());
        }
    }

    /// Makes everything durable, the mark included.
    pub fn finish(&mut self) -> Result<(), fjall::Error> {
        self.library.db.persist(PersistMode::SyncAll)?;
        self.mark.write(self.number)?;
        self.mark.sync()?;
        Ok(())
    }
}

impl Journals {
    fn has_new(&mut self) -> bool {
        let mut has_new = false;
        while self.folder.join(format!("{}.jnl", self.next)).exists() {
            self.next += 1;
            has_new = true;
        }
        has_new
    }
}

fn newest_journal(folder: &Path) -> Result<u64, fjall::Error> {
    let mut newest = 0;
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(".jnl")).and_then(|id| id.parse().ok());
        newest = newest.max(id.unwrap_or(0));
    }
    Ok(newest)
}

fn list_of(newest_rows: &BTreeMap<u64, u64>) -> Vec<u8> {
    newest_rows.iter().flat_map(|(id, seqno)| [id.to_be_bytes(), seqno.to_be_bytes()].concat()).collect()
}

/// Reads the list of newest rows: (keyspace, sequence number).
pub fn list_from(bytes: &[u8]) -> Option<Vec<(u64, u64)>> {
    let (pairs, rest) = bytes.as_chunks::<16>();
    let half = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 of 16 bytes"));
    rest.is_empty().then(|| pairs.iter().map(|pair| (half(&pair[..8]), half(&pair[8..]))).collect())
}
