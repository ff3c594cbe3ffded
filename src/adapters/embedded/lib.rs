//! The durable store inside the process: the default engine, on the store library fjall.
//!
//! One thread, the committer, writes: it groups whatever waits into one commit with one sync, takes it into memory and
//! answers. Readers find recent events and rows in use in memory and go to disk for the rest. Invariant: what was
//! answered is on disk; a store that has lost any of it, or any byte of it, does not open.
//!
//! ```text
//! DIR/lock            held while the store is open
//! DIR/keyspaces       which keyspaces there are          (manifest)
//! DIR/acknowledged    the last acknowledged commit       (mark)
//! DIR/store/          the folder of the store library    (library)
//! DIR/restoring       there until a backup is restored   (backup)
//! ```

pub mod backup;
mod commit;
mod counters;
pub mod disk;
mod error;
mod history;
mod inbox;
mod limits;
mod queues;
mod recover;
mod store_core;
mod stores;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::limits::{HISTORY_BYTES_DEFAULT, JOURNAL_BYTES_MAX, VERIFY_BYTES_MAX};
use commit::committer::Committer;
use counters::counter_table::CounterTable;
use counters::entries::EntryIndex;
use counters::series::SeriesKeyspaces;
use disk::acknowledged_file::AcknowledgedFile;
use disk::disk_space::DiskSpaceMonitor;
use disk::library::Library;
use disk::manifest::{Manifest, ManifestError};
use disk::memtable_reclaimer::MemtableReclaimer;
use disk::writer::{CommitRow, Writer};
use history::periods::HistoryPeriods;
use queues::store_time::{Moment, StoreTime};
use store_core::{RecoveredStore, StoreCore};
use stores::EmbeddedStore;
use stores::history::EmbeddedHistory;
use stores::queues::EmbeddedQueues;
use tallystone_adapters::Opened;
use tallystone_ports::{
    Backups, Clock, FastCounts, HistoryStore, Metric, QueueStores, StoreDisk, StoreHandle, Stores, metrics,
};

pub use error::OpenError;
pub use limits::QUEUE_MEMORY_BYTES_DEFAULT;
pub use queues::key as queue_key;

/// The directory of the store and the resources that it may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The data directory; made if it is not there.
    pub dir: PathBuf,
    /// Adds are refused while the file system has less room than this.
    pub reserve_bytes: u64,
    /// Memory for rows of counters: checkpoints, names, newest write times.
    pub row_bytes: u64,
    /// Memory for events that the limit has passed; those above it are always kept.
    pub tail_bytes: u64,
    /// Memory for blocks of files.
    pub block_bytes: u64,
    /// Memory for the newest rows of each keyspace of events before they go to a file; those of queues
    /// take twice as much, the others the same or less.
    pub memtable_bytes: u64,
    /// The bytes that the journals may take in addition to the one in use; a start replays all of them.
    pub journal_bytes: u64,
    /// The bytes of files that are compared with their checksums before the store opens, the newest first. Whatever is
    /// beyond is compared block by block when it is read.
    pub verify_bytes: u64,
    /// The bytes of the history of messages. Beyond it, the oldest period leaves.
    pub history_bytes: u64,
    /// The bytes that messages of queues may take in memory. Beyond that, new ones are refused.
    pub queue_memory_bytes: u64,
    /// The bytes of memory that the whole process may take; none if that is not known. Near that bound, new messages
    /// are refused as well.
    pub process_memory_bytes: Option<u64>,
}

