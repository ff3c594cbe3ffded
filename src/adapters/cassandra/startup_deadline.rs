//! The startup timeout of the engines: one deadline for all steps of startup.
//!
//! A node that accepts connections and never answers delays each step by that step's timeout. So the steps share one
//! deadline, and their own timeouts do not add up. A schema change, an opened dataset or an opened namespace is
//! progress and extends the deadline. So startup may take longer while it makes progress.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::limits::CASSANDRA_START_WITHIN;
use tallystone_ports::Clock;

/// The deadline of a startup that makes no progress.
pub struct StartupDeadline {
    clock: Arc<dyn Clock>,
    /// The full length, from the start and after each progress.
    within: Duration,
    /// In terms of `Clock::elapsed`.
    deadline: Mutex<Duration>,
}

impl StartupDeadline {
    /// Starts the deadline, `CASSANDRA_START_WITHIN` from this call.
    pub fn start(clock: Arc<dyn Clock>) -> Self {
        Self::start_within(clock, CASSANDRA_START_WITHIN)
    }

    /// Starts the deadline for a caller that can wait longer or less long than a server.
    pub fn start_within(clock: Arc<dyn Clock>, within: Duration) -> Self {
        let ends = Mutex::new(clock.elapsed() + within);
        Self { clock, within, deadline: ends }
    }

    /// Extends the deadline to its full length after progress.
    pub fn extend(&self) {
        let ends = self.clock.elapsed() + self.within;
        let mut known = self.deadline.lock();
        *known = ends.max(*known);
    }

    /// Runs a step of startup; none if the deadline passes first.
    pub async fn run<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let mut step = pin!(step);
        loop {
            let left = self.remaining();
            tokio::select! {
                biased;
                done = step.as_mut() => return Some(done),
                () = ready(()), if left.is_zero() => return None,
                () = self.clock.sleep(left), if !left.is_zero() => {}
            }
        }
    }

    fn remaining(&self) -> Duration {
        self.deadline.lock().saturating_sub(self.clock.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use tallystone_adapters::manual::ManualClock;
    use tallystone_domain::Timestamp;

    const TICK: Duration = Duration::from_nanos(1);

    fn begun() -> (Arc<ManualClock>, StartupDeadline) {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(0)));
        let patience = StartupDeadline::start(Arc::clone(&clock) as Arc<dyn Clock>);
        (clock, patience)
    }

    #[tokio::test]
    async fn the_steps_of_a_start_share_one_end() {
        let (clock, patience) = begun();
        clock.advance(CASSANDRA_START_WITHIN / 2);
        assert_eq!(patience.run(ready(7)).await, Some(7));
        let moving = async {
            clock.wait_for_sleepers(1).await;
            clock.advance(CASSANDRA_START_WITHIN / 2 - TICK);
            assert_eq!(clock.sleepers(), 1, "it waits to the end");
            clock.advance(TICK);
        };
        assert_eq!(tokio::join!(patience.run(pending::<()>()), moving).0, None);
        assert_eq!(patience.run(pending::<()>()).await, None, "nothing is left for a further step");
        assert_eq!(patience.run(ready(8)).await, Some(8), "but for one that waits for nobody");
    }

    #[tokio::test]
    async fn a_step_that_changes_the_schema_has_the_whole_time_again() {
        let (clock, patience) = begun();
        let moving = async {
            for _ in 0..3 {
                clock.wait_for_sleepers(1).await;
                clock.advance(CASSANDRA_START_WITHIN - TICK);
                patience.extend();
                // The sleep until the old deadline ends, and the loop finds that the deadline was extended.
                clock.advance(TICK);
            }
            clock.wait_for_sleepers(1).await;
            clock.advance(CASSANDRA_START_WITHIN);
        };
        assert_eq!(tokio::join!(patience.run(pending::<()>()), moving).0, None);
        assert_eq!(clock.elapsed(), 4 * CASSANDRA_START_WITHIN);
    }
}
