//! The known losses: data that the store had and has no more, after FLUSHALL, or where a replica without the data
//! became a primary. `loss_check` looks for them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::limits::REDIS_LOST_SHARDS_MAX;
use tallystone_domain::queue::name::{QueueId, ShardId};
use tallystone_ports::{StoreError, StoreErrorKind};

/// The known losses.
#[derive(Default)]
pub(super) struct Losses {
    /// Whether this process has seen a catalog with something in it.
    had_catalog: AtomicBool,
    /// Whether the last look at the catalog found it gone.
    misses_catalog: AtomicBool,
    /// Shards that were there and are not, with the names of their queues once they were read. At most
    /// `REDIS_LOST_SHARDS_MAX`: the others are met by their calls.
    pub(super) shards: Mutex<BTreeMap<ShardId, Option<String>>>,
}

impl Losses {
    /// Takes in that the catalog has something in it.
    pub(super) fn note_catalog(&self) {
        self.had_catalog.store(true, Ordering::Relaxed);
    }

    /// Whether this process has seen a catalog with something in it.
    pub(super) fn had_catalog(&self) -> bool {
        self.had_catalog.load(Ordering::Relaxed)
    }

    /// Takes in whether a look at the catalog found it gone.
    pub(super) fn note_look(&self, is_gone: bool) {
        self.misses_catalog.store(is_gone, Ordering::Relaxed);
    }

    /// Whether the last look at the catalog found it gone. Health looks every second.
    pub(super) fn misses_catalog(&self) -> bool {
        self.misses_catalog.load(Ordering::Relaxed)
    }

    /// Forgets a queue that was dropped.
    pub(super) fn forget_queue(&self, queue: QueueId) {
        self.shards.lock().retain(|shard, _| shard.queue != queue);
    }

    /// Takes in that a shard is lost.
    pub(super) fn note(&self, shard: ShardId) {
        let mut shards = self.shards.lock();
        if shards.len() < REDIS_LOST_SHARDS_MAX {
            shards.entry(shard).or_default();
        }
    }
}

/// A refusal for a shard that the store had, and has no more.
pub(super) fn lost(op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Lost, op).with_source(
        "STORE_LOST: the store has lost this queue; stop it and restore a backup, or delete the queue and create it again",
    )
}
