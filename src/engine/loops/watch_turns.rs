//! Gives watches their turns to start and read, and removes ended ones: a few at a time, so that calls run in
//! between.

use std::sync::Arc;

use async_trait::async_trait;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::served_counts::ServedCounts;
use tallystone_domain::limits::WATCH_TURNS_AT_ONCE_MAX;

/// The loop that gives watches their turns.
pub struct WatchesLoop {
    served: Arc<ServedCounts>,
}

impl WatchesLoop {
    pub fn new(served: Arc<ServedCounts>) -> Self {
        Self { served }
    }
}

#[async_trait]
impl BackgroundLoop for WatchesLoop {
    fn name(&self) -> &'static str {
        "watches"
    }

    async fn woken(&self) {
        self.served.watchers.wait_for_work().await;
    }

    async fn activate(&mut self) -> NextActivation {
        let watchers = &self.served.watchers;
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
