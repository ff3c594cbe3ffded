//! The shared state of all services of queues: the stores, the served queues, the sessions, and the sweep alarms.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use crate::catalog::{self, VersionedCatalog};
use crate::context::EngineContext;
use crate::fleet::FleetMembership;
use crate::queues::error::QueueError;
use crate::queues::state::directory::QueueDirectory;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::session_registry::SessionRegistry;
use crate::queues::state::sweep_alarms::SweepAlarms;
use crate::stats::{QueueTimes, Stats};
use tallystone_domain::Timestamp;
use tallystone_domain::hex::hex_digits;
use tallystone_domain::limits::CANCEL_NEWS_MAX;
use tallystone_domain::queue::activity::LostWork;
use tallystone_domain::queue::messages::lease_seal::LeaseKey;
use tallystone_domain::queue::messages::message::{MessageKey, SessionId};
use tallystone_domain::queue::{CatalogQueue, QueueId, QueueName, ShardId, Transition, Trigger};
use tallystone_ports::{QueueListener, QueueStores, ShardAnswer, ShardStatus, StoreError, StoreErrorKind};

/// The bytes of the alias of a session.
const SESSION_SHOWN_BYTES: usize = 6;
/// How long a server waits for each server before it in rank, before it sweeps a shard in their place.
const SWEEP_STEP_IN: Duration = Duration::from_millis(250);

/// Shared by all use cases and loops of queues.
pub struct QueueContext {
    pub stores: QueueStores,
    /// Time, random bytes, tasks and counts.
    pub engine: Arc<EngineContext>,
    /// Seals the lease tokens of the store.
    pub lease_key: LeaseKey,
    /// The sweep alarms of shards.
    pub alarms: SweepAlarms,
    /// This server as one of several on the store; none where one process owns it.
    pub member: Option<Arc<FleetMembership>>,
    /// The sessions over all shards.
    pub sessions: SessionRegistry,
    /// Whether the store may lose answers.
    pub answers_may_be_lost: bool,
    /// A part of the ids of the sessions in which this server repeats dequeues.
    pub replay_random: u128,
    /// Cancelled when no more leases are given.
    pub drain: CancellationToken,
    /// Running messages for which a cancel was requested, at whatever server.
    pub cancel_notices: broadcast::Sender<CancelNotice>,
    /// The changes of the catalog.
    pub catalog: VersionedCatalog<CatalogQueue>,
    /// The queues and templates that are served.
    pub directory: QueueDirectory,
    /// Queues that the catalog showed as new or changed, whose shards this server has not compared with it yet.
    pub followed: Mutex<BTreeSet<QueueId>>,
}

/// A running message for which a cancel was requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CancelNotice {
    /// The queue of the message.
    pub queue: QueueName,
    pub key: MessageKey,
}

impl QueueContext {
    /// Combines the shared parts. No queue is served yet.
    pub fn new(
        stores: QueueStores,
        lease_key: LeaseKey,
        engine: Arc<EngineContext>,
        member: Option<Arc<FleetMembership>>,
    ) -> Self {
        Self {
            catalog: VersionedCatalog::new(Arc::clone(&stores.catalog) as _),
            answers_may_be_lost: stores.shards.capabilities().answers_may_be_lost,
            replay_random: u128::from_be_bytes(engine.random()),
            stores,
            engine,
            lease_key,
            alarms: SweepAlarms::default(),
            member,
            sessions: SessionRegistry::default(),
            drain: CancellationToken::new(),
            cancel_notices: broadcast::Sender::new(CANCEL_NEWS_MAX),
            directory: QueueDirectory::default(),
            followed: Mutex::default(),
        }
    }

    /// Elapsed time.
    pub fn elapsed(&self) -> Duration {
        self.engine.clock.elapsed()
    }

    /// Wall time.
    pub fn now(&self) -> Timestamp {
        self.engine.now()
    }

    pub async fn sleep(&self, time: Duration) {
        self.engine.clock.sleep(time).await;
    }

    pub fn random<const BYTES: usize>(&self) -> [u8; BYTES] {
        self.engine.random()
    }

    /// Counts for the metrics.
    pub fn stats(&self) -> &Stats {
        &self.engine.stats
    }

    /// Starts a task that outlives its caller.
    pub fn start_once(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.engine.driver.start_once(work);
    }

