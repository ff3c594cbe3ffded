//! The moment until which a call has to end.

use std::sync::Arc;
use std::time::Duration;

use tallystone_ports::Clock;

/// A moment on `Clock::elapsed`.
#[derive(Clone)]
pub(super) struct Deadline {
    at: Duration,
    clock: Arc<dyn Clock>,
}

impl Deadline {
    pub(super) fn after(within: Duration, clock: &Arc<dyn Clock>) -> Self {
        Self { at: clock.elapsed().saturating_add(within), clock: Arc::clone(clock) }
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Duration {
        self.at.saturating_sub(self.clock.elapsed())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Waits for a step; none if it does not end before the deadline. What has ended already counts.
    pub(super) async fn meet<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = step => Some(done),
            () = self.clock.sleep(self.left()) => None,
        }
    }

    /// Waits for a time, at most until the deadline.
    pub(super) async fn pause(&self, time: Duration) {
        self.clock.sleep(time.min(self.left())).await;
    }
}
