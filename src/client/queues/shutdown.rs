//! The end of a worker in two phases: first it takes no more and finishes what it has, then it gives that back too.

use std::sync::Arc;

use tokio::sync::watch;

/// How far a shutdown is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Nobody asked for it.
    Running,
    /// Nothing more is taken; what is in work goes on.
    Finishing,
    /// What is in work is given back.
    Ending,
}

/// The way to tell workers to stop. Clones are the same.
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
    /// Takes no more, and lets what is in work go on.
    pub fn finish(&self) {
        self.raise(Phase::Finishing);
    }

    /// Gives back what is in work too.
    pub fn end(&self) {
        self.raise(Phase::Ending);
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until it is beyond a phase; answers how far.
    pub(super) async fn wait_beyond(&self, phase: Phase) -> Phase {
        let mut seen = self.phase.subscribe();
        // The sender lives in self.
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
