//! Best-effort counters: fast, approximate, not durable, not idempotent.

use std::time::Duration;

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::{Counter, EventKey};

/// The variants of the laws that a store of best-effort counters keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastCapabilities {
    /// The treatment of a value beyond 64 bits.
    pub overflow: Overflow,
    /// The clock by which counters expire.
    pub expiry: Expiry,
    /// Whether `names` lists anything.
    pub lists_names: bool,
    /// The time for which a token is remembered after its add; zero: not at all.
    pub remembers_tokens: Duration,
}

/// The treatment of a value beyond 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overflow {
    /// The value saturates.
    Stays,
    /// The value wraps around.
    Wraps,
}

/// The clock by which counters expire.
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
    /// The TTL of the counter from now on; none: no expiry.
    pub ttl: Option<Duration>,
    /// The caller's token, if there is one.
    pub token: Option<EventKey>,
}

/// The outcome of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastAddOutcome {
    /// The delta was added; the value after it.
    Applied(i64),
    /// The token is a duplicate, so nothing was added; the present value, none if the counter is absent.
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
/// 1. `add` returns the value after it. An absent counter starts from 0. Each add restarts the TTL.
/// 2. `get` returns the value, or nothing for a counter that is absent or expired.
/// 3. After `clear` the counter is absent.
/// 4. A value beyond 64 bits saturates, or wraps around on a store that adds modulo 2^64. The store says which.
/// 5. No value survives a restart of the store, and any value may be evicted under memory pressure.
/// 6. A failure says whether the add may have happened. Such an add is never sent again.
/// 7. With `remembers_tokens`, an add adds nothing if an earlier add of the counter had the same token within that
///    time. An add with an unknown outcome may be lost: its token may be recorded without its delta. If the caller of
///    an add goes away, the add still counts, or its token is not recorded.
#[async_trait]
pub trait FastCounts: Send + Sync + 'static {
    /// The variants of the laws that the store keeps.
    fn capabilities(&self) -> FastCapabilities;

    /// Adds.
    async fn add(&self, counter: &Counter, add: FastAdd) -> Result<FastAddOutcome, StoreError>;

    /// Reads the value.
    async fn get(&self, counter: &Counter) -> Result<Option<i64>, StoreError>;

    /// Removes the counter.
    async fn clear(&self, counter: &Counter) -> Result<(), StoreError>;

    /// Lists names with a prefix, above the given name, in their order. A store that cannot list returns none.
    async fn names(
        &self,
        namespace: tallystone_domain::counter::NamespaceId,
        prefix: &str,
        above: Option<&tallystone_domain::counter::CounterName>,
        limit: usize,
    ) -> Result<Vec<tallystone_domain::counter::CounterName>, StoreError>;
}
