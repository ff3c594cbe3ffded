//! State shared by the committer and the readers.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use super::counters::catalog::CatalogIndex;
use super::counters::counter_table::CounterTable;
use super::counters::entries::EntryIndex;
use super::counters::rules::RuleIndex;
use super::counters::series::SeriesKeyspaces;
use super::counters::slices::SliceIndex;
use super::disk::disk_space::{DiskSpaceLevel, DiskSpaceMonitor};
use super::disk::library::Library;
use super::disk::meta_state::MetaState;
use super::error::ReadError;
use super::history::periods::HistoryPeriods;
use super::inbox::commit_inbox::CommitInbox;
use super::inbox::keyspace_jobs::KeyspaceJobs;
use super::queues::QueueSharedState;
use tallystone_domain::access::AccessKey;
use tallystone_experiments::CatalogExperiment;
use tallystone_ports::{StoreError, StoreErrorKind};

/// One open store.
pub struct StoreCore {
    /// Queue in front of the committer.
    pub inbox: CommitInbox,
    /// Keyspaces of slices to create and delete.
    pub keyspace_jobs: KeyspaceJobs,
    /// Counters in memory.
    pub counters: CounterTable,
    /// Time slices.
    pub slices: SliceIndex,
    /// Periods of series.
    pub series: SeriesKeyspaces,
    /// Limits (frontiers), watermarks, forgotten namespaces.
    pub meta_state: MetaState,
    /// Namespaces and datasets.
    pub catalog: CatalogIndex,
    /// API keys.
    pub keys: EntryIndex<AccessKey>,
    /// Experiments.
    pub experiments: EntryIndex<CatalogExperiment>,
    /// Counter rules.
    pub rules: RuleIndex,
    /// State of queues shared by committer and readers.
    pub queues: QueueSharedState,
    /// Periods of the history.
    pub history: HistoryPeriods,
    /// Store library; `None` once the store is closed.
    library: RwLock<Option<Arc<Library>>>,
    failure: OnceLock<String>,
    disk_space_level: AtomicU8,
    commit_number: AtomicU64,
}

/// The state that a start reads from disk.
pub struct RecoveredStore {
    pub slices: SliceIndex,
    pub series: SeriesKeyspaces,
    pub meta_state: MetaState,
    pub catalog: CatalogIndex,
    pub keys: EntryIndex<AccessKey>,
    pub experiments: EntryIndex<CatalogExperiment>,
    pub rules: RuleIndex,
    pub queues: QueueSharedState,
    pub history: HistoryPeriods,
}

impl StoreCore {
    /// Assembles an open store.
    pub fn new(library: Arc<Library>, memory: CounterTable, recovered: RecoveredStore) -> Self {
        let RecoveredStore { slices, series, meta_state, catalog, keys, experiments, rules, queues, history } =
            recovered;
        Self {
            inbox: CommitInbox::default(),
            keyspace_jobs: KeyspaceJobs::default(),
            counters: memory,
            slices,
            series,
            meta_state,
            catalog,
            keys,
            experiments,
            rules,
            queues,
            history,
            library: RwLock::new(Some(library)),
            failure: OnceLock::new(),
            disk_space_level: AtomicU8::new(DiskSpaceLevel::Plenty as u8),
            commit_number: AtomicU64::new(0),
        }
    }

    /// Reads from disk. The store stays open until the read is done.
    pub fn read<T>(
        &self,
        op: &'static str,
        read: impl FnOnce(&Library) -> Result<T, ReadError>,
    ) -> Result<T, StoreError> {
        let library = RwLockReadGuard::try_map(self.library.read(), Option::as_ref)
            .map_err(|_| StoreError::not_applied(StoreErrorKind::Closed, op))?;
        read(&library).map_err(|error| error.into_store_error(op))
    }

    /// Reads from disk for a time that may be long: on the runtime's pool for blocking work, not on its async threads.
    pub async fn read_long<T: Send + 'static>(
        self: &Arc<Self>,
        op: &'static str,
        read: impl FnOnce(&Self, &Library) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let core = Arc::clone(self);
        match tokio::task::spawn_blocking(move || core.read(op, |library| read(&core, library))).await {
            Ok(answer) => answer,
            Err(error) => Err(StoreError::not_applied(StoreErrorKind::Unavailable, op).with_source(error)),
        }
    }

    /// Leaves the store to commits for a moment, if any wait.
    pub fn yield_to_commits(&self) {
        if self.inbox.is_busy() {
            self.keyspace_jobs.pause();
        }
    }

    /// Releases the store library, after the last reader.
    pub fn release(&self) {
        let library = self.library.write().take();
        self.slices.clear();
        self.series.clear();
        self.queues.clear();
        self.history.clear();
        drop(library);
    }

    /// Stops accepting commands permanently.
    pub fn fail(&self, why: String) {
        tracing::error!(why, "the store has failed and accepts no more writes");
        // Only the first failure is kept.
        let _ = self.failure.set(why);
        self.inbox.close();
        self.keyspace_jobs.close(&self.inbox);
    }

    /// Cause of the store's failure, if it failed.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Updates the level of free space.
    pub fn update_disk_space(&self, space: &DiskSpaceMonitor) {
        let room = space.level();
        if self.disk_space_level.swap(room as u8, Ordering::Relaxed) != room as u8 {
            space.report(room);
        }
    }

    /// Returns whether new events are refused for lack of disk space.
    pub fn is_full(&self) -> bool {
        self.disk_space_level.load(Ordering::Relaxed) != DiskSpaceLevel::Plenty as u8
    }

    /// Sets the number of the last commit.
    pub fn set_commit_number(&self, number: u64) {
        self.commit_number.store(number, Ordering::Release);
    }

    /// Number of the last commit.
    pub fn commit_number(&self) -> u64 {
        self.commit_number.load(Ordering::Acquire)
    }
}
