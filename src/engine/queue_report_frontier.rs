//! How far the reports of queues to their counters have come.
//!
//! The bridge of each server states the time for its own shards. In a fleet the heartbeats carry it, and the least of all
//! counts. It only ever states less than what is true: a time may be seconds old, but never ahead.

use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::Timestamp;

/// The time up to which all mutations of the queues of this server are in the log of their counters.
#[derive(Default)]
pub struct QueueReportFrontier {
    own: Mutex<Option<Timestamp>>,
    /// When the reports of this server began.
    started: Mutex<Option<Timestamp>>,
}

impl QueueReportFrontier {
    /// Begins at a time. How far the queues are reported is not known yet.
    pub fn start(&self, at: Timestamp) {
        *self.started.lock() = Some(at);
        self.set(Some(Timestamp::MIN));
    }

    /// How far the reports of this server lie behind: the age of its time, or the time since the start while it does not
    /// know that time. `None`: it reports for no queue.
    pub fn lag(&self, now: Timestamp) -> Option<Duration> {
        let own = self.own()?;
        let started = *self.started.lock();
        Some(now.since(started.map_or(own, |started| own.max(started))))
    }

    /// Sets the time of this server. `None`: it reports for no queue. `Timestamp::MIN`: it does, and does not know yet how
    /// far its queues are reported. The time may go back, when this server takes over shards of another one.
    pub fn set(&self, reported_to: Option<Timestamp>) {
        *self.own.lock() = reported_to;
    }

    /// The time of this server, as it was set.
    pub fn own(&self) -> Option<Timestamp> {
        *self.own.lock()
    }
}

/// The least of the times of several servers; none if no server reports for queues, or one does not know its time yet.
pub fn least_reported(times: impl IntoIterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    times.into_iter().flatten().min().filter(|least| *least > Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_lie_behind_since_the_start_until_their_time_is_known() {
        let at = Timestamp::from_secs;
        let frontier = QueueReportFrontier::default();
        assert_eq!(frontier.lag(at(100)), None);
        frontier.start(at(100));
        assert_eq!(frontier.lag(at(130)), Some(Duration::from_secs(30)), "a start that hangs shows");
        frontier.set(Some(at(128)));
        assert_eq!(frontier.lag(at(130)), Some(Duration::from_secs(2)));
        assert_eq!(frontier.lag(at(140)), Some(Duration::from_secs(12)), "a reporter that hangs shows");
        assert_eq!(frontier.lag(at(120)), Some(Duration::ZERO), "a clock that is put back");
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
