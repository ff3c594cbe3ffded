//! Epochs: the number of the lives of a store, in the keys of messages and in fences.
//!
//! A function knows the life of its process, and a shard the life that served it last. If they differ, the function
//! refuses the call as RESTARTED, unless the caller has raised its epoch for this life: to the minutes since a fixed
//! date, but at least one above every epoch that it knows. So no key and no fence is given twice, even if the store
//! lost what it gave.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use super::limits::REDIS_LIVES_KEPT;
use tallystone_domain::queue::name::ShardId;
use tallystone_domain::time::Timestamp;

/// The minutes of epochs count from here: 2026-01-01. Until 2057 they fit the 24 bits that a fence has for them.
const FIRST_MINUTE: Timestamp = Timestamp::from_secs(1_767_225_600);
const MINUTE_MICROS: i64 = 60_000_000;

/// The beginning of a run id, which names the life of a process.
pub(super) type ServerLife = [u8; 16];

/// A shard that came back with another life of the store.
#[derive(Clone, Copy, Default)]
pub(super) struct ReturnedShard {
    pub(super) life: ServerLife,
    /// The step up to which lost work of the shard is already reported.
    pub(super) judged_to: u64,
}

/// The highest epoch that this process knows, and for whom it was raised.
pub(super) struct KnownEpoch(Mutex<RaisedEpoch>);

struct RaisedEpoch {
    epoch: u32,
    raised_for: HashSet<ServerLife>,
    of_shards: HashMap<ShardId, ServerLife>,
}

impl KnownEpoch {
    pub(super) fn new(epoch: u32) -> Self {
        Self(Mutex::new(RaisedEpoch { epoch, raised_for: HashSet::new(), of_shards: HashMap::new() }))
    }

    pub(super) fn get(&self) -> u32 {
        self.0.lock().epoch
    }

    /// The life of the server that a shard told last; zeros before.
    pub(super) fn life_of(&self, shard: ShardId) -> ServerLife {
        self.0.lock().of_shards.get(&shard).copied().unwrap_or_default()
    }

    /// Takes over an epoch that others know.
    pub(super) fn learn(&self, epoch: u32) {
        let mut known = self.0.lock();
        known.epoch = known.epoch.max(epoch);
    }

    /// Takes in that a new life of the server serves a shard, which knew this epoch. Answers the raised epoch, unless
    /// it was raised for that life and above that epoch before.
    pub(super) fn raise(&self, shard: ShardId, used: u32, life: ServerLife, now: Timestamp) -> Option<u32> {
        let mut known = self.0.lock();
        known.of_shards.insert(shard, life);
        if known.raised_for.len() >= REDIS_LIVES_KEPT {
            known.raised_for.clear(); // one raise too many does no harm
        }
        if known.raised_for.insert(life) || known.epoch <= used {
            known.epoch = next_epoch(known.epoch.max(used), now);
            return Some(known.epoch);
        }
        None
    }
}

/// The epoch after one.
fn next_epoch(last: u32, now: Timestamp) -> u32 {
    let minutes = now.micros().saturating_sub(FIRST_MINUTE.micros()) / MINUTE_MICROS;
    u32::try_from(minutes).unwrap_or(0).max(last.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_the_minutes_since_the_first_but_above_the_last() {
        let after = |minutes: i64| Timestamp::from_secs(FIRST_MINUTE.micros() / 1_000_000 + 60 * minutes);
        assert_eq!(next_epoch(7, after(100)), 100);
        assert_eq!((next_epoch(100, after(100)), next_epoch(500, after(100))), (101, 501));
        assert_eq!(next_epoch(3, Timestamp::from_secs(0)), 4, "before the first minute");
    }

    #[test]
    fn it_is_raised_once_for_each_life_and_above_what_shards_knew() {
        let (known, now) = (KnownEpoch::new(3), Timestamp::from_secs(0));
        let shard = |number| ShardId { queue: tallystone_domain::queue::QueueId(7), number };
        assert_eq!(known.life_of(shard(0)), [0; 16]);
        let raised = |number, used, life| known.raise(shard(number), used, [life; 16], now);
        assert_eq!((raised(0, 3, 1), raised(1, 3, 1), known.get()), (Some(4), None, 4));
        assert_eq!(known.life_of(shard(1)), [1; 16]);
        assert_eq!(raised(0, 1, 2), Some(5), "the shard forgot an epoch that is used up");
        assert_eq!((raised(2, 9, 2), known.get()), (Some(10), 10), "a shard knew a higher one");
        known.learn(8);
        assert_eq!(known.get(), 10);
    }
}
