//! When a server that does not answer is asked again: calls fail at once in between, and one call at a time tries.

use std::time::Duration;

use parking_lot::Mutex;

use crate::domain::limits::{MEMCACHED_FAILURES_MAX, MEMCACHED_PAUSE_MAX, MEMCACHED_PAUSE_MIN};

/// What is known of a server's health. Times are those of `Clock::elapsed`.
#[derive(Default)]
pub(super) struct Backoff(Mutex<BackoffState>);

#[derive(Default)]
struct BackoffState {
    /// The failures in a row.
    failures: u32,
    /// No call before this, once there were too many of them.
    paused_until: Option<Duration>,
}

/// How a call got no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionFailure {
    /// A connection broke, or none could be made: the next one may be well.
    Disconnected,
    /// The time limit passed: whoever asks next would wait as long.
    TimedOut,
}

/// Whether a call may be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallAdmission {
    /// The server is well, as far as anybody knows.
    Normal,
    /// The server was paused; this call finds out whether it is back.
    Trial,
    /// The server is not asked yet, for so long.
    Refused(Duration),
}

impl Backoff {
    /// Asks for a call. A trial keeps all others out for `trial_within`, so that one whose caller went away blocks nobody
    /// for longer.
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

    /// The server answered.
    pub(super) fn record_success(&self) {
        *self.0.lock() = BackoffState::default();
    }

    /// A call got no answer. One that was late counts for as many as make a pause.
    pub(super) fn record_failure(&self, now: Duration, admission: CallAdmission, silence: ConnectionFailure) {
        let mut state = self.0.lock();
        // Calls that began before the pause end after it has begun: they tell nothing new.
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

    /// How long the server is not asked yet.
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
        // Whoever was under way already makes the pause no longer.
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
