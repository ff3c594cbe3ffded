//! The shards that changed since their last report.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::domain::queue::ShardId;
use crate::domain::time::Timestamp;
use crate::ports::{Clock, QueueListener, ShardStatus};

/// The shards that changed since they were last taken, each with the time of the first change. A store calls the listener
/// before it answers, so a shard that is not here has no answered change.
pub struct DirtyShards {
    clock: Arc<dyn Clock>,
    since: Mutex<HashMap<ShardId, Timestamp>>,
}

impl DirtyShards {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, since: Mutex::default() }
    }

    /// Takes all shards, the longest waiting first. O(n log n).
    pub fn take(&self) -> Vec<(ShardId, Timestamp)> {
        let mut taken: Vec<_> = self.since.lock().drain().collect();
        taken.sort_unstable_by_key(|(shard, since)| (*since, *shard));
        taken
    }

    /// Puts shards back whose report has to wait. The earlier time counts.
    pub fn put_back(&self, shards: impl IntoIterator<Item = (ShardId, Timestamp)>) {
        let mut waiting = self.since.lock();
        for (shard, since) in shards {
            waiting.entry(shard).and_modify(|known| *known = since.min(*known)).or_insert(since);
        }
    }

    /// The number of waiting shards. O(1).
    pub fn len(&self) -> usize {
        self.since.lock().len()
    }

    /// The time of the first change of the shard that waits longest. O(n).
    pub fn oldest(&self) -> Option<Timestamp> {
        self.since.lock().values().min().copied()
    }
}

impl QueueListener for DirtyShards {
    fn changed(&self, shard: ShardId, _view: ShardStatus) {
        let mut waiting = self.since.lock();
        if !waiting.contains_key(&shard) {
            waiting.insert(shard, self.clock.now());
        }
    }
}
