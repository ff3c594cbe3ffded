//! The present activity of queues, from readings of the totals of their shards. No call here reads messages.
//!
//! If this process owns the queue store, the bridge reads each shard that changed, and the rows come from what it read.
//! If other servers change the shards too, or nothing reports, `follow` renews readings while a caller asks for rows.
//! It renews those of shown queues often and all others in turn. So each server has the rows of all shards, and merges
//! nothing but those of a queue.

mod follow;

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::queues::error::QueueError;
use crate::queues::inspect::InspectService;
use crate::queues::state::served_queue::ServedQueue;
use crate::queues::state::shard_activity::{ShardActivity, ShardReading};
use tallystone_domain::Timestamp;
use tallystone_domain::access::TokenBucket;
use tallystone_domain::limits::{
    ACTIVITY_AGE_MAX, ACTIVITY_ASKED_FOR, ACTIVITY_TURN_COST, ACTIVITY_TURN_COST_SAVED_MAX, ACTIVITY_WAIT_MAX,
    RATE_STEP, RATE_WINDOW,
};
use tallystone_domain::queue::activity::{ActivityFacts, ActivityFlows, MemoryShare, ReachedQuota, ReadingGap};
use tallystone_domain::queue::{MessageState, QueueName, Settings, ShardId};
use tallystone_ports::{QueueMemory, ShardReport};

pub(in crate::queues) use follow::ActivityFollower;

use follow::DueShards;

/// The activity of a queue at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueActivity {
    /// Its name.
    pub queue: String,
    /// Messages by state, in the order of `MessageState::ALL`; none before the first reading of each shard.
    pub messages: Option<[u64; MessageState::ALL.len()]>,
    /// The facts by which attention is judged.
    pub facts: ActivityFacts,
    /// The time up to which every change is in the row; none while it is not known.
    pub as_of: Option<Timestamp>,
    /// Whether leases of each exclusivity value are limited.
    pub is_exclusive: bool,
}

/// The order of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActivityOrder {
    /// The most serious reason first, then the oldest ready message.
    Attention,
    Name,
    Pending,
    Oldest,
    Errored,
    In,
    Out,
    Fail,
}

/// Sums over queues. A number that is unknown of one queue is unknown of all, unless the queue is new.
#[derive(Clone, PartialEq, Debug)]
pub struct ActivityTotals {
    pub queues: usize,
    /// The queues that need attention.
    pub attention: usize,
    pub messages: Option<[u64; MessageState::ALL.len()]>,
    pub rates: Option<ActivityFlows<f64>>,
    pub oldest_ready: Option<Duration>,
    pub as_of: Option<Timestamp>,
}

/// A part of the list, with the sums over all of it.
#[derive(Clone, PartialEq, Debug)]
pub struct ActivityPage {
    pub rows: Vec<QueueActivity>,
    pub totals: ActivityTotals,
    /// Whether more rows follow.
    pub has_more: bool,
    pub now: Timestamp,
}

/// A queue with its row.
type ActivityRow = (Arc<ServedQueue>, QueueActivity);

/// Sums do not wait for numbers of a queue that was created so lately. Its rates need two looks, which may come by
/// turns.
const NEW_FOR: Duration = RATE_WINDOW;

/// The last list, and whether somebody asks for lists.
pub struct ActivityBoard {
    /// One call at a time renews old readings; the others wait for it.
    renewal: Semaphore,
    last: Mutex<Option<(Duration, Arc<Vec<ActivityRow>>)>>,
    /// The elapsed time up to which shards are followed, in microseconds.
    followed_until: AtomicU64,
    /// The credit for the cost of looks at queues that are not shown.
    credit: Mutex<TokenBucket>,
}

/// The times of a row.
#[derive(Clone, Copy)]
struct RowMoment {
    elapsed: Duration,
    now: Timestamp,
    /// How far the bridge read all shards that changed; none where readings age by themselves.
    read_to: Option<Timestamp>,
    /// The memory of all queues and the number of those that hold messages, while it is short.
    short_memory: Option<(QueueMemory, usize)>,
}

impl Default for ActivityBoard {
    fn default() -> Self {
        Self {
            renewal: Semaphore::new(1),
            last: Mutex::default(),
            followed_until: AtomicU64::new(0),
            credit: Mutex::new(TokenBucket::with_burst(ACTIVITY_TURN_COST, ACTIVITY_TURN_COST_SAVED_MAX)),
        }
    }
}

