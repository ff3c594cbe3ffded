//! Removes rows of the history that are too old, and the oldest rows of a history that is too large.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::context::EngineContext;
use crate::driver::{BackgroundLoop, NextActivation};
use crate::report_right::ReportRight;
use tallystone_ports::HistoryStore;

/// The pause between two looks. Rows leave in whole storage periods, which are longer.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The loop that trims the history.
pub struct HistoryRetention {
    context: Arc<EngineContext>,
    history: Arc<dyn HistoryStore>,
    retention: Duration,
    /// Whether the history is that of the queues of this server.
    right: Arc<ReportRight>,
}

impl HistoryRetention {
    /// Keeps rows for `retention`.
    pub fn new(
        context: Arc<EngineContext>,
        history: Arc<dyn HistoryStore>,
        retention: Duration,
        right: Arc<ReportRight>,
    ) -> Self {
        Self { context, history, retention, right }
    }
}

#[async_trait]
impl BackgroundLoop for HistoryRetention {
    fn name(&self) -> &'static str {
        "history retention"
    }

    async fn woken(&self) {
        match self.right.is_elsewhere() {
            true => std::future::pending().await,
            false => self.right.sure().await,
        }
    }

    async fn activate(&mut self) -> NextActivation {
        if !self.right.holds() {
            return NextActivation::AfterOrWoken(LOOK_EVERY);
        }
        if let Err(error) = self.history.trim(self.context.now() - self.retention).await {
            tracing::warn!(%error, "cannot remove old rows of the history; trying again in a minute");
        }
        NextActivation::After(LOOK_EVERY)
    }
}
