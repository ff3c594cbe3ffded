//! A queue that is served: its settings of the moment, and what its shards have to offer.
//!
//! The views of the shards are exact as far as commands of this server go, because each answer brings one and no other
//! server writes to this store; what time alone changes is known by the moment of the next event. So a look that finds
//! nothing costs the store nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::domain::limits::SHARD_WALKS_MAX;
use crate::domain::queue::command::Cursor;
use crate::domain::queue::filter::Filter;
use crate::domain::queue::{CatalogQueue, MessageState, QueueSpec, ShardId};
use crate::engine::caller_quota::QuotaPermit;
use crate::engine::queues::shard_calls::ShardCalls;
use crate::engine::queues::waiters::Waiters;
use crate::engine::queues::watch::DepthCache;
use crate::engine::stats::QueueCounts;
use crate::ports::ShardStatus;

/// A queue that is served.
pub struct ServedQueue {
    /// The queue as the catalog has it.
    pub record: ArcSwap<CatalogQueue>,
    /// Who waits for its messages.
    pub waiters: Waiters,
    /// What those who watch it read last.
    pub depth_cache: DepthCache,
    /// What happened to its messages; none before it is served.
    pub counts: OnceLock<Arc<QueueCounts>>,
    shards: Box<[ServedShard]>,
    /// When a dequeue looked last, in microseconds of elapsed time above 0; 0 before the first.
    last_dequeue_micros: AtomicU64,
    /// The place of the caller whose first enqueue made it.
    _share: Option<QuotaPermit>,
}

/// One shard of it.
pub struct ServedShard {
    /// Which.
    pub id: ShardId,
    /// The way to it.
    pub calls: ShardCalls,
    /// Where walks of filters stand.
    pub filter_cursors: FilterCursors,
    last_view: Mutex<ReceivedView>,
}

#[derive(Default)]
struct ReceivedView {
    view: ShardStatus,
    /// When the view came, by elapsed time.
    at: Duration,
    /// When time alone changes something, by elapsed time.
    next_event_at: Option<Duration>,
}

/// Where the walks of filters without an index stand in a shard: the next dequeue of the same filter goes on there, so
/// that any number of messages is looked through in bounded steps. What is forgotten begins anew.
#[derive(Default)]
pub struct FilterCursors {
    cursors: Mutex<VecDeque<(Filter, Cursor)>>,
}

impl FilterCursors {
    /// Takes the place where a walk stands. O(walks).
    pub fn cursor(&self, filter: &Filter) -> Option<Cursor> {
        if filter.is_empty() {
            return None;
        }
        let mut cursors = self.cursors.lock();
        let at = cursors.iter().position(|(other, _)| other == filter)?;
        cursors.remove(at).map(|(_, cursor)| cursor)
    }

    /// Keeps the place where a walk stands now; the oldest walks are forgotten.
    pub fn keep(&self, filter: Filter, cursor: Option<Cursor>) {
        let Some(cursor) = cursor else { return };
        let mut cursors = self.cursors.lock();
        cursors.push_back((filter, cursor));
        if cursors.len() > SHARD_WALKS_MAX {
            cursors.pop_front();
        }
    }
}

/// What is in a queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Backlog {
    /// Its name.
    pub queue: String,
    /// The messages of each state, in the order of `State::ALL`.
    pub messages: [u64; MessageState::ALL.len()],
    /// How long the oldest of those that are ready has been so, to the second; nothing if there is none.
    pub oldest: Duration,
    /// The dequeues that wait for its messages at this server.
    pub waiting: usize,
}

impl Backlog {
    /// Takes in what is in another queue: all that both hold, and the greater age.
    pub fn take_in(&mut self, other: &Self) {
        self.messages.iter_mut().zip(other.messages).for_each(|(all, one)| *all += one);
        self.oldest = self.oldest.max(other.oldest);
        self.waiting += other.waiting;
    }

    /// The messages of a state, as a gauge.
    pub fn of(&self, state: MessageState) -> f64 {
        self.messages[state as usize] as f64
    }
}

/// What a shard may have for a dequeue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ShardOffer {
    /// The priority of its best message; the greatest if only time may have made one.
    pub head: i64,
    /// The shard.
    pub shard: u32,
}

impl ServedQueue {
    /// A queue whose shards have said nothing yet.
    pub fn new(queue: CatalogQueue) -> Self {
        let shard = |number| ServedShard {
            id: ShardId { queue: queue.id, number },
            calls: ShardCalls::default(),
            filter_cursors: FilterCursors::default(),
            last_view: Mutex::default(),
        };
        Self {
            shards: (0..queue.spec.shards).map(shard).collect(),
            record: ArcSwap::from_pointee(queue),
            waiters: Waiters::default(),
            depth_cache: DepthCache::default(),
            counts: OnceLock::new(),
            last_dequeue_micros: AtomicU64::new(0),
            _share: None,
        }
    }

    /// The same of a queue that takes a place of a caller for as long as it is there.
    pub fn with_share(queue: CatalogQueue, share: Option<QuotaPermit>) -> Self {
        Self { _share: share, ..Self::new(queue) }
    }

