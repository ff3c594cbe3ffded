//! Best-effort counters: fast, approximate, not durable, not idempotent.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::counter::Counter;
use crate::ports::StoreError;

/// Best-effort counters.
///
/// Laws:
/// 1. `add` answers the value after it; an absent counter starts from 0; each add begins the TTL anew.
/// 2. `get` answers the value, or nothing for a counter that is absent or expired.
/// 3. After `clear` the counter is absent.
/// 4. A value that would leave 64 bits stays at their end, or, on a store that does its sums itself and only modulo 2^64,
///    wraps around; the store says which.
/// 5. Nothing survives a restart, and anything may be forgotten under memory pressure.
#[async_trait]
pub trait FastCounts: Send + Sync + 'static {
    /// Adds and answers the value after it.
    async fn add(&self, counter: &Counter, delta: i64, ttl: Option<Duration>) -> Result<i64, StoreError>;

    /// Reads the value.
    async fn get(&self, counter: &Counter) -> Result<Option<i64>, StoreError>;

    /// Removes the counter.
    async fn clear(&self, counter: &Counter) -> Result<(), StoreError>;

    /// Lists names with a prefix, above the given name, in their order; a store that cannot list answers none.
    async fn names(
        &self,
        namespace: crate::domain::counter::NamespaceId,
        prefix: &str,
        above: Option<&crate::domain::counter::CounterName>,
        limit: usize,
    ) -> Result<Vec<crate::domain::counter::CounterName>, StoreError>;
}