impl Options {
    /// The usual sizes for a directory.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            dir: dir.into(),
            reserve_bytes: 512 * MIB,
            row_bytes: 384 * MIB,
            tail_bytes: 128 * MIB,
            block_bytes: 64 * MIB,
            memtable_bytes: 16 * MIB,
            journal_bytes: JOURNAL_BYTES_MAX,
            verify_bytes: VERIFY_BYTES_MAX,
            history_bytes: HISTORY_BYTES_DEFAULT,
            queue_memory_bytes: QUEUE_MEMORY_BYTES_DEFAULT,
            process_memory_bytes: None,
        }
    }

    /// The same for a process that may take so many bytes of memory. Below 4 GiB its memory tables are smaller: rows
    /// then go to files more often, which makes more commits wait. Below 2 GiB its caches are smaller too, whatever is
    /// set.
    #[must_use]
    pub fn within_memory(self, memory: u64) -> Self {
        let memtable_bytes = self.memtable_bytes.min(memory / MEMORY_FOR_A_MEMTABLE).max(MEMTABLE_BYTES_MIN);
        let fitting = Self { memtable_bytes, process_memory_bytes: Some(memory), ..self };
        if memory >= CACHES_FIT_FROM {
            return fitting;
        }
        let block_bytes = fitting.block_bytes.min(memory / MEMORY_FOR_BLOCKS).max(BLOCK_BYTES_MIN);
        let row_bytes = fitting.row_bytes.min(memory / MEMORY_FOR_COUNTS);
        let tail_bytes = fitting.tail_bytes.min(memory / MEMORY_FOR_RECENT_EVENTS);
        Self { block_bytes, row_bytes, tail_bytes, ..fitting }
    }
}

/// One memory table takes this part of the memory at most. Eight keyspaces of queues and of their history have tables
/// of twice the size, and each may have a few that wait for their file.
const MEMORY_FOR_A_MEMTABLE: u64 = 256;
/// A table below this makes files of which each read has to look at many.
const MEMTABLE_BYTES_MIN: u64 = 2 * 1024 * 1024;
/// From this memory on caches are as large as they are set.
const CACHES_FIT_FROM: u64 = 2 * 1024 * 1024 * 1024;
/// Below that, blocks of files take this part of the memory at most.
const MEMORY_FOR_BLOCKS: u64 = 32;
/// The same for counts.
const MEMORY_FOR_COUNTS: u64 = 4;
/// The same for recent events.
const MEMORY_FOR_RECENT_EVENTS: u64 = 8;
/// With less, a read of the history finds the index of a file gone each time.
const BLOCK_BYTES_MIN: u64 = 8 * 1024 * 1024;

/// How an open store is doing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Health {
    /// The reason for which the store has failed and accepts no more writes; the process should end then.
    pub failure: Option<String>,
    /// Whether new events are refused for want of room on the file system.
    pub full: bool,
    /// The number of the last commit.
    pub commit_number: u64,
    /// The bytes of writes that wait or are being worked on.
    pub waiting_bytes: u64,
    /// The bytes of recent events in memory.
    pub tail_bytes: u64,
    /// The bytes of rows and names in memory.
    pub row_bytes: u64,
    /// Memory tables waiting to be written to files; at 4 for one keyspace, writes pause.
    pub outstanding_flushes: u64,
    pub journal_bytes: u64,
    /// The bytes of all files.
    pub disk_bytes: u64,
    /// The bytes that the file system still has for this process, if it says.
    pub free_bytes: Option<u64>,
}

/// The metrics of a store.
pub const METRICS: &[Metric<Health>] = metrics! { health:
    KnownGauge "tallystone_store_free_bytes" = health.free_bytes.map(|bytes| bytes as f64),
        "Free bytes of the data directory's file system";
    Gauge "tallystone_store_disk_bytes" = health.disk_bytes as f64, "Bytes of the store's files";
    Gauge "tallystone_store_journal_bytes" = health.journal_bytes as f64, "Bytes of the store's journals";
    Gauge "tallystone_store_waiting_bytes" = health.waiting_bytes as f64, "Bytes of writes waiting for a commit";
    Gauge "tallystone_store_tail_bytes" = health.tail_bytes as f64, "Bytes of recent events in memory";
    Gauge "tallystone_store_row_bytes" = health.row_bytes as f64, "Bytes of counters in memory";
    Gauge "tallystone_store_flushes_waiting" = health.outstanding_flushes as f64,
        "Memory tables waiting to be written to files";
    Gauge "tallystone_store_full" = f64::from(u8::from(health.full)),
        "1 while adds are refused because the file system is full";
    Gauge "tallystone_store_failed" = f64::from(u8::from(health.failure.is_some())),
        "1 once the store has failed and accepts no more writes";
    Count "tallystone_store_commits" = health.commit_number, "Commits since the store was created";
};