    /// The settings of the moment.
    pub fn spec(&self) -> QueueSpec {
        self.record.load().spec.clone()
    }

    /// How many shards it has.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(u32::MAX)
    }

    /// Notes that a dequeue looks for messages.
    pub fn record_dequeue(&self, now: Duration) {
        let micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        self.last_dequeue_micros.fetch_max(micros.saturating_add(1), Ordering::Relaxed);
    }

    /// When a dequeue looked last, by elapsed time; none since the server started.
    pub fn last_dequeue(&self) -> Option<Duration> {
        self.last_dequeue_micros.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros)
    }

    /// One of its shards.
    pub fn shard(&self, number: u32) -> &ServedShard {
        &self.shards[number as usize]
    }

    /// Takes in what a shard has to offer; answers when it has to be swept next, if the view was news.
    pub fn update_view(&self, shard: u32, view: ShardStatus, now: Duration) -> Option<Option<Duration>> {
        let mut seen = self.shard(shard).last_view.lock();
        if view.step <= seen.view.step && seen.view.step > 0 {
            return None;
        }
        let before = servable(&seen.view);
        // What arrived may be another message where all else is the same, for those who look for certain ones.
        let offers = |view: &ShardStatus| (view.ready(), view.arrived, view.head, view.blocked);
        let is_news = offers(&view) != offers(&seen.view);
        seen.next_event_at = view.next_event_in.map(|time| now + time);
        (seen.view, seen.at) = (view, now);
        let due = seen.next_event_at;
        // A look that found nothing is no change: it would wake those who have just looked. Under the lock of the shard, so
        // that the changes of one shard are told in their order.
        if is_news {
            self.waiters.changed(servable(&view) - before);
        }
        Some(due)
    }

    /// The shards that may have messages, best first.
    pub fn offers(&self, now: Duration) -> Vec<ShardOffer> {
        let offer = |live: &ServedShard| {
            let seen = live.last_view.lock();
            let is_due = seen.next_event_at.is_some_and(|due| due <= now);
            let head = match seen.view.head {
                Some(head) => head,
                None if is_due => i64::MAX,
                None => return None,
            };
            (!seen.view.blocked).then_some(ShardOffer { head, shard: live.id.number })
        };
        let mut offers: Vec<ShardOffer> = self.shards.iter().filter_map(offer).collect();
        offers.sort_unstable();
        offers
    }

    /// When time alone changes something in a shard, as far as was seen.
    pub fn next_event_at(&self, shard: u32) -> Option<Duration> {
        self.shard(shard).last_view.lock().next_event_at
    }

    /// Whether it is a queue and no template.
    pub fn holds_messages(&self) -> bool {
        self.record.load().spec.template_for.is_none()
    }

    /// Its name, as a text of its own.
    pub fn name(&self) -> String {
        self.record.load().spec.name.to_string()
    }

    /// What waits in it, without its name. O(n shards).
    pub fn backlog(&self, now: Duration) -> Backlog {
        let mut backlog = Backlog { waiting: self.waiters.len(), ..Backlog::default() };
        for live in &self.shards {
            let seen = live.last_view.lock();
            let age = seen.view.ready_for.map_or(Duration::ZERO, |age| age + now.saturating_sub(seen.at));
            backlog.messages.iter_mut().zip(seen.view.messages).for_each(|(all, one)| *all += one);
            backlog.oldest = backlog.oldest.max(age);
        }
        backlog
    }

    /// How many of these leases, by priority and shard, were given while another shard has a better message. O(n shards).
    pub fn out_of_rank(&self, given: impl Iterator<Item = (i64, u32)>, now: Duration) -> u64 {
        let mut given = given.peekable();
        // Looks that find nothing are many: each worker that waits takes one whenever something changes.
        if self.shards.len() == 1 || given.peek().is_none() {
            return 0;
        }
        let offers = self.offers(now);
        let is_out = |(priority, shard): &(i64, u32)| {
            let other = offers.iter().find(|offer| offer.shard != *shard);
            other.is_some_and(|other| other.head < *priority)
        };
        given.filter(is_out).count() as u64
    }

    /// The shards that time has changed already.
    pub fn overdue(&self, now: Duration) -> Vec<u32> {
        let is_due = |live: &&ServedShard| live.last_view.lock().next_event_at.is_some_and(|due| due <= now);
        self.shards.iter().filter(is_due).map(|live| live.id.number).collect()
    }

    /// When time alone changes something next, from now.
    pub fn next_event_in(&self, now: Duration) -> Option<Duration> {
        let dues = self.shards.iter().filter_map(|live| live.last_view.lock().next_event_at);
        dues.min().map(|due| due.saturating_sub(now))
    }
}

/// How many messages of a shard can be had, at most.
fn servable(view: &ShardStatus) -> i64 {
    let some = view.head.is_some() && !view.blocked;
    if some { i64::try_from(view.ready()).unwrap_or(i64::MAX) } else { 0 }
}
