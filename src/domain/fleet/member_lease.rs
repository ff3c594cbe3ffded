//! The lease of a member, as the member itself sees it.
//!
//! It counts from *sending* the last acknowledged heartbeat, on the elapsed time of the member, less a margin. A reader
//! (see `MembershipView`) waits for the whole lease and a margin from *seeing* that heartbeat. So the lease ends here
//! before it ends for any other process, by twice the margin, whatever wall clocks say.

use std::time::Duration;

use crate::fleet::{ProtocolRule, ProtocolRules};
use crate::limits::{MEMBER_LEASE, MEMBER_LEASE_MARGIN};

/// The lease of one incarnation of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemberLease {
    valid_until: Duration,
}

/// The effect of an acknowledged heartbeat on the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    Renewed,
    /// It had lapsed before: this incarnation is over, and its held writes have an unknown outcome.
    Lapsed,
}

impl MemberLease {
    /// The lease that begins with a first acknowledged heartbeat, from the time of its sending.
    pub fn begin(sent: Duration) -> Self {
        Self { valid_until: end_of(sent) }
    }

    /// Whether an add admitted under this lease may be acknowledged now.
    pub fn is_valid(&self, now: Duration) -> bool {
        now < self.valid_until
    }

    /// The end of its validity, if no further heartbeat is acknowledged.
    pub fn valid_until(&self) -> Duration {
        self.valid_until
    }

    /// Processes the acknowledgement of a heartbeat that was sent at a time. A lapsed lease is never renewed, because
    /// other members may have published a limit without this one.
    pub fn renew(&mut self, sent: Duration, now: Duration, rules: ProtocolRules) -> Renewal {
        if !self.is_valid(now) && rules.keeps(ProtocolRule::LapsedStaysLapsed) {
            return Renewal::Lapsed;
        }
        self.valid_until = self.valid_until.max(end_of(sent));
        Renewal::Renewed
    }
}

fn end_of(sent: Duration) -> Duration {
    sent + MEMBER_LEASE - MEMBER_LEASE_MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: fn() -> ProtocolRules = ProtocolRules::default;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_counts_from_sending_less_the_margin() {
        let mut lease = MemberLease::begin(at(100));
        let end = at(100) + MEMBER_LEASE - MEMBER_LEASE_MARGIN;
        assert!(lease.is_valid(end - Duration::from_nanos(1)) && !lease.is_valid(end));
        assert_eq!(lease.renew(at(110), at(120), ALL()), Renewal::Renewed);
        assert_eq!(lease.valid_until(), end + at(10));
    }

    #[test]
    fn an_acknowledgement_that_comes_late_shortens_nothing() {
        let mut lease = MemberLease::begin(at(100));
        lease.renew(at(110), at(111), ALL());
        assert_eq!(lease.renew(at(105), at(112), ALL()), Renewal::Renewed);
        assert_eq!(lease, MemberLease::begin(at(110)));
    }

    #[test]
    fn a_lapsed_lease_is_not_renewed() {
        let mut lease = MemberLease::begin(at(100));
        let end = lease.valid_until();
        assert_eq!(lease.renew(end - at(1), end, ALL()), Renewal::Lapsed);
        assert!(!lease.is_valid(end));
        let without = ProtocolRules::without(ProtocolRule::LapsedStaysLapsed);
        assert_eq!(lease.renew(end - at(1), end, without), Renewal::Renewed, "the rule is what refuses it");
        assert!(lease.is_valid(end));
    }
}
