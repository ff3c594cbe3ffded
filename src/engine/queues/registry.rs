//! What all use cases of queues share: the stores, the queues that are served, the alarms of their shards.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;

use crate::domain::Timestamp;
use crate::domain::limits::{
    CALLER_QUEUE_WATCHES_MAX, CALLER_TEMPLATE_QUEUES_MAX, CALLER_WORK_STREAMS_MAX, CANCEL_NEWS_MAX, PROMOTION_LATE,
    QUEUE_WATCHES_MAX, QUEUES_MAX, WORK_STREAMS_MAX,
};
use crate::domain::queue::messages::lease_seal::LeaseKey;
use crate::domain::queue::session_records::SessionId;
use crate::domain::queue::{CatalogQueue, QueueId, QueueName, ShardId, Trigger};
use crate::engine::caller_quota::CallerQuota;
use crate::engine::loops::driver::Driver;
use crate::engine::queues::directory::QueueDirectory;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::operations::Operations;
use crate::engine::queues::overview::OverviewCache;
use crate::engine::queues::served_queue::ServedQueue;
use crate::engine::queues::session_registry::SessionRegistry;
use crate::engine::queues::settle::CancelNotice;
use crate::engine::stats::Stats;
use crate::ports::{Clock, Entropy, QueueListener, QueueStores, ShardAnswer, ShardStatus, StoreError, StoreErrorKind};

/// The bytes that stand for a session where it is shown.
const SESSION_SHOWN_BYTES: usize = 6;

/// Shared by all use cases and loops of queues.
pub struct QueueContext {
    /// The stores.
    pub stores: QueueStores,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random bytes, for numbers of queues and ids of messages.
    pub entropy: Arc<dyn Entropy>,
    /// Runs what goes on after a caller has gone.
    pub driver: Driver,
    /// Counts for the metrics.
    pub stats: Arc<Stats>,
    /// Seals the lease tokens of the store.
    pub lease_key: LeaseKey,
    /// Purges, redrives and discards.
    pub operations: Operations,
    /// When shards have to be swept.
    pub alarms: SweepAlarms,
    /// What is known of sessions over all shards.
    pub sessions: SessionRegistry,
    /// The queues that first enqueues made, by the callers that sent these.
    pub made_by_template: CallerQuota,
    /// The watches of queues that are open.
    pub watches: CallerQuota,
    /// The work streams that are open.
    pub streams: CallerQuota,
    /// Cancelled when no lease is given any more.
    pub drain: CancellationToken,
    /// Running messages that somebody asked to cancel.
    pub cancel_notices: broadcast::Sender<CancelNotice>,
    /// One change of the catalog at a time.
    pub change_permit: Semaphore,
    /// The queues and templates that are served.
    pub directory: QueueDirectory,
    /// What was read last of all queues together.
    pub overview: OverviewCache,
}

/// When shards have to be swept, by elapsed time.
#[derive(Default)]
pub struct SweepAlarms {
    state: Mutex<AlarmIndex>,
    earlier_alarm: Notify,
}

#[derive(Default)]
struct AlarmIndex {
    order: BTreeSet<(Duration, ShardId)>,
    by_shard: HashMap<ShardId, Duration>,
}

impl SweepAlarms {
    /// Sets, moves or clears the alarm of a shard. O(log n).
    pub fn set(&self, shard: ShardId, due: Option<Duration>) {
        let mut set = self.state.lock();
        let first = set.order.first().map(|(due, _)| *due);
        if let Some(before) = set.by_shard.remove(&shard) {
            set.order.remove(&(before, shard));
        }
        let Some(due) = due else { return };
        set.by_shard.insert(shard, due);
        set.order.insert((due, shard));
        drop(set);
        if first.is_none_or(|first| due < first) {
            self.earlier_alarm.notify_one();
        }
    }

    /// Takes the shards whose alarm has gone off, at most so many; and when the next goes off.
    pub fn take(&self, now: Duration, most: usize) -> (Vec<ShardId>, Option<Duration>) {
        let mut set = self.state.lock();
        let mut due = Vec::new();
        while due.len() < most
            && let Some(&(at, shard)) = set.order.first()
            && at <= now
        {
            set.order.pop_first();
            set.by_shard.remove(&shard);
            due.push(shard);
        }
        (due, set.order.first().map(|(at, _)| *at))
    }

    /// Waits until an alarm was set that goes off before all others.
    pub async fn earlier_alarm(&self) {
        self.earlier_alarm.notified().await;
    }
}