impl ActivityBoard {
    fn is_followed(&self, now: Duration) -> bool {
        now.as_micros() < u128::from(self.followed_until.load(Ordering::Relaxed))
    }

    fn note_asked(&self, now: Duration) {
        let until = u64::try_from((now + ACTIVITY_ASKED_FOR).as_micros()).unwrap_or(u64::MAX);
        self.followed_until.fetch_max(until, Ordering::Relaxed);
    }

    fn has_credit(&self, now: Duration) -> bool {
        self.credit.lock().check(now).is_ok()
    }

    fn charge(&self, cost: u64, now: Duration) {
        self.credit.lock().charge(cost, now);
    }
}

impl InspectService {
    /// Takes in the totals that the bridge read of a shard, in a read that began at a time.
    pub fn record_report(&self, shard: ShardId, report: &ShardReport, began: Timestamp) {
        let Some(queue) = self.context.by_id(shard.queue) else { return };
        if shard.number < queue.shards() {
            let elapsed = self.context.elapsed();
            let gap = if self.readings_age() { ReadingGap::Unknown } else { ReadingGap::Quiet };
            queue.shard(shard.number).activity.record_report(report, (elapsed, began), gap);
        }
    }

    /// A part of the activities of the queues whose names are shown. O(queues); rows are made twice a second however
    /// many callers ask.
    pub async fn list_activity(
        &self,
        is_shown: impl Fn(&str) -> bool,
        order: ActivityOrder,
        skip: usize,
        limit: usize,
    ) -> ActivityPage {
        self.board.note_asked(self.context.elapsed());
        let (page, shown) = self.activity_page(&is_shown, order, skip, limit);
        if self.renew_shown(&shown).await { self.activity_page(&is_shown, order, skip, limit).0 } else { page }
    }

    /// A part of the list as it is known, with the queues of its rows.
    fn activity_page(
        &self,
        is_shown: &impl Fn(&str) -> bool,
        order: ActivityOrder,
        skip: usize,
        limit: usize,
    ) -> (ActivityPage, Vec<Arc<ServedQueue>>) {
        let elapsed = self.context.elapsed();
        let all = self.all_activities(elapsed);
        let mut found: Vec<&ActivityRow> = all.iter().filter(|(_, row)| is_shown(&row.queue)).collect();
        sort(&mut found, order);
        let now = self.context.now();
        let totals = totals_of(&found, now);
        let has_more = found.len() > skip.saturating_add(limit);
        let (queues, rows): (Vec<_>, Vec<_>) = found.into_iter().skip(skip).take(limit).cloned().unzip();
        queues.iter().for_each(|queue| queue.record_shown(elapsed));
        (ActivityPage { rows, totals, has_more, now }, queues)
    }

    /// The activity of a queue. O(shards).
    pub async fn activity(&self, name: &QueueName) -> Result<(QueueActivity, Timestamp), QueueError> {
        let queue = self.catalog.queue(name).await?;
        self.board.note_asked(self.context.elapsed());
        queue.record_shown(self.context.elapsed());
        if self.readings_age() {
            let (queues, elapsed) = ([Arc::clone(&queue)], self.context.elapsed());
            self.renew_due(DueShards::of(&queues, elapsed, ACTIVITY_AGE_MAX, ShardActivity::read_at)).await;
        }
        Ok((self.row(&queue, self.moment()), self.context.now()))
    }

    /// The rows of all queues, by name; shared by all who ask within a short time.
    fn all_activities(&self, elapsed: Duration) -> Arc<Vec<ActivityRow>> {
        let mut last = self.board.last.lock();
        if let Some((at, rows)) = &*last
            && elapsed.saturating_sub(*at) < ACTIVITY_AGE_MAX
        {
            return Arc::clone(rows);
        }
        let moment = self.moment();
        let served = self.context.all().into_iter().filter(|queue| queue.holds_messages());
        let with_row = |queue: Arc<ServedQueue>| {
            let row = self.row(&queue, moment);
            (queue, row)
        };
        let rows = Arc::new(served.map(with_row).collect());
        *last = Some((elapsed, Arc::clone(&rows)));
        rows
    }

