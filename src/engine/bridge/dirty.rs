//! The shards that changed since their last report.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use tallystone_domain::queue::ShardId;
use tallystone_ports::{Clock, QueueListener, ShardStatus};

/// A shard that waits for its report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitingShard {
    pub shard: ShardId,
    /// The time of its first change that is not reported, by elapsed time.
    pub since: Duration,
    /// Whether it changed while this server ran. Otherwise it waits for its first comparison with its counters.
    pub is_changed: bool,
}

/// The shards that changed since they were last taken. A store calls the listener before it answers, so a shard that is
/// not here has no answered change.
pub struct DirtyShards {
    clock: Arc<dyn Clock>,
    table: Mutex<WaitingTable>,
}

#[derive(Default)]
struct WaitingTable {
    waiting: HashMap<ShardId, WaitingShard>,
    /// The shards that sent a status, until all have. A store first sends the status of every shard to a new listener,
    /// so the second one of a shard is a change. Empty from then on.
    greeted: HashSet<ShardId>,
    /// Whether every status is a change.
    has_begun: bool,
    /// Whether one of the waiting shards changed.
    has_changed: bool,
}

impl DirtyShards {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, table: Mutex::default() }
    }

    /// From now on each status is a change. O(1), but for the first call.
    pub fn begin(&self) {
        let mut table = self.table.lock();
        table.has_begun = true;
        table.greeted = HashSet::new();
    }

    /// Takes all shards: those that changed come first, and of these the longest waiting. O(n log n).
    pub fn take(&self) -> Vec<WaitingShard> {
        let mut table = self.table.lock();
        table.has_changed = false;
        let mut taken: Vec<WaitingShard> = table.waiting.drain().map(|(_, waiting)| waiting).collect();
        drop(table);
        taken.sort_unstable_by_key(|waiting| (!waiting.is_changed, waiting.since, waiting.shard));
        taken
    }

    /// Puts shards back whose report has to wait. The earlier time counts.
    pub fn put_back(&self, shards: impl IntoIterator<Item = WaitingShard>) {
        let mut table = self.table.lock();
        for one in shards {
            table.has_changed |= one.is_changed;
            let known = table.waiting.entry(one.shard).or_insert(one);
            known.since = known.since.min(one.since);
            known.is_changed |= one.is_changed;
        }
    }

    /// Whether a shard that changed waits. O(1): commits wait for the same lock.
    pub fn has_changed(&self) -> bool {
        self.table.lock().has_changed
    }

    /// The number of waiting shards. O(1).
    pub fn len(&self) -> usize {
        self.table.lock().waiting.len()
    }

    /// The time of the first change of the shard that waits longest, by elapsed time. O(n).
    pub fn oldest(&self) -> Option<Duration> {
        self.table.lock().waiting.values().map(|waiting| waiting.since).min()
    }
}

impl QueueListener for DirtyShards {
    fn changed(&self, shard: ShardId, _view: ShardStatus) {
        let mut table = self.table.lock();
        let is_changed = table.has_begun || !table.greeted.insert(shard);
        table.has_changed |= is_changed;
        if let Some(known) = table.waiting.get_mut(&shard) {
            known.is_changed |= is_changed;
            return;
        }
        let since = self.clock.elapsed();
        table.waiting.insert(shard, WaitingShard { shard, since, is_changed });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::QueueId;
    use tallystone_domain::time::Timestamp;

    struct FixedClock;

    #[async_trait::async_trait]
    impl Clock for FixedClock {
        fn now(&self) -> Timestamp {
            Timestamp::MIN
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(9)
        }

        fn boot(&self) -> tallystone_ports::BootId {
            tallystone_ports::BootId(1)
        }

        async fn sleep(&self, _duration: Duration) {}
    }

    fn shard(number: u32) -> ShardId {
        ShardId { queue: QueueId(1), number }
    }

    fn taken(dirty: &DirtyShards) -> Vec<(u32, bool)> {
        dirty.take().into_iter().map(|waiting| (waiting.shard.number, waiting.is_changed)).collect()
    }

    #[test]
    fn shards_that_change_come_before_those_that_wait_for_their_first_comparison() {
        let dirty = DirtyShards::new(Arc::new(FixedClock));
        (0..4).for_each(|number| dirty.changed(shard(number), ShardStatus::default()));
        dirty.begin();
        assert!(!dirty.has_changed(), "a store first sends the status of every shard");
        dirty.changed(shard(2), ShardStatus::default());
        dirty.changed(shard(7), ShardStatus::default());
        dirty.begin();
        assert!(dirty.has_changed());
        assert_eq!(taken(&dirty), [(2, true), (7, true), (0, false), (1, false), (3, false)]);
        assert_eq!(dirty.len(), 0);
    }

    #[test]
    fn the_second_status_of_a_shard_is_a_change_also_before_all_have_sent_their_first() {
        let dirty = DirtyShards::new(Arc::new(FixedClock));
        for number in [0, 1, 1] {
            dirty.changed(shard(number), ShardStatus::default());
        }
        assert_eq!(taken(&dirty), [(1, true), (0, false)]);
    }

    #[test]
    fn a_shard_that_is_put_back_keeps_its_earlier_time_and_its_change() {
        let dirty = DirtyShards::new(Arc::new(FixedClock));
        dirty.begin();
        let at =
            |seconds, is_changed| WaitingShard { shard: shard(1), since: Duration::from_secs(seconds), is_changed };
        dirty.put_back([at(5, false)]);
        dirty.changed(shard(1), ShardStatus::default());
        assert_eq!(dirty.oldest(), Some(Duration::from_secs(5)));
        dirty.put_back([at(7, false)]);
        assert_eq!(dirty.take(), [at(5, true)]);
    }
}