    /// Runs a change to completion, even if the caller goes away.
    pub async fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, QueueError>> + Send + 'static,
    ) -> Result<T, QueueError> {
        catalog::finish("change of a queue", |work| self.start_once(work), work).await
    }

    /// Whether other servers may serve the same queues.
    pub fn is_shared(&self) -> bool {
        self.member.is_some()
    }

    /// The alias of a session for readers other than its worker. The id itself would let them end the session.
    pub fn session_alias(&self, session: SessionId) -> String {
        let seal = self.lease_key.seal(&[b"session".as_slice(), &session.0.to_be_bytes()].concat());
        hex_digits(&seal[..SESSION_SHOWN_BYTES])
    }

    /// Begins to serve a queue.
    pub fn put(&self, queue: &Arc<ServedQueue>) {
        let record = queue.record.load();
        // Set from the start, so that the first failure counts as a rise. Templates hold no messages.
        if record.spec.template_for.is_none() {
            queue.counts.get_or_init(|| self.stats().by_queue.of(record.spec.name.as_str()));
            // Takes a place while there is one; the first lease claims it.
            drop(self.stats().times_by_queue.of(record.spec.name.as_str()));
        }
        self.directory.put(queue);
    }

    /// Stops serving a queue.
    pub fn remove(&self, queue: &ServedQueue) {
        self.directory.remove(queue);
        let name = queue.record.load().spec.name.clone();
        self.stats().by_queue.forget(name.as_str());
        self.stats().times_by_queue.forget(name.as_str());
        for number in 0..queue.shards() {
            self.alarms.set(queue.shard(number).id, None);
        }
        queue.waiters.wake_all();
    }

    /// Finds a queue or template by its name.
    pub fn find(&self, name: &QueueName) -> Option<Arc<ServedQueue>> {
        self.directory.find(name)
    }

    /// Finds a queue by its id.
    pub fn by_id(&self, id: QueueId) -> Option<Arc<ServedQueue>> {
        self.directory.by_id(id)
    }

    /// Finds a queue that holds messages.
    pub fn queue(&self, name: &QueueName) -> Result<Arc<ServedQueue>, QueueError> {
        let found = self.find(name).ok_or_else(|| QueueError::QueueNotFound {
            name: name.to_string(),
            made_by: self.template_of(name).map(|template| template.spec.name.to_string()),
        })?;
        refuse_template(found)
    }

    /// The same; a given id must be that of the queue.
    pub fn queue_of(&self, name: &QueueName, id: Option<QueueId>) -> Result<Arc<ServedQueue>, QueueError> {
        let found = self.queue(name)?;
        check_id(&found.record.load(), id)?;
        Ok(found)
    }

    /// All queues and templates, by name. O(n).
    pub fn all(&self) -> Vec<Arc<ServedQueue>> {
        self.directory.all()
    }

    /// The template with the longest prefix of the name. O(length of the name).
    pub fn template_of(&self, name: &QueueName) -> Option<Arc<CatalogQueue>> {
        self.directory.template_of(name).map(|queue| queue.record.load_full())
    }

    /// The number of queues and templates.
    pub fn len(&self) -> usize {
        self.directory.len()
    }

    /// Processes the results of one call of a shard.
    pub fn record_answers<'a>(&self, queue: &ServedQueue, shard: u32, answers: impl Iterator<Item = &'a ShardAnswer>) {
        let (mut promoted, mut view) = (0, None);
        for answer in answers {
            if let Some(counts) = queue.counts.get() {
                answer.transitions.iter().for_each(|row| counts.record_transition(row));
                self.record_times(queue, &answer.transitions);
            }
            answer.walked.iter().for_each(|walked| self.stats().undeclared_filters.record_scan(walked));
            promoted += answer.transitions.iter().filter(|row| row.trigger == Trigger::WindowOver).count() as u64;
            view = Some(answer.view);
        }
        if promoted > 0 {
            // The first of them was due at that time and the others later, so this is the greatest lag.
            let now = self.elapsed();
            let lag = now.saturating_sub(queue.next_event_at(shard).unwrap_or(now));
            self.stats().promotion_lag.observe_times(lag, promoted);
        }
        view.inspect(|view| self.update_view(queue, shard, *view));
    }

    /// Observes how long messages waited and ran.
    fn record_times(&self, queue: &ServedQueue, transitions: &[Transition]) {
        for row in transitions.iter().filter(|row| QueueTimes::has_time(row)) {
            let by_queue = &self.stats().times_by_queue;
            let times = queue.times.get_or_init(|| by_queue.claim(queue.record.load().spec.name.as_str()));
            times.record_transition(row);
        }
    }

    /// Takes in the status of a shard that was read.
    pub fn update_view(&self, queue: &ServedQueue, shard: u32, view: ShardStatus) {
        if let Some(due) = queue.update_view(shard, view, self.elapsed()) {
            let shard = queue.shard(shard).id;
            if view.settings_version < queue.record.load().version && self.stores.shared.is_some() {
                // It missed a change, or the store lost what it had: the next look at the catalog sends it again.
                self.followed.lock().insert(shard.queue);
            }
            self.alarms.set(shard, due.map(|due| due + self.sweep_delay(shard)));
        }
    }

    /// How much later than due this server sweeps a shard: not at all if it owns the shard. The others step in for an
    /// owner that does not, without waiting until it is known to be gone. O(members).
    fn sweep_delay(&self, shard: ShardId) -> Duration {
        SWEEP_STEP_IN * self.rank_for(shard)
    }

    /// How many other servers come before this one for work on a shard that one of them has to do: 0 for its owner, and
    /// where this process owns the store. O(members).
    pub fn rank_for(&self, shard: ShardId) -> u32 {
        let rank = self.member.as_ref().map_or(0, |member| member.rank_for(sweep_place(shard)));
        u32::try_from(rank).unwrap_or(u32::MAX)
    }

    /// Translates a conflict, which a store returns for a queue that it no longer has.
    pub fn translate_store_error(&self, queue: &ServedQueue, error: StoreError) -> QueueError {
        match error.kind {
            StoreErrorKind::Conflict => QueueError::not_found(&queue.record.load().spec.name),
            StoreErrorKind::Unavailable
            | StoreErrorKind::Full
            | StoreErrorKind::Busy
            | StoreErrorKind::Corrupt
            | StoreErrorKind::Lost
            | StoreErrorKind::Closed
            | StoreErrorKind::Forbidden
            | StoreErrorKind::Demoted => QueueError::Store(error),
        }
    }
}

