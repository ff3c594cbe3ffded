//! The use cases of queues: one file per verb, all on the ports of the queue store and its catalog.
//!
//! `Queues` is what the API calls. `live` holds what is known of the queues that are served, `calls` is the only way to a
//! shard, `waiters` knows who waits, `sweeper` does what time asks for. Invariant: every change of a queue's settings is
//! in the catalog before it is answered, and in the shards before it is answered too; a start repairs what a kill left
//! between the two.

mod calls;
mod catalog;
mod core;
mod dequeue;
mod draft;
mod enqueue;
mod error;
mod explain;
mod live;
mod look;
mod operations;
mod outlook;
mod registry;
mod sessions;
mod settle;
mod streams;
mod sweeper;
mod waiters;
mod watch;

use std::sync::Arc;

use tokio::sync::broadcast;

use crate::domain::Reason;
use crate::domain::Reject;
use crate::domain::queue::command::MessageRef;
use crate::domain::queue::route::shard_of;
use crate::domain::queue::{QueueName, Reply};
use crate::engine::loops::driver::Driver;
use crate::engine::queues::core::Shared;
use crate::engine::queues::live::LiveQueue;
use crate::engine::queues::sweeper::Sweeper;
use crate::engine::stats::Stats;
use crate::ports::{Clock, Entropy, QueueListener, QueueStores, StoreError};

pub use catalog::{Changed, PastQueueChange};
pub use dequeue::{Ask, Blocked, Dequeued, Given};
pub use draft::{QueueDraft, QueueEtag};
pub use enqueue::{Enqueued, SentMessage};
pub use error::QueueError;
pub use explain::Explanation;
pub use look::{Depth, Found, ListCursor};
pub use operations::{Operation, OperationState, Redrive};
pub use sessions::{Beat, CallOfSession, OpenedSession};
pub use settle::{CancelNews, Extended, SentSettlement, SentUpdate};
pub use streams::{StreamAsk, StreamSession};
pub use watch::{DepthStream, Look};

/// The use cases of queues. Cheap to clone.
#[derive(Clone)]
pub struct Queues {
    shared: Arc<Shared>,
}

impl Queues {
    /// Reads the catalog, repairs what a kill left half done, and begins to sweep.
    pub async fn start(
        stores: QueueStores,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        driver: Driver,
        stats: Arc<Stats>,
    ) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::new(stores, clock, entropy, driver.clone(), stats));
        let queues = Self { shared: Arc::clone(&shared) };
        queues.load().await?;
        queues.load_sessions().await?;
        shared.stores.shards.listen(Arc::clone(&shared) as Arc<dyn QueueListener>);
        driver.start(Sweeper::new(shared));
        Ok(queues)
    }

    /// Gives no more leases and ends every wait. What is under way is finished.
    pub fn stop_leasing(&self) {
        self.shared.drain.cancel();
    }

    /// Refuses a name that no queue with messages has.
    pub fn served(&self, name: &QueueName) -> Result<(), QueueError> {
        self.shared.queue(name).map(drop)
    }

    /// Tells of running messages that somebody asked to cancel at this server.
    pub fn cancel_news(&self) -> broadcast::Receiver<CancelNews> {
        self.shared.cancels.subscribe()
    }

    /// How many workers wait at this server.
    pub fn waiting(&self) -> usize {
        self.shared.all().iter().map(|queue| queue.waiters.len()).sum()
    }

    /// How many sessions this server knows, those that ended a short time ago too.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.len()
    }

    /// How many queues and templates there are.
    pub fn count(&self) -> usize {
        self.shared.len()
    }

    /// The shard on which a message is looked for: that of its key, else the one its routing value or id selects.
    fn shard_of(&self, queue: &LiveQueue, message: &MessageRef) -> Result<u32, QueueError> {
        match message {
            MessageRef::Key(key) if key.shard < queue.shards() => Ok(key.shard),
            MessageRef::Key(_) => Err(crate::domain::queue::Refusal::NotFound.into()),
            MessageRef::Id(id, routing) => {
                let shard = |value: &str| shard_of(queue.shards(), value);
                Ok(routing.as_ref().map_or_else(|| shard(&id.text()), |routing| shard(routing.as_str())))
            }
        }
    }
}

/// An answer that the command cannot have: a defect of the store.
fn unexpected(op: &'static str, _reply: &Reply) -> QueueError {
    Reject::new(Reason::Internal, format!("the store answered a {op} with another command's reply")).into()
}
