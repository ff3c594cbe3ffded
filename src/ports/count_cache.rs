//! The cache of checkpoints: count and time in one value.

use std::time::Duration;

use async_trait::async_trait;

use tallystone_domain::counter::Counter;
use tallystone_domain::rollup::CachedCount;
use tallystone_domain::time::Timestamp;

/// The right to fill one key, taken before the store is read. Its numbers are opaque to all but the cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheLease {
    /// The time of the lease by `Clock::elapsed`; zero where leases do not age.
    pub acquired_at: Duration,
    /// The lease of each replica, in their order; none for a replica that gave none.
    pub replicas: Vec<Option<ReplicaLease>>,
}

/// The right to fill one key on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaLease {
    /// The state of the key at the time of the lease.
    pub number: u64,
    /// The `as_of` of the value at that time.
    pub held_as_of: Option<Timestamp>,
}

/// The cache. It may drop any value at any time. A failure counts as a miss and never makes a read fail.
///
/// Laws:
/// 1. `get` returns a filled value, the present value of the rollup store, or nothing. A value without `checked_at` is
///    always the present value of the rollup store.
/// 2. A fill whose lease was taken before the last `delete` of the key changes nothing.
/// 3. A fill with a lower `as_of` than the present value changes nothing.
/// 4. After `delete` returned `true`, `get` returns no value that was filled under an earlier lease. After `false` this
///    holds once `CLEAR_VISIBLE_WITHIN` has passed.
#[async_trait]
pub trait CountCache: Send + Sync + 'static {
    /// Reads a value.
    async fn get(&self, counter: &Counter) -> Option<CachedCount>;

    /// Takes a lease to fill a key.
    async fn lease(&self, counter: &Counter) -> CacheLease;

    /// Fills a key.
    async fn fill(&self, counter: &Counter, value: CachedCount, lease: CacheLease);

    /// Deletes a key on every replica. Returns whether all of them answered.
    async fn delete(&self, counter: &Counter) -> bool;
}
