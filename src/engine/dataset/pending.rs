//! The counters of a dataset that wait for a roll, counted by touch shard and second of their oldest event.
//!
//! A watermark follows the limit only up to the oldest waiting event. An event is counted here before its hold ends, so
//! a reader that reads the limit first and this second misses no event.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use tallystone_domain::Timestamp;
use tallystone_domain::limits::TOUCH_SHARDS;

const SECOND: Duration = Duration::from_secs(1);

/// Waiting counters by touch shard.
#[derive(Debug)]
pub struct PendingRolls {
    shards: Vec<Mutex<PendingShard>>,
}

#[derive(Debug, Default)]
struct PendingShard {
    waiting: BTreeMap<Timestamp, u32>,
    /// Steps from here on are in no Set and have to be read from the touch index.
    replay_from: Option<Timestamp>,
    /// Steps from here on are being read.
    replaying: Option<Timestamp>,
}

impl Default for PendingRolls {
    fn default() -> Self {
        Self { shards: (0..TOUCH_SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl PendingRolls {
    /// Notes that a counter waits for a roll of events from `oldest` on.
    pub fn begin(&self, shard: u32, oldest: Timestamp) {
        *self.shards[shard as usize].lock().waiting.entry(oldest.floor_to(SECOND)).or_insert(0) += 1;
    }

    /// Notes that a counter no longer waits.
    pub fn end(&self, shard: u32, oldest: Timestamp) {
        let mut shard = self.shards[shard as usize].lock();
        let second = oldest.floor_to(SECOND);
        match shard.waiting.get_mut(&second) {
            Some(1) => {
                shard.waiting.remove(&second);
            }
            Some(count) => *count -= 1,
            None => unreachable!("a counter stops waiting once, for the time it began with"),
        }
    }

    /// Notes a lost signal: the touch index must be read again from this time on.
    pub fn record_lost_signal(&self, shard: u32, oldest: Timestamp) {
        let mut shard = self.shards[shard as usize].lock();
        shard.replay_from = Some(shard.replay_from.map_or(oldest, |from| from.min(oldest)));
    }

    /// Begins a replay of the touch index if one is due, and returns its start. Signals lost from now on need another
    /// one.
    pub fn begin_replay(&self, shard: u32) -> Option<Timestamp> {
        let mut shard = self.shards[shard as usize].lock();
        // An unfinished earlier replay is due as well.
        let due = shard.replay_from.take().into_iter().chain(shard.replaying).min();
        shard.replaying = due;
        due
    }

    /// Notes the end of a replay.
    pub fn end_replay(&self, shard: u32) {
        self.shards[shard as usize].lock().replaying = None;
    }

    /// The highest possible watermark: all events up to it that were signalled before this call are rolled.
    pub fn rolled_up_to(&self, shard: u32, limit: Timestamp) -> Timestamp {
        let shard = self.shards[shard as usize].lock();
        let waiting = shard.waiting.first_key_value().map(|(second, _)| second.just_before());
        let replay = shard.replay_from.into_iter().chain(shard.replaying).min().map(Timestamp::just_before);
        limit.min(waiting.unwrap_or(Timestamp::MAX)).min(replay.unwrap_or(Timestamp::MAX))
    }

    /// The number of waiting counters.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().waiting.values().map(|count| *count as usize).sum::<usize>()).sum()
    }

    /// Whether no counter waits and no replay is due.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| {
            let shard = shard.lock();
            shard.waiting.is_empty() && shard.replay_from.is_none() && shard.replaying.is_none()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_watermark_stays_below_the_second_of_the_oldest_waiting_counter() {
        let pending = PendingRolls::default();
        assert_eq!(pending.rolled_up_to(3, at(9_500)), at(9_500));
        pending.begin(3, at(5_700));
        pending.begin(3, at(7_000));
        assert_eq!(pending.rolled_up_to(3, at(9_500)), at(5_000).just_before());
        assert_eq!(pending.rolled_up_to(4, at(9_500)), at(9_500));
        pending.end(3, at(5_700));
        assert_eq!(pending.rolled_up_to(3, at(9_500)), at(7_000).just_before());
    }

    #[test]
    fn a_replay_that_broke_off_is_due_again() {
        let pending = PendingRolls::default();
        pending.record_lost_signal(0, at(5_000));
        assert_eq!(pending.begin_replay(0), Some(at(5_000)));
        assert_eq!(pending.begin_replay(0), Some(at(5_000)));
        assert_eq!(pending.rolled_up_to(0, at(9_500)), at(5_000).just_before());
    }

    #[test]
    fn a_signal_lost_while_replaying_is_replayed_again() {
        let pending = PendingRolls::default();
        pending.record_lost_signal(0, at(5_000));
        assert_eq!(pending.begin_replay(0), Some(at(5_000)));
        pending.record_lost_signal(0, at(7_000));
        assert_eq!(pending.rolled_up_to(0, at(9_500)), at(5_000).just_before());
        pending.end_replay(0);
        assert_eq!(pending.rolled_up_to(0, at(9_500)), at(7_000).just_before());
        assert_eq!(pending.begin_replay(0), Some(at(7_000)));
        pending.end_replay(0);
        assert!(pending.is_empty());
    }
}