/// The place of a shard among those that the members share out.
fn sweep_place(shard: ShardId) -> u32 {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&shard.queue.0.to_be_bytes());
    bytes[16..].copy_from_slice(&shard.number.to_be_bytes());
    // The cast truncates on purpose.
    xxh3_64(&bytes) as u32
}

/// Refuses a template, which holds no messages.
pub fn refuse_template(found: Arc<ServedQueue>) -> Result<Arc<ServedQueue>, QueueError> {
    let spec = &found.record.load().spec;
    if let Some(prefix) = &spec.template_for {
        return Err(QueueError::IsTemplate { name: spec.name.to_string(), prefix: prefix.to_string() });
    }
    Ok(found)
}

/// Refuses a queue that was made under the name after the requested one.
pub fn check_id(found: &CatalogQueue, meant: Option<QueueId>) -> Result<(), QueueError> {
    match meant {
        Some(id) if id != found.id => Err(QueueError::OtherQueue { name: found.spec.name.to_string(), id }),
        Some(_) | None => Ok(()),
    }
}

impl QueueListener for QueueContext {
    fn changed(&self, shard: ShardId, view: ShardStatus) {
        if let Some(queue) = self.by_id(shard.queue).filter(|queue| shard.number < queue.shards()) {
            self.update_view(&queue, shard.number, view);
        }
    }

    fn cancel_requested(&self, shard: ShardId, key: MessageKey) {
        if let Some(queue) = self.by_id(shard.queue) {
            let queue = queue.record.load().spec.name.clone();
            // An error means that no worker stream is listening.
            let _ = self.cancel_notices.send(CancelNotice { queue, key });
        }
    }

    fn work_lost(&self, shard: ShardId, lost: LostWork) {
        let Some(queue) = self.by_id(shard.queue) else { return };
        let (name, steps) = (queue.record.load().spec.name.clone(), lost.steps);
        tracing::error!(
            queue = %name, shard = shard.number, steps, since = lost.noticed(),
            "the store came back with an earlier state of a queue: at least so many of its changes, which were answered, are \
             lost; docs/runbook/work-lost.md says what to do"
        );
        if let Some(counts) = queue.counts.get() {
            counts.steps_lost.add(steps);
        }
        queue.note_loss(lost);
    }

    fn awaits(&self, shard: ShardId) -> bool {
        self.by_id(shard.queue).is_some_and(|queue| queue.waiters.len() > 0)
    }
}
