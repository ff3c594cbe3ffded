//! The parts of queues that counter rules need: a check of a message before there is one, the clock of tokens, and the
//! mark of the queue store, by which counters belong to it too.

use crate::catalog::FollowedCatalog as _;
use crate::queues::catalog::EnqueueTarget;
use crate::queues::error::QueueError;
use crate::queues::{Queues, SentMessage};
use tallystone_domain::Timestamp;
use tallystone_domain::queue::QueueName;
use tallystone_domain::rules::QueueHome;

/// The bytes whose seal marks the store. No lease token is made of them.
const HOME: &[u8] = b"home of counter rules";

impl Queues {
    /// Fails if a queue would refuse a message even while it is empty. The queue exists, or a template makes it.
    /// Nothing is enqueued or created.
    pub(crate) async fn check_message(&self, name: &QueueName, sent: SentMessage) -> Result<(), QueueError> {
        let spec = match self.enqueue_target(name).await? {
            EnqueueTarget::Live(queue) => queue.record.load().spec.clone(),
            EnqueueTarget::Template { spec, .. } => *spec,
        };
        let step = self.context.stores.time.clock().await?;
        self.check_on_empty_shard(&spec, sent, step)
    }

    /// The time by which queues judge the age of tokens. It is never ahead of the queues, whatever the clock of the
    /// machine does.
    pub(crate) async fn token_time(&self) -> Result<Timestamp, QueueError> {
        Ok(self.context.stores.time.clock().await?.token_age_clock)
    }

    /// The mark of the queue store: the same after a restart, and another one for each store.
    pub(crate) fn home(&self) -> QueueHome {
        QueueHome(self.context.lease_key.seal(HOME))
    }

    /// Whether the queue store is the one of the start of this server. One that has lost its catalog is an error; in a
    /// store that had none and is empty now, nothing was lost, and it gets its key back.
    pub(crate) async fn is_store_of_the_start(&self) -> Result<bool, QueueError> {
        self.follow().await?;
        let own = self.context.lease_key;
        Ok(self.context.stores.catalog.lease_key(own).await? == own)
    }
}