/// An open store. Dropping it closes it.
pub struct Embedded {
    core: Arc<StoreCore>,
    space: DiskSpaceMonitor,
    /// The moment of the last commit of queues before the store was opened.
    queue_moment: Option<Moment>,
    committer: Mutex<Option<JoinHandle<()>>>,
    keyspace_worker: Mutex<Option<JoinHandle<()>>>,
    /// Held until the store is closed.
    lock: Mutex<Option<File>>,
}

/// Refuses to make a store on a volume that is smaller than its reserve, before anything is written. A store that
/// exists is opened even so, for what it holds can be read.
pub fn refuse_small_volume(options: &Options) -> Result<(), OpenError> {
    let (dir, reserve_bytes) = (options.dir.as_path(), options.reserve_bytes);
    if Manifest::path(dir).exists() {
        return Ok(());
    }
    match DiskSpaceMonitor::of(dir, reserve_bytes).total_bytes() {
        Ok(total_bytes) if total_bytes < reserve_bytes => {
            Err(OpenError::VolumeTooSmall { path: dir.to_owned(), total_bytes, reserve_bytes })
        }
        Ok(_) | Err(_) => Ok(()), // a file system that does not say shows its faults when it is written
    }
}

/// Opens the store of a directory, or makes it.
pub fn open(options: Options) -> Result<Embedded, OpenError> {
    let dir = options.dir.as_path();
    fs::create_dir_all(dir).map_err(OpenError::io(dir))?;
    refuse_open_volume(dir)?;
    let lock = lock(dir)?;
    if backup::is_unfinished(dir) {
        return Err(OpenError::HalfRestored(dir.to_owned()));
    }
    disk::permissions::restrict_permissions(dir).map_err(|(path, error)| OpenError::io(path)(error))?;
    open_locked(&options, lock)
}

/// Refuses a directory of somebody else that people outside its group could enter.
fn refuse_open_volume(dir: &Path) -> Result<(), OpenError> {
    let checked = disk::permissions::refuse_open_volume(dir).map_err(OpenError::io(dir))?;
    checked.map_err(|mode| OpenError::OpenToOthers { path: dir.to_owned(), mode })
}

/// Opens the store of a directory that this process has.
fn open_locked(options: &Options, lock: File) -> Result<Embedded, OpenError> {
    let dir = options.dir.as_path();
    let (manifest, mark, acknowledged) = read_or_create_manifest(dir)?;
    let verified = if manifest.is_initialized {
        disk::verify::verify(dir, &manifest, acknowledged, options.verify_bytes)?
    } else {
        disk::verify::VerifyReport::default()
    };
    if verified.bytes_unread > 0 {
        tracing::warn!(
            bytes = verified.bytes_unread,
            "not all files were checked at the start; reads verify their checksums"
        );
    }
    tracing::debug!(unread_bytes = verified.bytes_unread, "the files of the store are checked");
    let library = Arc::new(Library::open(manifest, options)?);
    tracing::debug!("the journals of the store are replayed");
    let unreadable = |error| recover::unreadable(dir, error);
    let last = CommitRow::last(&library).map_err(unreadable)?.map_or(0, |row| row.number);
    if verified.last_commit.is_some_and(|in_journal| in_journal != last) {
        return Err(OpenError::damaged(
            disk::library::folder(dir),
            format!("ends with commit {last}, but its journal does not"),
        ));
    }
    if last < acknowledged {
        return Err(OpenError::Behind { path: disk::library::folder(dir), found: last, acknowledged });
    }
    recover::check_newest_rows(&library, dir, &verified.newest_rows)?;
    let slices = recover::slices(&library, dir)?;
    let series = SeriesKeyspaces::open(&library).map_err(OpenError::library(disk::library::folder(dir)))?;
    let history = HistoryPeriods::open(&library, dir, options.history_bytes)?;
    let meta_state = disk::meta_state::MetaState::open(&library).map_err(unreadable)?;
    let catalog = counters::catalog::CatalogIndex::open(&library).map_err(unreadable)?;
    let keys = EntryIndex::open(&library).map_err(unreadable)?;
    let experiments = EntryIndex::open(&library).map_err(unreadable)?;
    let rules = counters::rules::RuleIndex::open(&library).map_err(unreadable)?;
    let memory = CounterTable::new(options.row_bytes);
    recover::set_floors(&memory, &slices, &meta_state.limits()).map_err(unreadable)?;
    let writer = Writer::new(dir, Arc::clone(&library), mark, last, MemtableReclaimer::start()?);
    let writer = writer.map_err(OpenError::library(disk::library::folder(dir)))?;
    let space = || DiskSpaceMonitor::of(dir, options.reserve_bytes);
    let queues = queues::recover::recover(&library, dir)?;
    tracing::debug!(
        shards = queues.table.shards.len(),
        finished_pages = queues.rows_read.pages,
        finished_heads = queues.rows_read.heads,
        "the queues of the store are in memory"
    );
    let queue_moment = queues.moment;
    let shared = queues::QueueSharedState::open(&queues, options).map_err(unreadable)?;
    let recovered =
        RecoveredStore { slices, series, meta_state, catalog, keys, experiments, rules, queues: shared, history };
    let core = Arc::new(StoreCore::new(library, memory, recovered));
    let tail_bytes_max = usize::try_from(options.tail_bytes).unwrap_or(usize::MAX);
    let maker = commit::keyspace_worker::start(Arc::clone(&core))?;
    let committer = Committer::start(Arc::clone(&core), writer, space(), tail_bytes_max, queues)
        .inspect_err(|_| core.keyspace_jobs.close(&core.inbox))?;
    let (committer, maker, lock) = (Mutex::new(Some(committer)), Mutex::new(Some(maker)), Mutex::new(Some(lock)));
    Ok(Embedded { core, space: space(), queue_moment, committer, keyspace_worker: maker, lock })
}

