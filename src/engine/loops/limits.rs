//! Publishes the limit of a dataset while somebody wants it, at most once a second, and nothing while idle.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::limits::LIMIT_PUBLISH_INTERVAL;
use crate::engine::core::Core;
use crate::engine::datasets::DatasetState;
use crate::engine::loops::driver::{Activity, Next, Stage};

/// The publishing loop of one dataset.
pub struct LimitLoop {
    core: Arc<Core>,
    dataset: Arc<DatasetState>,
    published: Option<Duration>,
}

impl LimitLoop {
    /// Makes the loop of a dataset.
    pub fn new(core: Arc<Core>, dataset: Arc<DatasetState>) -> Self {
        Self { core, dataset, published: None }
    }
}

#[async_trait]
impl Activity for LimitLoop {
    fn name(&self) -> &'static str {
        "limit"
    }

    async fn woken(&self) {
        self.dataset.limit_wanted().await;
    }

    async fn activate(&mut self) -> Next {
        self.dataset.end_rest(self.core.now());
        let elapsed = self.core.clock.elapsed();
        if let Some(published) = self.published {
            let due = published + LIMIT_PUBLISH_INTERVAL;
            if elapsed < due {
                return Next::After(due - elapsed);
            }
        }
        self.published = Some(elapsed);
        match self.dataset.publish_limit(&self.core).await {
            Ok(_) => {
                self.core.stats.limits_published.one();
                // Other members of a fleet may want what this one publishes.
                let idle = self.core.fleet.is_none() && self.dataset.pending.is_empty();
                if idle {
                    self.dataset.begin_rest();
                    Next::Woken
                } else {
                    Next::AfterOrWoken(LIMIT_PUBLISH_INTERVAL)
                }
            }
            Err(error) => {
                tracing::warn!(error = %error, dataset = %self.dataset.dataset.name, "the limit cannot be published");
                Next::After(LIMIT_PUBLISH_INTERVAL)
            }
        }
    }

    fn stage(&self) -> Stage {
        Stage::Limits
    }
}
