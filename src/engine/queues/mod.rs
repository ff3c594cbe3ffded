//! The use cases of queues: one file per verb, on the ports of the queue store and its catalog.
//!
//! The API calls `Queues`. `served_queue` holds the state of a queue that is served, `shard_commands` sends commands to
//! shards, `waiters` wakes waiting dequeues, and `sweeper` applies timeouts. Invariant: a change of a queue's settings
//! is in the catalog and in the shards before it is acknowledged. A start repairs a difference that a kill left between
//! the two; `unnamed_shards` drops shards that a kill left without a name.

mod calls;
mod catalog;
mod error;
mod inspect;
mod operations;
mod sessions;
mod state;
mod work;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::broadcast;

use crate::caller_quota::CallerId;
use crate::catalog::Etag;
use crate::context::EngineContext;
use crate::driver::Driver;
use crate::fleet::{FleetGauges, FleetMembership, FleetOptions, MemberProfile};
use crate::loops::{FollowLoop, MembershipLoop};
use crate::queues::calls::clock::ClockWatch;
use crate::queues::calls::sweeper::Sweeper;
use crate::queues::catalog::unnamed_shards::UnnamedShards;
use crate::queues::inspect::activity::ActivityFollower;
use crate::queues::operations::OperationTakeover;
use crate::queues::sessions::exchange::SessionExchange;
use crate::queues::state::context::QueueContext;
use crate::queues::state::served_queue::ServedQueue;
use crate::stats::Stats;
use tallystone_domain::queue::command::Refusal;
use tallystone_domain::queue::messages::lease_seal::{LEASE_KEY_BYTES, LeaseKey};
use tallystone_domain::queue::messages::message::MessageRef;
use tallystone_domain::queue::shard_routing::shard_of;
use tallystone_domain::queue::{QueueId, QueueName, Reply, ShardId};
use tallystone_domain::{Reason, Reject};
use tallystone_ports::{Clock, Entropy, QueueListener, QueueMemory, QueueStores, StoreError};

pub use calls::clock::QueueClock;
pub use calls::lease_batch::{LeaseBatch, LeasedMessage};
pub use catalog::delete::DeletionRequest;
pub use catalog::draft::QueueDraft;
pub(crate) use catalog::history_scope::CheckedQueue;
pub use catalog::retry_draft::RetryPolicyDraft;
pub use catalog::{PastQueueChange, QueueUpdateOutcome};
pub use error::QueueError;
pub use inspect::activity::{ActivityOrder, ActivityPage, ActivityTotals, QueueActivity};
pub use inspect::cause_text::QueueExplanation;
pub use inspect::history_source::{HistorySource, PresentMessage, RecentRows};
pub use inspect::overview::Overview;
pub use inspect::session_list::LiveSession;
pub use inspect::watch::{DepthStream, DepthUpdate};
pub use inspect::{LeaseHolder, ListCursor, MessageView, Payloads};
pub use operations::{
    CancelRequest, CheckRequest, DiscardRequest, FindingsPage, Operation, OperationState, OperationsPage, PurgeRequest,
    QueueFinding, RedriveRequest,
};
pub(crate) use operations::{CheckScope, RunningCheck};
pub use sessions::{HeartbeatOutcome, OpenedSession, SentSessionCall};
pub use state::context::CancelNotice;
pub use state::depth::Depth;
pub use state::served_queue::Backlog;
pub use state::waiters::FreeCredit;
pub use work::dequeue::{DequeueRequest, WhenBlocked};
pub use work::enqueue::{EnqueueOutcome, SentMessage};
pub use work::settle::{LeaseActionRequest, LeaseExtension, LeaseOutcome, SettleRequest, UpdateRequest};
pub use work::streams::{StreamLeaseRequest, StreamSession};

/// The version of a queue that a caller read.
pub type QueueEtag = Etag<QueueId>;

/// A queue as reports name it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReportedQueue {
    pub id: QueueId,
    pub name: QueueName,
    /// The number of its shards.
    pub shards: u32,
    /// The time of its creation, in microseconds since 1970.
    pub created_micros: u64,
}

