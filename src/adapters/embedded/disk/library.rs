//! The store library: one database, its keyspaces and their settings.
//!
//! ```text
//! meta                        commit number, limits, watermarks, slice rows
//! catalog                     datasets, namespaces, API keys, experiments, their history
//! names  registers  rollups   one row per counter: name, newest clear, checkpoint
//! events.D.S  touches.D.S  buckets.D.S      dataset D, slice that starts at second S; dropped with the slice
//! history.T.P  history.N.P  history.F.P  history.state      history of messages, period P; dropped by the period
//! series.W.P                  finished steps of W seconds, period P; dropped by the period
//! ```
//! The keyspace worker creates and deletes the keyspaces of slices, the committer all others.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fjall::config::FilterPolicy;
use fjall::{AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions};
use parking_lot::Mutex;

use crate::Options;
use crate::disk::background;
use crate::disk::manifest::Manifest;
use crate::error::OpenError;
use tallystone_domain::limits::DESCRIPTORS_RESERVED;

/// Prefix of the names of the keyspaces of the history.
pub const HISTORY_PREFIX: &str = "history.";

/// Folder of the store library.
pub fn folder(dir: &Path) -> PathBuf {
    dir.join("store")
}

/// The database and its permanent keyspaces.
pub struct Library {
    /// Database of the store library.
    pub db: Database,
    /// Commit number, limits (frontiers), watermarks, slice rows.
    pub meta: Keyspace,
    /// Datasets, namespaces, their history.
    pub catalog: Keyspace,
    /// Names of all counters.
    pub names: Keyspace,
    /// Newest clear of each counter that has one.
    pub registers: Keyspace,
    /// Checkpoints of all counters.
    pub rollups: Keyspace,
    dir: PathBuf,
    memtable_bytes: u64,
    manifest: Mutex<Manifest>,
}

/// Kind of rows in a keyspace; decides its settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyspaceKind {
    /// Few rows.
    Small,
    /// Rows read by key, most of them absent or read once.
    Rows,
    /// Rows read in ranges.
    Ranges,
    /// Events and rows of the history: many rows, read in ranges.
    Events,
    /// Rows of all queues together, read by key.
    QueueRows,
    /// Rows of all queues together, read in ranges.
    QueueRanges,
}