    /// Renews the readings of queues that are shown, if they are old, and then those of others. Returns whether they
    /// may be newer now.
    async fn renew_shown(&self, shown: &[Arc<ServedQueue>]) -> bool {
        let is_due = || !DueShards::of(shown, self.context.elapsed(), RATE_STEP, ShardActivity::looked_at).is_empty();
        if !self.readings_age() || !is_due() {
            return false;
        }
        let Some(_turn) = self.renewal_turn().await else { return false };
        // Another call may have renewed them meanwhile.
        if is_due() {
            let elapsed = self.context.elapsed();
            self.renew_due(DueShards::of(&self.context.all(), elapsed, RATE_STEP, ShardActivity::looked_at)).await;
            *self.board.last.lock() = None;
        }
        true
    }

    /// Waits for the turn of this call, within a bounded time.
    async fn renewal_turn(&self) -> Option<SemaphorePermit<'_>> {
        tokio::select! {
            biased;
            turn = self.board.renewal.acquire() => turn.ok(),
            () = self.context.sleep(ACTIVITY_WAIT_MAX) => None,
        }
    }

    /// Reads shards again, within a bounded wait. What cannot be read stays old.
    async fn renew_due(&self, due: DueShards) {
        if !due.is_empty() {
            follow::renew(self, due, ACTIVITY_WAIT_MAX).await;
        }
    }

    /// Whether readings get old while nothing changes here: others change the shards, or nothing reports.
    fn readings_age(&self) -> bool {
        self.context.is_shared() || self.context.engine.queues_reported_to().is_none()
    }

    fn moment(&self) -> RowMoment {
        let (elapsed, now) = (self.context.elapsed(), self.context.now());
        let read_to = self.context.engine.queues_reported_to().filter(|_| !self.context.is_shared());
        let queues = || self.context.all().iter().filter(|queue| queue.holds_messages()).count();
        let short_memory =
            self.context.stores.shards.memory().filter(QueueMemory::is_short).map(|memory| (memory, queues()));
        RowMoment { elapsed, now, read_to, short_memory }
    }

    fn row(&self, queue: &ServedQueue, moment: RowMoment) -> QueueActivity {
        let record = queue.record.load();
        let mut messages = Some([0; MessageState::ALL.len()]);
        let (mut rates, mut as_of) = (Some(ActivityFlows::default()), Some(moment.read_to.unwrap_or(moment.now)));
        let (mut is_late, mut is_lost, mut full) = (moment.read_to.is_some(), false, None);
        let of_shards = record.spec.shard_settings();
        for number in 0..queue.shards() {
            let activity = &queue.shard(number).activity;
            is_late |= activity.is_unanswered();
            is_lost |= activity.is_lost();
            let read = activity.read();
            let of_shard = read.as_ref().and_then(|read| read.rates(moment.elapsed));
            full = full.or_else(|| read.as_ref().and_then(|read| reached_quota(read, &of_shards)));
            rates = rates.zip(of_shard).map(|(all, one)| all.plus(&one));
            messages = messages.zip(read.as_ref()).map(|(mut all, read)| {
                all.iter_mut().zip(read.messages).for_each(|(all, one)| *all += one);
                all
            });
            if moment.read_to.is_none() {
                as_of = as_of.zip(read.as_ref()).map(|(least, read)| least.min(read.began));
            }
        }
        let as_of = as_of.filter(|as_of| messages.is_some() && *as_of > Timestamp::MIN);
        let of = |state: MessageState| messages.map(|messages| messages[state as usize]);
        let precision = self.context.stores.shards.capabilities().ready_age_precision;
        let facts = ActivityFacts {
            pending: of(MessageState::Pending),
            running: of(MessageState::Running),
            errored: of(MessageState::Errored),
            oldest_ready: queue
                .oldest_ready(moment.elapsed)
                .filter(|_| !is_lost && of(MessageState::Pending) != Some(0)),
            // To a second it is as exact as its limits are.
            oldest_ready_excess: precision.saturating_sub(Duration::from_secs(1)),
            rates,
            waiting: queue.waiters.len(),
            enqueue_blocked: record.spec.enqueue_blocked.is_some(),
            dequeue_blocked: record.spec.dequeue_blocked.is_some(),
            full,
            memory: moment.short_memory.and_then(|(memory, queues)| {
                MemoryShare::of(queue.memory_bytes(), memory.used.total(), queues, memory.used_percent())
            }),
            // A shard that only waits for its turn needs nobody.
            lost: queue.lost_lately(moment.now),
            is_store_lost: is_lost,
            age: as_of.filter(|_| is_late).map(|as_of| moment.now.since(as_of)),
        };
        let is_exclusive = record.spec.settings.exclusivity.is_some();
        QueueActivity { queue: record.spec.name.to_string(), messages, facts, as_of, is_exclusive }
    }
}

