//! The data of queues: shards in memory, their rows on disk, and their recovery. Only the committer changes it.

pub mod catalog;
pub mod key;
pub mod keyspaces;
pub mod outboxes;
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

use super::error::ReadError;
use catalog::QueueCatalogIndex;
use keyspaces::QueueKeyspaces;
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
}

impl QueueSharedState {
    /// Builds the state from the queues recovered at startup.
    pub fn open(found: &RecoveredQueues) -> Result<Self, ReadError> {
        let catalog = found.spaces.as_ref().map(QueueCatalogIndex::open).transpose()?.unwrap_or_default();
        let outbox_bytes = found.table.outboxes.shared_bytes();
        Ok(Self { spaces: RwLock::new(found.spaces.clone()), catalog, new_listeners: Mutex::default(), outbox_bytes })
    }

    /// Drops all keyspace handles because the store closes.
    pub fn clear(&self) {
        *self.spaces.write() = None;
    }
}
