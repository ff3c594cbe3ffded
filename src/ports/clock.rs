//! Time and randomness, injected so that tests control them.

use std::time::Duration;

use async_trait::async_trait;

use tallystone_domain::time::Timestamp;

/// A clock.
///
/// Laws:
/// 1. `now` is wall time: it may jump either way.
/// 2. `elapsed` never goes back and ignores steps of the wall clock.
/// 3. `sleep` returns no earlier than the given time has passed on `elapsed`.
/// 4. Two clocks with equal `boot` count `elapsed` from the same moment, even in different processes.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Wall time.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment.
    fn elapsed(&self) -> Duration;

    /// The moment from which `elapsed` counts.
    fn boot(&self) -> BootId;

    /// Waits.
    async fn sleep(&self, duration: Duration);
}

/// The id of a moment from which time is counted: a boot of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub u128);

/// Random bytes for tokens made by the server.
pub trait Entropy: Send + Sync + 'static {
    /// Fills the bytes.
    fn fill(&self, bytes: &mut [u8]);
}
