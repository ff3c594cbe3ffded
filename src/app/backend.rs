//! Opens the stores that the settings name.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use crate::adapters::memory::{self, FastTable};
use crate::app::config::{Config, StorageKind};
use crate::ports::{Clock, ExportSink, Stores};

/// The opened stores, and what has to be asked and closed beside them.
pub struct Backend {
    /// The stores.
    pub stores: Stores,
    /// Where slices are exported to, if anywhere.
    pub export: Option<Arc<dyn ExportSink>>,
}

impl Backend {
    /// Opens the stores; on `embedded` this recovers whatever a kill left behind.
    pub fn open(config: &Config, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let fast_bytes = usize::try_from(config.best_effort.capacity_bytes).unwrap_or(usize::MAX);
        let fast = Arc::new(FastTable::new(Arc::clone(&clock), fast_bytes));
        match config.storage.kind {
            StorageKind::Memory => {
                let mut stores = memory::stores_on(clock);
                stores.fast = fast;
                Ok(Self { stores, export: None })
            }
            StorageKind::Embedded => anyhow::bail!("the embedded store is not part of this build yet"),
        }
    }

    /// Whether the store answers; if not, why.
    pub fn fault(&self) -> Option<String> {
        None
    }

    /// Waits until the store has failed for good; the process then ends, because a restart repairs what it can.
    pub async fn failed(&self) -> String {
        std::future::pending().await
    }

    /// Closes the stores, after the last call.
    pub fn close(self) {}
}

/// Makes a directory and those above it.
pub fn make_directory(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the directory {}", path.display()))
}
