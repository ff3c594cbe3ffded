//! The ports of an open store. Writes are commands to the committer. Reads go to memory, and to disk for the rest.

mod entries;
mod event_log;
pub(super) mod history;
mod outboxes;
pub(super) mod queues;
mod rollups;
mod rules;
mod structure;

use std::sync::Arc;

use super::store_core::StoreCore;

/// One open store; implements every counter port.
pub struct EmbeddedStore {
    pub core: Arc<StoreCore>,
}
