//! A queue that is served: its present settings, and the status of its shards.
//!
//! Each answer of this server brings the status of its shard. After commands of other servers on the same store a
//! status comes as news, late or not at all. So a status may be old: a dequeue may find what it offers already taken.
//! The step, which the store counts for all servers, says which of two statuses is newer. Changes by time alone are
//! known by the time of the next event. So a dequeue that finds nothing costs the store nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::caller_quota::QuotaPermit;
use crate::queues::state::depth::DepthCache;
use crate::queues::state::replay_sessions::ReplaySessions;
use crate::queues::state::shard_activity::ShardActivity;
use crate::queues::state::shard_calls::ShardCalls;
use crate::queues::state::shard_offers::{FilterPlaces, LastTurn, QueuePlace, ShardOffer, ShardTurns};
use crate::queues::state::waiters::Waiters;
use crate::stats::{QueueCounts, QueueTimes};
use tallystone_domain::limits::{ACTIVITY_SHOWN_FOR, SHARD_WALKS_MAX, WORK_LOST_SHOWN_FOR};
use tallystone_domain::queue::activity::LostWork;
use tallystone_domain::queue::command::Cursor;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::{CatalogQueue, MessageState, QueueSpec, ShardId};
use tallystone_domain::time::Timestamp;
use tallystone_ports::ShardStatus;

/// Ends of retentions within this time are swept together.
const ENDS_TOGETHER: Duration = Duration::from_millis(250);

pub struct ServedQueue {
    /// The entry of the queue in the catalog.
    pub record: ArcSwap<CatalogQueue>,
    /// The dequeues that wait for its messages.
    pub waiters: Waiters,
    /// The last depths that its watches read.
    pub depth_cache: DepthCache,
    /// The metrics of its messages; none before it is served.
    pub counts: OnceLock<Arc<QueueCounts>>,
    /// The histograms of its messages; none before its first lease.
    pub times: OnceLock<Arc<QueueTimes>>,
    shards: Box<[ServedShard]>,
    /// The time of the last dequeue, in microseconds of elapsed time above 0; 0 before the first.
    last_dequeue_micros: AtomicU64,
    /// The time at which its activity was shown last, in the same form.
    shown_micros: AtomicU64,
    turns: ShardTurns,
    /// The work of the queue that its store lost since this server started.
    lost: Mutex<Option<LostWork>>,
    /// The quota permit of the caller whose first enqueue made it.
    share: OnceLock<QuotaPermit>,
}

pub struct ServedShard {
    pub id: ShardId,
    pub calls: ShardCalls,
    /// The cursors of filter walks.
    pub filter_cursors: FilterCursors,
    filter_places: FilterPlaces,
    last_turn: LastTurn,
    /// The sessions of this server in which dequeues without a session are repeated.
    pub replay_sessions: ReplaySessions,
    /// The last reading of its totals.
    pub activity: ShardActivity,
    last_view: Mutex<ReceivedView>,
}

#[derive(Default)]
struct ReceivedView {
    view: ShardStatus,
    /// Whether the status was received. A shard that was never used has step 0, as one of which nothing is known.
    is_known: bool,
    /// The time of the status, by elapsed time.
    at: Duration,
    /// The time of the next change by time alone, by elapsed time.
    next_event_at: Option<Duration>,
}

/// The cursors of walks of filters without an index in a shard. The next dequeue of the same filter continues at the
/// cursor, so any number of messages is searched in bounded steps. A walk whose cursor was dropped starts again.
#[derive(Default)]
pub struct FilterCursors {
    cursors: Mutex<VecDeque<(Filter, Cursor)>>,
}

impl FilterCursors {
    /// Takes the cursor of a walk. O(walks).
    pub fn cursor(&self, filter: &Filter) -> Option<Cursor> {
        if filter.is_empty() {
            return None;
        }
        let mut cursors = self.cursors.lock();
        let at = cursors.iter().position(|(other, _)| other == filter)?;
        cursors.remove(at).map(|(_, cursor)| cursor)
    }

    /// Stores the cursor of a walk. The oldest cursors are dropped.
    pub fn keep(&self, filter: Filter, cursor: Option<Cursor>) {
        let Some(cursor) = cursor else { return };
        let mut cursors = self.cursors.lock();
        cursors.push_back((filter, cursor));
        if cursors.len() > SHARD_WALKS_MAX {
            cursors.pop_front();
        }
    }
}

/// The backlog of a queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Backlog {
    /// Its name.
    pub queue: String,
    /// The messages of each state, in the order of `State::ALL`.
    pub messages: [u64; MessageState::ALL.len()],
    /// The age of the oldest ready message, to the second; zero if there is none.
    pub oldest: Duration,
    /// The dequeues that wait for its messages at this server.
    pub waiting: usize,
}

impl Backlog {
    /// Adds the backlog of another queue: the sums of both, and the greater age.
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

impl ServedQueue {
    /// Notes what its store has lost of it.
    pub fn note_loss(&self, lost: LostWork) {
        let mut known = self.lost.lock();
        let recent = known.filter(|known| lost.at.since(known.at) < WORK_LOST_SHOWN_FOR);
        *known = Some(lost.after(recent));
    }

