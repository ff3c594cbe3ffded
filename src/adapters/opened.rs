//! The one shape into which every storage adapter opens.

use std::sync::Arc;

use tallystone_ports::{Backups, CacheCluster, HistoryStore, QueueStores, StoreHandle, Stores};

/// An opened engine: what it offers by role, and how it is watched and closed. A role that the engine lacks is absent.
pub struct Opened {
    /// Counters and the catalog of namespaces.
    pub counters: Option<Stores>,
    /// Queues and their catalog.
    pub queues: Option<QueueStores>,
    /// The history of messages. It lives where the counters live.
    pub history: Option<Arc<dyn HistoryStore>>,
    /// A count cache and best-effort counters that several processes share.
    pub cache: Option<CacheCluster>,
    /// Online backups.
    pub backups: Option<Arc<dyn Backups>>,
    /// The opened engine.
    pub handle: Arc<dyn StoreHandle>,
}
