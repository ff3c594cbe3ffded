//! The use cases of queues: one file per verb, all on the ports of the queue store and its catalog.
//!
//! `Queues` is what the API calls. `live` holds what is known of the queues that are served, `calls` is the only way to a
//! shard, `waiters` knows who waits, `sweeper` does what time asks for. Invariant: every change of a queue's settings is
//! in the catalog before it is answered, and in the shards before it is answered too; a start repairs what a kill left
//! between the two.

mod calls;
mod catalog;
mod clock;
mod core;
mod delete;
mod dequeue;
mod directory;
mod draft;
mod enqueue;
mod error;
mod explain;
mod live;
mod look;
mod operations;
mod outlook;
mod overview;
mod registry;
mod session_list;
mod sessions;
mod settle;
mod steps;
mod streams;
mod sweeper;
mod waiters;
mod watch;
mod words;

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::broadcast;

use crate::domain::Reason;
use crate::domain::Reject;
use crate::domain::queue::command::{MessageRef, Refusal};
use crate::domain::queue::route::shard_of;
use crate::domain::queue::seal::{LEASE_KEY_BYTES, LeaseKey};
use crate::domain::queue::{QueueName, Reply};
use crate::engine::loops::driver::Driver;
use crate::engine::queues::clock::ClockWatch;
use crate::engine::queues::core::Shared;
use crate::engine::queues::live::LiveQueue;
use crate::engine::queues::sweeper::Sweeper;
use crate::engine::stats::Stats;
use crate::ports::{Clock, Entropy, QueueListener, QueueStores, StoreError};

pub use catalog::{Changed, PastQueueChange};
pub use clock::QueueClock;
pub use delete::SentDeletion;
pub use dequeue::{Ask, Blocked, Dequeued, Given};
pub use draft::{QueueDraft, QueueEtag};
pub use enqueue::{Enqueued, SentMessage};
pub use error::QueueError;
pub use explain::Explanation;
pub use live::Backlog;
pub use look::{Depth, Found, ListCursor, Payloads, Worker};
pub use operations::{Discard, Operation, OperationState, Redrive};
pub use overview::Overview;
pub use session_list::LiveSession;
pub use sessions::{Beat, CallOfSession, OpenedSession};
pub use settle::{CancelNews, Extended, Handled, SentSettlement, SentUpdate, SentVerb};
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
        let mut made = [0; LEASE_KEY_BYTES];
        entropy.fill(&mut made);
        let lease_key = stores.catalog.lease_key(LeaseKey(made)).await?;
        let shared = Arc::new(Shared::new(stores, lease_key, clock, entropy, driver.clone(), stats));
        let queues = Self { shared: Arc::clone(&shared) };
        queues.load().await?;
        queues.load_sessions().await?;
        shared.stores.shards.listen(Arc::clone(&shared) as Arc<dyn QueueListener>);
        driver.start(Sweeper::new(Arc::clone(&shared)));
        driver.start(ClockWatch::new(shared));
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

    /// How many sessions are open at this server. O(sessions).
    pub fn open_sessions(&self) -> usize {
        self.shared.sessions.open_count(self.shared.clock.elapsed())
    }

    /// What waits in each queue at this moment. O(shards), so `overview` is for whoever may ask often.
    pub fn backlogs(&self) -> Vec<Backlog> {
        let now = self.shared.clock.elapsed();
        let queues = self.shared.all();
        let served = queues.iter().filter(|queue| queue.is_served());
        served.map(|queue| Backlog { queue: queue.name(), ..queue.numbers(now) }).collect()
    }

    /// How many queues and templates there are.
    pub fn count(&self) -> usize {
        self.shared.len()
    }

    /// The shard that a message is in: that of its key, else the one its routing value selects, else that of its id or, if
    /// it is not there, whichever has it. A message that is nowhere is looked for where its id belongs.
    async fn shard_of(&self, queue: &LiveQueue, message: &MessageRef) -> Result<u32, QueueError> {
        let id = match message {
            MessageRef::Key(key) if key.shard < queue.shards() => return Ok(key.shard),
            MessageRef::Key(_) => return Err(Refusal::NotFound.into()),
            MessageRef::Id(_, Some(routing)) => return Ok(shard_of(queue.shards(), routing.as_str())),
            MessageRef::Id(id, None) => id,
        };
        let own = shard_of(queue.shards(), &id.text());
        if queue.shards() == 1 || self.has(queue, own, message).await? {
            return Ok(own);
        }
        let others: Vec<u32> = (0..queue.shards()).filter(|number| *number != own).collect();
        let looks = join_all(others.iter().map(|number| self.has(queue, *number, message))).await;
        for (number, has) in others.into_iter().zip(looks) {
            if has? {
                return Ok(number);
            }
        }
        Ok(own)
    }

    async fn has(&self, queue: &LiveQueue, number: u32, message: &MessageRef) -> Result<bool, QueueError> {
        let found = self.shared.stores.shards.get(queue.shard(number).id, message.clone()).await;
        Ok(found.map_err(|error| self.shared.not_found_if_gone(queue, error))?.is_some())
    }
}

/// An answer that the command cannot have: a defect of the store.
fn unexpected(op: &'static str, _reply: &Reply) -> QueueError {
    Reject::new(Reason::Internal, format!("the store answered a {op} with another command's reply")).into()
}
