//! Where this server records the acts of operators.

use std::sync::Arc;

use crate::adapters::files::AdminLogFiles;
use crate::adapters::memory::AdminLogTable;
use crate::app::config::Config;
use crate::ports::AdminLog;

/// The folder of the record, in the data directory.
const FOLDER: &str = "audit";

/// The record: files in the data directory, or memory for a server without one.
pub fn open(config: &Config) -> Arc<dyn AdminLog> {
    if config.uses_directory() {
        Arc::new(AdminLogFiles::new(config.storage.data_dir.join(FOLDER)))
    } else {
        Arc::new(AdminLogTable::default())
    }
}
