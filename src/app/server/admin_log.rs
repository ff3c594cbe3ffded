//! The record in which this server keeps the acts of operators.

use std::sync::Arc;

use crate::config::Config;
use tallystone_adapters::files::AdminLogFiles;
use tallystone_adapters::memory::AdminLogTable;
use tallystone_ports::AdminLog;

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