    /// The work of the queue that its store has lost within `WORK_LOST_SHOWN_FOR`.
    pub fn lost_lately(&self, now: Timestamp) -> Option<LostWork> {
        self.lost.lock().filter(|lost| now.since(lost.at) < WORK_LOST_SHOWN_FOR)
    }

    /// A queue whose shards have not reported a status yet.
    pub fn new(queue: CatalogQueue) -> Self {
        let shard = |number| ServedShard {
            id: ShardId { queue: queue.id, number },
            calls: ShardCalls::default(),
            filter_cursors: FilterCursors::default(),
            filter_places: FilterPlaces::default(),
            last_turn: LastTurn::default(),
            replay_sessions: ReplaySessions::default(),
            activity: ShardActivity::default(),
            last_view: Mutex::default(),
        };
        Self {
            lost: Mutex::default(),
            shards: (0..queue.spec.shards).map(shard).collect(),
            record: ArcSwap::from_pointee(queue),
            waiters: Waiters::default(),
            depth_cache: DepthCache::default(),
            counts: OnceLock::new(),
            times: OnceLock::new(),
            last_dequeue_micros: AtomicU64::new(0),
            shown_micros: AtomicU64::new(0),
            turns: ShardTurns::default(),
            share: OnceLock::new(),
        }
    }

    /// Occupies a quota permit of a caller while the queue is served.
    pub fn occupy(&self, share: QuotaPermit) {
        self.share.get_or_init(|| share);
    }

    /// Notes that all shards were created with the settings of a version.
    pub fn record_created(&self, version: u64) {
        self.shards.iter().for_each(|shard| shard.last_view.lock().view.settings_version = version);
    }

    /// Whether a shard may have other settings than the catalog: those of a change that failed half way, that another
    /// server made, or that the store has lost. Shards say it, so it is never remembered for longer than it holds. O(n
    /// shards).
    pub fn may_differ(&self) -> bool {
        let version = self.record.load().version;
        let differs = |shard: &ServedShard| shard.last_view.lock().view.settings_version != version;
        self.holds_messages() && self.shards.iter().any(differs)
    }

    /// The highest version of settings that a shard is known to have; 0 if none is. O(n shards).
    pub fn newest_settings(&self) -> u64 {
        self.shards.iter().map(|shard| shard.last_view.lock().view.settings_version).max().unwrap_or(0)
    }

    /// The present settings.
    pub fn spec(&self) -> QueueSpec {
        self.record.load().spec.clone()
    }

    /// The number of shards.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.shards.len()).unwrap_or(u32::MAX)
    }

    /// Notes the time of a dequeue.
    pub fn record_dequeue(&self, now: Duration) {
        record_micros(&self.last_dequeue_micros, now);
    }

    /// Notes that its activity is shown.
    pub fn record_shown(&self, now: Duration) {
        record_micros(&self.shown_micros, now);
    }

    /// Whether its activity was shown a short time ago.
    pub fn is_shown(&self, now: Duration) -> bool {
        recorded_micros(&self.shown_micros).is_some_and(|at| now.saturating_sub(at) < ACTIVITY_SHOWN_FOR)
    }

    /// The time of the last dequeue, by elapsed time; none since the server started.
    pub fn last_dequeue(&self) -> Option<Duration> {
        recorded_micros(&self.last_dequeue_micros)
    }

    pub fn shard(&self, number: u32) -> &ServedShard {
        &self.shards[number as usize]
    }

    /// Takes in the status of a shard. Returns the time of its next sweep, if the status was new.
    pub fn update_view(&self, shard: u32, view: ShardStatus, now: Duration) -> Option<Option<Duration>> {
        let mut seen = self.shard(shard).last_view.lock();
        if view.step <= seen.view.step && seen.view.step > 0 {
            return None;
        }
        let before = servable(&seen.view);
        // Another message may have arrived even if all numbers are equal, which matters to dequeues with a filter.
        let offers = |view: &ShardStatus| (view.ready(), view.arrived, view.head, view.blocked);
        let is_news = offers(&view) != offers(&seen.view);
        seen.next_event_at = view.next_event_in.map(|time| now + time);
        (seen.view, seen.at, seen.is_known) = (view, now, true);
        let together = if view.only_retention { ENDS_TOGETHER } else { Duration::ZERO };
        let due = seen.next_event_at.map(|due| due + together);
        // A dequeue that found nothing is no change: it would wake the dequeues that have just looked. This runs under
        // the lock of the shard, so that changes of one shard are reported in order.
        if is_news {
            self.waiters.changed(servable(&view) - before);
        }
        Some(due)
    }

    /// The shards that may have messages for a dequeue with this filter, in the order in which they are asked.
    pub fn offers(&self, filter: &Filter, now: Duration) -> Vec<ShardOffer> {
        let offer = |live: &ServedShard| {
            let from = live.filter_places.from(filter, live.head(now)?, now);
            Some(ShardOffer { from, turn: live.last_turn.number(), shard: live.id.number })
        };
        let mut offers: Vec<ShardOffer> = self.shards.iter().filter_map(offer).collect();
        offers.sort_unstable();
        offers
    }

