//! The cache in front of the checkpoints: count and time in one value.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::counter::{Counter, EventKey};
use crate::domain::time::Timestamp;

/// What a read needs of a counter, in one value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedCount {
    /// The exact count of the checkpoint.
    pub count: i128,
    /// Every event up to here is in it; `Timestamp::MIN` if the counter was never rolled up.
    pub as_of: Timestamp,
    /// The time of the newest mutation folded in.
    pub last_event_time: Option<Timestamp>,
    /// The key of the newest clear, folded in or not.
    pub clear: Option<EventKey>,
    /// The time of the newest mutation.
    pub last_write_time: Option<Timestamp>,
    /// When that was read from the store; `None` means that it is exact at every moment.
    pub checked_at: Option<Timestamp>,
}

/// The right to fill one key, taken before the store is read. What the numbers mean only the cache knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CacheLease {
    /// When it was taken, by `Clock::elapsed`; zero where leases do not age.
    pub taken: Duration,
    /// A mark for each replica, in their order; none for one that gave no right.
    pub marks: Vec<Option<CacheMark>>,
}

/// The right to fill one key on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheMark {
    /// Names the state of the key when the lease was taken.
    pub number: u64,
    /// The `as_of` of the value that was there.
    pub held_as_of: Option<Timestamp>,
}

/// The cache. It may forget anything at any time, and failing is forgetting; it never makes a read fail.
///
/// Laws:
/// 1. `get` answers a value that was filled, or what the rollup store holds at this moment, or nothing. A value without
///    `checked_at` is always what the rollup store holds at this moment.
/// 2. A fill whose lease was taken before the last `delete` of the key changes nothing.
/// 3. A fill with a lower `as_of` than the value that is there changes nothing.
/// 4. After `delete` answers `true`, no value filled under an earlier lease is answered. After it answered `false`, none is
///    once `CLEAR_VISIBLE_WITHIN` has passed.
#[async_trait]
pub trait CountCache: Send + Sync + 'static {
    /// Reads a value.
    async fn get(&self, counter: &Counter) -> Option<CachedCount>;

    /// Takes the right to fill a key.
    async fn lease(&self, counter: &Counter) -> CacheLease;

    /// Fills a key.
    async fn fill(&self, counter: &Counter, value: CachedCount, lease: CacheLease);

    /// Forgets a key on every replica; says whether all of them answered.
    async fn delete(&self, counter: &Counter) -> bool;
}
