//! What the committer and the readers share.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use super::commit::commit_inbox::CommitInbox;
use super::commit::keyspace_worker::KeyspaceJobs;
use super::counters::catalog::CatalogIndex;
use super::counters::counter_table::CounterTable;
use super::counters::series::SeriesKeyspaces;
use super::counters::slices::SliceIndex;
use super::disk::disk_space::{DiskSpaceLevel, DiskSpaceMonitor};
use super::disk::library::Library;
use super::disk::meta_state::MetaState;
use super::error::ReadError;
use super::queues::QueueSharedState;
use crate::ports::{StoreError, StoreErrorKind};

/// One open store.
pub struct StoreCore {
    /// The way to the committer.
    pub inbox: CommitInbox,
    /// Keyspaces of slices to be made and deleted.
    pub keyspace_jobs: KeyspaceJobs,
    /// Counters in memory.
    pub counters: CounterTable,
    /// Time slices.
    pub slices: SliceIndex,
    /// Periods of series.
    pub series: SeriesKeyspaces,
    /// Frontiers, watermarks, forgotten namespaces.
    pub meta_state: MetaState,
    /// Namespaces and datasets.
    pub catalog: CatalogIndex,
    /// What committer and readers share of queues.
    pub queues: QueueSharedState,
    /// The store library; none once the store is closed.
    library: RwLock<Option<Arc<Library>>>,
    failure: OnceLock<String>,
    disk_space_level: AtomicU8,
    commit_number: AtomicU64,
}

impl StoreCore {
    /// Puts an open store together.
    pub fn new(
        library: Arc<Library>,
        memory: CounterTable,
        slices: SliceIndex,
        series: SeriesKeyspaces,
        book: MetaState,
        catalog: CatalogIndex,
        queues: QueueSharedState,
    ) -> Self {
        Self {
            inbox: CommitInbox::default(),
            keyspace_jobs: KeyspaceJobs::default(),
            counters: memory,
            slices,
            series,
            meta_state: book,
            catalog,
            queues,
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

    /// Lets go of the store library, after the last reader.
    pub fn release(&self) {
        let library = self.library.write().take();
        self.slices.clear();
        self.series.clear();
        self.queues.clear();
        drop(library);
    }

    /// Ends the acceptance of commands for good.
    pub fn fail(&self, why: String) {
        tracing::error!(why, "the store has failed and takes nothing any more");
        // The first failure is the one to show.
        let _ = self.failure.set(why);
        self.inbox.close();
        self.keyspace_jobs.close(&self.inbox);
    }

    /// Why the store failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Notes the room on the file system.
    pub fn update_disk_space(&self, space: &DiskSpaceMonitor) {
        let room = space.level();
        if self.disk_space_level.swap(room as u8, Ordering::Relaxed) != room as u8 {
            space.report(room);
        }
    }

    /// Whether new events are refused for want of room.
    pub fn is_full(&self) -> bool {
        self.disk_space_level.load(Ordering::Relaxed) != DiskSpaceLevel::Plenty as u8
    }

    /// Notes the number of the last commit.
    pub fn set_commit_number(&self, number: u64) {
        self.commit_number.store(number, Ordering::Release);
    }

    /// The number of the last commit.
    pub fn commit_number(&self) -> u64 {
        self.commit_number.load(Ordering::Acquire)
    }
}
