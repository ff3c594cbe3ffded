//! Gives watches their turns to start and read, and removes ended ones: a few at a time, so that calls run in
//! between.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::limits::WATCH_TURNS_AT_ONCE_MAX;
use crate::engine::core::EngineCore;
use crate::engine::loops::driver::{BackgroundLoop, NextActivation};

/// The loop that gives watches their turns.
pub struct WatchesLoop {
    core: Arc<EngineCore>,
}

impl WatchesLoop {
    /// Makes the loop.
    pub fn new(core: Arc<EngineCore>) -> Self {
        Self { core }
    }
}

#[async_trait]
impl BackgroundLoop for WatchesLoop {
    fn name(&self) -> &'static str {
        "watches"
    }

    async fn woken(&self) {
        self.core.watchers.wait_for_work().await;
    }

    async fn activate(&mut self) -> NextActivation {
        let watchers = &self.core.watchers;
        let given = watchers.give_turns(WATCH_TURNS_AT_ONCE_MAX);
        let mut taken_out = false;
        for _ in 0..WATCH_TURNS_AT_ONCE_MAX {
            if !watchers.remove_ended() {
                break;
            }
            taken_out = true;
        }
        if !given && !taken_out {
            return NextActivation::Woken;
        }
        tokio::task::yield_now().await;
        NextActivation::Again
    }
}