/// The reason why a keyspace could not be created or deleted.
#[derive(Debug, thiserror::Error)]
pub enum KeyspaceError {
    /// An error of the store library.
    #[error("the store library returned an error")]
    Library(#[from] fjall::Error),
    /// The manifest could not be written.
    #[error("the list of keyspaces cannot be written")]
    Manifest(#[from] std::io::Error),
}

impl Library {
    /// Opens the database of a folder after its manifest was read.
    pub fn open(mut manifest: Manifest, store: &Options) -> Result<Self, OpenError> {
        let Options { dir, block_bytes, memtable_bytes, journal_bytes, .. } = store;
        let (dir, memtable_bytes) = (dir.as_path(), *memtable_bytes);
        let path = folder(dir);
        let fail = || OpenError::library(path.clone());
        let db = Database::builder(&path)
            .cache_size(*block_bytes)
            // Half of the descriptors that connections leave; the rest is for journals and for files being written or
            // merged.
            .max_cached_files(Some(DESCRIPTORS_RESERVED / 2))
            .manual_journal_persist(true)
            // The verification before startup reads values in journals.
            .journal_compression(CompressionType::None)
            // With a single worker thread a recovery was seen to hang; with two, one flushes while the other compacts.
            // More workers made no pause shorter.
            .worker_threads(2)
            .max_journaling_size(*journal_bytes);
        // The library's threads inherit the priority of the thread that starts them.
        let opening = background::spawn("opener", || db.open()).map_err(OpenError::Thread)?;
        let db = opening.join().unwrap_or_else(|panic| resume_unwind(panic)).map_err(fail())?;
        for (id, name) in &manifest.keyspaces {
            let found =
                db.keyspace_exists(name).then(|| db.keyspace(name, || options(KeyspaceKind::Small, 0))).transpose();
            let is_there = found.map_err(fail())?.is_some_and(|keyspace| keyspace.id() == *id);
            if !is_there {
                return Err(OpenError::damaged(path.join("keyspaces").join(id.to_string()), format!("no {name}")));
            }
        }
        for name in db.list_keyspace_names() {
            if !manifest.keyspaces.values().any(|listed| *listed == *name) {
                tracing::debug!(keyspace = &*name, "deleting a keyspace whose creation or deletion was interrupted");
                let keyspace = db.keyspace(&name, || options(KeyspaceKind::Small, 0)).map_err(fail())?;
                db.delete_keyspace(keyspace).map_err(fail())?;
            }
        }
        let mut fixed = |name: &str, kind: KeyspaceKind| -> Result<Keyspace, OpenError> {
            if manifest.is_initialized && !db.keyspace_exists(name) {
                return Err(OpenError::damaged(Manifest::path(dir), format!("does not list {name}")));
            }
            let keyspace = db.keyspace(name, || options(kind, memtable_bytes)).map_err(fail())?;
            manifest.keyspaces.insert(keyspace.id(), name.to_owned());
            Ok(keyspace)
        };
        let meta = fixed("meta", KeyspaceKind::Small)?;
        let catalog = fixed("catalog", KeyspaceKind::Small)?;
        let names = fixed("names", KeyspaceKind::Rows)?;
        let registers = fixed("registers", KeyspaceKind::Small)?;
        let rollups = fixed("rollups", KeyspaceKind::Rows)?;
        if !manifest.is_initialized {
            manifest.is_initialized = true;
            manifest.write(dir).map_err(OpenError::io(Manifest::path(dir)))?;
        }
        let (dir, manifest) = (dir.to_owned(), Mutex::new(manifest));
        Ok(Self { db, meta, catalog, names, registers, rollups, dir, memtable_bytes, manifest })
    }

    /// Returns an existing keyspace.
    pub fn get(&self, name: &str) -> Result<Option<Keyspace>, fjall::Error> {
        self.db.keyspace_exists(name).then(|| self.db.keyspace(name, || options(KeyspaceKind::Small, 0))).transpose()
    }

    /// Returns a keyspace and creates it if it is missing.
    pub fn make(&self, name: &str, kind: KeyspaceKind) -> Result<Keyspace, KeyspaceError> {
        let [keyspace] = self.make_all([(name.to_owned(), kind)], || {})?;
        Ok(keyspace)
    }

    /// Returns several keyspaces, creates the missing ones, and writes the manifest once. The library takes no commit
    /// while it creates one, so `between` runs between two creations. Nobody else deletes these keyspaces in the
    /// meantime.
    pub fn make_all<const N: usize>(
        &self,
        wanted: [(String, KeyspaceKind); N],
        between: impl Fn(),
    ) -> Result<[Keyspace; N], KeyspaceError> {
        let mut made = Vec::with_capacity(N);
        for (name, kind) in wanted {
            if !made.is_empty() {
                between();
            }
            made.push(self.db.keyspace(&name, || options(kind, self.memtable_bytes))?);
        }
        // Locked only here, so that readers of the manifest do not wait for the creation.
        let mut manifest = self.manifest.lock();
        if made.iter().any(|keyspace| !manifest.keyspaces.contains_key(&keyspace.id())) {
            let mut longer = manifest.clone();
            longer.keyspaces.extend(made.iter().map(|keyspace| (keyspace.id(), keyspace.name().to_string())));
            longer.write(&self.dir)?;
            *manifest = longer;
        }
        Ok(made.try_into().unwrap_or_else(|_| unreachable!("one keyspace for each requested one")))
    }

    /// Deletes keyspaces and calls `between` after each one. Their files are removed when the last reader and the
    /// journal have released them.
    pub fn delete(&self, keyspaces: Vec<Keyspace>, between: impl Fn()) -> Result<(), KeyspaceError> {
        let mut manifest = self.manifest.lock();
        let mut shorter = manifest.clone();
        for keyspace in &keyspaces {
            shorter.keyspaces.remove(&keyspace.id());
        }
        shorter.write(&self.dir)?;
        *manifest = shorter;
        drop(manifest);
        for (place, keyspace) in keyspaces.into_iter().enumerate() {
            if place > 0 {
                between();
            }
            self.db.delete_keyspace(keyspace)?;
        }
        Ok(())
    }

    /// Names of the listed keyspaces with a prefix.
    pub fn listed(&self, prefix: &str) -> Vec<String> {
        let manifest = self.manifest.lock();
        manifest.keyspaces.values().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// Sequence number of the newest row of each listed keyspace, by the number of the keyspace.
    pub fn newest_rows(&self) -> Result<Vec<(u64, Option<u64>)>, fjall::Error> {
        self.for_each(|keyspace| keyspace.tree.get_highest_seqno())
    }

    /// The same for rows in tables only.
    pub fn newest_rows_in_tables(&self) -> Result<Vec<(u64, Option<u64>)>, fjall::Error> {
        self.for_each(|keyspace| keyspace.tree.get_highest_persisted_seqno())
    }

    /// Listed keyspaces with their names, in order of creation.
    pub fn all(&self) -> Result<Vec<(String, Keyspace)>, fjall::Error> {
        let found = self.for_each(|keyspace| (keyspace.name().to_string(), keyspace.clone()))?;
        Ok(found.into_iter().map(|(_, named)| named).collect())
    }

    fn for_each<T>(&self, ask: impl Fn(&Keyspace) -> T) -> Result<Vec<(u64, T)>, fjall::Error> {
        let manifest = self.manifest.lock();
        let asked = |(id, name): (&u64, &String)| {
            let keyspace = self.db.keyspace(name, || options(KeyspaceKind::Small, 0))?;
            Ok((*id, ask(&keyspace)))
        };
        manifest.keyspaces.iter().map(asked).collect()
    }
}

/// Settings of a new keyspace; an existing keyspace keeps its own.
fn options(kind: KeyspaceKind, memtable_bytes: u64) -> KeyspaceCreateOptions {
    let options = KeyspaceCreateOptions::default().manual_journal_persist(true);
    match kind {
        // Every commit rewrites rows of this kind. A flush keeps only the last version of each and delays commits.
        KeyspaceKind::Small => options.max_memtable_size(memtable_bytes).compaction_strategy(infrequent_compaction()),
        KeyspaceKind::Rows => options.max_memtable_size(memtable_bytes),
        // Ranges do not use filters, and building filters costs more than the rest of a flush.
        KeyspaceKind::Ranges => options.max_memtable_size(memtable_bytes / 2).filter_policy(FilterPolicy::disabled()),
        KeyspaceKind::Events => options
            .max_memtable_size(memtable_bytes)
            .filter_policy(FilterPolicy::disabled())
            .compaction_strategy(infrequent_compaction()),
        KeyspaceKind::QueueRows => {
            options.max_memtable_size(2 * memtable_bytes).compaction_strategy(infrequent_compaction())
        }
        KeyspaceKind::QueueRanges => options
            .max_memtable_size(2 * memtable_bytes)
            .filter_policy(FilterPolicy::disabled())
            .compaction_strategy(infrequent_compaction()),
    }
}

/// After each flush and each compaction the library syncs four times under a lock that every commit into that keyspace
/// waits for: 10 to 50 ms while the cores are busy. Where every commit writes, both are therefore made rare: up to
/// eight tables accumulate before they are merged. Rows of queues also go to files in pieces twice as large. The oldest
/// journal makes every keyspace with rows in it flush them once journals are long (`JOURNAL_BYTES_MAX`); shorter
/// journals were measured to cost commits little.
fn infrequent_compaction() -> Arc<fjall::compaction::Leveled> {
    Arc::new(fjall::compaction::Leveled::default().with_l0_threshold(8))
}
