//! Two-phase shutdown of a worker: first it stops leasing and finishes its jobs, then it releases the remaining
//! leases.

use std::sync::Arc;

use tokio::sync::watch;

/// The phase of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// No shutdown was requested.
    Running,
    /// No more messages are leased; running jobs continue.
    Finishing,
    /// Running jobs end and their leases are released.
    Ending,
}

/// Tells workers to stop. Clones share the state.
#[derive(Clone, Debug)]
pub struct Shutdown {
    phase: Arc<watch::Sender<Phase>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Running)) }
    }
}

impl Shutdown {
    /// Stops leasing and lets running jobs continue.
    pub fn stop_leasing(&self) {
        self.raise(Phase::Finishing);
    }

    /// Ends running jobs too and releases their leases.
    pub fn abort_jobs(&self) {
        self.raise(Phase::Ending);
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the phase is later than `phase`; returns the new phase.
    pub(super) async fn wait_beyond(&self, phase: Phase) -> Phase {
        let mut seen = self.phase.subscribe();
        // The wait cannot fail: `self` holds the sender.
        seen.wait_for(|now| *now > phase).await.map_or(Phase::Ending, |now| *now)
    }

    fn raise(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_news = *phase < to;
            *phase = to.max(*phase);
            is_news
        });
    }
}
