//! Finds the queue of a name that another server of the store has just created or replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::catalog::FollowedCatalog;
use crate::queues::catalog::CatalogService;
use crate::queues::error::QueueError;
use crate::queues::state::served_queue::ServedQueue;
use tallystone_domain::queue::{QueueId, QueueName};

/// The reads of the catalog that calls wait for: one at a time, and calls that wait share the next one. So calls with
/// names that no caller created cost the store no more than one read at a time.
pub struct CatalogLookUps {
    turn: Semaphore,
    begun: AtomicU64,
}

impl Default for CatalogLookUps {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), begun: AtomicU64::new(0) }
    }
}

impl CatalogService {
    /// The queue of a name, also if another server created it just before this call.
    pub(in crate::queues) async fn queue(&self, name: &QueueName) -> Result<Arc<ServedQueue>, QueueError> {
        self.look_up(name).await?;
        self.context.queue(name)
    }

    /// The same for an operation; a given id must be that of the queue. If servers share a store, it reads the changes
    /// of the catalog first, so it never begins on a queue that was replaced before.
    pub(in crate::queues) async fn queue_of(
        &self,
        name: &QueueName,
        id: Option<QueueId>,
    ) -> Result<Arc<ServedQueue>, QueueError> {
        self.read_changes().await?;
        self.context.queue_of(name, id)
    }

    /// Reads the changes of the catalog if servers share it and this one does not know the name.
    pub async fn look_up(&self, name: &QueueName) -> Result<(), QueueError> {
        if self.context.find(name).is_none() { self.read_changes().await } else { Ok(()) }
    }

    /// Makes a call on a queue. If another server has replaced the queue, it is made again on the one that has the name
    /// now.
    pub(in crate::queues) async fn call_on<T, C: Future<Output = Result<T, QueueError>>>(
        &self,
        mut queue: Arc<ServedQueue>,
        call: impl Fn(Arc<ServedQueue>) -> C,
    ) -> Result<T, QueueError> {
        loop {
            match call(Arc::clone(&queue)).await {
                Err(error) => queue = self.successor(&queue, error).await?,
                answer => return answer,
            }
        }
    }

    /// The queue that has the name of `queue` now, if another server deleted `queue` before this call. `error` is what
    /// a call on `queue` met; it is returned if it has another cause.
    pub(in crate::queues) async fn successor(
        &self,
        queue: &ServedQueue,
        error: QueueError,
    ) -> Result<Arc<ServedQueue>, QueueError> {
        let known = queue.record.load_full();
        if self.is_replaced(&known.spec.name, Some(known.id), &error).await {
            self.context.queue(&known.spec.name)
        } else {
            Err(error)
        }
    }

    /// Whether `error` came because the name does not stand for the queue `known` any more: another server deleted it
    /// before this call. Nothing was applied then.
    pub(in crate::queues) async fn is_replaced(
        &self,
        name: &QueueName,
        known: Option<QueueId>,
        error: &QueueError,
    ) -> bool {
        self.context.is_shared()
            && error.is_of_unknown_queue()
            && self.read_changes().await.is_ok()
            && self.id_of(name) != known
    }

    /// The id of the queue that this server knows under a name.
    pub(in crate::queues) fn id_of(&self, name: &QueueName) -> Option<QueueId> {
        self.context.find(name).map(|found| found.record.load().id)
    }

    /// Reads the changes of the catalog where servers share it. The read begins after this call did, so it finds what
    /// was committed before.
    pub(in crate::queues) async fn read_changes(&self) -> Result<(), QueueError> {
        if !self.context.is_shared() {
            return Ok(());
        }
        let looks = &self.look_ups;
        let before = looks.begun.load(Ordering::Acquire);
        let _turn = looks.turn.acquire().await.expect("the semaphore is never closed");
        if looks.begun.load(Ordering::Acquire) == before {
            looks.begun.fetch_add(1, Ordering::AcqRel);
            self.follow().await?;
        }
        Ok(())
    }
}
