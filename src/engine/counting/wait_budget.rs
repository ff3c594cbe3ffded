//! How long one call may wait for limits and inline rolls, all its items together.
//!
//! A read answers what it has when the budget is spent and says how far that reaches, so a budget bounds latency and
//! never truth. It is begun once for each call: a thousand counters behind cost one budget, not a thousand.

use std::time::Duration;

use crate::domain::limits::INLINE_ROLL_BUDGET;
use crate::ports::Clock;

/// A budget under way.
#[derive(Clone, Copy, Debug)]
pub struct WaitBudget {
    ends: Duration,
}

impl WaitBudget {
    /// Begins the budget of a call.
    pub fn begin(clock: &dyn Clock) -> Self {
        Self { ends: clock.elapsed() + INLINE_ROLL_BUDGET }
    }

    /// What is left of it.
    pub fn left(&self, clock: &dyn Clock) -> Duration {
        self.ends.saturating_sub(clock.elapsed())
    }
}
