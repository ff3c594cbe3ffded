//! Commits: numbered batches, with or without a sync, and the file of the last acknowledged commit.
//!
//! Every batch contains one row with its number and the number of the last synced commit. They reveal damage that the
//! store library does not look for. A missing journal is a gap in the numbers. A missing batch below `synced`, or below
//! the acknowledged commit, was acknowledged. The first or second batch of every journal lists the newest row of each
//! keyspace before that journal: tables that do not reach that row need a journal that is lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::{AbstractTree, Keyspace, OwnedWriteBatch, PersistMode, Slice};

use super::acknowledged_file::AcknowledgedFile;
use super::journal_prefill::JournalPrefill;
use super::library::{self, Library};
use super::memtable_reclaimer::MemtableReclaimer;
use super::meta;
use crate::error::ReadError;
use tallystone_adapters::codec::CorruptValue;

/// The row that every batch contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitRow {
    pub number: u64,
    /// Every commit up to this number was synced before.
    pub synced: u64,
}

/// Whether a commit syncs to disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncMode {
    Yes,
    /// It does not sync; it becomes durable with the next commit that does.
    No,
}

/// Rows that are committed together.
pub struct CommitBatch {
    rows: OwnedWriteBatch,
    /// The keyspaces that are written.
    keyspaces: Vec<Keyspace>,
    bytes: usize,
}

/// Makes and numbers commits.
pub struct Writer {
    library: Arc<Library>,
    acknowledged: AcknowledgedFile,
    number: u64,
    synced: u64,
    /// The sequence number of the newest row of each keyspace.
    newest_rows: BTreeMap<u64, u64>,
    /// The entries of `newest_rows` that the last commit replaced.
    replaced_rows: Vec<(u64, Option<u64>)>,
    journals: JournalWatcher,
    /// The prefilled zeros after the newest journal, if the file system allows them.
    prefill: Option<JournalPrefill>,
    retired: MemtableReclaimer,
}

/// The newest rows before a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewestRows {
    /// The number of the first commit in the journal.
    pub first: u64,
    /// The sequence number of the newest row before it, by keyspace.
    pub rows: Vec<(u64, u64)>,
}

/// Detects that the store library has begun a new journal.
struct JournalWatcher {
    folder: PathBuf,
    next: u64,
    /// Whether the newest journal had no batch when the store was opened.
    is_empty: bool,
}

/// The newest journal has no list of newest rows yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnlistedJournal {
    /// The next commit will be its first.
    Empty,
    /// The last commit is in it.
    OneBatch,
}

impl CommitRow {
    /// Its stored form.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..].copy_from_slice(&self.synced.to_be_bytes());
        bytes
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 16] = bytes.try_into().ok()?;
        let part = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 of 16 bytes"));
        Some(Self { number: part(0), synced: part(8) })
    }

    /// The last commit of a store.
    pub fn last(library: &Library) -> Result<Option<Self>, ReadError> {
        let Some(bytes) = library.meta.get(meta::COMMIT)? else { return Ok(None) };
        let row = Self::from_bytes(&bytes);
        row.map(Some).ok_or_else(|| CorruptValue::new("commit number", "a value of another length").into())
    }
}

impl CommitBatch {
    /// Puts a row.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl Into<Slice>, value: impl Into<Slice>) {
        let (key, value) = (key.into(), value.into());
        self.bytes += key.len() + value.len() + ROW_HEAD_BYTES;
        self.track_keyspace(keyspace);
        self.rows.insert(keyspace, key, value);
    }

    /// Removes a row.
    pub fn remove(&mut self, keyspace: &Keyspace, key: impl Into<Slice>) {
        self.track_keyspace(keyspace);
        self.rows.remove(keyspace, key);
    }

    /// Whether nothing would be committed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The approximate bytes of the batch in the journal.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn track_keyspace(&mut self, keyspace: &Keyspace) {
        // Most rows go to the same keyspace as the row before.
        if !self.keyspaces.iter().rev().any(|noted| noted.id() == keyspace.id()) {
            self.keyspaces.push(keyspace.clone());
        }
    }
}

/// The bytes that the journal adds to each row.
const ROW_HEAD_BYTES: usize = 21;

