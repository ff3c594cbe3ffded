//! Best-effort counters: fast, approximate, not durable, not idempotent.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::counter::{Counter, EventKey};
use crate::ports::StoreError;

/// In which form a store of best-effort counters keeps the laws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastCapabilities {
    /// What becomes of a value that leaves 64 bits.
    pub overflow: Overflow,
    /// Whose clock ends counters.
    pub expiry: Expiry,
    /// Whether `names` lists anything.
    pub lists_names: bool,
    /// For how long a token is remembered after its add; zero: not at all.
    pub remembers_tokens: Duration,
}

/// What becomes of a value that leaves 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overflow {
    /// It stays at their end.
    Stays,
    /// It comes in again at the other end.
    Wraps,
}

/// Whose clock ends counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expiry {
    /// The injected clock: a counter ends with its TTL.
    Exact,
    /// The store's own, in whole seconds: a counter lasts its TTL, and at most two seconds more.
    WholeSeconds,
}

/// One add.
#[derive(Clone, Debug)]
pub struct FastAdd {
    /// The delta.
    pub delta: i64,
    /// How long the counter lasts from now on; none: for ever.
    pub ttl: Option<Duration>,
    /// The caller's token, if there is one.
    pub token: Option<EventKey>,
}

/// What an add did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastAddOutcome {
    /// It was added; the value after it.
    Applied(i64),
    /// The token was seen before, so nothing was added; the value as it is, nothing where the counter is absent.
    Seen(Option<i64>),
}

impl FastAdd {
    /// An add without a token.
    pub fn of(delta: i64, ttl: Option<Duration>) -> Self {
        Self { delta, ttl, token: None }
    }
}

impl FastAddOutcome {
    /// The value of the counter after the call.
    pub fn value(self) -> i64 {
        match self {
            Self::Applied(value) => value,
            Self::Seen(value) => value.unwrap_or(0),
        }
    }
}

/// Best-effort counters.
///
/// Laws:
/// 1. `add` answers the value after it; an absent counter starts from 0; each add begins the TTL anew.
/// 2. `get` answers the value, or nothing for a counter that is absent or expired.
/// 3. After `clear` the counter is absent.
/// 4. A value that would leave 64 bits stays at their end, or, on a store that does its sums itself and only modulo 2^64,
///    wraps around; the store says which.
/// 5. Nothing survives a restart of what keeps the counters, and anything may be forgotten under memory pressure.
/// 6. A failure says whether the add may have happened. An add is never sent again when it may have happened.
/// 7. With `remembers_tokens`, an add whose token an earlier add of the counter carried within that time adds nothing. An
///    add that failed with an unknown outcome may be lost for good: its token may be remembered and its delta not be added.
///    One whose caller goes away counts all the same, or its token is not remembered.
#[async_trait]
pub trait FastCounts: Send + Sync + 'static {
    /// In which form it keeps the laws.
    fn capabilities(&self) -> FastCapabilities;

    /// Adds.
    async fn add(&self, counter: &Counter, add: FastAdd) -> Result<FastAddOutcome, StoreError>;

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
