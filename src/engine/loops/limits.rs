//! Publishes the limit of a dataset on demand, at most once a second, and not while idle.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::limits::LIMIT_PUBLISH_INTERVAL;
use crate::engine::core::EngineCore;
use crate::engine::dataset::datasets::DatasetState;
use crate::engine::loops::driver::{BackgroundLoop, DrainStage, NextActivation};

/// The publishing loop of one dataset.
pub struct LimitLoop {
    core: Arc<EngineCore>,
    dataset: Arc<DatasetState>,
    published: Option<Duration>,
}

impl LimitLoop {
    /// Makes the loop of a dataset.
    pub fn new(core: Arc<EngineCore>, dataset: Arc<DatasetState>) -> Self {
        Self { core, dataset, published: None }
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
        self.dataset.end_idle(self.core.now());
        let elapsed = self.core.clock.elapsed();
        if let Some(published) = self.published {
            let due = published + LIMIT_PUBLISH_INTERVAL;
            if elapsed < due {
                return NextActivation::After(due - elapsed);
            }
        }
        self.published = Some(elapsed);
        match self.dataset.publish_limit(&self.core).await {
            Ok(_) => {
                self.core.stats.limits_published.increment();
                // Other members of a fleet may want what this one publishes.
                let idle = self.core.fleet.is_none() && self.dataset.pending.is_empty();
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
