//! The accounts of principals: their use of this server, next to their quotas.
//!
//! Every identity of a principal has the same account. So neither a second secret nor a change of the key gives it
//! more. An account lives as long as it is held by an identity, a connection or a session. A check of a quota without a
//! limit costs one load of memory. No check takes a lock that other principals take.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

use tallystone_coalesce::FlowKey;
use tallystone_domain::access::{KeyQuota, KeyQuotas, PrincipalName, QuotaLimits, QuotaRefusal, TokenBucket};
use tallystone_domain::limits::QUOTA_RETRY_AFTER;
use tallystone_ports::Clock;

/// The accounts of all principals, and the limits of a server.
pub struct PrincipalAccounts {
    limits: QuotaLimits,
    by_name: Mutex<AccountIndex>,
    refusals: Arc<QuotaRefusals>,
}

#[derive(Default)]
struct AccountIndex {
    accounts: HashMap<PrincipalName, Weak<PrincipalAccount>>,
    /// The number of accounts at which those are removed that nobody has any more.
    pruned_at: usize,
}

/// How often each quota refused something.
#[derive(Debug, Default)]
pub struct QuotaRefusals([AtomicU64; KeyQuota::COUNT]);

/// The account of one principal: its limits, and its use of them.
pub struct PrincipalAccount {
    name: PrincipalName,
    flow: FlowKey,
    /// The limit of each quota; 0 for none.
    limits: [AtomicU64; KeyQuota::COUNT],
    calls: Mutex<TokenBucket>,
    bytes: Mutex<TokenBucket>,
    /// The part of each quota that permits hold.
    held: [AtomicU64; KeyQuota::COUNT],
    calls_in_progress: AtomicUsize,
    refusals: Arc<QuotaRefusals>,
}

/// A place within a quota, taken until this is dropped.
#[must_use]
pub struct AccountPermit {
    account: Arc<PrincipalAccount>,
    quota: KeyQuota,
}

impl PrincipalAccounts {
    /// No principal uses anything yet.
    pub fn new(limits: QuotaLimits) -> Self {
        Self { limits, by_name: Mutex::default(), refusals: Arc::default() }
    }

    /// The account of a principal, which has these limits of its own from now on. O(1) amortised.
    pub fn account(&self, name: &PrincipalName, own: &KeyQuotas) -> Arc<PrincipalAccount> {
        let account = self.known_or_new(name);
        account.set_limits(&self.limits.of_key(own));
        account
    }

    fn known_or_new(&self, name: &PrincipalName) -> Arc<PrincipalAccount> {
        let mut index = self.by_name.lock();
        if let Some(known) = index.accounts.get(name).and_then(Weak::upgrade) {
            return known;
        }
        if index.accounts.len() >= index.pruned_at {
            index.accounts.retain(|_, account| account.strong_count() > 0);
            index.pruned_at = 2 * index.accounts.len() + 16;
        }
        let made = Arc::new(PrincipalAccount::new(name.clone(), Arc::clone(&self.refusals)));
        index.accounts.insert(name.clone(), Arc::downgrade(&made));
        made
    }

    /// How often quotas refused something.
    pub fn refusals(&self) -> Arc<QuotaRefusals> {
        Arc::clone(&self.refusals)
    }
}

impl Default for PrincipalAccounts {
    fn default() -> Self {
        Self::new(QuotaLimits::UNLIMITED)
    }
}

impl QuotaRefusals {
    /// How often a quota refused something, over all principals.
    pub fn of(&self, quota: KeyQuota) -> u64 {
        self.0[quota as usize].load(Ordering::Relaxed)
    }
}

impl PrincipalAccount {
    fn new(name: PrincipalName, refusals: Arc<QuotaRefusals>) -> Self {
        let [calls, bytes] = [1, 1].map(|rate| Mutex::new(TokenBucket::full(rate)));
        let flow = FlowKey(xxh3_64(name.as_str().as_bytes()));
        Self {
            name,
            flow,
            limits: Default::default(),
            calls,
            bytes,
            held: Default::default(),
            calls_in_progress: AtomicUsize::new(0),
            refusals,
        }
    }