/// Takes the directory for this process.
fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = file.map_err(OpenError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(OpenError::io(path)(error)),
    }
}

/// Reads the list of keyspaces and the mark; makes both for a new store.
fn read_or_create_manifest(dir: &Path) -> Result<(Manifest, AcknowledgedFile, u64), OpenError> {
    let manifest_path = Manifest::path(dir);
    let folder = disk::library::folder(dir);
    let found = Manifest::read(dir).map_err(OpenError::io(&manifest_path))?;
    let manifest = found.transpose().map_err(|unusable| match unusable {
        ManifestError::Damaged(detail) => OpenError::damaged(&manifest_path, detail),
        ManifestError::Newer(found) => {
            OpenError::Newer { path: manifest_path.clone(), found, known: disk::manifest::FORMAT }
        }
    })?;
    match manifest {
        Some(manifest) if manifest.is_initialized => {
            let mark = AcknowledgedFile::open(dir).map_err(OpenError::io(AcknowledgedFile::path(dir)))?;
            let (mark, number) = mark.map_err(|detail| OpenError::damaged(AcknowledgedFile::path(dir), detail))?;
            Ok((manifest, mark, number))
        }
        None if folder.exists() || AcknowledgedFile::path(dir).exists() => {
            Err(OpenError::damaged(manifest_path, "missing"))
        }
        Some(_) | None => {
            // New, or the first opening did not come to its end: nothing was acknowledged yet.
            let manifest = Manifest::default();
            manifest.write(dir).map_err(OpenError::io(&manifest_path))?;
            if folder.exists() {
                fs::remove_dir_all(&folder).map_err(OpenError::io(&folder))?;
            }
            let mark = AcknowledgedFile::create(dir).map_err(OpenError::io(AcknowledgedFile::path(dir)))?;
            Ok((manifest, mark, 0))
        }
    }
}

impl Embedded {
    /// The store behind all ports, best-effort counts beside it. After `close` every call answers that it is closed.
    pub fn stores(&self, fast: Arc<dyn FastCounts>) -> Stores {
        let store = Arc::new(EmbeddedStore { core: Arc::clone(&self.core) });
        Stores {
            log: store.clone(),
            touches: store.clone(),
            slices: store.clone(),
            rollups: store.clone(),
            cache: store.clone(),
            progress: store.clone(),
            fast,
            caches: Arc::default(),
            catalog: store.clone(),
            keys: store.clone(),
            experiments: store.clone(),
            rules: store,
            fleet: None,
        }
    }

