//! The rollup queues of the namespaces: counters that wait for a roll.

pub mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use dashmap::DashMap;

use crate::dataset::datasets::DatasetState;
use crate::rollup_queues::queue::{
    CounterEnqueueLimits, CounterEnqueueOutcome, PendingRoll, RollupQueue, SetBytes, cost_of,
};
use crate::stats::Stats;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, NamespaceId};
use tallystone_domain::namespace::Namespace;

/// The rollup queues of all namespaces.
pub struct RollupQueues {
    by_namespace: DashMap<NamespaceId, Arc<NamespaceRollupQueues>>,
    bytes: Arc<SetBytes>,
    stats: Arc<Stats>,
}

impl RollupQueues {
    /// No queue yet.
    pub fn new(stats: Arc<Stats>) -> Self {
        Self { by_namespace: DashMap::new(), bytes: Arc::default(), stats }
    }

    /// The queues of a namespace, made if necessary.
    pub fn of(&self, namespace: &Namespace, dataset: &Arc<DatasetState>) -> Arc<NamespaceRollupQueues> {
        let make = || {
            Arc::new(NamespaceRollupQueues {
                namespace: namespace.id,
                version: AtomicU64::new(0),
                dataset: Arc::clone(dataset),
                queues: ArcSwap::from_pointee(make_queues(namespace.spec.rollup.num_queues)),
                bytes: Arc::clone(&self.bytes),
                stats: Arc::clone(&self.stats),
            })
        };
        Arc::clone(&self.by_namespace.entry(namespace.id).or_insert_with(make))
    }

    /// Removes the queues of a deleted namespace. They were ended before.
    pub fn remove(&self, id: NamespaceId) {
        self.by_namespace.remove(&id);
    }

    pub fn all(&self) -> Vec<Arc<NamespaceRollupQueues>> {
        self.by_namespace.iter().map(|queues| Arc::clone(queues.value())).collect()
    }

    /// The number of counters in the Sets.
    pub fn counters(&self) -> usize {
        let in_sets = |queues: &NamespaceRollupQueues| queues.queues().iter().map(|queue| queue.len()).sum::<usize>();
        self.by_namespace.iter().map(|queues| in_sets(queues.value())).sum()
    }

    /// The bytes of all Sets.
    pub fn bytes(&self) -> usize {
        self.bytes.used()
    }
}

/// The rollup queues of a namespace; empty after its deletion.
pub struct NamespaceRollupQueues {
    namespace: NamespaceId,
    /// The version of the namespace settings that the loops were last notified of.
    version: AtomicU64,
    dataset: Arc<DatasetState>,
    queues: ArcSwap<Vec<Arc<RollupQueue>>>,
    /// The bytes of all Sets of this process.
    bytes: Arc<SetBytes>,
    stats: Arc<Stats>,
}

impl NamespaceRollupQueues {
    /// Notifies the loops if the settings have changed.
    pub fn set_version(&self, version: u64) {
        if self.version.swap(version, Ordering::AcqRel) != version {
            self.queues.load().iter().for_each(|queue| queue.notify_change());
        }
    }

    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// The current queues.
    pub fn queues(&self) -> Arc<Vec<Arc<RollupQueue>>> {
        self.queues.load_full()
    }

    /// Replaces the queues with `num_queues` new ones. The loops of the old queues move their waiting counters when
    /// they end.
    pub fn resize(&self, num_queues: u32) {
        let old = self.queues.swap(Arc::new(make_queues(num_queues)));
        old.iter().for_each(|queue| queue.close());
    }

    /// Closes the queues of a deleted namespace, drops its waiting counters, and ignores later signals.
    pub fn close_and_drop(&self) {
        for queue in self.queues.swap(Arc::default()).iter() {
            queue.close();
            for (counter, waiting) in queue.drain() {
                self.dataset.pending.end(counter.touch_shard(), waiting.oldest);
                self.release(queue, &counter);
            }
        }
    }

    /// Ends the accounting of a counter that no longer waits in a queue.
    pub fn release(&self, queue: &RollupQueue, counter: &Counter) {
        queue.release(cost_of(counter), &self.bytes);
    }

    /// The pending roll of a counter in this process; `None` if there is none.
    pub fn waiting(&self, counter: &Counter) -> Option<PendingRoll> {
        // A counter in a replaced queue is not found until that queue's loop has moved it to a new queue.
        let queues = self.queues.load();
        (!queues.is_empty()).then(|| queue_for(counter, &queues).waiting(counter)).flatten()
    }

    /// Adds a counter to its queue. If the queue is full, the signal is lost, and the counter is found again by a
    /// replay of the dirty-counter index.
    pub fn enqueue(&self, counter: &Counter, oldest: Timestamp, newest: Timestamp, capacity_bytes: usize) {
        let limits = CounterEnqueueLimits { capacity_bytes, all: &self.bytes, pending: &self.dataset.pending };
        loop {
            let queues = self.queues.load();
            if queues.is_empty() {
                return; // the namespace is deleted
            }
            match queue_for(counter, &queues).enqueue(counter, oldest, newest, &limits) {
                CounterEnqueueOutcome::Accepted => return,
                CounterEnqueueOutcome::Full => return self.stats.signals_lost.increment(),
                // The queue was closed concurrently. `self.queues` was updated first, so the next iteration sees that.
                CounterEnqueueOutcome::Closed => {}
            }
        }
    }
}

/// The queue of a counter, selected by the upper bits of its hash, because the lower bits select its dirty-counter
/// shard.
fn queue_for<'a>(counter: &Counter, queues: &'a [Arc<RollupQueue>]) -> &'a RollupQueue {
    &queues[(counter.hash() >> 32) as usize % queues.len()]
}

fn make_queues(num_queues: u32) -> Vec<Arc<RollupQueue>> {
    (0..num_queues.max(1)).map(|_| Arc::new(RollupQueue::default())).collect()
}
