//! The alarms of shards: when each has to be swept.

use std::collections::BTreeSet;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use tallystone_domain::queue::ShardId;

/// The sweep times of shards, by elapsed time.
#[derive(Default)]
pub struct SweepAlarms {
    state: Mutex<AlarmIndex>,
    earlier_alarm: Notify,
}

#[derive(Default)]
struct AlarmIndex {
    order: BTreeSet<(Duration, ShardId)>,
    by_shard: HashMap<ShardId, Duration>,
}

impl SweepAlarms {
    /// Sets, moves or clears the alarm of a shard. O(log n).
    pub fn set(&self, shard: ShardId, due: Option<Duration>) {
        let mut set = self.state.lock();
        let first = set.order.first().map(|(due, _)| *due);
        if let Some(before) = set.by_shard.remove(&shard) {
            set.order.remove(&(before, shard));
        }
        let Some(due) = due else { return };
        set.by_shard.insert(shard, due);
        set.order.insert((due, shard));
        drop(set);
        if first.is_none_or(|first| due < first) {
            self.earlier_alarm.notify_one();
        }
    }

    /// Takes up to a number of shards whose alarm is due, with the time of the next alarm.
    pub fn take(&self, now: Duration, most: usize) -> (Vec<ShardId>, Option<Duration>) {
        let mut set = self.state.lock();
        let mut due = Vec::new();
        while due.len() < most
            && let Some(&(at, shard)) = set.order.first()
            && at <= now
        {
            set.order.pop_first();
            set.by_shard.remove(&shard);
            due.push(shard);
        }
        (due, set.order.first().map(|(at, _)| *at))
    }

    /// Waits until an alarm is set that is due before all others.
    pub async fn earlier_alarm(&self) {
        self.earlier_alarm.notified().await;
    }
}
