//! Takes out watches that are over, one after another, so that calls go on between them.

use std::sync::Arc;

use async_trait::async_trait;

use crate::engine::core::Core;
use crate::engine::loops::driver::{Activity, Next};

/// The loop.
pub struct WatchesLoop {
    core: Arc<Core>,
}

impl WatchesLoop {
    /// Makes the loop.
    pub fn new(core: Arc<Core>) -> Self {
        Self { core }
    }
}

#[async_trait]
impl Activity for WatchesLoop {
    fn name(&self) -> &'static str {
        "watches"
    }

    async fn woken(&self) {
        self.core.watchers.ended().await;
    }

    async fn activate(&mut self) -> Next {
        match self.core.watchers.take_out_one() {
            true => {
                tokio::task::yield_now().await;
                Next::Again
            }
            false => Next::Woken,
        }
    }
}
