//! Long reads run on the runtime's pool for blocking work, not on its async threads; their caller awaits them.

use std::sync::Arc;

use crate::adapters::embedded::store_core::StoreCore;
use crate::ports::{StoreError, StoreErrorKind};

/// Runs a read that may take long, and awaits it.
pub async fn read<T: Send + 'static>(
    core: &Arc<StoreCore>,
    op: &'static str,
    read: impl FnOnce(&StoreCore) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let core = Arc::clone(core);
    match tokio::task::spawn_blocking(move || read(&core)).await {
        Ok(answer) => answer,
        Err(error) => Err(StoreError::not_applied(StoreErrorKind::Unavailable, op).with_source(error)),
    }
}
