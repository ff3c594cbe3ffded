//! The leases that a worker holds, and when each expires.
//!
//! A lease has its own duration until the service knows that the lease arrived. From then on it lasts as long as the
//! session, counted from when the heartbeat was sent. So the worker never considers a lease valid for longer than the
//! service does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::queues::job::StopReason;

/// One lease.
struct TrackedLease {
    /// The call that granted it.
    call: u64,
    /// When it expires by its own duration.
    until: Instant,
    signal: watch::Sender<Option<StopReason>>,
}

/// The leases of a worker, by token.
#[derive(Default)]
pub(super) struct Leases {
    held: HashMap<String, TrackedLease>,
    /// The leases of calls up to this one last as long as the session.
    confirmed: u64,
    session_until: Option<Instant>,
}

impl Leases {
    /// The number of leases.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Adds a lease; returns the signal that tells its job to end.
    pub fn add(&mut self, token: String, call: u64, until: Instant) -> watch::Receiver<Option<StopReason>> {
        let (signal, heard) = watch::channel(None);
        self.held.insert(token, TrackedLease { call, until, signal });
        heard
    }

    /// Removes a lease.
    pub fn remove(&mut self, token: &str) {
        self.held.remove(token);
    }

    /// Records the session's new expiry, and the last call whose leases the service knows to have arrived.
    pub fn renewed(&mut self, until: Instant, received: Option<u64>) {
        self.session_until = Some(until);
        self.confirmed = received.unwrap_or(0).max(self.confirmed);
    }

    /// Whether any lease may expire by its own duration before this time.
    pub fn any_expires_before(&self, time: Instant) -> bool {
        self.held.values().any(|held| held.call > self.confirmed && held.until < time)
    }

    /// The tokens of the leases that have expired.
    pub fn expired(&self, now: Instant) -> Vec<String> {
        let over = self.held.iter().filter(|(_, held)| self.until(held) <= now);
        over.map(|(token, _)| token.clone()).collect()
    }

    /// The time until the next lease expires unless renewed.
    pub fn next_expiry(&self, now: Instant) -> Option<Duration> {
        let live =
            self.held.values().filter(|held| hears(held) && *held.signal.borrow() != Some(StopReason::LeaseLost));
        live.map(|held| self.until(held)).min().map(|until| until.saturating_duration_since(now))
    }

    /// Signals the job of one lease; returns whether the signal changed.
    pub fn signal_end(&self, token: &str, reason: StopReason) -> bool {
        self.held.get(token).is_some_and(|held| signal_lease(held, reason))
    }

    /// Signals all jobs.
    pub fn signal_all(&self, reason: StopReason) {
        for held in self.held.values() {
            signal_lease(held, reason);
        }
    }

    /// Starts with a new session: it does not own the leases of the previous session.
    pub fn forget_session(&mut self) {
        (self.confirmed, self.session_until) = (0, None);
    }

    fn until(&self, held: &TrackedLease) -> Instant {
        match self.session_until {
            Some(until) if held.call <= self.confirmed => until,
            Some(_) | None => held.until,
        }
    }
}

/// Whether the work of a lease goes on. Once it has ended and is being settled, nobody hears a signal.
fn hears(held: &TrackedLease) -> bool {
    !held.signal.is_closed()
}

/// Signals the job of a lease to end; only a more severe reason replaces an earlier one. Returns whether the signal
/// changed.
fn signal_lease(held: &TrackedLease, reason: StopReason) -> bool {
    hears(held)
        && held.signal.send_if_modified(|told| {
            let is_news = told.is_none_or(|told| severity(told) < severity(reason));
            if is_news {
                *told = Some(reason);
            }
            is_news
        })
}

/// A job to be canceled may be settled for as long as its lease lasts, a job of a stopping worker once, and a job
/// with a lost lease not at all.
fn severity(reason: StopReason) -> u8 {
    match reason {
        StopReason::CancelRequested => 0,
        StopReason::Stopped => 1,
        StopReason::LeaseLost => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lease_lasts_by_itself_until_it_is_confirmed_and_then_with_the_session() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let first = leases.add("a".to_owned(), 1, now + SECOND);
        let second = leases.add("b".to_owned(), 2, now + 2 * SECOND);
        assert_eq!(leases.next_expiry(now), Some(SECOND));
        assert!(leases.any_expires_before(now + 2 * SECOND) && !leases.any_expires_before(now + SECOND));
        leases.renewed(now + 9 * SECOND, Some(1));
        assert_eq!(leases.expired(now + 3 * SECOND), ["b"]);
        assert!(leases.signal_end("b", StopReason::LeaseLost));
        assert_eq!((*first.borrow(), *second.borrow()), (None, Some(StopReason::LeaseLost)));
        assert_eq!(leases.next_expiry(now), Some(9 * SECOND), "what was told is not looked at again");
        assert_eq!(leases.expired(now + 9 * SECOND).len(), 2);
    }

    #[test]
    fn a_word_to_the_work_stands_until_a_weightier_one_comes() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let heard = leases.add("a".to_owned(), 1, now + SECOND);
        assert!(leases.signal_end("a", StopReason::CancelRequested) && !leases.signal_end("b", StopReason::Stopped));
        assert!(!leases.signal_end("a", StopReason::CancelRequested), "it is no news");
        assert_eq!(leases.next_expiry(now), Some(SECOND), "its lease may be lost yet");
        leases.signal_all(StopReason::Stopped);
        assert_eq!(*heard.borrow(), Some(StopReason::Stopped));
        assert!(!leases.signal_end("a", StopReason::CancelRequested));
        assert!(leases.signal_end("a", StopReason::LeaseLost) && !leases.signal_end("a", StopReason::Stopped));
        assert_eq!(*heard.borrow(), Some(StopReason::LeaseLost));
        leases.remove("a");
        assert_eq!((leases.len(), leases.next_expiry(now)), (0, None));
    }

    #[test]
    fn work_that_has_ended_is_told_nothing_while_it_is_settled() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        drop(leases.add("a".to_owned(), 1, now + SECOND));
        assert_eq!((leases.len(), leases.next_expiry(now)), (1, None));
        assert!(!leases.signal_end("a", StopReason::LeaseLost));
    }
}
