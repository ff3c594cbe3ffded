//! How far the reports of queues to their counters have come.
//!
//! The bridge of each server states the time for its own shards. In a fleet the heartbeats carry it, and the least of
//! all counts. It only ever states less than what is true: a time may be seconds old, but never ahead. Where the wall
//! clock was put back since a time was stated, the time goes back with it.

use std::time::Duration;

use parking_lot::Mutex;

use tallystone_domain::Timestamp;
use tallystone_ports::Clock;

/// The time up to which all mutations of the queues of this server are in the log of their counters.
#[derive(Default)]
pub struct QueueReportFrontier {
    own: Mutex<Option<StatedTime>>,
    /// When the reports of this server began, by elapsed time.
    started: Mutex<Option<Duration>>,
}

/// A time, and what the clocks read when it was stated.
#[derive(Clone, Copy)]
struct StatedTime {
    reported_to: Timestamp,
    now: Timestamp,
    elapsed: Duration,
}

impl QueueReportFrontier {
    /// Begins. How far the queues are reported is not known yet.
    pub fn start(&self, clock: &dyn Clock) {
        *self.started.lock() = Some(clock.elapsed());
        self.set(Some(Timestamp::MIN), clock);
    }

    /// How far the reports of this server lie behind: the age of its time, or the time since the start while it does
    /// not know that time. `None`: it reports for no queue.
    pub fn lag(&self, clock: &dyn Clock) -> Option<Duration> {
        let own = self.own(clock)?;
        let age = clock.now().since(own);
        Some(self.started.lock().map_or(age, |started| age.min(clock.elapsed().saturating_sub(started))))
    }

    /// Sets the time of this server. `None`: it reports for no queue. `Timestamp::MIN`: it does, and does not know yet
    /// how far its queues are reported. The time may go back, when this server takes over shards of another one.
    pub fn set(&self, reported_to: Option<Timestamp>, clock: &dyn Clock) {
        let stated =
            reported_to.map(|reported_to| StatedTime { reported_to, now: clock.now(), elapsed: clock.elapsed() });
        *self.own.lock() = stated;
    }

    /// States that all mutations are reported that were made before a moment of elapsed time.
    pub fn set_elapsed(&self, reported_to: Duration, clock: &dyn Clock) {
        let (now, elapsed) = (clock.now(), clock.elapsed());
        // Rounded up to whole microseconds, so that the time is never ahead.
        let reported_to = now - (elapsed.saturating_sub(reported_to) + Duration::from_nanos(999));
        *self.own.lock() = Some(StatedTime { reported_to, now, elapsed });
    }

    /// The time of this server, by its wall clock as it goes now.
    pub fn own(&self, clock: &dyn Clock) -> Option<Timestamp> {
        let StatedTime { reported_to, now, elapsed } = (*self.own.lock())?;
        if reported_to == Timestamp::MIN {
            return Some(reported_to);
        }
        let undisturbed = now + clock.elapsed().saturating_sub(elapsed);
        Some(reported_to - undisturbed.since(clock.now()))
    }
}

/// The least of the times of several servers; none if no server reports for queues, or one does not know its time yet.
pub fn least_reported(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min().filter(|least| *least > Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_ports::BootId;

    /// The wall clock and elapsed time, in seconds.
    struct Clocks(i64, u64);

    #[async_trait::async_trait]
    impl Clock for Clocks {
        fn now(&self) -> Timestamp {
            Timestamp::from_secs(self.0)
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.1)
        }

        fn boot(&self) -> BootId {
            BootId(1)
        }

        async fn sleep(&self, _duration: Duration) {}
    }

    #[test]
    fn reports_lie_behind_since_the_start_until_their_time_is_known() {
        let frontier = QueueReportFrontier::default();
        let lag = |now, elapsed| frontier.lag(&Clocks(now, elapsed));
        assert_eq!(lag(100, 0), None);
        frontier.start(&Clocks(100, 0));
        assert_eq!(lag(130, 30), Some(Duration::from_secs(30)), "a start that hangs shows");
        frontier.set_elapsed(Duration::from_secs(28), &Clocks(130, 30));
        assert_eq!(lag(130, 30), Some(Duration::from_secs(2)));
        assert_eq!(lag(140, 40), Some(Duration::from_secs(12)), "a reporter that hangs shows");
        assert_eq!(lag(120, 40), Some(Duration::from_secs(12)), "a clock that is put back");
        frontier.set(None, &Clocks(140, 40));
        assert_eq!(lag(140, 40), None);
    }

    #[test]
    fn a_wall_clock_that_is_put_back_takes_the_stated_time_with_it() {
        let (frontier, at) = (QueueReportFrontier::default(), |seconds| Some(Timestamp::from_secs(seconds)));
        frontier.set_elapsed(Duration::from_secs(8), &Clocks(5_000, 10));
        assert_eq!(frontier.own(&Clocks(5_000, 10)), at(4_998));
        assert_eq!(frontier.own(&Clocks(5_030, 40)), at(4_998), "it stands while nothing is stated");
        assert_eq!(frontier.own(&Clocks(1_430, 40)), at(1_398), "an hour back");
        assert_eq!(frontier.own(&Clocks(8_630, 40)), at(4_998), "an hour ahead: what was reported stays that");
        frontier.set(Some(Timestamp::MIN), &Clocks(5_000, 10));
        assert_eq!(frontier.own(&Clocks(1_400, 40)), Some(Timestamp::MIN), "unknown stays unknown");
    }

    #[test]
    fn the_least_time_counts_and_one_that_is_unknown_hides_all() {
        let at = |seconds| Some(Timestamp::from_secs(seconds));
        assert_eq!(least_reported([at(9), None, at(5)]), at(5));
        assert_eq!(least_reported([at(9), Some(Timestamp::MIN)]), None);
        assert_eq!(least_reported([None, None]), None);
        assert_eq!(least_reported([]), None);
    }
}
