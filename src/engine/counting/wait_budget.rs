//! The time that one call may wait for limits and inline rolls, for all its items together.
//!
//! When the budget is spent, a read returns the present value with its `as_of`. So the budget bounds latency and never
//! makes a count wrong. It starts once for each call: a thousand outdated counters cost one budget, not a thousand.

use std::time::Duration;

use tallystone_domain::limits::INLINE_ROLL_BUDGET;
use tallystone_ports::Clock;

/// A running budget.
#[derive(Clone, Copy, Debug)]
pub struct WaitBudget {
    ends: Duration,
}

impl WaitBudget {
    /// Starts the budget of a call.
    pub fn begin(clock: &dyn Clock) -> Self {
        Self { ends: clock.elapsed() + INLINE_ROLL_BUDGET }
    }

    /// The remaining time.
    pub fn left(&self, clock: &dyn Clock) -> Duration {
        self.ends.saturating_sub(clock.elapsed())
    }
}
