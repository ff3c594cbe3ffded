//! Ends the calls of expired API keys, and follows the changes that other servers make to keys.

use async_trait::async_trait;

use crate::access::AccessKeys;
use crate::catalog::FollowedCatalog;
use crate::driver::{BackgroundLoop, NextActivation};
use tallystone_domain::limits::KEYS_CHECKED_EVERY;

/// The loop that looks at the keys.
pub struct AccessKeysLoop {
    keys: AccessKeys,
}

impl AccessKeysLoop {
    /// Makes the loop; it runs at once.
    pub fn new(keys: AccessKeys) -> Self {
        Self { keys }
    }
}

#[async_trait]
impl BackgroundLoop for AccessKeysLoop {
    fn name(&self) -> &'static str {
        "access keys"
    }

    async fn activate(&mut self) -> NextActivation {
        if let Err(error) = self.keys.follow().await {
            tracing::warn!(%error, "cannot read the changes of keys by other servers; the known keys stay valid");
        }
        self.keys.end_expired();
        NextActivation::After(KEYS_CHECKED_EVERY)
    }
}
