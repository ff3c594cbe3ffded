//! The loop that looks at the mark beside the counters, and gives or takes the right to report by it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::bridge::pairing::{Pairing, StoreMark};
use crate::context::EngineContext;
use crate::driver::{BackgroundLoop, NextActivation};
use crate::report_right::{ReportRight, ReportStanding, WAITS_FOR};
use tallystone_domain::Timestamp;
use tallystone_domain::queue::transition::RowPosition;
use tallystone_ports::{StoreError, text_with_causes};

/// The pause between two looks. A failed look leaves time for others before the right ends.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause after a look that failed.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The pause between two notes of how far this server has reported.
const NOTE_EVERY: Duration = Duration::from_secs(60);

/// The loop of one server.
pub struct MarkWatch {
    context: Arc<EngineContext>,
    mark: StoreMark,
    right: Arc<ReportRight>,
    /// By which mark the counters were given to this store, and at what elapsed time this server knew it.
    given: Option<(RowPosition, Duration)>,
    /// The standing that the log was told of.
    told: Option<ReportStanding>,
    /// When this server last noted how far it has reported, by elapsed time, and how many reports there were then.
    noted: (Duration, u64),
}

impl MarkWatch {
    /// Makes the first look.
    pub async fn start(
        context: Arc<EngineContext>,
        mark: StoreMark,
        right: Arc<ReportRight>,
    ) -> Result<Self, StoreError> {
        let noted = (context.clock.elapsed(), context.stats.bridge.reports.get());
        let mut watch = Self { context, mark, right, given: None, told: None, noted };
        watch.look().await?;
        Ok(watch)
    }

    async fn look(&mut self) -> Result<(), StoreError> {
        let asked = self.context.clock.elapsed();
        let mut found = self.mark.look(self.draw()).await?;
        let known_at = self.context.clock.elapsed();
        if let Pairing::Given(place) = found {
            let since = self.given.filter(|(known, _)| *known == place).map_or(known_at, |(_, since)| since);
            self.given = Some((place, since));
            if known_at.saturating_sub(since) >= WAITS_FOR {
                found = self.mark.settle(place).await?;
            }
        } else {
            self.given = None;
        }
        match found {
            Pairing::Paired => self.right.hold(asked),
            Pairing::Given(_) => self.right.wait(),
            Pairing::Apart => self.right.lose(),
        }
        self.tell();
        self.note_reported().await
    }

    fn draw(&self) -> u64 {
        u64::from_be_bytes(self.context.random())
    }

    /// Says in the log what has changed.
    fn tell(&mut self) {
        let standing = self.right.standing();
        let before = self.told.replace(standing);
        match standing {
            _ if before == Some(standing) => {}
            ReportStanding::Apart => tracing::warn!(
                "the counters and the history belong to another queue store; the queues of this server run without both. If \
                 that store is lost, `tallystone bridge adopt` gives them to this one; else give each queue store its own \
                 keyspace or directory of counters: docs/runbook/bridge-off.md"
            ),
            ReportStanding::Waits => tracing::info!(
                seconds = WAITS_FOR.as_secs(),
                "the counters and the history were given to this queue store; reports begin when those of the one before must \
                 have ended"
            ),
            ReportStanding::Reports if before.is_some() => {
                tracing::info!("the counters and the history belong to this queue store; its reports begin");
            }
            // The next look says what has become of it.
            ReportStanding::Reports | ReportStanding::Unsure => {}
        }
    }

    /// Notes next to the mark how far this server has reported, if it did since the last note. An idle server writes
    /// nothing.
    async fn note_reported(&mut self) -> Result<(), StoreError> {
        let (now, reports) = (self.context.clock.elapsed(), self.context.stats.bridge.reports.get());
        let (noted_at, noted) = self.noted;
        if !self.right.holds() || reports == noted || now.saturating_sub(noted_at) < NOTE_EVERY {
            return Ok(());
        }
        let Some(reported_to) = self.context.queues_reported_to().filter(|time| *time > Timestamp::MIN) else {
            return Ok(());
        };
        self.mark.note_reported(reported_to).await?;
        self.noted = (now, reports);
        Ok(())
    }

    /// The pause until the next look.
    fn pause(&self) -> Duration {
        let waited = self.given.map(|(_, since)| self.context.clock.elapsed().saturating_sub(since));
        waited.map_or(LOOK_EVERY, |waited| WAITS_FOR.saturating_sub(waited).clamp(LOOK_AGAIN_AFTER, LOOK_EVERY))
    }
}

#[async_trait]
impl BackgroundLoop for MarkWatch {
    fn name(&self) -> &'static str {
        "mark of the queue store"
    }

    async fn woken(&self) {
        self.right.look_wanted().await;
    }

    async fn activate(&mut self) -> NextActivation {
        match self.look().await {
            Ok(()) => NextActivation::AfterOrWoken(self.pause()),
            Err(error) => {
                let error = text_with_causes(&error);
                tracing::debug!(%error, "cannot look at the mark of the queue store; trying again");
                NextActivation::After(LOOK_AGAIN_AFTER)
            }
        }
    }
}
