//! The leases that a worker holds, and until when each is its own.
//!
//! A lease has its own duration until the service has heard that it arrived; from then on it lasts as long as the session,
//! counted from when the heartbeat was sent, so that this worker never thinks longer of a lease than the service does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::client::queues::job::Why;

/// One lease.
struct TrackedLease {
    /// The call that gave it.
    call: u64,
    /// Until when it lasts by itself.
    until: Instant,
    signal: watch::Sender<Option<Why>>,
}

/// The leases of a worker by their tokens.
#[derive(Default)]
pub(super) struct Leases {
    held: HashMap<String, TrackedLease>,
    /// The leases of calls up to this one last as long as the session.
    confirmed: u64,
    session_until: Option<Instant>,
}

impl Leases {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Takes a lease in; answers the signal that its work should end.
    pub fn add(&mut self, token: String, call: u64, until: Instant) -> watch::Receiver<Option<Why>> {
        let (signal, heard) = watch::channel(None);
        self.held.insert(token, TrackedLease { call, until, signal });
        heard
    }

    /// Takes a lease out.
    pub fn remove(&mut self, token: &str) {
        self.held.remove(token);
    }

    /// Notes that the session lives until then, and that the service knows that the leases of calls up to one arrived.
    pub fn renewed(&mut self, until: Instant, received: Option<u64>) {
        self.session_until = Some(until);
        self.confirmed = received.unwrap_or(0).max(self.confirmed);
    }

    /// Whether any lease may end by itself before this time.
    pub fn any_expires_before(&self, time: Instant) -> bool {
        self.held.values().any(|held| held.call > self.confirmed && held.until < time)
    }

    /// The leases that are over by now.
    pub fn expired(&self, now: Instant) -> Vec<String> {
        let over = self.held.iter().filter(|(_, held)| self.until(held) <= now);
        over.map(|(token, _)| token.clone()).collect()
    }

    /// When the next lease is over, unless it is renewed.
    pub fn next_expiry(&self, now: Instant) -> Option<Duration> {
        let live = self.held.values().filter(|held| *held.signal.borrow() != Some(Why::LeaseLost));
        live.map(|held| self.until(held)).min().map(|until| until.saturating_duration_since(now))
    }

    /// Tells the work of one lease; says whether it was news.
    pub fn signal_end(&self, token: &str, why: Why) -> bool {
        self.held.get(token).is_some_and(|held| signal_lease(held, why))
    }

    /// Tells all work.
    pub fn signal_all(&self, why: Why) {
        for held in self.held.values() {
            signal_lease(held, why);
        }
    }

    /// Begins with a new session: what the one before gave is not its own.
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

/// Tells the work of a lease why it should end; a word stands until a weightier one comes. Says whether it was news.
fn signal_lease(held: &TrackedLease, why: Why) -> bool {
    held.signal.send_if_modified(|told| {
        let is_news = told.is_none_or(|told| severity(told) < severity(why));
        if is_news {
            *told = Some(why);
        }
        is_news
    })
}

/// A message that is to be canceled may be settled for as long as its lease lasts, at the end of a worker once, and not at all
/// when the lease is lost.
fn severity(why: Why) -> u8 {
    match why {
        Why::CancelRequested => 0,
        Why::Stopped => 1,
        Why::LeaseLost => 2,
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
        assert!(leases.signal_end("b", Why::LeaseLost));
        assert_eq!((*first.borrow(), *second.borrow()), (None, Some(Why::LeaseLost)));
        assert_eq!(leases.next_expiry(now), Some(9 * SECOND), "what was told is not looked at again");
        assert_eq!(leases.expired(now + 9 * SECOND).len(), 2);
    }

    #[test]
    fn a_word_to_the_work_stands_until_a_weightier_one_comes() {
        let (mut leases, now) = (Leases::default(), Instant::now());
        let heard = leases.add("a".to_owned(), 1, now + SECOND);
        assert!(leases.signal_end("a", Why::CancelRequested) && !leases.signal_end("b", Why::Stopped));
        assert!(!leases.signal_end("a", Why::CancelRequested), "it is no news");
        assert_eq!(leases.next_expiry(now), Some(SECOND), "its lease may be lost yet");
        leases.signal_all(Why::Stopped);
        assert_eq!(*heard.borrow(), Some(Why::Stopped));
        assert!(!leases.signal_end("a", Why::CancelRequested));
        assert!(leases.signal_end("a", Why::LeaseLost) && !leases.signal_end("a", Why::Stopped));
        assert_eq!(*heard.borrow(), Some(Why::LeaseLost));
        leases.remove("a");
        assert_eq!((leases.len(), leases.next_expiry(now)), (0, None));
    }
}