    /// The principal.
    pub fn name(&self) -> &PrincipalName {
        &self.name
    }

    /// Runs work on behalf of the principal of a call, so that callers take turns where work waits for a store. Where
    /// callers show no key, they take no turns.
    pub fn on_behalf<F: Future>(account: Option<&Arc<Self>>, work: F) -> impl Future<Output = F::Output> + use<F> {
        FlowKey::scope(account.map(|account| account.flow), work)
    }

    /// The same for work that is polled.
    pub fn poll_on_behalf<T>(account: Option<&Arc<Self>>, work: impl FnOnce() -> T) -> T {
        FlowKey::sync_scope(account.map(|account| account.flow), work)
    }

    /// The calls of the principal in progress.
    pub fn calls_in_progress(&self) -> usize {
        self.calls_in_progress.load(Ordering::Relaxed)
    }

    /// A call is in progress from now on.
    pub fn begin_call(&self) {
        self.calls_in_progress.fetch_add(1, Ordering::Relaxed);
    }

    /// A call that began has ended.
    pub fn end_call(&self) {
        self.calls_in_progress.fetch_sub(1, Ordering::Relaxed);
    }

    /// The limit of a quota, if it has one.
    pub fn limit(&self, quota: KeyQuota) -> Option<u64> {
        Some(self.limits[quota as usize].load(Ordering::Relaxed)).filter(|limit| *limit > 0)
    }

    /// Admits a call by the rates, before it is read. The account is charged for the call, and for bytes by
    /// `charge_bytes`.
    pub fn admit_call(&self, clock: &dyn Clock) -> Result<(), QuotaRefusal> {
        if self.limit(KeyQuota::BytesPerSecond).is_some() {
            let checked = self.bytes.lock().check(clock.elapsed());
            checked.map_err(|wait| self.refuse(KeyQuota::BytesPerSecond, wait))?;
        }
        if self.limit(KeyQuota::CallsPerSecond).is_some() {
            let taken = self.calls.lock().take(clock.elapsed());
            taken.map_err(|wait| self.refuse(KeyQuota::CallsPerSecond, wait))?;
        }
        Ok(())
    }

    /// Counts bytes that came or went. Answers how long to wait for more of a stream.
    pub fn charge_bytes(&self, bytes: usize, clock: &dyn Clock) -> Option<Duration> {
        self.limit(KeyQuota::BytesPerSecond)?;
        let (mut bucket, now) = (self.bytes.lock(), clock.elapsed());
        bucket.charge(u64::try_from(bytes).unwrap_or(u64::MAX), now);
        bucket.check(now).err()
    }

    /// Takes a place within a quota of how many there are at a time.
    pub fn take(self: &Arc<Self>, quota: KeyQuota) -> Result<AccountPermit, QuotaRefusal> {
        let most = self.limit(quota).unwrap_or(u64::MAX);
        let more = |held: u64| (held < most).then_some(held + 1);
        let taken = self.held[quota as usize].fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.map_err(|_| self.refuse(quota, QUOTA_RETRY_AFTER))?;
        Ok(AccountPermit { account: Arc::clone(self), quota })
    }

