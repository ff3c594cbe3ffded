//! Time and chance, injected so that tests can own them.

use std::time::Duration;

use async_trait::async_trait;

use crate::domain::time::Timestamp;

/// A clock.
///
/// Laws:
/// 1. `now` is wall time: it may jump either way.
/// 2. `elapsed` never goes back and does not feel wall-clock steps.
/// 3. `sleep` returns no earlier than the given time has passed on `elapsed`.
/// 4. Of two clocks with equal `boot`, `elapsed` counts from the same moment, in whatever processes they are.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Wall time.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment.
    fn elapsed(&self) -> Duration;

    /// What `elapsed` counts from.
    fn boot(&self) -> BootId;

    /// Waits.
    async fn sleep(&self, duration: Duration);
}

/// The name of a moment from which time is counted: of a boot of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub u128);

/// Random bytes for tokens made by the server.
pub trait Entropy: Send + Sync + 'static {
    /// Fills the bytes.
    fn fill(&self, bytes: &mut [u8]);
}