/// The quota that a shard had reached at a reading.
fn reached_quota(read: &ShardReading, settings: &Settings) -> Option<ReachedQuota> {
    ReachedQuota::of(settings, read.messages.iter().sum(), read.bytes)
}

/// Sorts rows that are in the order of names.
fn sort(rows: &mut [&ActivityRow], order: ActivityOrder) {
    let of =
        |(_, row): &ActivityRow, state: MessageState| Reverse(row.messages.map(|messages| messages[state as usize]));
    let rate = |(_, row): &ActivityRow, of: fn(&ActivityFlows<f64>) -> f64| row.facts.rates.as_ref().map_or(-1.0, of);
    let by_rate = |rows: &mut [&ActivityRow], of: fn(&ActivityFlows<f64>) -> f64| {
        rows.sort_by(|one, other| rate(other, of).total_cmp(&rate(one, of)));
    };
    match order {
        ActivityOrder::Name => {}
        ActivityOrder::Attention => rows.sort_by_cached_key(|(_, row)| {
            let reason = row.facts.attention().first().copied();
            (reason.is_none(), reason, Reverse(row.facts.oldest_ready.map(|age| age.as_secs())))
        }),
        ActivityOrder::Pending => rows.sort_by_key(|row| of(row, MessageState::Pending)),
        ActivityOrder::Errored => rows.sort_by_key(|row| of(row, MessageState::Errored)),
        ActivityOrder::Oldest => rows.sort_by_key(|(_, row)| Reverse(row.facts.oldest_ready)),
        ActivityOrder::In => by_rate(rows, |rates| rates.enqueued),
        ActivityOrder::Out => by_rate(rows, |rates| rates.completed),
        ActivityOrder::Fail => by_rate(rows, |rates| rates.failed),
    }
}

fn totals_of(rows: &[&ActivityRow], now: Timestamp) -> ActivityTotals {
    let mut messages = SumOfKnown::new([0; MessageState::ALL.len()]);
    let mut rates = SumOfKnown::new(ActivityFlows::default());
    let (mut attention, mut oldest_ready, mut as_of) = (0, None, None::<Timestamp>);
    for (queue, row) in rows {
        // While queues are made one after the other, they would keep the sums from everybody.
        let is_new = || now.since(queue.record.load().created) < NEW_FOR;
        messages.add(row.messages, is_new, |all, one| {
            all.iter_mut().zip(one).for_each(|(all, one)| *all += one);
        });
        rates.add(row.facts.rates, is_new, |all, one| *all = all.plus(&one));
        attention += usize::from(!row.facts.attention().is_empty());
        oldest_ready = oldest_ready.max(row.facts.oldest_ready);
        as_of = [as_of, row.as_of].into_iter().flatten().min();
    }
    let messages = messages.sum(rows.len());
    let as_of = as_of.filter(|_| messages.is_some());
    ActivityTotals { queues: rows.len(), attention, messages, rates: rates.sum(rows.len()), oldest_ready, as_of }
}

/// A sum over queues. What is unknown of a new queue is left out; what is unknown of another one makes the sum unknown.
struct SumOfKnown<N> {
    sum: N,
    known: usize,
    is_whole: bool,
}

impl<N> SumOfKnown<N> {
    fn new(sum: N) -> Self {
        Self { sum, known: 0, is_whole: true }
    }

    fn add(&mut self, one: Option<N>, is_new: impl Fn() -> bool, add: impl Fn(&mut N, N)) {
        match one {
            Some(one) => {
                self.known += 1;
                add(&mut self.sum, one);
            }
            None => self.is_whole &= is_new(),
        }
    }

    /// The sum over so many queues; none if it is unknown, or if nothing is known of any queue.
    fn sum(self, queues: usize) -> Option<N> {
        (self.is_whole && (self.known > 0 || queues == 0)).then_some(self.sum)
    }
}
