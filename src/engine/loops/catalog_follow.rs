//! Follows the commits of other servers to a catalog.

use async_trait::async_trait;

use crate::catalog::{FollowedCatalog, Sharing};
use crate::driver::{BackgroundLoop, NextActivation};
use tallystone_domain::limits::CATALOG_FOLLOWED_EVERY;
use tallystone_ports::text_with_causes;

/// The loop that reads a catalog again when another server has changed it. It ends at once where no server can.
pub struct FollowLoop<C> {
    catalog: C,
}

impl<C: FollowedCatalog> FollowLoop<C> {
    /// Makes the loop; it runs at once.
    pub fn new(catalog: C) -> Self {
        Self { catalog }
    }
}

#[async_trait]
impl<C: FollowedCatalog> BackgroundLoop for FollowLoop<C> {
    fn name(&self) -> &'static str {
        "catalog"
    }

    async fn activate(&mut self) -> NextActivation {
        match self.catalog.follow().await {
            Ok(Sharing::Owned) => return NextActivation::Finished,
            Ok(Sharing::Shared) => {}
            Err(error) => {
                let error = text_with_causes(&error);
                tracing::warn!(%error, "cannot read the catalog changes of other servers");
            }
        }
        NextActivation::After(CATALOG_FOLLOWED_EVERY)
    }
}
