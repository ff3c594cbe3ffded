//! The members as one reader sees them, and which of them have lapsed.
//!
//! Only the elapsed time of the reader counts, and only successful reads: a failed or missing read proves nothing about
//! a member.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fleet::MemberId;
use crate::limits::{MEMBER_LEASE, MEMBER_LEASE_MARGIN};

/// The view of one reader.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MembershipView {
    members: BTreeMap<MemberId, Sighting>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sighting {
    number: u64,
    /// The end of the read that first showed this number.
    first_seen: Duration,
    lapsed: bool,
}

impl MembershipView {
    /// Takes in a read of all members that succeeded: when it began, when it ended, and each member's number.
    ///
    /// A member has lapsed when a read that began a lease and a margin after its present number was first seen still
    /// shows that number. It stays so for as long as it is listed. A member that is not in the read is forgotten.
    /// Answers those that lapsed with this read.
    pub fn observe(
        &mut self,
        begun: Duration,
        ended: Duration,
        readings: impl IntoIterator<Item = (MemberId, u64)>,
    ) -> Vec<MemberId> {
        let mut newly = Vec::new();
        let mut members = BTreeMap::new();
        for (id, number) in readings {
            let mut sighting = match self.members.get(&id) {
                // Of two reads that overlap, the one that ends later may show less.
                Some(known) if number <= known.number => *known,
                Some(known) => Sighting { number, first_seen: ended, ..*known },
                None => Sighting { number, first_seen: ended, lapsed: false },
            };
            let is_over = begun >= sighting.first_seen + MEMBER_LEASE + MEMBER_LEASE_MARGIN;
            if is_over && !sighting.lapsed {
                sighting.lapsed = true;
                newly.push(id);
            }
            members.insert(id, sighting);
        }
        self.members = members;
        newly
    }

    /// Whether a member has lapsed. One that was never seen has not.
    pub fn is_lapsed(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|sighting| sighting.lapsed)
    }

    /// The members of the last read that have not lapsed, in the order of their ids.
    pub fn live(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().filter(|(_, sighting)| !sighting.lapsed).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::fleet::{MemberLease, ProtocolRules, Renewal};

    const ID: MemberId = MemberId([1; 16]);
    const OVER: Duration = Duration::from_secs(MEMBER_LEASE.as_secs() + MEMBER_LEASE_MARGIN.as_secs());

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_member_lapses_by_a_read_that_begins_late_enough_and_shows_the_same_number() {
        let mut view = MembershipView::default();
        assert_eq!(view.observe(at(9), at(10), [(ID, 5)]), []);
        assert_eq!(view.observe(at(9) + OVER, at(11) + OVER, [(ID, 5)]), [], "it began too early");
        assert_eq!(view.observe(at(10) + OVER, at(11) + OVER, [(ID, 5)]), [ID]);
        assert!(view.is_lapsed(ID) && view.live().next().is_none());
        assert_eq!(view.observe(at(12) + OVER, at(12) + OVER, [(ID, 6)]), []);
        assert!(view.is_lapsed(ID), "a lapsed member does not come back");
    }

    #[test]
    fn a_new_number_begins_the_wait_anew_and_reads_that_were_not_made_prove_nothing() {
        let mut view = MembershipView::default();
        view.observe(at(10), at(10), [(ID, 5)]);
        assert_eq!(view.observe(at(500), at(501), [(ID, 6)]), [], "nobody looked in between");
        assert_eq!(view.observe(at(500) + OVER, at(502) + OVER, [(ID, 6)]), []);
        assert_eq!(view.observe(at(501) + OVER, at(502) + OVER, [(ID, 6)]), [ID]);
    }

    #[test]
    fn an_overlapping_read_that_shows_less_changes_nothing() {
        let mut view = MembershipView::default();
        view.observe(at(10), at(12), [(ID, 6)]);
        let before = view.clone();
        view.observe(at(9), at(13), [(ID, 5)]);
        assert_eq!(view, before);
    }

    /// A member that beats, and a reader, on one time axis. All in milliseconds: (pause before it, time to be stored,
    /// time to be acknowledged after that).
    type Beats = Vec<(u64, u64, u64)>;
    /// When each heartbeat was stored, and acknowledged.
    type Stored = Vec<(Duration, Duration)>;
    /// The lease from each acknowledgement on.
    type Leases = Vec<(Duration, MemberLease)>;

    /// When each life's lease was valid last, given its beats: the moments of sending, being stored and being
    /// acknowledged.
    fn run(beats: &Beats) -> (Stored, Leases) {
        let millis = Duration::from_millis;
        let (mut now, mut stored, mut leases) = (Duration::ZERO, Vec::new(), Vec::new());
        let mut lease: Option<MemberLease> = None;
        for (pause, until_stored, until_acknowledged) in beats {
            let sent = now + millis(*pause);
            let there = sent + millis(*until_stored);
            let acknowledged = there + millis(*until_acknowledged);
            stored.push((there, acknowledged));
            match &mut lease {
                None => lease = Some(MemberLease::begin(sent)),
                Some(lease) => {
                    if lease.renew(sent, acknowledged, ProtocolRules::default()) == Renewal::Lapsed {
                        break;
                    }
                }
            }
            leases.push((acknowledged, lease.expect("it began")));
            now = acknowledged;
        }
        (stored, leases)
    }

    proptest! {
        /// The law of the whole protocol: a lease that anybody takes for lapsed is over.
        #[test]
        fn nobody_lapses_for_a_reader_while_the_lease_is_valid(
            beats in vec((0_u64..40_000, 0_u64..30_000, 0_u64..20_000), 1..12),
            reads in vec((0_u64..20_000, 0_u64..10_000, any::<bool>()), 1..40),
        ) {
            let (stored, leases) = run(&beats);
            let mut view = MembershipView::default();
            let mut now = Duration::ZERO;
            for (pause, takes, eager) in reads {
                let begun = now + Duration::from_millis(pause);
                let ended = begun + Duration::from_millis(takes);
                now = ended;
                // It shows at least what was acknowledged before it began, at most what was stored when it ended.
                let least = stored.iter().filter(|(_, acknowledged)| *acknowledged <= begun).count();
                let most = stored.iter().filter(|(there, _)| *there <= ended).count();
                let number = if eager { most.max(least) } else { least };
                if number == 0 {
                    continue;
                }
                let lapsed = view.observe(begun, ended, [(ID, number as u64)]);
                if !lapsed.is_empty() {
                    for (since, lease) in &leases {
                        let overlaps = lease.valid_until() > begun && lease.valid_until() > *since;
                        prop_assert!(!overlaps, "valid from {since:?} to {:?}, lapsed by a read of {begun:?}", lease.valid_until());
                    }
                    return Ok(());
                }
            }
        }
    }
}
