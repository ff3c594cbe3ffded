//! Queue time against the wall clock: monitored, logged, and reset where it would refuse callers.
//!
//! Queue time advances with elapsed time, so it may differ from wall time long after a change of the clock. Leases
//! and delays stay correct. Only the age of enqueue tokens depends on both clocks. If the wall clock was once far
//! ahead, current tokens count as too old until wall time has caught up. A reset ends this state by giving up the
//! promise for earlier tokens.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::queues::error::QueueError;
use crate::queues::state::context::QueueContext;
use tallystone_domain::Timestamp;
use tallystone_domain::limits::TOKEN_AHEAD_MAX;
use tallystone_domain::queue::clock::StepTime;

/// The interval between two comparisons.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Queue time and wall time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueClock {
    /// Queue time and the clock for token ages.
    pub step: StepTime,
    /// Wall time.
    pub wall: Timestamp,
    /// Tokens from before this time are refused since the reset; none if there was nothing to reset.
    pub tokens_from: Option<Timestamp>,
}

impl QueueContext {
    /// Reads queue time.
    pub async fn clock(&self) -> Result<QueueClock, QueueError> {
        let step = self.stores.time.clock().await?;
        Ok(QueueClock { step, wall: self.now(), tokens_from: None })
    }

    /// Makes wall time the basis of token ages again, if the clock was once more than a minute ahead. This gives up
    /// deduplication for all tokens made until now, by refusing them.
    pub async fn reset_clock(&self) -> Result<QueueClock, QueueError> {
        let tokens_from = self.stores.time.reset_clock().await?;
        if let Some(from) = tokens_from {
            tracing::warn!(
                ?from,
                "token ages are measured by this machine's clock again; all existing tokens are refused"
            );
        }
        Ok(QueueClock { tokens_from, ..self.clock().await? })
    }
}

/// Compares the clocks, and logs when they diverge and when they agree again.
pub struct ClockWatch {
    context: Arc<QueueContext>,
    apart: bool,
}

impl ClockWatch {
    /// Creates the watch of the clock of these queues.
    pub fn new(shared: Arc<QueueContext>) -> Self {
        Self { context: shared, apart: false }
    }

    fn tell(&mut self, step: StepTime) {
        let wall = self.context.now();
        let beyond_wall = |time: Timestamp| time.micros().saturating_sub(wall.micros());
        let ahead = beyond_wall(step.now);
        self.context.stats().queue_clock_ahead.set(ahead);
        self.context.stats().queue_tokens_ahead.set(beyond_wall(step.token_age_clock).max(0));
        let apart = Duration::from_micros(ahead.unsigned_abs()) > TOKEN_AHEAD_MAX;
        if apart == self.apart {
            return;
        }
        self.apart = apart;
        let seconds = ahead / 1_000_000;
        if apart {
            tracing::warn!(
                seconds,
                "the time of queues is ahead of this machine's clock (behind it, if negative) and converges at 5 % of \
                 elapsed time; if messages get TOKEN_EXPIRED though the clock is right, see queue reset-clock"
            );
        } else {
            tracing::info!(seconds, "the time of queues and this machine's clock agree again");
        }
    }
}

#[async_trait]
impl BackgroundLoop for ClockWatch {
    fn name(&self) -> &'static str {
        "queue clock"
    }

    async fn activate(&mut self) -> NextActivation {
        // Other components report a store that does not answer.
        if let Ok(step) = self.context.stores.time.clock().await {
            self.tell(step);
        }
        NextActivation::After(LOOK_EVERY)
    }
}
