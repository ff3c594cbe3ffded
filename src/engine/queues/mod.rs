//! The use cases of queues, on the ports of the queue store and its catalog.
//!
//! The API calls the services of `Queues`: `catalog`, `sessions`, `inspect`, `work` and `operations`. Below them,
//! `state` has what this server knows, and `calls` sends commands to shards. Each folder uses only those before it:
//! error, state, calls, catalog, sessions, inspect, work, operations. Invariant: a change of a queue's settings is in
//! the catalog and in the shards before it is acknowledged. A start repairs a difference that a kill left between the
//! two; `catalog::unnamed_shards` drops shards that a kill left without a name.

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

use tokio::sync::broadcast;

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
use tallystone_domain::Timestamp;
use tallystone_domain::queue::messages::lease_seal::{LEASE_KEY_BYTES, LeaseKey};
use tallystone_domain::queue::{QueueId, QueueName, ShardId};
use tallystone_domain::rules::QueueHome;
use tallystone_ports::{Clock, Entropy, QueueListener, QueueMemory, QueueStores, StoreError};

pub use calls::clock::QueueClock;
pub use calls::lease_batch::{LeaseBatch, LeasedMessage};
pub use catalog::delete::DeletionRequest;
pub use catalog::draft::QueueDraft;
pub(crate) use catalog::history_scope::CheckedQueue;
pub use catalog::retry_draft::RetryPolicyDraft;
pub use catalog::{CatalogService, PastQueueChange, QueueUpdateOutcome};
pub use error::QueueError;
pub use inspect::activity::{ActivityOrder, ActivityPage, ActivityTotals, QueueActivity};
pub use inspect::cause_text::QueueExplanation;
pub use inspect::history_source::{HistorySource, PresentMessage, RecentRows};
pub use inspect::overview::Overview;
pub use inspect::session_list::LiveSession;
pub use inspect::watch::{DepthStream, DepthUpdate};
pub use inspect::{InspectService, LeaseHolder, ListCursor, MessageView, Payloads};
pub use operations::{
    CancelRequest, CheckRequest, DiscardRequest, FindingsPage, Operation, OperationService, OperationState,
    OperationsPage, PurgeRequest, QueueFinding, RedriveRequest,
};
pub(crate) use operations::{CheckScope, RunningCheck};
pub use sessions::{HeartbeatOutcome, OpenedSession, SentSessionCall, SessionService};
pub use state::context::CancelNotice;
pub use state::depth::Depth;
pub use state::served_queue::Backlog;
pub use state::waiters::FreeCredit;
pub use work::WorkService;
pub use work::dequeue::{DequeueRequest, WhenBlocked};
pub use work::enqueue::{EnqueueOutcome, SentMessage};
pub use work::settle::{LeaseActionRequest, LeaseExtension, LeaseOutcome, SettleRequest, UpdateRequest};
pub use work::streams::{StreamLeaseRequest, StreamSession};

/// The bytes whose seal marks the store. No lease token is made of them.
const HOME: &[u8] = b"home of counter rules";

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

/// The use cases of queues, by service. Cheap to clone.
#[derive(Clone)]
pub struct Queues {
    context: Arc<QueueContext>,
    pub catalog: Arc<CatalogService>,
    pub sessions: Arc<SessionService>,
    pub inspect: Arc<InspectService>,
    pub work: Arc<WorkService>,
    pub operations: Arc<OperationService>,
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
        let queues = Self::of(&shared);
        queues.catalog.load().await?;
        queues.sessions.load_sessions().await?;
        shared.stores.shards.listen(Arc::clone(&shared) as Arc<dyn QueueListener>);
        driver.start(Sweeper::new(Arc::clone(&shared)));
        driver.start(ClockWatch::new(Arc::clone(&shared)));
        driver.start(UnnamedShards::new(shared));
        driver.start(OperationTakeover::new(Arc::clone(&queues.operations)));
        driver.start(FollowLoop::new((*queues.catalog).clone()));
        driver.start(ActivityFollower::new(Arc::clone(&queues.inspect)));
        if let Some(directory) = queues.context.session_directory().map(Arc::clone) {
            driver.start(SessionExchange::new(Arc::clone(&queues.sessions), directory));
        }
        Ok(queues)
    }

    /// The services over a shared state.
    fn of(context: &Arc<QueueContext>) -> Self {
        let context = || Arc::clone(context);
        let catalog = Arc::new(CatalogService::new(context()));
        let sessions = Arc::new(SessionService::new(context(), Arc::clone(&catalog)));
        let inspect = Arc::new(InspectService::new(context(), Arc::clone(&catalog)));
        let work = WorkService::new(context(), Arc::clone(&catalog), Arc::clone(&sessions), Arc::clone(&inspect));
        let work = Arc::new(work);
        let operations =
            OperationService::new(context(), Arc::clone(&catalog), Arc::clone(&inspect), Arc::clone(&work));
        let operations = Arc::new(operations);
        Self { context: context(), catalog, sessions, inspect, work, operations }
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
        self.context.is_shared()
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
        self.catalog.queue(name).await.map(drop)
    }

    /// Notices of running messages for which a cancel was requested, at whatever server of the store.
    pub fn cancel_notices(&self) -> broadcast::Receiver<CancelNotice> {
        self.context.cancel_notices.subscribe()
    }

    /// The number of dequeues that wait at this server.
    pub fn waiting(&self) -> usize {
        self.context.all().iter().map(|queue| queue.waiters.len()).sum()
    }

    /// Reads queue time.
    pub async fn clock(&self) -> Result<QueueClock, QueueError> {
        self.context.clock().await
    }

    /// Makes wall time the basis of token ages again, if the clock was once more than a minute ahead. This gives up
    /// deduplication for all tokens made until now, by refusing them.
    pub async fn reset_clock(&self) -> Result<QueueClock, QueueError> {
        self.context.reset_clock().await
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

    /// The memory of all queues and its bound; none where their store keeps them elsewhere. Cheap.
    pub fn memory(&self) -> Option<QueueMemory> {
        self.context.stores.shards.memory()
    }

    /// The backlog of each queue at this moment. O(shards); frequent callers use `overview`.
    pub fn backlogs(&self) -> Vec<Backlog> {
        let now = self.context.elapsed();
        let queues = self.context.all();
        let served = queues.iter().filter(|queue| queue.holds_messages());
        served.map(|queue| Backlog { queue: queue.name(), ..queue.backlog(now) }).collect()
    }

    /// The number of queues and templates.
    pub fn count(&self) -> usize {
        self.context.len()
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
