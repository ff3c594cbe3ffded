//! How long a start waits for its engines: one time for all of its steps, whichever of them is slow.
//!
//! A node that takes connections and never answers holds up each step for as long as that step is patient. So the steps
//! share one end, and none has a bound of its own that could add to those of others. A change of the schema that was made,
//! a dataset or a namespace that was opened is progress and moves the end: many of them may take longer, as long as
//! it goes on.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::limits::CASSANDRA_START_WITHIN;
use crate::ports::Clock;

/// The end of a start that gets no further.
pub struct StartupDeadline {
    clock: Arc<dyn Clock>,
    /// On `Clock::elapsed`.
    deadline: Mutex<Duration>,
}

impl StartupDeadline {
    /// Begins a start: it has `CASSANDRA_START_WITHIN` from now on.
    pub fn start(clock: Arc<dyn Clock>) -> Self {
        let ends = Mutex::new(clock.elapsed() + CASSANDRA_START_WITHIN);
        Self { clock, deadline: ends }
    }

    /// Says that the start has come further: from now on it has the whole time again.
    pub fn extend(&self) {
        let ends = self.clock.elapsed() + CASSANDRA_START_WITHIN;
        let mut known = self.deadline.lock();
        *known = ends.max(*known);
    }

    /// Does a step of the start; none if the time was over before it ended.
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
    use crate::adapters::manual::ManualClock;
    use crate::domain::Timestamp;

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
                // The sleep of before ends, and finds that there is time left.
                clock.advance(TICK);
            }
            clock.wait_for_sleepers(1).await;
            clock.advance(CASSANDRA_START_WITHIN);
        };
        assert_eq!(tokio::join!(patience.run(pending::<()>()), moving).0, None);
        assert_eq!(clock.elapsed(), 4 * CASSANDRA_START_WITHIN);
    }
}
