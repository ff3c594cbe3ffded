//! Publishes the limit of a dataset on demand, at most once a second, and not while idle.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::dataset::datasets::DatasetState;
use crate::driver::{BackgroundLoop, DrainStage, NextActivation};
use crate::scopes::NamespaceScopes;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::LIMIT_PUBLISH_INTERVAL;
use tallystone_ports::StoreError;

/// The publishing loop of one dataset.
pub struct LimitLoop {
    scopes: Arc<NamespaceScopes>,
    dataset: Arc<DatasetState>,
    published: Option<Duration>,
}

impl LimitLoop {
    /// Makes the loop of a dataset.
    pub fn new(scopes: Arc<NamespaceScopes>, dataset: Arc<DatasetState>) -> Self {
        Self { scopes, dataset, published: None }
    }

    async fn publish(&self) -> Result<Timestamp, StoreError> {
        let NamespaceScopes { context, stores, fleet, .. } = &*self.scopes;
        self.dataset.publish_limit(context.clock.as_ref(), stores, fleet.as_deref()).await
    }
}

#[async_trait]
impl BackgroundLoop for LimitLoop {
    fn name(&self) -> &'static str {
        "limit"
    }

    async fn woken(&self) {
        self.dataset.limit_requested().await;
    }

    async fn activate(&mut self) -> NextActivation {
        self.dataset.end_idle(self.scopes.context.now());
        let elapsed = self.scopes.context.clock.elapsed();
        if let Some(published) = self.published {
            let due = published + LIMIT_PUBLISH_INTERVAL;
            if elapsed < due {
                return NextActivation::After(due - elapsed);
            }
        }
        self.published = Some(elapsed);
        match self.publish().await {
            Ok(_) => {
                self.scopes.context.stats.limits_published.increment();
                // Other members of a fleet may want what this one publishes.
                let idle = self.scopes.fleet.is_none() && self.dataset.pending.is_empty();
                if idle {
                    self.dataset.begin_idle();
                    NextActivation::Woken
                } else {
                    NextActivation::AfterOrWoken(LIMIT_PUBLISH_INTERVAL)
                }
            }
            Err(error) => {
                tracing::warn!(error = %error, dataset = %self.dataset.dataset.name, "cannot publish the limit");
                NextActivation::After(LIMIT_PUBLISH_INTERVAL)
            }
        }
    }

    fn stage(&self) -> DrainStage {
        DrainStage::Limits
    }
}
