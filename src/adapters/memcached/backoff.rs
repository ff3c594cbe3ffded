//! Backoff from a server that does not answer: calls fail fast during a pause, then one trial call at a time is let
//! through.

use std::time::Duration;

use parking_lot::Mutex;

use crate::memcached::limits::{MEMCACHED_FAILURES_MAX, MEMCACHED_PAUSE_MAX, MEMCACHED_PAUSE_MIN};

/// The health of a server. Times are those of `Clock::elapsed`.
#[derive(Default)]
pub(super) struct Backoff(Mutex<BackoffState>);

#[derive(Default)]
struct BackoffState {
    /// The number of consecutive failures.
    failures: u32,
    /// The end of the pause; calls fail fast before it. Set once the failures reach their bound.
    paused_until: Option<Duration>,
}

/// The kind of a connection failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionFailure {
    /// A connection broke, or connecting failed: the next connection may work.
    Disconnected,
    /// The call timed out: the next one would probably wait as long.
    TimedOut,
}

/// Whether a call may be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallAdmission {
    /// The server is up, as far as this process knows.
    Normal,
    /// The server was paused; this call checks whether it is back.
    Trial,
    /// The server is paused for this long.
    Refused(Duration),
}

impl Backoff {
    /// Decides whether a call may be made. A trial keeps all other calls out for `trial_within`, so an abandoned trial
    /// blocks them no longer than that.
    pub(super) fn admit(&self, now: Duration, trial_within: Duration) -> CallAdmission {
        let mut state = self.0.lock();
        match state.paused_until {
            None => CallAdmission::Normal,
            Some(until) if now < until => CallAdmission::Refused(until - now),
            Some(_) => {
                state.paused_until = Some(now + trial_within);
                CallAdmission::Trial
            }
        }
    }

    /// Records an answer of the server.
    pub(super) fn record_success(&self) {
        *self.0.lock() = BackoffState::default();
    }

    /// Records a call without an answer. One timeout counts as enough failures to start a pause.
    pub(super) fn record_failure(&self, now: Duration, admission: CallAdmission, silence: ConnectionFailure) {
        let mut state = self.0.lock();
        // Calls that began before the pause may end during it; their failures add no information.
        if state.paused_until.is_some() && admission == CallAdmission::Normal {
            return;
        }
        let least = match silence {
            ConnectionFailure::Disconnected => 0,
            ConnectionFailure::TimedOut => MEMCACHED_FAILURES_MAX,
        };
        state.failures = state.failures.saturating_add(1).max(least);
        if let Some(beyond) = state.failures.checked_sub(MEMCACHED_FAILURES_MAX) {
            let doublings = beyond.min(16);
            let pause = MEMCACHED_PAUSE_MIN.saturating_mul(1 << doublings).min(MEMCACHED_PAUSE_MAX);
            state.paused_until = Some(now + pause);
        }
    }

    /// Returns the rest of the pause.
    pub(super) fn left(&self, now: Duration) -> Duration {
        self.0.lock().paused_until.unwrap_or_default().saturating_sub(now)
    }

    /// Whether the server is paused.
    pub(super) fn is_down(&self) -> bool {
        self.0.lock().paused_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Duration = Duration::from_millis(250);

    #[test]
    fn a_server_is_paused_after_failures_in_a_row_only() {
        let backoff = Backoff::default();
        for _ in 0..10 {
            for _ in 1..MEMCACHED_FAILURES_MAX {
                backoff.record_failure(Duration::ZERO, CallAdmission::Normal, ConnectionFailure::Disconnected);
            }
            assert_eq!(backoff.admit(Duration::ZERO, TRIAL), CallAdmission::Normal);
            backoff.record_success();
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_one_call_tries_after_each() {
        let backoff = Backoff::default();
        let mut now = Duration::ZERO;
        for _ in 0..MEMCACHED_FAILURES_MAX {
            backoff.record_failure(now, CallAdmission::Normal, ConnectionFailure::Disconnected);
        }
        // A failure of a call that was already in flight does not extend the pause.
        backoff.record_failure(now, CallAdmission::Normal, ConnectionFailure::Disconnected);
        let mut pause = MEMCACHED_PAUSE_MIN;
        for _ in 0..12 {
            assert_eq!(backoff.admit(now, TRIAL), CallAdmission::Refused(pause));
            now += pause;
            assert_eq!(backoff.admit(now, TRIAL), CallAdmission::Trial);
            assert_eq!(backoff.admit(now, TRIAL), CallAdmission::Refused(TRIAL), "one at a time");
            backoff.record_failure(now, CallAdmission::Trial, ConnectionFailure::TimedOut);
            pause = (2 * pause).min(MEMCACHED_PAUSE_MAX);
        }
        assert!(backoff.is_down());
        backoff.record_success();
        assert_eq!(backoff.admit(now, TRIAL), CallAdmission::Normal);
        assert!(!backoff.is_down());
    }

    #[test]
    fn one_call_that_is_late_pauses_a_server() {
        let backoff = Backoff::default();
        backoff.record_failure(Duration::ZERO, CallAdmission::Normal, ConnectionFailure::TimedOut);
        assert_eq!(backoff.admit(Duration::ZERO, TRIAL), CallAdmission::Refused(MEMCACHED_PAUSE_MIN));
        assert_eq!(backoff.left(MEMCACHED_PAUSE_MIN / 4), MEMCACHED_PAUSE_MIN * 3 / 4);
        backoff.record_success();
        assert_eq!(backoff.left(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_trial_that_nobody_ends_is_followed_by_another() {
        let backoff = Backoff::default();
        for _ in 0..MEMCACHED_FAILURES_MAX {
            backoff.record_failure(Duration::ZERO, CallAdmission::Normal, ConnectionFailure::Disconnected);
        }
        assert_eq!(backoff.admit(MEMCACHED_PAUSE_MIN, TRIAL), CallAdmission::Trial);
        assert_eq!(backoff.admit(MEMCACHED_PAUSE_MIN + TRIAL, TRIAL), CallAdmission::Trial);
    }
}
