//! Gives watches their turns to begin and read, and takes out those that are over: a few at a time, so that calls go on
//! between them.

use std::sync::Arc;

use async_trait::async_trait;

use crate::domain::limits::WATCH_TURNS_AT_ONCE_MAX;
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
        self.core.watchers.wanted().await;
    }

    async fn activate(&mut self) -> Next {
        let watchers = &self.core.watchers;
        let given = watchers.give_turns(WATCH_TURNS_AT_ONCE_MAX);
        let mut taken_out = false;
        for _ in 0..WATCH_TURNS_AT_ONCE_MAX {
            if !watchers.take_out_one() {
                break;
            }
            taken_out = true;
        }
        if !given && !taken_out {
            return Next::Woken;
        }
        tokio::task::yield_now().await;
        Next::Again
    }
}
