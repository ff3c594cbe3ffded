//! One rollup queue: a Set of waiting counters, bounded in bytes.

use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::dataset::pending::PendingRolls;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::limits::ROLLUP_SETS_BYTES_MAX;

/// Counters by their precomputed hash: the same order in every process, so that a simulation is reproducible.
pub type ByCounter<T> = HashMap<Counter, T, BuildHasherDefault<PrecomputedHasher>>;

/// Uses the precomputed hash of a counter.
#[derive(Default)]
pub struct PrecomputedHasher(u64);

impl Hasher for PrecomputedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The pending roll of a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingRoll {
    /// The oldest event that is not rolled up.
    pub oldest: Timestamp,
    /// The limit at which a roll is worth a read.
    pub min_limit: Timestamp,
    /// The newest event that was signalled.
    pub newest: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterEnqueueOutcome {
    /// The counter waits in the Set.
    Accepted,
    /// The queue has no space; the touch index has to be read again.
    Full,
    /// The queue was replaced; add the counter to its successor.
    Closed,
}

#[derive(Default)]
pub struct RollupQueue {
    set: Mutex<RollupSet>,
    /// Drained counters that still wait. If both are locked, this one is locked before the Set.
    drained: Mutex<ByCounter<PendingRoll>>,
    wake: Notify,
    changed: Notify,
    claimed: AtomicBool,
}

#[derive(Default)]
struct RollupSet {
    waiting: ByCounter<PendingRoll>,
    bytes: usize,
    /// Bytes of drained counters that still wait.
    drained_bytes: usize,
    closed: bool,
}

/// The bytes of all Sets of a roller.
#[derive(Default)]
pub struct SetBytes(AtomicUsize);

impl SetBytes {
    /// The bytes in use.
    pub fn used(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The approximate memory of a waiting counter.
pub fn cost_of(counter: &Counter) -> usize {
    counter.name().as_str().len() + 112
}

impl RollupQueue {
    /// Adds a counter with events in [oldest, newest].
    pub fn enqueue(
        &self,
        counter: &Counter,
        oldest: Timestamp,
        newest: Timestamp,
        limits: &CounterEnqueueLimits<'_>,
    ) -> CounterEnqueueOutcome {
        let shard = counter.touch_shard();
        let mut set = self.set.lock();
        if set.closed {
            return CounterEnqueueOutcome::Closed;
        }
        if let Some(waiting) = set.waiting.get_mut(counter) {
            if oldest < waiting.oldest {
                limits.pending.begin(shard, oldest);
                limits.pending.end(shard, waiting.oldest);
                waiting.oldest = oldest;
            }
            waiting.newest = waiting.newest.max(newest);
            waiting.min_limit = waiting.newest;
            return CounterEnqueueOutcome::Accepted;
        }
        let cost = cost_of(counter);
        let full = set.bytes + set.drained_bytes + cost > limits.capacity_bytes
            || limits.all.used() + cost > ROLLUP_SETS_BYTES_MAX;
        if full {
            limits.pending.record_lost_signal(shard, oldest);
            return CounterEnqueueOutcome::Full;
        }
        limits.pending.begin(shard, oldest);
        set.bytes += cost;
        limits.all.0.fetch_add(cost, Ordering::Relaxed);
        let was_empty = set.waiting.is_empty();
        set.waiting.insert(counter.clone(), PendingRoll { oldest, min_limit: newest, newest });
        drop(set);
        if was_empty {
            self.wake.notify_one();
        }
        CounterEnqueueOutcome::Accepted
    }

    /// Drains the Set. Its bytes count as drained until they are released.
    pub fn drain(&self) -> ByCounter<PendingRoll> {
        let mut set = self.set.lock();
        set.drained_bytes += set.bytes;
        set.bytes = 0;
        mem::take(&mut set.waiting)
    }

    /// Drained counters that still wait. Only the loop of the queue changes them.
    pub fn drained(&self) -> MutexGuard<'_, ByCounter<PendingRoll>> {
        self.drained.lock()
    }

    /// The pending roll of a counter, in the Set or drained from it; none if it does not wait.
    pub fn waiting(&self, counter: &Counter) -> Option<PendingRoll> {
        let drained = self.drained.lock();
        let in_set = self.set.lock().waiting.get(counter).copied();
        match (drained.get(counter).copied(), in_set) {
            (Some(drained), Some(new)) => Some(PendingRoll {
                oldest: drained.oldest.min(new.oldest),
                min_limit: drained.min_limit,
                newest: drained.newest.max(new.newest),
            }),
            (drained, in_set) => drained.or(in_set),
        }
    }

    /// Ends the accounting of counters that no longer wait.
    pub fn release(&self, bytes: usize, all: &SetBytes) {
        self.set.lock().drained_bytes -= bytes;
        all.0.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Claims the queue for a loop; true once.
    pub fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    /// Closes the queue; senders turn to its successor.
    pub fn close(&self) {
        self.set.lock().closed = true;
        self.wake.notify_one();
        self.notify_change();
    }

    /// Wakes the loop after a change of settings, so that it measures its pause again.
    pub fn notify_change(&self) {
        self.changed.notify_one();
    }

    /// Waits until the settings change, or the queue closes.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.set.lock().closed
    }

    /// Whether no counter waits in the Set.
    pub fn is_empty(&self) -> bool {
        self.set.lock().waiting.is_empty()
    }

    /// Counters in the Set, for the metrics.
    pub fn len(&self) -> usize {
        self.set.lock().waiting.len()
    }

    /// Waits until a counter enters the empty Set, or the queue closes.
    pub async fn filled(&self) {
        self.wake.notified().await;
    }
}

/// The limits of `RollupQueue::enqueue`.
pub struct CounterEnqueueLimits<'a> {
    /// The bytes of this queue.
    pub capacity_bytes: usize,
    pub all: &'a SetBytes,
    /// The waiting counters of the dataset.
    pub pending: &'a PendingRolls,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::counter::{CounterName, NamespaceId};