    /// Gives a shard its turn: a dequeue asks it next.
    pub fn give_turn(&self, shard: u32) {
        self.turns.give(&self.shard(shard).last_turn);
    }

    /// Notes the last message that a dequeue with a filter got of a shard.
    pub fn record_reached(&self, shard: u32, filter: &Filter, reached: QueuePlace, now: Duration) {
        let live = self.shard(shard);
        live.filter_places.note(filter, live.head(now), reached, now);
    }

    /// Whether a status of each shard is known.
    pub fn knows_all_shards(&self) -> bool {
        self.shards.iter().all(|shard| shard.last_view.lock().is_known)
    }

    /// The time of the next change of a shard by time alone, as last reported.
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

    /// Its backlog, without its name. O(n shards).
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

    /// The bytes that it takes in the memory of this process; 0 where its store keeps it elsewhere. O(n shards).
    pub fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.last_view.lock().view.memory_bytes).sum()
    }

    /// The age of its oldest ready message, to the precision of the store; none if no message is ready. O(n shards).
    pub fn oldest_ready(&self, now: Duration) -> Option<Duration> {
        let of = |live: &ServedShard| {
            let seen = live.last_view.lock();
            seen.view.ready_for.map(|age| age + now.saturating_sub(seen.at))
        };
        self.shards.iter().filter_map(of).max()
    }

    /// The number of these leases, by priority and shard, for which another shard had a better message. O(n shards).
    pub fn out_of_rank(&self, given: impl Iterator<Item = (i64, u32)>, now: Duration) -> u64 {
        let mut given = given.peekable();
        // Empty results are frequent: each waiting dequeue looks once after each change.
        if self.shards.len() == 1 || given.peek().is_none() {
            return 0;
        }
        let offers = self.offers(&Filter::default(), now);
        let is_out = |(priority, shard): &(i64, u32)| {
            let other = offers.iter().find(|offer| offer.shard != *shard);
            other.is_some_and(|other| other.from.0 < *priority)
        };
        given.filter(is_out).count() as u64
    }

    /// The shards with due transitions.
    pub fn overdue(&self, now: Duration) -> Vec<u32> {
        let is_due = |live: &&ServedShard| live.last_view.lock().next_event_at.is_some_and(|due| due <= now);
        self.shards.iter().filter(is_due).map(|live| live.id.number).collect()
    }

    /// The time until the next change by time alone.
    pub fn next_event_in(&self, now: Duration) -> Option<Duration> {
        let dues = self.shards.iter().filter_map(|live| live.last_view.lock().next_event_at);
        dues.min().map(|due| due.saturating_sub(now))
    }
}

impl ServedShard {
    /// The place of the best message that the shard may have at a time.
    fn head(&self, now: Duration) -> Option<QueuePlace> {
        let seen = self.last_view.lock();
        let is_due = !seen.view.only_retention && seen.next_event_at.is_some_and(|due| due <= now);
        ShardOffer::head_of(&seen.view, is_due)
    }
}

/// Records an elapsed time in microseconds above 0.
fn record_micros(recorded: &AtomicU64, now: Duration) {
    let micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    recorded.fetch_max(micros.saturating_add(1), Ordering::Relaxed);
}

/// The elapsed time that was recorded last, if there is one.
fn recorded_micros(recorded: &AtomicU64) -> Option<Duration> {
    recorded.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros)
}

/// The most messages of a shard that a dequeue could lease.
fn servable(view: &ShardStatus) -> i64 {
    let some = view.head.is_some() && !view.blocked;
    if some { i64::try_from(view.ready()).unwrap_or(i64::MAX) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::QueueDraft;
    use tallystone_domain::Timestamp;
    use tallystone_domain::queue::{QueueId, QueueName};

    #[test]
    fn ends_of_retentions_are_swept_together_and_offer_nothing() {
        let name = QueueName::new("mail").expect("a name");
        let spec = QueueDraft::of(name).resolve_new(None).expect("defaults are valid");
        let (created, updated) = (Timestamp::MIN, Timestamp::MIN);
        let queue =
            ServedQueue::new(CatalogQueue { id: QueueId(1), spec, version: 1, created, updated, made_by: None });
        let (now, soon) = (Duration::from_secs(9), Duration::from_secs(1));
        let view = |step, only_retention| ShardStatus {
            step,
            next_event_in: Some(soon),
            only_retention,
            ..ShardStatus::default()
        };
        assert_eq!(
            queue.update_view(0, view(1, false), now),
            Some(Some(now + soon)),
            "a window or a lease ends in time"
        );
        assert_eq!(queue.offers(&Filter::default(), now + soon).len(), 1, "a message may be ready");
        assert_eq!(queue.update_view(0, view(2, true), now), Some(Some(now + soon + ENDS_TOGETHER)));
        assert_eq!(queue.offers(&Filter::default(), now + soon), [], "the end of a retention makes no message ready");
    }
}