/// The use cases of queues. Cheap to clone.
#[derive(Clone)]
pub struct Queues {
    context: Arc<QueueContext>,
    /// Whether a first enqueue may make its queue by a template.
    makes_queues: bool,
    /// Whose queues those are that are made here.
    maker: CallerId,
}

impl Queues {
    /// Reads the catalog, repairs changes that a kill interrupted, and starts the loops of queues.
    pub async fn start(
        stores: QueueStores,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        driver: Driver,
        stats: Arc<Stats>,
    ) -> Result<Self, StoreError> {
        Self::start_in(
            stores,
            Arc::new(EngineContext { clock, entropy, driver, stats, queue_reports: Default::default() }),
            (None, String::new()),
        )
        .await
    }

    /// The same, as a part of an engine: with the membership of its counters, which may be that of its queues too, and
    /// the name of this server among others.
    pub(super) async fn start_in(
        stores: QueueStores,
        context: Arc<EngineContext>,
        (counting, name): (Option<Arc<FleetMembership>>, String),
    ) -> Result<Self, StoreError> {
        let made: [u8; LEASE_KEY_BYTES] = context.random();
        let lease_key = stores.catalog.lease_key(LeaseKey(made)).await?;
        let member = join_servers(&stores, &context, counting, name).await?;
        let driver = context.driver.clone();
        let shared = Arc::new(QueueContext::new(stores, lease_key, context, member));
        let queues = Self { context: Arc::clone(&shared), makes_queues: true, maker: CallerId::nobody() };
        queues.load().await?;
        queues.load_sessions().await?;
        shared.stores.shards.listen(Arc::clone(&shared) as Arc<dyn QueueListener>);
        driver.start(Sweeper::new(Arc::clone(&shared)));
        driver.start(ClockWatch::new(Arc::clone(&shared)));
        driver.start(UnnamedShards::new(shared));
        driver.start(OperationTakeover::new(queues.clone()));
        driver.start(FollowLoop::new(queues.clone()));
        driver.start(ActivityFollower::new(queues.clone()));
        if let Some(directory) = queues.context.session_directory().map(Arc::clone) {
            driver.start(SessionExchange::new(queues.clone(), directory));
        }
        Ok(queues)
    }

    /// The queues that hold messages, for reports about them. O(n log n).
    pub fn reported(&self) -> Vec<ReportedQueue> {
        let queues = self.context.all().into_iter().filter(|queue| queue.holds_messages());
        let reported = |queue: Arc<ServedQueue>| {
            let record = queue.record.load();
            let created_micros = u64::try_from(record.created.micros()).unwrap_or(0);
            ReportedQueue { id: record.id, name: record.spec.name.clone(), shards: queue.shards(), created_micros }
        };
        queues.map(reported).collect()
    }

    /// A number that changes when a queue comes or goes. O(1).
    pub fn directory_generation(&self) -> u64 {
        self.context.directory.generation()
    }

    /// Whether other servers may serve the same queues.
    pub fn is_shared(&self) -> bool {
        self.context.member.is_some()
    }

    /// The membership of this process among those servers; none where one process owns the queues.
    pub fn fleet(&self) -> Option<FleetGauges> {
        self.context.member.as_ref().map(|member| member.gauges())
    }

    /// When the last look found no other server of the queues, by elapsed time; none while there is one, or that is not
    /// known.
    pub fn alone_at(&self) -> Option<Duration> {
        self.context.member.as_ref().and_then(|member| member.alone_at())
    }

    /// How many of the other servers ended without an orderly stop, as this one saw it. When it grows, a server has to
    /// finish what they left. O(1).
    pub fn lost_servers(&self) -> u64 {
        self.context.member.as_ref().map_or(0, |member| member.lapsed())
    }

    /// How many other servers come before this one for work on a shard. O(members).
    pub fn rank_for(&self, shard: ShardId) -> u32 {
        self.context.rank_for(shard)
    }

    /// Adds a receiver of the statuses of all shards.
    pub fn listen(&self, listener: Arc<dyn QueueListener>) {
        self.context.stores.shards.listen(listener);
    }

    /// Gives no more leases and ends every wait. Calls in flight are finished.
    pub fn stop_leasing(&self) {
        self.context.drain.cancel();
    }

