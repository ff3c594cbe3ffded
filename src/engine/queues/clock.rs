//! The time of queues beside the clock of the machine: watched, told, and reset where it keeps callers out.
//!
//! The time of queues goes on with the time that passes, so it may lie beside wall time for long after somebody has set the
//! clock. Leases and delays are right all the same. Only tokens of enqueues meet both: if the clock was far ahead once,
//! those of now count as too old, until it is as late again or somebody gives the promise of before up.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::domain::Timestamp;
use crate::domain::limits::TOKEN_AHEAD_MAX;
use crate::domain::queue::clock::StepTime;
use crate::engine::loops::driver::{BackgroundLoop, NextActivation};
use crate::engine::queues::Queues;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::registry::QueueContext;

/// How often the two are compared.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The time of queues beside wall time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueClock {
    /// The times of queues.
    pub step: StepTime,
    /// Wall time.
    pub wall: Timestamp,
    /// Tokens of before this are refused since the reset; none if nothing was to reset.
    pub tokens_from: Option<Timestamp>,
}

impl Queues {
    /// Reads the time of queues.
    pub async fn clock(&self) -> Result<QueueClock, QueueError> {
        let step = self.context.stores.shards.clock().await?;
        Ok(QueueClock { step, wall: self.context.now(), tokens_from: None })
    }

    /// Judges the age of tokens by wall time again, where the clock was more than a minute ahead once. What was promised of
    /// tokens until now is given up by refusing all of them.
    pub async fn reset_clock(&self) -> Result<QueueClock, QueueError> {
        let tokens_from = self.context.stores.shards.reset_clock().await?;
        if let Some(from) = tokens_from {
            tracing::warn!(
                ?from,
                "the age of tokens is judged by this machine's clock again; those of before are refused"
            );
        }
        Ok(QueueClock { tokens_from, ..self.clock().await? })
    }
}

/// Compares the clocks and tells when they part and meet.
pub struct ClockWatch {
    context: Arc<QueueContext>,
    apart: bool,
}

impl ClockWatch {
    /// Watches the time of these queues.
    pub fn new(shared: Arc<QueueContext>) -> Self {
        Self { context: shared, apart: false }
    }

    fn tell(&mut self, step: StepTime) {
        let wall = self.context.now();
        let beyond_wall = |time: Timestamp| time.micros().saturating_sub(wall.micros());
        let ahead = beyond_wall(step.now);
        self.context.stats.queue_clock_ahead.set(ahead);
        self.context.stats.queue_tokens_ahead.set(beyond_wall(step.token_age_clock).max(0));
        let apart = Duration::from_micros(ahead.unsigned_abs()) > TOKEN_AHEAD_MAX;
        if apart == self.apart {
            return;
        }
        self.apart = apart;
        let seconds = ahead / 1_000_000;
        if apart {
            tracing::warn!(
                seconds,
                "the time of queues is ahead of this machine's clock (behind it, if negative) and follows it by a twentieth \
                 of what passes; if messages are refused as TOKEN_EXPIRED though the clock is right, see queue reset-clock"
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
        // A store that does not answer says so elsewhere.
        if let Ok(step) = self.context.stores.shards.clock().await {
            self.tell(step);
        }
        NextActivation::After(LOOK_EVERY)
    }
}
