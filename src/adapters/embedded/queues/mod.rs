//! The data of queues: shards in memory, their rows on disk, and their recovery. Only the committer changes it.

pub mod catalog;
pub mod key;
pub mod keyspaces;
pub mod memory_bound;
pub mod outboxes;
pub mod process_memory;
pub mod recover;
pub mod shard_table;
pub mod staged_changes;
pub mod store_time;
pub mod stub_pages;
#[cfg(test)]
pub mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};

use super::Options;
use super::error::ReadError;
use catalog::QueueCatalogIndex;
use keyspaces::QueueKeyspaces;
use memory_bound::MemoryBound;
use recover::RecoveredQueues;
use tallystone_ports::QueueListener;

/// State of queues that the committer and the readers share.
pub struct QueueSharedState {
    /// Keyspaces; `None` until the first queue is created.
    pub spaces: RwLock<Option<QueueKeyspaces>>,
    /// Names, settings and history.
    pub catalog: QueueCatalogIndex,
    /// Listeners that the committer has not added yet.
    pub new_listeners: Mutex<Vec<Arc<dyn QueueListener>>>,
    /// Bytes of all outboxes.
    pub outbox_bytes: Arc<AtomicU64>,
    /// The memory that the shards take, and the most that they may take.
    pub memory: MemoryBound,
}

impl QueueSharedState {
    /// Builds the state from the queues recovered at startup.
    pub fn open(found: &RecoveredQueues, options: &Options) -> Result<Self, ReadError> {
        let catalog = found.spaces.as_ref().map(QueueCatalogIndex::open).transpose()?.unwrap_or_default();
        let outbox_bytes = found.table.outboxes.shared_bytes();
        let memory = MemoryBound::new(options.queue_memory_bytes, options.process_memory_bytes, found.table.memory());
        memory.publish(found.table.memory());
        let (spaces, new_listeners) = (RwLock::new(found.spaces.clone()), Mutex::default());
        Ok(Self { spaces, catalog, new_listeners, outbox_bytes, memory })
    }

    /// Drops all keyspace handles because the store closes.
    pub fn clear(&self) {
        *self.spaces.write() = None;
    }
}
