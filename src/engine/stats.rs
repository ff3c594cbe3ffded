//! Counts of the engine's work, for the metrics page. Plain numbers; the page gives them names and units.

mod histogram;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;

use tallystone_domain::history::audit::FindingKind;
use tallystone_domain::limits::{METRIC_NAMESPACES_MAX, METRIC_QUEUE_TIMES_MAX, METRIC_QUEUES_MAX, METRIC_SHAPES_MAX};
use tallystone_domain::queue::Transition;
use tallystone_domain::queue::filter::ShapeKeys;
use tallystone_domain::queue::messages::state_machine::{MessageState, Trigger};
use tallystone_domain::queue::shard::FilterScan;

pub use histogram::DurationHistogram;

/// A number that only grows.
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

    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Default, Debug)]
pub struct GaugeValue(AtomicI64);

impl GaugeValue {
    /// Sets the present value.
    pub fn set(&self, level: i64) {
        self.0.store(level, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The number of messages that dequeues examined one by one because no shape is declared for the keys of their
/// filters. The first `METRIC_SHAPES_MAX` sets of keys have a count of their own, all others share one.
#[derive(Default, Debug)]
pub struct UndeclaredFilters(Mutex<HashMap<ShapeKeys, u64>>, Count);

impl UndeclaredFilters {
    /// Counts the messages that a dequeue examined. O(1).
    pub fn record_scan(&self, walked: &FilterScan) {
        let mut shapes = self.0.lock();
        let has_room = shapes.len() < METRIC_SHAPES_MAX;
        match shapes.get_mut(&walked.keys) {
            Some(count) => *count += walked.messages as u64,
            None if has_room => drop(shapes.insert(walked.keys.clone(), walked.messages as u64)),
            None => self.1.add(walked.messages as u64),
        }
    }

    /// Returns the sets of keys with their counts, in the order of keys, and the count of all others.
    pub fn get(&self) -> (Vec<(ShapeKeys, u64)>, u64) {
        let mut shapes: Vec<_> = self.0.lock().iter().map(|(keys, count)| (keys.clone(), *count)).collect();
        shapes.sort();
        (shapes, self.1.get())
    }
}

/// Events of one queue's messages since this server serves it.
#[derive(Default, Debug)]
pub struct QueueCounts {
    /// Messages that were enqueued.
    pub enqueued: Count,
    /// Leases that were given.
    pub leased: Count,
    /// Messages that were completed.
    pub completed: Count,
    /// Attempts that their workers reported as failed.
    pub failed: Count,
    /// Messages that ran out of attempts.
    pub errored: Count,
    /// Leases that timed out.
    pub leases_expired: Count,
    /// Messages that were canceled because their TTL was over.
    pub messages_expired: Count,
    /// Messages that were given new attempts.
    pub redriven: Count,
    /// Steps that the store took back after it had answered them.
    pub steps_lost: Count,
}

impl QueueCounts {
    /// Counts one applied transition.
    pub fn record_transition(&self, row: &Transition) {
        match row.trigger {
            Trigger::Enqueue => self.enqueued.increment(),
            Trigger::Dequeue => self.leased.increment(),
            Trigger::Complete | Trigger::LateComplete => self.completed.increment(),
            Trigger::Fail => self.failed.increment(),
            Trigger::LeaseOver => self.leases_expired.increment(),
            Trigger::TtlOver => self.messages_expired.increment(),
            Trigger::Redrive => self.redriven.increment(),
            _ => {} // other transitions show neither the load nor trouble and are not counted
        }
        if row.to == Some(MessageState::Errored) && row.from != Some(MessageState::Errored) {
            self.errored.increment();
        }
    }
}

/// How long one queue's messages waited and ran since this server gave its first lease.
#[derive(Default, Debug)]
pub struct QueueTimes {
    /// From when a message was ready to its lease; one for each lease.
    pub wait: DurationHistogram,
    /// From a lease to its settlement. A completion after the end of the lease is not among them.
    pub run: DurationHistogram,
}

impl QueueTimes {
    /// Whether a transition gives or settles a lease, so that it has a time.
    pub fn has_time(row: &Transition) -> bool {
        matches!(row.trigger, Trigger::Dequeue | Trigger::Complete | Trigger::Cancel | Trigger::Fail | Trigger::Release)
    }

    /// Observes one applied transition that has a time. O(1).
    pub fn record_transition(&self, row: &Transition) {
        let lasted = row.detail.since.map_or(Duration::ZERO, |since| row.at.since(since));
        if row.trigger == Trigger::Dequeue { self.wait.observe(lasted) } else { self.run.observe(lasted) }
    }
}

/// The counts of the work of this server for counter rules.
#[derive(Default, Debug)]
pub struct RuleCounts {
    /// Evaluations: one for each rule and round.
    pub evaluated: Count,
    /// Messages that were sent and settled.
    pub fired: Count,
    /// Messages that met TOKEN_EXPIRED, so that nobody knows whether they were enqueued.
    pub uncertain: Count,
    /// Evaluations that failed or were refused, and rounds that could not read the rules.
    pub failed: Count,
}

/// The work of the bridge from queues to their counters.
#[derive(Default, Debug)]
pub struct BridgeCounts {
    /// Reports of a shard that were written.
    pub reports: Count,
    /// Totals that were written.
    pub totals_reported: Count,
    /// Queues that were taken over, or whose counters were read back.
    pub takeovers: Count,
    /// Steps that failed and were tried again.
    pub failures: Count,
    /// Shards that changed and whose report is not written.
    pub waiting_shards: GaugeValue,
}

/// Calls on the counters of one namespace since this server's first call of it.
#[derive(Default, Debug)]
pub struct NamespaceCounts {
    /// Adds, clears and totals that were applied.
    pub writes_applied: Count,
    /// Writes that were refused or failed, or whose outcome is not known.
    pub writes_failed: Count,
    /// Reads of counts; a batch counts each of its reads.
    pub reads: Count,
}

/// Names with a count of their own, in order.
type CountsByName<T> = Vec<(Arc<str>, Arc<T>)>;

/// Counts by name. The first `MOST` names have counts of their own, all others share one. A forgotten name frees its
/// place for a later one.
#[derive(Default, Debug)]
pub struct CountsBy<T, const MOST: usize>(Mutex<BTreeMap<Arc<str>, Arc<T>>>, Arc<T>);

impl<T: Default, const MOST: usize> CountsBy<T, MOST> {
    /// Returns the counts of a name. O(log n).
    pub fn of(&self, name: &str) -> Arc<T> {
        let mut names = self.0.lock();
        match names.get(name) {
            Some(counts) => Arc::clone(counts),
            None if names.len() < MOST => Arc::clone(names.entry(name.into()).or_default()),
            None => Arc::clone(&self.1),
        }
    }

    /// Returns the counts of a name that needs them now. If no place is free, it takes that of a name whose counts no
    /// caller has. O(n).
    pub fn claim(&self, name: &str) -> Arc<T> {
        let mut names = self.0.lock();
        if !names.contains_key(name) && names.len() >= MOST {
            let unclaimed = names.iter().find(|(_, counts)| Arc::strong_count(counts) == 1);
            if let Some(name) = unclaimed.map(|(name, _)| Arc::clone(name)) {
                names.remove(&name);
            }
        }
        drop(names);
        self.of(name)
    }

    /// Removes a name that no longer exists. O(log n).
    pub fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Returns the names with counts of their own, in order, and the counts of all others. O(n).
    pub fn get(&self) -> (CountsByName<T>, &T) {
        let shown = self.0.lock().iter().map(|(name, counts)| (Arc::clone(name), Arc::clone(counts))).collect();
        (shown, &self.1)
    }
}

/// Counts of the engine's work since its start.
#[derive(Default, Debug)]
pub struct Stats {
    /// The reports of queues to their counters.
    pub bridge: BridgeCounts,
    /// Adds, clears and totals that were applied.
    pub writes_applied: Count,
    /// Writes whose token had been applied before.
    pub writes_repeated: Count,
    /// Verdicts that found the event.
    pub verdicts_applied: Count,
    /// Verdicts that wrote or found a tombstone.
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
    /// Rolls that failed and are retried.
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
    /// Signals for other servers without a known receiver.
    pub signals_unsent: Count,
    /// Signals of other servers that were accepted.
    pub signals_taken: Count,
    /// Entries of the dirty-counter index that were read again after a restart or a lost signal.
    pub touches_replayed: Count,
    pub limits_published: Count,
    /// Rows that reached the log after their bucket was rolled up and that a repair added to the count.
    pub late_rows: Count,
    /// Counters that were repaired, once for each bucket that differed.
    pub repairs: Count,
    /// Buckets that were compared because of a recheck mark.
    pub buckets_rechecked: Count,
    /// Buckets that were over for the seal delay, were read from all replicas and compared.
    pub buckets_sealed: Count,
    /// Failed attempts to seal the buckets of a touch shard; each is retried.
    pub seals_failed: Count,
    /// Lapses of this server's own lease.
    pub leases_lapsed: Count,
    /// Other members that this server has seen lapse.
    pub members_lapsed: Count,
    pub slices_dropped: Count,
    /// Expired slices that are still needed.
    pub slices_kept_back: Count,
    pub messages_enqueued: Count,
    /// Enqueues whose id had been enqueued before.
    pub messages_repeated: Count,
    pub leases_given: Count,
    pub messages_completed: Count,
    /// Leases settled, including repeats.
    pub leases_settled: Count,
    /// Dequeue attempts that found no message.
    pub dequeues_empty: Count,
    /// Leases given while another shard of the queue had a better message.
    pub leases_out_of_rank: Count,
    /// An upper bound of how much later than the end of their invisibility messages became ready.
    pub promotion_lag: DurationHistogram,
    /// Commands sent to shards.
    pub queue_commands: Count,
    /// Store calls that carried them.
    pub queue_store_calls: Count,
    /// Store calls of queues that panicked.
    pub queue_panics: Count,
    /// Queue time minus wall time, in microseconds; negative if queue time is behind.
    pub queue_clock_ahead: GaugeValue,
    /// The time that judges the age of tokens minus wall time, in microseconds.
    pub queue_tokens_ahead: GaugeValue,
    /// Counter rules.
    pub rules: RuleCounts,
    /// Messages that dequeues examined because their filters have no index.
    pub undeclared_filters: UndeclaredFilters,
    /// Events of messages, by queue.
    pub by_queue: CountsBy<QueueCounts, METRIC_QUEUES_MAX>,
    /// Times of messages, by queue.
    pub times_by_queue: CountsBy<QueueTimes, METRIC_QUEUE_TIMES_MAX>,
    /// Calls on counters, by namespace.
    pub by_namespace: CountsBy<NamespaceCounts, METRIC_NAMESPACES_MAX>,
    /// Rows carried to the history, repeats included.
    pub history_rows_relayed: Count,
    /// Batches of rows written to the history.
    pub history_batches: Count,
    /// Failed reads and writes on the way to the history; each is retried.
    pub history_failures: Count,
    /// Gaps written to the history.
    pub history_gaps: Count,
    /// Findings of the audit of queues, in the order of `FindingKind::ALL`.
    pub audit_findings: [Count; FindingKind::ALL.len()],
    /// Events acknowledged at or below a limit that was published while they were in flight; must stay 0.
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
    fn a_name_that_needs_its_counts_takes_the_place_of_one_whose_counts_nobody_has() {
        let by_name = CountsBy::<QueueTimes, 2>::default();
        drop(by_name.of("idle"));
        let busy = by_name.claim("busy");
        let (late, later) = (by_name.claim("late"), by_name.claim("later"));
        for times in [&busy, &late, &later] {
            times.wait.observe(Duration::ZERO);
        }
        let (shown, others) = by_name.get();
        let names: Vec<&str> = shown.iter().map(|(name, _)| &**name).collect();
        assert_eq!((names, others.wait.is_empty()), (vec!["busy", "late"], false));
    }

    #[test]
    fn the_first_filters_are_counted_one_by_one_and_none_is_left_out() {
        let filters = UndeclaredFilters::default();
        let keys = |number: usize| ShapeKeys::new([format!("key-{number:02}").as_str()]).expect("a legal key");
        for number in 0..METRIC_SHAPES_MAX + 3 {
            for messages in [1, 2] {
                filters.record_scan(&FilterScan { keys: keys(number), messages });
            }
        }
        let (shown, others) = filters.get();
        assert_eq!((shown.len(), &shown[0], others), (METRIC_SHAPES_MAX, &(keys(0), 3), 9));
    }
}