    /// The store behind the ports of queues, by this clock. After `close` every call answers that it is closed.
    pub fn queue_stores(&self, clock: Arc<dyn Clock>) -> QueueStores {
        let time = StoreTime::new(clock, self.queue_moment);
        let queues = Arc::new(EmbeddedQueues::new(Arc::clone(&self.core), time));
        QueueStores::of(queues.clone(), queues)
    }

    /// The history of messages. After `close` every call answers that it is closed.
    pub fn history(&self) -> Arc<dyn HistoryStore> {
        Arc::new(EmbeddedHistory::new(Arc::clone(&self.core)))
    }

    /// The way to back the store up while it is written; backups carry the time of this clock.
    pub fn backups(&self, clock: Arc<dyn Clock>) -> Arc<dyn Backups> {
        Arc::new(backup::EmbeddedBackups::new(Arc::clone(&self.core), clock))
    }

    /// The stores of the directory by role. Best-effort counters are kept in `fast`.
    pub fn opened(self: &Arc<Self>, fast: Arc<dyn FastCounts>, clock: &Arc<dyn Clock>) -> Opened {
        Opened {
            counters: Some(self.stores(fast)),
            queues: Some(self.queue_stores(Arc::clone(clock))),
            history: Some(self.history()),
            cache: None,
            backups: Some(self.backups(Arc::clone(clock))),
            handle: Arc::clone(self) as Arc<dyn StoreHandle>,
        }
    }

    /// The reason for which the store has failed and accepts no more writes; the process should end then. Cheap.
    pub fn failure(&self) -> Option<String> {
        self.core.failure().map(str::to_owned)
    }

    /// How the store is doing. Asks the file system.
    pub fn health(&self) -> Health {
        let (tail_bytes, row_bytes) = self.core.counters.bytes();
        let disk = self.core.read("health", |library| {
            let journal_bytes = library.db.journal_disk_space()?;
            Ok((library.db.outstanding_flushes(), journal_bytes, library.db.disk_space()?))
        });
        // A closed store has no files open and nothing to flush.
        let (outstanding_flushes, journal_bytes, disk_bytes) = disk.unwrap_or_default();
        Health {
            failure: self.core.failure().map(str::to_owned),
            full: self.core.is_full(),
            commit_number: self.core.commit_number(),
            waiting_bytes: self.core.inbox.bytes() as u64,
            tail_bytes: tail_bytes as u64,
            row_bytes: row_bytes as u64,
            outstanding_flushes: outstanding_flushes as u64,
            journal_bytes,
            disk_bytes,
            free_bytes: self.space.free_bytes().ok(),
        }
    }

    /// Closes the store: what was lined up is still done, what comes later is refused. Blocks until all is on disk.
    pub fn close(&self) {
        self.core.inbox.close();
        let committer = self.committer.lock().take();
        if let Some(committer) = committer
            && committer.join().is_err()
        {
            self.core.fail("the writer thread panicked".to_owned());
        }
        self.core.keyspace_jobs.close(&self.core.inbox);
        let maker = self.keyspace_worker.lock().take();
        // It catches its panics.
        drop(maker.map(JoinHandle::join));
        self.core.release();
        drop(self.lock.lock().take());
    }
}

#[async_trait]
impl StoreHandle for Embedded {
    fn name(&self) -> String {
        "embedded".to_owned()
    }

    fn description(&self) -> String {
        "the embedded store".to_owned()
    }

    fn failure(&self) -> Option<String> {
        self.failure()
    }

    fn disk(&self) -> Option<StoreDisk> {
        let health = self.health();
        let (folder, reserve_bytes) = self.space.reserve();
        Some(StoreDisk {
            folder: folder.to_owned(),
            full: health.full,
            used_bytes: health.disk_bytes,
            free_bytes: health.free_bytes,
            reserve_bytes,
        })
    }

    async fn close(&self) {
        self.close();
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.close();
    }
}
