//! Looks for a queue that this server does not know: another server of the store may just have created it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::domain::queue::{QueueId, QueueName};
use crate::engine::catalog::FollowedCatalog;
use crate::engine::queues::Queues;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::served_queue::ServedQueue;

/// The reads of the catalog for unknown names: one at a time, and calls that wait share the next one. So calls with names that
/// nobody created cost the store no more than one read at a time.
pub struct CatalogLookUps {
    turn: Semaphore,
    begun: AtomicU64,
}

impl Default for CatalogLookUps {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), begun: AtomicU64::new(0) }
    }
}

impl Queues {
    /// The queue of a name, also if another server created it just before this call.
    pub(super) async fn queue(&self, name: &QueueName) -> Result<Arc<ServedQueue>, QueueError> {
        self.look_up(name).await?;
        self.context.queue(name)
    }

    /// The same; a given id must be that of the queue.
    pub(super) async fn queue_of(&self, name: &QueueName, id: Option<QueueId>) -> Result<Arc<ServedQueue>, QueueError> {
        self.look_up(name).await?;
        self.context.queue_of(name, id)
    }

    /// Reads the changes of the catalog if servers share it and this one does not know the name. The read begins after this
    /// call did, so it finds what was created before.
    pub async fn look_up(&self, name: &QueueName) -> Result<(), QueueError> {
        if self.context.member.is_none() || self.context.find(name).is_some() {
            return Ok(());
        }
        let looks = &self.context.look_ups;
        let before = looks.begun.load(Ordering::Acquire);
        let _turn = looks.turn.acquire().await.expect("the semaphore is never closed");
        if looks.begun.load(Ordering::Acquire) == before {
            looks.begun.fetch_add(1, Ordering::AcqRel);
            self.follow().await?;
        }
        Ok(())
    }
}
