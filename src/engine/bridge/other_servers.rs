//! The part of a reporter for changes that other servers of the queues made: when it compares all shards with its
//! counters, and up to which time it knows those changes.
//!
//! If all servers share the counters, each reports its own changes. If each has counters of its own, it learns of the
//! others' changes by comparisons only.

use std::time::Duration;

/// The pause between two comparisons of all shards, where other servers change them and report them to counters of
/// their own: at least this long, and for each shard a part of it, so that thousands of idle queues cost their store
/// next to nothing.
const FOLLOW_OTHERS_AFTER: Duration = Duration::from_secs(30);
const FOLLOW_SHARD_AFTER: Duration = Duration::from_millis(100);

/// The other servers, by elapsed time.
pub struct OtherServers {
    /// Whether their reports go to counters of their own.
    have_own_counters: bool,
    /// How many of them were lost at the last look.
    lost: u64,
    /// When all shards were compared last, or began to be.
    followed_at: Duration,
    /// Since when this server is the only one, as far as it knows.
    alone_since: Option<Duration>,
}

impl OtherServers {
    /// Of a reporter that will now compare all shards.
    pub fn new(have_own_counters: bool, lost: u64, now: Duration) -> Self {
        Self { have_own_counters, lost, followed_at: now, alone_since: None }
    }

    /// Whether all shards are to be compared now, because changes of others may not have reached these counters: a
    /// server was lost before it reported its last ones, or the others report to counters of their own.
    pub fn are_to_be_followed(&mut self, lost: u64, shards: u32, now: Duration) -> bool {
        let since = now.saturating_sub(self.followed_at);
        let is_due = self.have_own_counters && since >= FOLLOW_OTHERS_AFTER && since >= FOLLOW_SHARD_AFTER * shards;
        if lost == self.lost && !is_due {
            return false;
        }
        (self.lost, self.followed_at) = (lost, now);
        true
    }

    /// The time up to which all changes of others are reported or wait here. `alone_at` is the time at which the last
    /// look found no other server. The answer is `now` if each server reports its own changes.
    pub fn known_to(&mut self, alone_at: Option<Duration>, now: Duration) -> Duration {
        if !self.have_own_counters {
            return now;
        }
        self.alone_since = alone_at.map(|at| self.alone_since.unwrap_or(at));
        match (self.alone_since, alone_at) {
            // Whoever was there before then was followed since.
            (Some(since), Some(at)) if since <= self.followed_at => at.max(self.followed_at),
            (Some(_), Some(_)) | (None, _) | (_, None) => self.followed_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn changes_of_others_with_counters_of_their_own_are_known_up_to_the_last_comparison() {
        let mut others = OtherServers::new(true, 0, S(100));
        assert_eq!(others.known_to(None, S(129)), S(100));
        assert!(!others.are_to_be_followed(0, 10, S(129)));
        assert!(others.are_to_be_followed(0, 10, S(130)));
        assert_eq!(others.known_to(None, S(131)), S(130));
        assert!(!others.are_to_be_followed(0, 1_000, S(229)), "100 s for 1,000 shards");
        assert!(others.are_to_be_followed(0, 1_000, S(230)));
        assert!(others.are_to_be_followed(1, 1_000, S(231)), "one was lost");
        assert_eq!(others.known_to(None, S(240)), S(231));
    }

    #[test]
    fn a_server_that_is_alone_knows_all_once_it_has_compared() {
        let mut others = OtherServers::new(true, 0, S(100));
        assert_eq!(others.known_to(Some(S(99)), S(101)), S(100), "alone at the start");
        assert_eq!(others.known_to(Some(S(110)), S(111)), S(110), "another one may have come since the look");
        assert_eq!(others.known_to(None, S(112)), S(100), "another one came");
        assert_eq!(others.known_to(Some(S(120)), S(121)), S(100), "what it did is not compared yet");
        assert!(others.are_to_be_followed(0, 1, S(130)));
        assert_eq!(others.known_to(Some(S(131)), S(132)), S(131));
    }

    #[test]
    fn where_the_counters_are_shared_each_reports_its_own_changes() {
        let mut others = OtherServers::new(false, 0, S(100));
        assert_eq!(others.known_to(None, S(500)), S(500));
        assert!(!others.are_to_be_followed(0, 1, S(500)) && others.are_to_be_followed(1, 1, S(500)));
    }
}
