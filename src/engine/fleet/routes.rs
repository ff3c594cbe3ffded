//! The routes of rollup signals: to the roller that owns the touch shard of the counter, by the last view of the
//! members.
//!
//! A route may be outdated or wrong at any time. This costs only latency: the owner of a shard replays every step.

use std::sync::Arc;

use crate::fleet::MemberProfile;
use tallystone_domain::fleet::{Heartbeat, MemberId, owner_of};
use tallystone_domain::limits::TOUCH_SHARDS;

/// The route of the rollup signals of a touch shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SignalRoute {
    /// Into the queues of this process.
    Here,
    /// To the server at this address.
    There(Arc<str>),
    /// There is no known receiver; the touch index has all counters.
    Nowhere,
}

/// The route of every touch shard, in their order.
pub fn routes(own: MemberId, profile: &MemberProfile, live: &[(MemberId, Heartbeat)]) -> Vec<SignalRoute> {
    let rollers: Vec<&(MemberId, Heartbeat)> = live.iter().filter(|(_, beat)| beat.roles.roller).collect();
    let addresses: Vec<Arc<str>> = rollers.iter().map(|(_, beat)| beat.address.as_str().into()).collect();
    // An owner without an address: another roller does the work in its place, which does no harm.
    let untold = if profile.roles.roller { SignalRoute::Here } else { SignalRoute::Nowhere };
    let route = |shard: u32| {
        let owner = owner_of(shard, rollers.iter().map(|(id, _)| *id));
        let Some(at) = rollers.iter().position(|(id, _)| Some(*id) == owner) else { return untold.clone() };
        let address = &addresses[at];
        if owner == Some(own) {
            SignalRoute::Here
        } else if address.is_empty() || **address == *profile.address {
            // The second is another incarnation of this process.
            untold.clone()
        } else {
            SignalRoute::There(Arc::clone(address))
        }
    };
    (0..TOUCH_SHARDS).map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::fleet::Roles;

    const WRITER: Roles = Roles { writer: true, roller: false };
    const ROLLER: Roles = Roles { writer: false, roller: true };
    const BOTH: Roles = Roles { writer: true, roller: true };

    fn member(id: u8, roles: Roles, address: &str) -> (MemberId, Heartbeat) {
        let beat = Heartbeat { number: 1, roles, address: address.to_owned(), ..Heartbeat::default() };
        (MemberId([id; 16]), beat)
    }

    fn of(id: u8, roles: Roles, address: &str, live: &[(MemberId, Heartbeat)]) -> Vec<SignalRoute> {
        routes(
            MemberId([id; 16]),
            &MemberProfile { roles, address: address.to_owned(), ..MemberProfile::default() },
            live,
        )
    }

    #[test]
    fn every_signal_of_a_shard_goes_to_its_one_owner_from_wherever_it_comes() {
        let live = [member(1, BOTH, "a:1"), member(2, ROLLER, "b:1"), member(3, WRITER, "c:1")];
        let (one, two) = (of(1, BOTH, "a:1", &live), of(2, ROLLER, "b:1", &live));
        let writer = of(3, WRITER, "c:1", &live);
        let there = |address: &str| SignalRoute::There(address.into());
        let mut owned = [0, 0];
        for ((one, two), writer) in one.iter().zip(&two).zip(&writer) {
            if *writer == there("a:1") {
                assert_eq!((one, two), (&SignalRoute::Here, &there("a:1")));
                owned[0] += 1;
            } else {
                assert_eq!((writer, one, two), (&there("b:1"), &there("b:1"), &SignalRoute::Here));
                owned[1] += 1;
            }
        }
        assert!(owned.iter().all(|shards| *shards > 10), "{owned:?}");
    }

    #[test]
    fn who_rolls_does_so_for_an_owner_that_cannot_be_told_and_who_does_not_leaves_it_to_the_touches() {
        let live = [member(2, ROLLER, "")];
        assert!(of(1, BOTH, "a:1", &live).iter().all(|route| *route == SignalRoute::Here));
        assert!(of(1, WRITER, "a:1", &live).iter().all(|route| *route == SignalRoute::Nowhere));
        assert!(of(1, WRITER, "a:1", &[]).iter().all(|route| *route == SignalRoute::Nowhere));
        assert!(of(1, BOTH, "", &[]).iter().all(|route| *route == SignalRoute::Here), "before the members were read");
    }

    #[test]
    fn nothing_is_sent_to_another_life_of_the_same_process() {
        let live = [member(1, BOTH, "a:1")];
        assert!(of(9, BOTH, "a:1", &live).iter().all(|route| *route == SignalRoute::Here));
    }
}
