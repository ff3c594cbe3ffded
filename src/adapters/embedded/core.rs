//! What the committer and the readers share.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use super::book::Book;
use super::catalog::Catalog;
use super::error::ReadError;
use super::library::Library;
use super::maker::Jobs;
use super::memory::Memory;
use super::queue::Queue;
use super::queues::Shared;
use super::series::Series;
use super::slices::Slices;
use super::space::{Room, Space};
use crate::ports::{StoreError, StoreErrorKind};

/// One open store.
pub struct Core {
    /// The way to the committer.
    pub queue: Queue,
    /// Keyspaces of slices to be made and deleted.
    pub jobs: Jobs,
    /// Counters in memory.
    pub memory: Memory,
    /// Time slices.
    pub slices: Slices,
    /// Periods of series.
    pub series: Series,
    /// Frontiers, watermarks, forgotten namespaces.
    pub book: Book,
    /// Namespaces and datasets.
    pub catalog: Catalog,
    /// What committer and readers share of queues.
    pub queues: Shared,
    /// The store library; none once the store is closed.
    library: RwLock<Option<Arc<Library>>>,
    failure: OnceLock<String>,
    room: AtomicU8,
    commit_number: AtomicU64,
}

impl Core {
    /// Puts an open store together.
    pub fn new(
        library: Arc<Library>,
        memory: Memory,
        slices: Slices,
        series: Series,
        book: Book,
        catalog: Catalog,
        queues: Shared,
    ) -> Self {
        Self {
            queue: Queue::default(),
            jobs: Jobs::default(),
            memory,
            slices,
            series,
            book,
            catalog,
            queues,
            library: RwLock::new(Some(library)),
            failure: OnceLock::new(),
            room: AtomicU8::new(Room::Plenty as u8),
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
        read(&library).map_err(|error| error.during(op))
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
        self.queue.close();
        self.jobs.close(&self.queue);
    }

    /// Why the store failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Notes the room on the file system.
    pub fn set_room(&self, space: &Space) {
        let room = space.room();
        if self.room.swap(room as u8, Ordering::Relaxed) != room as u8 {
            space.report(room);
        }
    }

    /// Whether new events are refused for want of room.
    pub fn is_full(&self) -> bool {
        self.room.load(Ordering::Relaxed) != Room::Plenty as u8
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
