//! Counts of what the engine did, for the metrics page. Plain numbers; the page gives them names and units.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::domain::limits::{METRIC_NAMESPACES_MAX, METRIC_QUEUES_MAX, METRIC_SHAPES_MAX};
use crate::domain::queue::Transition;
use crate::domain::queue::filter::ShapeKeys;
use crate::domain::queue::messages::state_machine::{MessageState, Trigger};
use crate::domain::queue::shard::FilterWalk;
use crate::engine::counting::WriteOutcome;

/// One growing number.
#[derive(Default, Debug)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds some.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds a duration, in microseconds.
    pub fn add_time(&self, duration: Duration) {
        self.add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// The number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Default, Debug)]
pub struct GaugeValue(AtomicI64);

impl GaugeValue {
    /// Says what it is now.
    pub fn set(&self, level: i64) {
        self.0.store(level, Ordering::Relaxed);
    }

    /// The number.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Messages that dequeues looked at one by one, by the keys of their filters, for which no shape is declared. The first
/// sets of keys are counted one by one, all others as one.
#[derive(Default, Debug)]
pub struct UndeclaredFilters(Mutex<HashMap<ShapeKeys, u64>>, Count);

impl UndeclaredFilters {
    /// Counts what a dequeue looked at. O(1).
    pub fn record_scan(&self, walked: &FilterWalk) {
        let mut shapes = self.0.lock();
        let has_room = shapes.len() < METRIC_SHAPES_MAX;
        match shapes.get_mut(&walked.keys) {
            Some(count) => *count += walked.messages as u64,
            None if has_room => drop(shapes.insert(walked.keys.clone(), walked.messages as u64)),
            None => self.1.add(walked.messages as u64),
        }
    }

    /// The sets of keys with their messages, by keys; and the messages of all others.
    pub fn get(&self) -> (Vec<(ShapeKeys, u64)>, u64) {
        let mut shapes: Vec<_> = self.0.lock().iter().map(|(keys, count)| (keys.clone(), *count)).collect();
        shapes.sort();
        (shapes, self.1.get())
    }
}

/// What happened to the messages of one queue since this server serves it.
#[derive(Default, Debug)]
pub struct QueueCounts {
    /// Attempts that their workers gave up as failed.
    pub failed: Count,
    /// Messages that came to be out of attempts.
    pub errored: Count,
    /// Leases that ended by time.
    pub leases_expired: Count,
    /// Messages that were canceled because their TTL was over.
    pub messages_expired: Count,
    /// Messages that were given new attempts.
    pub redriven: Count,
}

impl QueueCounts {
    /// Counts one row that was applied.
    pub fn record_transition(&self, row: &Transition) {
        match row.trigger {
            Trigger::Fail => self.failed.increment(),
            Trigger::LeaseOver => self.leases_expired.increment(),
            Trigger::TtlOver => self.messages_expired.increment(),
            Trigger::Redrive => self.redriven.increment(),
            _ => {} // whatever else happens to a message, it is no trouble that is counted here
        }
        if row.to == Some(MessageState::Errored) && row.from != Some(MessageState::Errored) {
            self.errored.increment();
        }
    }
}

/// What was done to the counters of one namespace since this server first took a call of it.
#[derive(Default, Debug)]
pub struct NamespaceCounts {
    /// Adds, clears and totals that were applied.
    pub writes_applied: Count,
    /// Those that were refused or failed, or whose outcome is not known.
    pub writes_failed: Count,
    /// Reads of counts, of one or of many in a call.
    pub reads: Count,
}

impl NamespaceCounts {
    /// Counts what came of one write; one that was applied before is neither.
    pub fn record_write<E>(&self, answer: Result<WriteOutcome, E>) {
        match answer {
            Ok(WriteOutcome::Applied) => self.writes_applied.increment(),
            Ok(WriteOutcome::AlreadyApplied) => {}
            Err(_) => self.writes_failed.increment(),
        }
    }
}

/// Names that are counted one by one, in their order.
type CountsByName<T> = Vec<(Arc<str>, Arc<T>)>;

/// Counts by name. The first `MOST` names that come are counted one by one, all others as one; a name that is forgotten
/// leaves its place to a later one.
#[derive(Default, Debug)]
pub struct CountsBy<T, const MOST: usize>(Mutex<BTreeMap<Arc<str>, Arc<T>>>, Arc<T>);

impl<T: Default, const MOST: usize> CountsBy<T, MOST> {
    /// The counts of a name. O(log n).
    pub fn of(&self, name: &str) -> Arc<T> {
        let mut names = self.0.lock();
        match names.get(name) {
            Some(counts) => Arc::clone(counts),
            None if names.len() < MOST => Arc::clone(names.entry(name.into()).or_default()),
            None => Arc::clone(&self.1),
        }
    }

    /// Takes a name out that is there no more. O(log n).
    pub fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// The names that are counted one by one, in their order, and all others. O(n).
    pub fn get(&self) -> (CountsByName<T>, &T) {
        let shown = self.0.lock().iter().map(|(name, counts)| (Arc::clone(name), Arc::clone(counts))).collect();
        (shown, &self.1)
    }
}

/// What the engine did since it started.
#[derive(Default, Debug)]
pub struct Stats {
    /// Adds, clears and totals that were applied.
    pub writes_applied: Count,
    /// Writes whose token had been applied before.
    pub writes_repeated: Count,
    /// Verdicts that were given.
    pub verdicts: Count,
    /// Verdicts that wrote or found a void.
    pub verdicts_void: Count,
    /// Reads served from the cache.
    pub cache_hits: Count,
    /// Reads that went to the rollup store.
    pub cache_misses: Count,
    /// Rolls that a read ran itself.
    pub inline_rolls: Count,
    /// Rolls that wrote a checkpoint.
    pub rolls_written: Count,
    /// Rolls that found nothing new.
    pub rolls_empty: Count,
    /// Rolls that failed and are tried again.
    pub rolls_failed: Count,
    /// Events folded by rolls.
    pub events_folded: Count,
    /// Rollup batches.
    pub batches: Count,
    /// Time spent in rollup batches, in microseconds.
    pub batch_micros: Count,
    /// Pauses after rollup batches, in microseconds.
    pub pause_micros: Count,
    /// Signals for which a Set had no room.
    pub signals_lost: Count,
    /// Signals for other servers that nobody is known to take.
    pub signals_unsent: Count,
    /// Signals of other servers that were taken in.
    pub signals_taken: Count,
    /// Touches read again after a restart or a lost signal.
    pub touches_replayed: Count,
    /// Limits published.
    pub limits_published: Count,
    /// Rows that reached the log after their bucket was rolled up and were taken into the count by a repair.
    pub late_rows: Count,
    /// Counters that were repaired, once for each bucket that differed.
    pub repairs: Count,
    /// Buckets that were compared because of a recheck mark.
    pub buckets_rechecked: Count,
    /// Buckets that were over for the seal delay and were read from all replicas and compared.
    pub buckets_sealed: Count,
    /// Times the buckets of a touch shard could not be sealed and are tried again.
    pub seals_failed: Count,
    /// Lapses of this server's own lease.
    pub leases_lapsed: Count,
    /// Other members that this server has seen lapse.
    pub members_lapsed: Count,
    /// Slices dropped.
    pub slices_dropped: Count,
    /// Slices past their time that something still needs.
    pub slices_kept_back: Count,
    /// Messages that were taken in.
    pub messages_enqueued: Count,
    /// Enqueues whose id had been taken in before.
    pub messages_repeated: Count,
    /// Leases that were given.
    pub leases_given: Count,
    /// Messages that were completed.
    pub messages_completed: Count,
    /// Leases that were settled, repeats included.
    pub leases_settled: Count,
    /// Looks of dequeues that found nothing.
    pub dequeues_empty: Count,
    /// Leases that were given while another shard of the queue had a better message.
    pub leases_out_of_rank: Count,
    /// Messages whose window was over and that became ready.
    pub messages_promoted: Count,
    /// Those of them that became ready more than a second after their time.
    pub promotions_late: Count,
    /// By how much they came after their time, at most, in microseconds.
    pub promotion_lag_micros: Count,
    /// Commands that were sent to shards.
    pub queue_commands: Count,
    /// Store calls that brought them.
    pub queue_store_calls: Count,
    /// Store calls of queues that panicked.
    pub queue_panics: Count,
    /// How far the time of queues is ahead of wall time, in microseconds; negative if it is behind.
    pub queue_clock_ahead: GaugeValue,
    /// How far the time by which the age of tokens is judged is ahead of wall time, in microseconds.
    pub queue_tokens_ahead: GaugeValue,
    /// Messages that dequeues looked at whose filters have no index.
    pub undeclared_filters: UndeclaredFilters,
    /// What happened to messages, by queue.
    pub by_queue: CountsBy<QueueCounts, METRIC_QUEUES_MAX>,
    /// What was done to counters, by namespace.
    pub by_namespace: CountsBy<NamespaceCounts, METRIC_NAMESPACES_MAX>,
    /// Events acknowledged at or below a limit that was told while they were held; must stay 0.
    pub acknowledged_below_limit: Count,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_names_are_counted_one_by_one_and_a_forgotten_one_leaves_its_place() {
        let by_name = CountsBy::<QueueCounts, 4>::default();
        let name = |number: usize| format!("q{number:03}");
        for number in 0..7 {
            by_name.of(&name(number)).failed.increment();
        }
        by_name.of(&name(0)).failed.increment();
        let (shown, others) = by_name.get();
        assert_eq!((shown.len(), shown[0].1.failed.get(), others.failed.get()), (4, 2, 3));
        by_name.forget(&name(1));
        by_name.of(&name(11)).failed.increment();
        let (shown, others) = by_name.get();
        let names: Vec<&str> = shown.iter().map(|(name, _)| &**name).collect();
        assert_eq!((names, others.failed.get()), (vec!["q000", "q002", "q003", "q011"], 3));
    }

    #[test]
    fn the_first_filters_are_counted_one_by_one_and_none_is_left_out() {
        let filters = UndeclaredFilters::default();
        let keys = |number: usize| ShapeKeys::new([format!("key-{number:02}").as_str()]).expect("a legal key");
        for number in 0..METRIC_SHAPES_MAX + 3 {
            for messages in [1, 2] {
                filters.record_scan(&FilterWalk { keys: keys(number), messages });
            }
        }
        let (shown, others) = filters.get();
        assert_eq!((shown.len(), &shown[0], others), (METRIC_SHAPES_MAX, &(keys(0), 3), 9));
    }
}
