//! Quotas: the number of resources of a kind that one caller may hold, so that no caller takes all of them.
//!
//! A permit is for a resource that outlives a call: a session, an operation, a queue made by a template, an open stream. It is
//! returned when it is dropped with its resource. Resources without a known caller, such as sessions found at startup, count
//! only for the total.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

/// The holder of a permit, which is only compared. At present it is the address of the call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CallerId(CallerOrigin);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum CallerOrigin {
    /// No known caller.
    Nobody,
    V4(Ipv4Addr),
    /// The network of an address: its owner has all of its addresses.
    V6([u16; 4]),
}

impl CallerId {
    /// No known caller: only the total bounds it.
    pub fn nobody() -> Self {
        Self(CallerOrigin::Nobody)
    }

    /// The caller at an address; of IPv6 all of its /64 network.
    pub fn of_address(address: IpAddr) -> Self {
        let v6 = |address: Ipv6Addr| {
            let [a, b, c, d, ..] = address.segments();
            CallerOrigin::V6([a, b, c, d])
        };
        Self(match address.to_canonical() {
            IpAddr::V4(address) => CallerOrigin::V4(address),
            IpAddr::V6(address) => v6(address),
        })
    }
}

/// The reason why there is no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaExceeded {
    /// All permits are taken: this number.
    All(usize),
    /// The caller has the maximum of one caller.
    Own(usize),
}

/// The slots of one kind. Cheap to clone.
#[derive(Clone)]
pub struct CallerQuota {
    total_max: usize,
    each_max: usize,
    usage: Arc<Mutex<QuotaUsage>>,
}

#[derive(Default)]
struct QuotaUsage {
    total: usize,
    by_caller: HashMap<CallerId, usize>,
}

/// A permit, taken until this is dropped.
pub struct QuotaPermit {
    usage: Arc<Mutex<QuotaUsage>>,
    caller: CallerId,
}

impl CallerQuota {
    /// A quota with a total, and a maximum for each caller.
    pub fn new(total_max: usize, each_max: usize) -> Self {
        Self { total_max, each_max, usage: Arc::default() }
    }

    /// Takes a slot. O(1).
    pub fn take(&self, caller: &CallerId) -> Result<QuotaPermit, QuotaExceeded> {
        let mut taken = self.usage.lock();
        if taken.total >= self.total_max {
            return Err(QuotaExceeded::All(self.total_max));
        }
        if caller.0 != CallerOrigin::Nobody {
            let own = taken.by_caller.entry(caller.clone()).or_insert(0);
            if *own >= self.each_max {
                return Err(QuotaExceeded::Own(self.each_max));
            }
            *own += 1;
        }
        taken.total += 1;
        Ok(QuotaPermit { usage: Arc::clone(&self.usage), caller: caller.clone() })
    }
}

#[cfg(test)]
impl CallerQuota {
    /// Whether no permit is taken and no caller is remembered.
    pub fn are_all_free(&self) -> bool {
        let taken = self.usage.lock();
        taken.total == 0 && taken.by_caller.is_empty()
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        let mut taken = self.usage.lock();
        taken.total -= 1;
        if let Some(own) = taken.by_caller.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                taken.by_caller.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(address: &str) -> CallerId {
        CallerId::of_address(address.parse().expect("an address"))
    }

    #[test]
    fn one_caller_leaves_slots_for_others_and_gets_its_own_back() {
        let shares = CallerQuota::new(3, 2);
        let (first, other) = (caller("10.0.0.1"), caller("10.0.0.2"));
        let mut held: Vec<QuotaPermit> = (0..2).map(|_| shares.take(&first).expect("its share")).collect();
        assert_eq!(shares.take(&first).err(), Some(QuotaExceeded::Own(2)));
        held.push(shares.take(&other).expect("what the first could not take"));
        assert_eq!(shares.take(&other).err(), Some(QuotaExceeded::All(3)));
        held.remove(0);
        assert!(shares.take(&first).is_ok(), "a share is given back when it is dropped");
        drop(held);
        assert!(shares.usage.lock().by_caller.is_empty(), "nothing is remembered of callers that hold nothing");
    }

    #[test]
    fn what_belongs_to_nobody_counts_for_the_total_alone() {
        let shares = CallerQuota::new(3, 1);
        let held: Vec<_> = (0..3).map(|_| shares.take(&CallerId::nobody())).collect();
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(shares.take(&CallerId::nobody()).err(), Some(QuotaExceeded::All(3)));
    }

    #[test]
    fn an_ipv6_network_and_an_address_in_both_notations_are_one_caller() {
        assert_eq!(caller("2001:db8:0:1::1"), caller("2001:db8:0:1:ffff::2"));
        assert_ne!(caller("2001:db8:0:1::1"), caller("2001:db8:0:2::1"));
        assert_eq!(caller("::ffff:10.0.0.1"), caller("10.0.0.1"));
        assert_ne!(caller("10.0.0.2"), caller("10.0.0.1"));
    }
}
