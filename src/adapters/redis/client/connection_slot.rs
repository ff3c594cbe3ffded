//! A slot for at most one connection to a node: opened when it is needed, and again after it broke.
//!
//! Callers that need it at the same time share one attempt. After a failed attempt there is a pause, which the slots of
//! a node have in common.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use crate::client::connection::{Endpoint, RedisConnection};
use crate::client::failure::{CallFailure, FailureCause};
use crate::limits::{REDIS_PAUSE_MAX, REDIS_PAUSE_MIN};
use tallystone_ports::{Clock, EffectOutcome};

type Attempt = Shared<BoxFuture<'static, Result<Arc<RedisConnection>, CallFailure>>>;

/// A slot for a connection to a node.
#[derive(Default)]
pub(super) struct ConnectionSlot(Mutex<SlotState>);

#[derive(Default)]
enum SlotState {
    #[default]
    Down,
    Connecting(Attempt),
    Up(Arc<RedisConnection>),
}

/// Since when a node cannot be reached. Times are those of `Clock::elapsed`.
#[derive(Default)]
pub(super) struct Outage(Mutex<OutageState>);

#[derive(Default)]
struct OutageState {
    failures: u32,
    since: Option<Duration>,
    next_attempt_at: Duration,
    why: Option<CallFailure>,
}

/// The status of the connection in a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionStatus {
    Down,
    Connecting,
    Up,
}

impl ConnectionSlot {
    /// The connection, made now if there is none.
    pub(super) async fn connection(
        &self,
        endpoint: &Endpoint,
        outage: &Arc<Outage>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<RedisConnection>, CallFailure> {
        let attempt = {
            let mut state = self.0.lock();
            match &*state {
                SlotState::Up(connection) if !connection.is_broken() => return Ok(Arc::clone(connection)),
                SlotState::Connecting(attempt) => attempt.clone(),
                SlotState::Down | SlotState::Up(_) => {
                    if let Some(failure) = outage.refusal(clock.elapsed()) {
                        *state = SlotState::Down;
                        return Err(failure);
                    }
                    let attempt = attempt(endpoint.clone(), Arc::clone(outage), Arc::clone(clock)).boxed().shared();
                    *state = SlotState::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        let made = attempt.clone().await;
        let mut state = self.0.lock();
        // Whoever comes first settles it; later ones may find the next attempt already.
        if matches!(&*state, SlotState::Connecting(current) if current.ptr_eq(&attempt)) {
            *state = made.as_ref().map_or(SlotState::Down, |connection| SlotState::Up(Arc::clone(connection)));
        }
        made
    }

    /// How it is.
    pub(super) fn status(&self) -> ConnectionStatus {
        match &*self.0.lock() {
            SlotState::Up(connection) if !connection.is_broken() => ConnectionStatus::Up,
            SlotState::Connecting(_) => ConnectionStatus::Connecting,
            SlotState::Down | SlotState::Up(_) => ConnectionStatus::Down,
        }
    }

    /// The calls in flight.
    pub(super) fn in_flight(&self) -> usize {
        match &*self.0.lock() {
            SlotState::Up(connection) => connection.in_flight(),
            SlotState::Down | SlotState::Connecting(_) => 0,
        }
    }

    /// Lets go of the connection. Its calls in flight go on.
    pub(super) fn close(&self) {
        *self.0.lock() = SlotState::Down;
    }
}

async fn attempt(
    endpoint: Endpoint,
    outage: Arc<Outage>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<RedisConnection>, CallFailure> {
    let made =
        RedisConnection::connect(&endpoint, None, &clock).await.map_err(|CallFailure { cause, outcome, text }| {
            // What got no answer was a question of ours: nothing of a caller was sent yet.
            let cause = if outcome == EffectOutcome::Unknown { FailureCause::Unreachable } else { cause };
            CallFailure::new(cause, text)
        });
    match &made {
        Ok(_) => outage.end(),
        Err(failure) => outage.record_failure(clock.elapsed(), failure),
    }
    made.map(Arc::new)
}

impl Outage {
    /// How long the node cannot be reached.
    pub(super) fn lasts(&self, now: Duration) -> Duration {
        self.0.lock().since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// How many attempts failed since it was last reached, and why the last one did.
    pub(super) fn last_failure(&self) -> (u32, Option<CallFailure>) {
        let state = self.0.lock();
        (state.failures, state.why.clone())
    }

    /// The time until the next attempt may be made.
    pub(super) fn pause_left(&self, now: Duration) -> Duration {
        self.0.lock().next_attempt_at.saturating_sub(now)
    }

    /// The failure of the last attempt, while the next one may not be made yet.
    fn refusal(&self, now: Duration) -> Option<CallFailure> {
        let state = self.0.lock();
        let pause = state.next_attempt_at.saturating_sub(now);
        let CallFailure { cause, text, .. } = state.why.as_ref().filter(|_| !pause.is_zero())?;
        Some(CallFailure::new(cause.clone(), format!("{text}; next attempt in {} ms", pause.as_millis())))
    }

    pub(super) fn record_failure(&self, now: Duration, failure: &CallFailure) {
        let mut state = self.0.lock();
        state.why = Some(failure.clone());
        let doublings = state.failures.min(16);
        state.failures = state.failures.saturating_add(1);
        state.since.get_or_insert(now);
        state.next_attempt_at = now + REDIS_PAUSE_MIN.saturating_mul(1 << doublings).min(REDIS_PAUSE_MAX);
    }

    pub(super) fn end(&self) {
        *self.0.lock() = OutageState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_the_absence() {
        let outage = Outage::default();
        let failure = CallFailure::new(FailureCause::Moving, "it is a replica");
        let mut now = Duration::from_secs(5);
        assert_eq!((outage.pause_left(now), outage.lasts(now)), (Duration::ZERO, Duration::ZERO));
        let mut pause = REDIS_PAUSE_MIN;
        for _ in 0..20 {
            outage.record_failure(now, &failure);
            assert_eq!(outage.pause_left(now), pause);
            let refusal = outage.refusal(now).expect("during a pause");
            assert!(refusal.cause == failure.cause && refusal.text.contains("it is a replica"), "{refusal:?}");
            now += pause;
            assert_eq!((outage.pause_left(now), outage.lasts(now)), (Duration::ZERO, now - Duration::from_secs(5)));
            pause = (2 * pause).min(REDIS_PAUSE_MAX);
        }
        assert_eq!(outage.refusal(now), None);
        outage.end();
        assert_eq!((outage.pause_left(now), outage.lasts(now)), (Duration::ZERO, Duration::ZERO));
    }
}
