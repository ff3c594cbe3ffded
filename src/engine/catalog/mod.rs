//! A versioned catalog: what namespaces and queues have in common.
//!
//! Reads are served from a view in memory. A change is decided on the view, committed by compare-and-set, and then
//! taken into the view. If another server changed the catalog meanwhile, the store returns a conflict, the view is read
//! again and the decision is repeated. Only with an etag of the caller does such a change become an error. A change
//! continues if its caller goes away, so the view never differs from the store for long.

mod author;
mod difference;
mod etag;
mod reset;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use tallystone_domain::limits::CATALOG_ATTEMPTS_MAX;
use tallystone_ports::{CATALOG_LOST, Catalog, CatalogEntry, CatalogRecord, EffectOutcome, StoreError, StoreErrorKind};

pub use author::Author;
pub use difference::{SettingText, differences_between, duration_text, refuse_fixed, setting};
pub use etag::{Etag, check_etag};
pub use reset::{ResetRow, check_reset, reset_to, set_and_reset};

/// The version of a new entry.
pub const FIRST_VERSION: u64 = 1;

/// The content of a catalog in the memory of a server.
pub trait CatalogView<E: CatalogEntry>: Send + Sync {
    /// Replaces the content by the one that the store has.
    fn take_in(&self, state: E::State);
}

/// A catalog in which other servers may make changes too.
#[async_trait]
pub trait FollowedCatalog: Send + Sync + 'static {
    /// Reads the changes of other servers since the last call. Cost: one small read.
    async fn follow(&self) -> Result<Sharing, StoreError>;
}

/// Whether other servers may change a catalog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Servers share it.
    Shared,
    /// One process owns it.
    Owned,
}

/// The changes of a catalog, one at a time.
pub struct VersionedCatalog<E: CatalogEntry> {
    store: Arc<dyn Catalog<E>>,
    /// Admits one change at a time by a permit, so no lock is held during calls of the store.
    changes: Semaphore,
    /// The revision that `follow` read last.
    followed: AtomicI64,
}

/// The permit to change a catalog, with the view that decisions are made on.
pub struct ChangeTurn<'a, E: CatalogEntry> {
    catalog: &'a VersionedCatalog<E>,
    view: &'a dyn CatalogView<E>,
    attempt: u32,
    _permit: SemaphorePermit<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum CommitOutcome {
    /// The store has the record.
    Committed,
    /// Another server was first. The view was read again: decide again.
    Overtaken,
}

impl<E: CatalogEntry> VersionedCatalog<E> {
    pub fn new(store: Arc<dyn Catalog<E>>) -> Self {
        Self { store, changes: Semaphore::new(1), followed: AtomicI64::new(i64::MIN) }
    }

    /// Waits for the permit to change the catalog. None once it is closed.
    pub async fn admit(&self) -> Option<SemaphorePermit<'_>> {
        self.changes.acquire().await.ok()
    }

    /// The same, to commit a change that is decided on the view.
    pub async fn begin<'a>(&'a self, view: &'a dyn CatalogView<E>) -> Option<ChangeTurn<'a, E>> {
        let permit = self.admit().await?;
        Some(ChangeTurn { catalog: self, view, attempt: 1, _permit: permit })
    }

    /// Admits no more changes.
    pub fn close(&self) {
        self.changes.close();
    }

    /// Reads the catalog again, for what other servers changed.
    pub async fn refresh(&self, view: &dyn CatalogView<E>) -> Result<(), StoreError> {
        let _permit = self.admit().await;
        self.reload(view).await
    }

    /// Reads the catalog again if another server has changed it since the last call. A store that has lost all of it is
    /// an error: what it knew is not given up, or callers would take their queues for ones that never were.
    pub async fn follow(&self, view: &dyn CatalogView<E>) -> Result<Sharing, StoreError> {
        let Some(revision) = self.store.revision().await? else { return Ok(Sharing::Owned) };
        let followed = self.followed.load(Ordering::Acquire);
        if revision == 0 && followed > 0 {
            let lost = StoreError::not_applied(StoreErrorKind::Lost, "follow the catalog");
            return Err(lost.with_source(CATALOG_LOST));
        }
        if followed != revision {
            self.refresh(view).await?;
            self.followed.store(revision, Ordering::Release);
        }
        Ok(Sharing::Shared)
    }

    async fn reload(&self, view: &dyn CatalogView<E>) -> Result<(), StoreError> {
        view.take_in(self.store.load().await?);
        Ok(())
    }
}

impl<E: CatalogEntry> ChangeTurn<'_, E> {
    /// Commits a record that was decided on the present view.
    pub async fn commit(&mut self, record: CatalogRecord<E>) -> Result<CommitOutcome, StoreError> {
        let Err(error) = self.catalog.store.commit(record).await else { return Ok(CommitOutcome::Committed) };
        if error.outcome == EffectOutcome::Unknown {
            // The commit may be in the store, so the catalog is read again. If that fails too, the next refresh does
            // it.
            let _ = self.catalog.reload(self.view).await;
        }
        if error.kind == StoreErrorKind::Conflict && self.reread().await? {
            return Ok(CommitOutcome::Overtaken);
        }
        Err(error)
    }

    /// Reads the catalog again, for a decision that met what another server has changed. Returns whether it did; it
    /// does not after too many attempts.
    pub async fn reread(&mut self) -> Result<bool, StoreError> {
        if self.attempt >= CATALOG_ATTEMPTS_MAX {
            return Ok(false);
        }
        self.attempt += 1;
        self.catalog.reload(self.view).await?;
        Ok(true)
    }
}

/// Runs a change to its end, even if its caller goes away. `start` runs it as a task.
pub async fn finish<T, F>(
    op: &'static str,
    start: impl FnOnce(BoxFuture<'static, ()>),
    work: impl Future<Output = Result<T, F>> + Send + 'static,
) -> Result<T, F>
where
    T: Send + 'static,
    F: From<StoreError> + Send + 'static,
{
    let (answer, receiver) = oneshot::channel();
    let task = async move {
        // The caller has gone; it can read the outcome later.
        let _ = answer.send(work.await);
    };
    start(task.boxed());
    receiver.await.unwrap_or_else(|_stopped| Err(StoreError::unknown(StoreErrorKind::Closed, op).into()))
}
