//! Lets rows of the history leave that are older than its retention, or beyond its size.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::Timestamp;
use crate::domain::time::micros_of;
use crate::engine::context::EngineContext;
use crate::engine::driver::{BackgroundLoop, NextActivation};
use crate::ports::HistoryStore;

/// The interval between two trims. Stores drop whole periods, which are much longer.
const TRIM_EVERY: Duration = Duration::from_secs(60);

/// The background loop of the retention of the history.
pub struct Trimmer {
    history: Arc<dyn HistoryStore>,
    engine: Arc<EngineContext>,
    retention: Duration,
    is_failing: bool,
}

impl Trimmer {
    pub fn new(history: Arc<dyn HistoryStore>, engine: Arc<EngineContext>, retention: Duration) -> Self {
        Self { history, engine, retention, is_failing: false }
    }
}

#[async_trait]
impl BackgroundLoop for Trimmer {
    fn name(&self) -> &'static str {
        "history retention"
    }

    async fn activate(&mut self) -> NextActivation {
        let now = self.engine.now().micros();
        let before = Timestamp::from_micros(now.saturating_sub(micros_of(self.retention)));
        let trimmed = self.history.trim(before).await;
        match &trimmed {
            Err(error) if !self.is_failing => {
                tracing::warn!(%error, "cannot remove old rows of the history yet; it is tried again every minute");
            }
            Ok(()) | Err(_) => {}
        }
        self.is_failing = trimmed.is_err();
        NextActivation::After(TRIM_EVERY)
    }
}
