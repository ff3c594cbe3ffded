//! The check of a message of a counter rule before there is one, and of the store that it goes to.

use crate::catalog::FollowedCatalog as _;
use crate::queues::SentMessage;
use crate::queues::catalog::EnqueueTarget;
use crate::queues::error::QueueError;
use crate::queues::work::WorkService;
use tallystone_domain::queue::QueueName;

impl WorkService {
    /// Fails if a queue would refuse a message even while it is empty. The queue exists, or a template makes it.
    /// Nothing is enqueued or created.
    pub(crate) async fn check_message(&self, name: &QueueName, sent: SentMessage) -> Result<(), QueueError> {
        let spec = match self.catalog.enqueue_target(name, self.makes_queues).await? {
            EnqueueTarget::Live(queue) => queue.record.load().spec.clone(),
            EnqueueTarget::Template { spec, .. } => *spec,
        };
        let step = self.context.stores.time.clock().await?;
        self.check_on_empty_shard(&spec, sent, step)
    }

    /// Whether the queue store is the one of the start of this server. One that has lost its catalog is an error; in a
    /// store that had none and is empty now, nothing was lost, and it gets its key back.
    pub(crate) async fn is_store_of_the_start(&self) -> Result<bool, QueueError> {
        self.catalog.follow().await?;
        let own = self.context.lease_key;
        Ok(self.context.stores.catalog.lease_key(own).await? == own)
    }
}