impl QueueContext {
    /// Puts the shared parts together; no queue is served yet.
    pub fn new(
        stores: QueueStores,
        lease_key: LeaseKey,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        driver: Driver,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            stores,
            clock,
            entropy,
            driver,
            stats,
            lease_key,
            operations: Operations::default(),
            alarms: SweepAlarms::default(),
            sessions: SessionRegistry::default(),
            made_by_template: CallerQuota::new(QUEUES_MAX, CALLER_TEMPLATE_QUEUES_MAX),
            watches: CallerQuota::new(QUEUE_WATCHES_MAX, CALLER_QUEUE_WATCHES_MAX),
            streams: CallerQuota::new(WORK_STREAMS_MAX, CALLER_WORK_STREAMS_MAX),
            drain: CancellationToken::new(),
            cancel_notices: broadcast::Sender::new(CANCEL_NEWS_MAX),
            change_permit: Semaphore::new(1),
            directory: QueueDirectory::default(),
            overview: OverviewCache::default(),
        }
    }

    /// Wall time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What stands for a session where others than its worker read: the id itself lets anyone end it.
    pub fn session_alias(&self, session: SessionId) -> String {
        let seal = self.lease_key.seal(&[b"session".as_slice(), &session.0.to_be_bytes()].concat());
        seal[..SESSION_SHOWN_BYTES].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Random bytes.
    pub fn random<const BYTES: usize>(&self) -> [u8; BYTES] {
        let mut random = [0; BYTES];
        self.entropy.fill(&mut random);
        random
    }

    /// Serves a queue from now on.
    pub fn put(&self, queue: &Arc<ServedQueue>) {
        let record = queue.record.load();
        // From the start, so that a first failure is a rise. Templates hold no messages.
        if record.spec.template_for.is_none() {
            queue.counts.get_or_init(|| self.stats.by_queue.of(record.spec.name.as_str()));
        }
        self.directory.put(queue);
    }

    /// Serves a queue no more.
    pub fn remove(&self, queue: &ServedQueue) {
        self.directory.remove(queue);
        self.stats.by_queue.forget(queue.record.load().spec.name.as_str());
        for number in 0..queue.shards() {
            self.alarms.set(queue.shard(number).id, None);
        }
        queue.waiters.wake_all();
    }

    /// Finds a queue or template by its name.
    pub fn find(&self, name: &QueueName) -> Option<Arc<ServedQueue>> {
        self.directory.find(name)
    }

    /// Finds a queue by its number.
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

    /// The same, where the queue must have this number if one is said.
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

    /// How many queues and templates there are.
    pub fn len(&self) -> usize {
        self.directory.len()
    }

    /// Takes in what the answers to one call say of their shard.
    pub fn record_answers<'a>(&self, queue: &ServedQueue, shard: u32, answers: impl Iterator<Item = &'a ShardAnswer>) {
        let (mut promoted, mut view) = (0, None);
        for answer in answers {
            if let Some(counts) = queue.counts.get() {
                answer.transitions.iter().for_each(|row| counts.record_transition(row));
            }
            answer.walked.iter().for_each(|walked| self.stats.undeclared_filters.record_scan(walked));
            promoted += answer.transitions.iter().filter(|row| row.trigger == Trigger::WindowOver).count() as u64;
            view = Some(answer.view);
        }
        if promoted > 0 {
            // The first of them was due then; the others were later, so this is the most.
            let now = self.clock.elapsed();
            let lag = now.saturating_sub(queue.next_event_at(shard).unwrap_or(now));
            self.stats.messages_promoted.add(promoted);
            self.stats.promotion_lag_micros.add(promoted * u64::try_from(lag.as_micros()).unwrap_or(0));
            self.stats.promotions_late.add(if lag > PROMOTION_LATE { promoted } else { 0 });
        }
        view.inspect(|view| self.update_view(queue, shard, *view));
    }

    fn update_view(&self, queue: &ServedQueue, shard: u32, view: ShardStatus) {
        if let Some(due) = queue.update_view(shard, view, self.clock.elapsed()) {
            self.alarms.set(queue.shard(shard).id, due);
        }
    }

    /// A store that knows a queue no more says so with a conflict.
    pub fn translate_store_error(&self, queue: &ServedQueue, error: StoreError) -> QueueError {
        match error.kind {
            StoreErrorKind::Conflict => not_found(&queue.record.load().spec.name),
            StoreErrorKind::Unavailable
            | StoreErrorKind::Full
            | StoreErrorKind::Busy
            | StoreErrorKind::Corrupt
            | StoreErrorKind::Closed
            | StoreErrorKind::Forbidden => QueueError::Store(error),
        }
    }
}

/// Refuses a template, which holds no messages.
pub fn refuse_template(found: Arc<ServedQueue>) -> Result<Arc<ServedQueue>, QueueError> {
    let spec = &found.record.load().spec;
    if let Some(prefix) = &spec.template_for {
        return Err(QueueError::IsTemplate { name: spec.name.to_string(), prefix: prefix.to_string() });
    }
    Ok(found)
}

/// Refuses a queue that was made under its name after the one that is meant.
pub fn check_id(found: &CatalogQueue, meant: Option<QueueId>) -> Result<(), QueueError> {
    match meant {
        Some(id) if id != found.id => Err(QueueError::OtherQueue { name: found.spec.name.to_string(), id }),
        Some(_) | None => Ok(()),
    }
}

/// Refuses a name that no queue has.
pub fn not_found(name: &QueueName) -> QueueError {
    QueueError::QueueNotFound { name: name.to_string(), made_by: None }
}

impl QueueListener for QueueContext {
    fn changed(&self, shard: ShardId, view: ShardStatus) {
        if let Some(queue) = self.by_id(shard.queue).filter(|queue| shard.number < queue.shards()) {
            self.update_view(&queue, shard.number, view);
        }
    }
}