    /// Checks a quota of which a number is in use, for one more. A caller that refuses for this reason counts the
    /// refusal by `note_refusal`.
    pub fn check(&self, quota: KeyQuota, in_use: usize) -> Result<(), QuotaRefusal> {
        match self.limit(quota) {
            Some(limit) if in_use as u64 >= limit => Err(QuotaRefusal { quota, limit, retry_after: QUOTA_RETRY_AFTER }),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a refusal.
    pub fn note_refusal(&self, quota: KeyQuota) {
        self.refusals.0[quota as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn refuse(&self, quota: KeyQuota, retry_after: Duration) -> QuotaRefusal {
        self.note_refusal(quota);
        // If the limit was removed meanwhile, a repeat is admitted.
        QuotaRefusal { quota, limit: self.limit(quota).unwrap_or_default(), retry_after }
    }

    /// A rate that changes begins with a full bucket. What is held beyond a lower limit stays.
    fn set_limits(&self, limits: &QuotaLimits) {
        for quota in KeyQuota::ALL {
            let limit = limits.get(quota).unwrap_or(0);
            let before = self.limits[quota as usize].load(Ordering::Relaxed);
            if before != limit {
                match quota {
                    KeyQuota::CallsPerSecond => *self.calls.lock() = TokenBucket::full(limit),
                    KeyQuota::BytesPerSecond => *self.bytes.lock() = TokenBucket::full(limit),
                    KeyQuota::Streams
                    | KeyQuota::Connections
                    | KeyQuota::Sessions
                    | KeyQuota::Operations
                    | KeyQuota::Queues
                    | KeyQuota::Namespaces => {}
                }
                self.limits[quota as usize].store(limit, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for PrincipalAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PrincipalAccount").field(&self.name).finish()
    }
}

impl fmt::Debug for AccountPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccountPermit").field(&self.account.name).field(&self.quota).finish()
    }
}

impl Drop for AccountPermit {
    fn drop(&mut self) {
        self.account.held[self.quota as usize].fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PrincipalName {
        PrincipalName::new(text).expect("a valid name")
    }

    fn own(limits: &[(KeyQuota, u64)]) -> KeyQuotas {
        limits.iter().copied().collect()
    }

    #[test]
    fn a_principal_has_one_account_however_often_it_is_asked_for() {
        let accounts = PrincipalAccounts::new(QuotaLimits::UNLIMITED.with(KeyQuota::Streams, 2));
        let (ann, bob) = (name("ann"), name("bob"));
        let first = accounts.account(&ann, &own(&[]));
        let held: Vec<_> = (0..2).map(|_| first.take(KeyQuota::Streams).expect("room")).collect();
        let again = accounts.account(&ann, &own(&[]));
        let refusal = again.take(KeyQuota::Streams).expect_err("both are taken");
        assert_eq!((refusal.quota, refusal.limit, refusal.retry_after), (KeyQuota::Streams, 2, QUOTA_RETRY_AFTER));
        let other = accounts.account(&bob, &own(&[])).take(KeyQuota::Streams);
        assert!(other.is_ok(), "each principal has its own");
        drop(held);
        assert!(again.take(KeyQuota::Streams).is_ok(), "a place is given back");
        assert_eq!(KeyQuota::ALL.map(|quota| accounts.refusals().of(quota)), [0, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_limit_that_changes_counts_from_then_on() {
        let accounts = PrincipalAccounts::default();
        let account = accounts.account(&name("ann"), &own(&[]));
        let held: Vec<_> = (0..9).map(|_| account.take(KeyQuota::Sessions).expect("no limit")).collect();
        accounts.account(&name("ann"), &own(&[(KeyQuota::Sessions, 5)]));
        assert!(account.take(KeyQuota::Sessions).is_err(), "what is held stays, and counts");
        assert!(account.check(KeyQuota::Sessions, 5).is_err() && account.check(KeyQuota::Sessions, 4).is_ok());
        drop(held);
        assert!(account.take(KeyQuota::Sessions).is_ok());
    }

    #[test]
    fn accounts_that_nobody_has_are_forgotten() {
        let accounts = PrincipalAccounts::default();
        let kept = accounts.account(&name("ann"), &own(&[]));
        for number in 0..1_000 {
            drop(accounts.account(&name(&format!("k{number}")), &own(&[])));
        }
        assert!(accounts.by_name.lock().accounts.len() < 100);
        assert!(Arc::ptr_eq(&kept, &accounts.account(&name("ann"), &own(&[]))));
    }
}