    /// Fails unless the name is that of a queue that holds messages.
    pub async fn served(&self, name: &QueueName) -> Result<(), QueueError> {
        self.queue(name).await.map(drop)
    }

    /// Notices of running messages for which a cancel was requested, at whatever server of the store.
    pub fn cancel_notices(&self) -> broadcast::Receiver<CancelNotice> {
        self.context.cancel_notices.subscribe()
    }

    /// The number of dequeues that wait at this server.
    pub fn waiting(&self) -> usize {
        self.context.all().iter().map(|queue| queue.waiters.len()).sum()
    }

    /// The number of sessions that this server remembers, including those that ended a short time ago.
    pub fn sessions(&self) -> usize {
        self.context.sessions.len()
    }

    /// The number of open sessions at this server. O(sessions).
    pub fn open_sessions(&self) -> usize {
        self.context.sessions.open_count(self.context.engine.clock.elapsed())
    }

    /// The memory of all queues and its bound; none where their store keeps them elsewhere. Cheap.
    pub fn memory(&self) -> Option<QueueMemory> {
        self.context.stores.shards.memory()
    }

    /// The backlog of each queue at this moment. O(shards); frequent callers use `overview`.
    pub fn backlogs(&self) -> Vec<Backlog> {
        let now = self.context.engine.clock.elapsed();
        let queues = self.context.all();
        let served = queues.iter().filter(|queue| queue.holds_messages());
        served.map(|queue| Backlog { queue: queue.name(), ..queue.backlog(now) }).collect()
    }

    /// The number of queues and templates.
    pub fn count(&self) -> usize {
        self.context.len()
    }

    /// The shard of a message: that of its key, else that of its routing value, else that of its id. If the shard of
    /// the id does not have the message, the other shards are asked. For a message that no shard has, the shard of the
    /// id.
    async fn shard_of(&self, queue: &ServedQueue, message: &MessageRef) -> Result<u32, QueueError> {
        let id = match message {
            MessageRef::Key(key) if key.shard < queue.shards() => return Ok(key.shard),
            MessageRef::Key(_) => return Err(Refusal::NotFound.into()),
            MessageRef::Id(_, Some(routing)) => return Ok(shard_of(queue.shards(), routing.as_str())),
            MessageRef::Id(id, None) => id,
        };
        let own = shard_of(queue.shards(), &id.text());
        if queue.shards() == 1 || self.shard_has(queue, own, message).await? {
            return Ok(own);
        }
        let others: Vec<u32> = (0..queue.shards()).filter(|number| *number != own).collect();
        let looks = join_all(others.iter().map(|number| self.shard_has(queue, *number, message))).await;
        for (number, has) in others.into_iter().zip(looks) {
            if has? {
                return Ok(number);
            }
        }
        Ok(own)
    }

    async fn shard_has(&self, queue: &ServedQueue, number: u32, message: &MessageRef) -> Result<bool, QueueError> {
        let found = self.context.stores.reader.get(queue.shard(number).id, message.clone()).await;
        Ok(found.map_err(|error| self.context.translate_store_error(queue, error))?.is_some())
    }
}

/// Makes this server a member of the servers of its store, if there may be others.
async fn join_servers(
    stores: &QueueStores,
    context: &Arc<EngineContext>,
    counting: Option<Arc<FleetMembership>>,
    name: String,
) -> Result<Option<Arc<FleetMembership>>, StoreError> {
    let Some(shared) = &stores.shared else { return Ok(None) };
    let counting = counting.filter(|member| member.is_in(&shared.membership));
    if counting.is_some() {
        return Ok(counting);
    }
    let members = Arc::clone(&shared.membership);
    let profile = MemberProfile { address: name, ..MemberProfile::default() };
    let options = FleetOptions { profile, ..FleetOptions::default() };
    let member = Arc::new(FleetMembership::new(Arc::clone(context), members, options));
    member.renew_membership().await?;
    member.read_members().await?;
    context.driver.start(MembershipLoop::new(Arc::clone(&member), Arc::clone(&context.clock)));
    Ok(Some(member))
}

/// The error for a reply that does not belong to the command: a defect of the store.
fn unexpected(op: &'static str, _reply: &Reply) -> QueueError {
    Reject::new(Reason::Internal, format!("the store answered a {op} with another command's reply")).into()
}