    fn counter(name: &str) -> Counter {
        Counter::new(NamespaceId(1), CounterName::new(name).expect("a valid name"))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    #[test]
    fn a_counter_waits_once_for_all_its_signals() {
        let (queue, all, pending) = (RollupQueue::default(), SetBytes::default(), PendingRolls::default());
        let limits = CounterEnqueueLimits { capacity_bytes: 10_000, all: &all, pending: &pending };
        for seconds in [7, 5, 9] {
            assert_eq!(
                queue.enqueue(&counter("a"), at(seconds), at(seconds), &limits),
                CounterEnqueueOutcome::Accepted
            );
        }
        let drained = queue.drain();
        assert_eq!(drained[&counter("a")], PendingRoll { oldest: at(5), min_limit: at(9), newest: at(9) });
        assert_eq!(pending.rolled_up_to(counter("a").touch_shard(), at(20)), at(5).just_before());
        queue.release(cost_of(&counter("a")), &all);
        assert_eq!(all.used(), 0);
    }

    #[test]
    fn what_a_counter_waits_for_is_told_also_after_its_set_was_drained() {
        let (queue, all, pending) = (RollupQueue::default(), SetBytes::default(), PendingRolls::default());
        let limits = CounterEnqueueLimits { capacity_bytes: 10_000, all: &all, pending: &pending };
        assert_eq!(queue.waiting(&counter("a")), None);
        queue.enqueue(&counter("a"), at(5), at(6), &limits);
        let first = PendingRoll { oldest: at(5), min_limit: at(6), newest: at(6) };
        assert_eq!(queue.waiting(&counter("a")), Some(first));
        let drained = queue.drain();
        queue.drained().extend(drained);
        assert_eq!(queue.waiting(&counter("a")), Some(first));
        queue.enqueue(&counter("a"), at(8), at(9), &limits);
        assert_eq!(queue.waiting(&counter("a")), Some(PendingRoll { newest: at(9), ..first }));
        assert_eq!(queue.waiting(&counter("b")), None);
    }

    #[test]
    fn a_full_set_loses_the_signal_and_keeps_the_watermark_below_it() {
        let (queue, all, pending) = (RollupQueue::default(), SetBytes::default(), PendingRolls::default());
        let limits = CounterEnqueueLimits { capacity_bytes: cost_of(&counter("a")), all: &all, pending: &pending };
        assert_eq!(queue.enqueue(&counter("a"), at(5), at(5), &limits), CounterEnqueueOutcome::Accepted);
        assert_eq!(queue.enqueue(&counter("b"), at(3), at(3), &limits), CounterEnqueueOutcome::Full);
        assert_eq!(pending.rolled_up_to(counter("b").touch_shard(), at(20)), at(3).just_before());
    }

    #[test]
    fn a_closed_queue_sends_the_counter_on() {
        let (queue, all, pending) = (RollupQueue::default(), SetBytes::default(), PendingRolls::default());
        queue.close();
        let limits = CounterEnqueueLimits { capacity_bytes: 10_000, all: &all, pending: &pending };
        assert_eq!(queue.enqueue(&counter("a"), at(5), at(5), &limits), CounterEnqueueOutcome::Closed);
        assert!(pending.is_empty());
    }
}
