//! Quotas: the number of resources of a kind that one caller may hold, so that no caller takes all of them.
//!
//! A permit is for a resource that outlives a call: a session, an operation, a queue made by a template, an open
//! stream. It is returned when it is dropped with its resource. A caller with a key is its principal, whatever its
//! address, and the quotas of its key apply where there is one for the kind. Resources without a known caller, such as
//! sessions found at startup, count only for the total.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::access::PrincipalAccount;
use tallystone_domain::access::{KeyQuota, PrincipalName, QuotaRefusal};

/// The holder of a permit: the principal of a call, or else its address.
#[derive(Clone, Debug)]
pub struct CallerId {
    origin: CallerOrigin,
    account: Option<Arc<PrincipalAccount>>,
}

/// The identity by which callers are compared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum CallerOrigin {
    /// No known caller.
    Nobody,
    V4(Ipv4Addr),
    /// The network of an address: its owner has all of its addresses.
    V6([u16; 4]),
    /// Any caller that shows a key of this principal.
    Principal(PrincipalName),
}

impl CallerId {
    /// No known caller: only the total bounds it.
    pub fn nobody() -> Self {
        Self { origin: CallerOrigin::Nobody, account: None }
    }

    /// A principal, with what it uses.
    pub fn of_principal(account: &Arc<PrincipalAccount>) -> Self {
        Self { origin: CallerOrigin::Principal(account.name().clone()), account: Some(Arc::clone(account)) }
    }

    /// The principal of the caller, if it is known.
    pub fn principal(&self) -> Option<&PrincipalName> {
        self.account.as_deref().map(PrincipalAccount::name)
    }

    /// Checks a quota of the caller's key of which a number is in use, for one more. Refuses nobody else.
    pub fn check(&self, quota: KeyQuota, in_use: usize) -> Result<(), QuotaExceeded> {
        let checked = self.account.as_ref().map_or(Ok(()), |account| account.check(quota, in_use));
        checked.map_err(QuotaExceeded::OfKey).inspect_err(|why| self.note_refusal(*why))
    }

    /// Counts the refusal of a call, if it is for a quota of its key.
    pub fn note_refusal(&self, why: QuotaExceeded) {
        if let (Some(account), QuotaExceeded::OfKey(refusal)) = (&self.account, why) {
            account.note_refusal(refusal.quota);
        }
    }

    /// The caller at an address; of IPv6 all of its /64 network.
    pub fn of_address(address: IpAddr) -> Self {
        let v6 = |address: Ipv6Addr| {
            let [a, b, c, d, ..] = address.segments();
            CallerOrigin::V6([a, b, c, d])
        };
        let origin = match address.to_canonical() {
            IpAddr::V4(address) => CallerOrigin::V4(address),
            IpAddr::V6(address) => v6(address),
        };
        Self { origin, account: None }
    }
}

impl PartialEq for CallerId {
    fn eq(&self, other: &Self) -> bool {
        self.origin == other.origin
    }
}

impl Eq for CallerId {}

impl Hash for CallerId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.origin.hash(state);
    }
}

/// The reason why there is no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuotaExceeded {
    /// All permits are taken: this number.
    All(usize),
    /// The caller has the maximum of one caller.
    Own(usize),
    /// The caller has as many as the quota of its key says.
    OfKey(QuotaRefusal),
}

/// The slots of one kind. Cheap to clone.
#[derive(Clone)]
pub struct CallerQuota {
    total_max: usize,
    each_max: usize,
    of_key: Option<KeyQuota>,
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
        Self { total_max, each_max, of_key: None, usage: Arc::default() }
    }

    /// The same, where callers with a key have this quota of their keys instead of the maximum for each caller.
    #[must_use]
    pub fn of_key(self, quota: KeyQuota) -> Self {
        Self { of_key: Some(quota), ..self }
    }

    /// Takes a slot. O(1).
    pub fn take(&self, caller: &CallerId) -> Result<QuotaPermit, QuotaExceeded> {
        self.try_take(caller).inspect_err(|why| caller.note_refusal(*why))
    }

    /// The same, where a refusal does not yet refuse the call.
    pub fn try_take(&self, caller: &CallerId) -> Result<QuotaPermit, QuotaExceeded> {
        let mut taken = self.usage.lock();
        if taken.total >= self.total_max {
            return Err(QuotaExceeded::All(self.total_max));
        }
        if caller.origin != CallerOrigin::Nobody {
            let held = taken.by_caller.get(caller).copied().unwrap_or_default();
            self.check_own(caller, held)?;
            taken.by_caller.insert(caller.clone(), held + 1);
        }
        taken.total += 1;
        Ok(QuotaPermit { usage: Arc::clone(&self.usage), caller: caller.clone() })
    }

    fn check_own(&self, caller: &CallerId, held: usize) -> Result<(), QuotaExceeded> {
        match self.of_key.zip(caller.account.as_ref()) {
            Some((quota, account)) => account.check(quota, held).map_err(QuotaExceeded::OfKey),
            None if held >= self.each_max => Err(QuotaExceeded::Own(self.each_max)),
            None => Ok(()),
        }
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
    use crate::access::PrincipalAccounts;

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
    fn a_key_has_its_quota_instead_of_the_maximum_of_a_caller() {
        let accounts = PrincipalAccounts::default();
        let of = |name: &str, limit| {
            let name = PrincipalName::new(name).expect("a valid name");
            CallerId::of_principal(&accounts.account(&name, &[(KeyQuota::Sessions, limit)].into_iter().collect()))
        };
        let sessions = CallerQuota::new(9, 2).of_key(KeyQuota::Sessions);
        let (ann, bob) = (of("ann", 3), of("bob", 1));
        let _held: Vec<QuotaPermit> = (0..3).map(|_| sessions.take(&ann).expect("its quota")).collect();
        let Err(QuotaExceeded::OfKey(refusal)) = sessions.take(&ann) else { panic!("its quota is used up") };
        assert_eq!((refusal.quota, refusal.limit), (KeyQuota::Sessions, 3));
        assert!(sessions.take(&bob).is_ok() && sessions.take(&caller("10.0.0.1")).is_ok(), "others have their own");
        let more = of("ann", 4);
        assert!(sessions.take(&more).is_ok() && ann == more, "a change counts for what is held already");
        let watches = CallerQuota::new(9, 2);
        let _held: Vec<QuotaPermit> = (0..2).map(|_| watches.take(&ann).expect("room")).collect();
        assert_eq!(watches.take(&ann).err(), Some(QuotaExceeded::Own(2)), "there is no quota for each kind");
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
