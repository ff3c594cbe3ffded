//! The shards whose rows wait for the history, each with the time since when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::queues::Queues;
use tallystone_domain::queue::ShardId;
use tallystone_ports::{Clock, QueueListener, ShardStatus};

/// Filled by the store, emptied by the relay.
pub struct WaitingShards {
    queues: Queues,
    clock: Arc<dyn Clock>,
    shards: Mutex<WaitingSince>,
    wake: Notify,
    /// Whether the outboxes were listed since the start. Until then statuses are those of the start and say nothing.
    is_listed: AtomicBool,
}

/// How much later a server relays a shard for each other one that comes before it: its owner then has relayed the rows.
const RELAY_STEP_IN: Duration = Duration::from_secs(1);

/// A shard whose rows wait.
#[derive(Clone, Copy)]
struct WaitingRows {
    /// The elapsed time at which the oldest row began to wait.
    since: Duration,
    /// The elapsed time from which on this server relays them.
    due: Duration,
}

#[derive(Default)]
struct WaitingSince {
    waiting: HashMap<ShardId, WaitingRows>,
    /// The shards that the relay works on.
    relayed: HashMap<ShardId, Duration>,
}

impl WaitingShards {
    pub fn new(queues: Queues, clock: Arc<dyn Clock>) -> Self {
        let (shards, wake, is_listed) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        Self { queues, clock, shards, wake, is_listed }
    }

    /// Adds a shard, and wakes the relay if this server is its owner. O(1) if it waits already, else O(members).
    pub fn mark(&self, shard: ShardId) {
        let mut state = self.shards.lock();
        // Every change comes here, and most of them to a shard that waits already.
        if state.waiting.contains_key(&shard) {
            return;
        }
        let since = self.clock.elapsed();
        let due = since + RELAY_STEP_IN * self.queues.rank_for(shard);
        state.waiting.insert(shard, WaitingRows { since, due });
        drop(state);
        if due == since {
            self.wake.notify_one();
        }
    }

    /// Adds all shards of a list of the outboxes.
    pub fn mark_listed(&self, shards: Vec<ShardId>) {
        let now = self.clock.elapsed();
        let mut state = self.shards.lock();
        for shard in shards {
            state.waiting.entry(shard).or_insert(WaitingRows { since: now, due: now });
        }
        drop(state);
        self.is_listed.store(true, Ordering::Relaxed);
    }

    /// Takes the due shards that wait the longest, at most some. O(waiting).
    pub fn take(&self, most: usize) -> Vec<ShardId> {
        let now = self.clock.elapsed();
        let mut state = self.shards.lock();
        let due = state.waiting.iter().filter(|(_, rows)| rows.due <= now);
        let mut oldest: Vec<(Duration, ShardId)> = due.map(|(shard, rows)| (rows.since, *shard)).collect();
        if oldest.len() > most {
            oldest.select_nth_unstable(most);
            oldest.truncate(most);
        }
        for (since, shard) in &oldest {
            state.waiting.remove(shard);
            state.relayed.insert(*shard, *since);
        }
        oldest.into_iter().map(|(_, shard)| shard).collect()
    }

    /// Notes that the rows of a taken shard are in the history, up to a time.
    pub fn settle(&self, shard: ShardId) {
        self.shards.lock().relayed.remove(&shard);
    }

    /// Puts a taken shard back: its oldest row still waits.
    pub fn put_back(&self, shard: ShardId) {
        let mut state = self.shards.lock();
        if let Some(since) = state.relayed.remove(&shard) {
            state.waiting.insert(shard, WaitingRows { since, due: since });
        }
    }

    /// States the age of the oldest waiting row of a taken shard.
    pub fn set_age(&self, shard: ShardId, age: Duration) {
        let since = self.clock.elapsed().saturating_sub(age);
        if let Some(known) = self.shards.lock().relayed.get_mut(&shard) {
            *known = since;
        }
    }

    /// Forgets all shards, until the outboxes are listed again.
    pub fn forget(&self) {
        self.is_listed.store(false, Ordering::Relaxed);
        *self.shards.lock() = WaitingSince::default();
    }

    /// The age of the oldest row that is not in the history, as far as it is known; 0 without one. O(waiting).
    pub fn lag(&self) -> Duration {
        let state = self.shards.lock();
        let waiting = state.waiting.values().map(|rows| rows.since);
        let oldest = waiting.chain(state.relayed.values().copied()).min();
        drop(state);
        oldest.map_or(Duration::ZERO, |oldest| self.clock.elapsed().saturating_sub(oldest))
    }

    /// The number of shards that wait.
    pub fn len(&self) -> usize {
        self.shards.lock().waiting.len()
    }

    /// Waits until a shard is added.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl QueueListener for WaitingShards {
    fn changed(&self, shard: ShardId, _view: ShardStatus) {
        if self.is_listed.load(Ordering::Relaxed) && self.queues.catalog.keeps_history(shard.queue) {
            self.mark(shard);
        }
    }
}