impl Writer {
    /// Continues after the last commit of a store that was opened.
    pub fn new(
        dir: &Path,
        library: Arc<Library>,
        mark: AcknowledgedFile,
        last: u64,
        retired: MemtableReclaimer,
    ) -> Result<Self, fjall::Error> {
        let newest = library.newest_rows()?.into_iter().filter_map(|(id, seqno)| Some((id, seqno?)));
        let journals = JournalWatcher::open(library::folder(dir))?;
        Ok(Self {
            acknowledged: mark,
            number: last,
            synced: last,
            newest_rows: newest.collect(),
            replaced_rows: Vec::new(),
            prefill: journals.open_prefill(),
            journals,
            library,
            retired,
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

    /// An empty batch with capacity for a number of rows.
    pub fn batch(&self, rows: usize) -> CommitBatch {
        let rows = OwnedWriteBatch::with_capacity(self.library.db.clone(), rows + 2);
        CommitBatch { rows, keyspaces: Vec::with_capacity(8), bytes: 0 }
    }

    /// Commits a batch. After an error the content of the disk is unknown, and no further commit is allowed.
    pub fn commit(&mut self, mut batch: CommitBatch, sync: SyncMode) -> Result<(), fjall::Error> {
        let row = CommitRow { number: self.number + 1, synced: self.synced };
        let meta = self.library.meta.clone();
        batch.put(&meta, meta::COMMIT, row.to_bytes());
        if let Some(begun) = self.journals.new_journal()? {
            self.prefill = self.journals.open_prefill();
            batch.put(&meta, meta::NEWEST_ROWS, self.newest_rows(begun).to_bytes());
        }
        let CommitBatch { rows, keyspaces, bytes } = batch;
        keyspaces.iter().for_each(|keyspace| self.retired.track_writes(keyspace));
        let mode = match sync {
            SyncMode::Yes => PersistMode::SyncData,
            SyncMode::No => PersistMode::Buffer,
        };
        rows.durability(Some(mode)).commit()?;
        self.number = row.number;
        if sync == SyncMode::Yes {
            self.synced = self.number;
            self.acknowledged.write(self.number)?;
        }
        self.note_newest(keyspaces);
        self.extend_prefill(bytes);
        Ok(())
    }

    /// Prefills zeros after the journal. They only make commits faster.
    fn extend_prefill(&mut self, bytes: usize) {
        if let Some(Err(error)) = self.prefill.as_mut().map(|ahead| ahead.extend_after(bytes)) {
            tracing::debug!(%error, "no zeros ahead of this journal");
            self.prefill = None;
        }
    }

    /// Records the sequence number of the last commit. Every batch has a row in `meta`, whose newest row has that
    /// number.
    fn note_newest(&mut self, keyspaces: Vec<Keyspace>) {
        let tree = &self.library.meta.tree;
        let seqno = tree.get_highest_memtable_seqno().or_else(|| tree.get_highest_seqno());
        let seqno = seqno.expect("a row was just committed");
        self.replaced_rows.clear();
        for id in keyspaces.iter().map(Keyspace::id) {
            self.replaced_rows.push((id, self.newest_rows.insert(id, seqno)));
        }
    }

    fn newest_rows(&self, begun: UnlistedJournal) -> NewestRows {
        let mut rows = self.newest_rows.clone();
        let first = match begun {
            UnlistedJournal::Empty => self.number + 1,
            UnlistedJournal::OneBatch => {
                for (id, before) in &self.replaced_rows {
                    match before {
                        Some(before) => rows.insert(*id, *before),
                        None => rows.remove(id),
                    };
                }
                self.number
            }
        };
        NewestRows { first, rows: rows.into_iter().collect() }
    }

    /// Forgets keyspaces that are about to be deleted.
    pub fn forget(&mut self, keyspaces: &[Keyspace]) {
        for keyspace in keyspaces {
            self.retired.forget(keyspace);
            self.newest_rows.remove(&keyspace.id());
            self.replaced_rows.retain(|(id, _)| *id != keyspace.id());
        }
    }

    /// Makes everything durable, including the acknowledged commit.
    pub fn finish(&mut self) -> Result<(), fjall::Error> {
        self.library.db.persist(PersistMode::SyncAll)?;
        self.acknowledged.write(self.number)?;
        self.acknowledged.sync()?;
        Ok(())
    }
}

impl NewestRows {
    /// Its stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.first.to_be_bytes().to_vec();
        for (id, seqno) in &self.rows {
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&seqno.to_be_bytes());
        }
        bytes
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        let (first, rows) = bytes.split_first_chunk::<8>()?;
        let (rows, rest) = rows.as_chunks::<16>();
        let rows = rows.iter().map(|row| (number(&row[..8]), number(&row[8..]))).collect();
        rest.is_empty().then_some(Self { first: u64::from_be_bytes(*first), rows })
    }
}

impl JournalWatcher {
    fn open(folder: PathBuf) -> Result<Self, fjall::Error> {
        let mut newest = 0;
        for entry in std::fs::read_dir(&folder)? {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".jnl")).and_then(|id| id.parse().ok());
            newest = newest.max(id.unwrap_or(0));
        }
        let mut journals = Self { folder, next: newest + 1, is_empty: false };
        journals.is_empty = !journals.has_batch(newest)?;
        Ok(journals)
    }

    /// Whether a journal began that has no list yet.
    fn new_journal(&mut self) -> Result<Option<UnlistedJournal>, fjall::Error> {
        if std::mem::take(&mut self.is_empty) {
            return Ok(Some(UnlistedJournal::Empty));
        }
        if !self.path(self.next).exists() {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(if self.has_batch(self.next - 1)? { UnlistedJournal::OneBatch } else { UnlistedJournal::Empty }))
    }

    /// The zeros ahead of the newest journal.
    fn open_prefill(&self) -> Option<JournalPrefill> {
        let opened = JournalPrefill::open(&self.path(self.next - 1));
        opened.inspect_err(|error| tracing::debug!(%error, "no zeros ahead of this journal")).ok()
    }

    /// A journal is made full of zeros, and no batch begins with one.
    fn has_batch(&self, id: u64) -> Result<bool, fjall::Error> {
        let mut byte = [0];
        let length = File::open(self.path(id))?.read_at(&mut byte, 0)?;
        Ok(length > 0 && byte != [0])
    }

    fn path(&self, id: u64) -> PathBuf {
        self.folder.join(format!("{id}.jnl"))
    }
}
