//! Follows the commits of other servers to the catalog.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::limits::CATALOG_FOLLOWED_EVERY;
use crate::engine::core::EngineCore;
use crate::engine::loops::driver::{BackgroundLoop, NextActivation};

/// The loop that reads the catalog again when another server has changed it.
pub struct FollowLoop {
    core: Arc<EngineCore>,
}

impl FollowLoop {
    /// Makes the loop; it runs at once.
    pub fn new(core: Arc<EngineCore>) -> Self {
        Self { core }
    }
}

#[async_trait]
impl BackgroundLoop for FollowLoop {
    fn name(&self) -> &'static str {
        "catalog"
    }

    async fn activate(&mut self) -> NextActivation {
        if let Err(error) = self.core.namespaces.follow().await {
            tracing::warn!(%error, "cannot read the catalog changes of other servers");
        }
        NextActivation::After(CATALOG_FOLLOWED_EVERY)
    }
}
