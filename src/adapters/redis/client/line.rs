//! A line to a node: at most one connection, made when it is needed, and made anew when it broke.
//!
//! Callers that need it at the same time share one attempt. After a failed attempt there is a pause, which the lines of a
//! node have in common.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;

use crate::client::failure::{CallFailure, FailureCause};
use crate::client::wire::{Door, Wire};
use crate::limits::{REDIS_PAUSE_MAX, REDIS_PAUSE_MIN};
use tallystone_ports::{Clock, EffectOutcome};

type Attempt = Shared<BoxFuture<'static, Result<Arc<Wire>, CallFailure>>>;

/// A line to a node.
#[derive(Default)]
pub(super) struct Line(Mutex<LineState>);

#[derive(Default)]
enum LineState {
    #[default]
    Down,
    Connecting(Attempt),
    Up(Arc<Wire>),
}

/// Since when a node cannot be reached. Times are those of `Clock::elapsed`.
#[derive(Default)]
pub(super) struct Absence(Mutex<AbsenceState>);

#[derive(Default)]
struct AbsenceState {
    failures: u32,
    since: Option<Duration>,
    next_attempt_at: Duration,
    why: Option<CallFailure>,
}

/// How a line is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LineStanding {
    Down,
    Connecting,
    Up,
}

impl Line {
    /// The connection, made now if there is none.
    pub(super) async fn wire(
        &self,
        door: &Door,
        absence: &Arc<Absence>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<Wire>, CallFailure> {
        let attempt = {
            let mut state = self.0.lock();
            match &*state {
                LineState::Up(wire) if !wire.is_broken() => return Ok(Arc::clone(wire)),
                LineState::Connecting(attempt) => attempt.clone(),
                LineState::Down | LineState::Up(_) => {
                    if let Some(failure) = absence.refusal(clock.elapsed()) {
                        *state = LineState::Down;
                        return Err(failure);
                    }
                    let attempt = attempt(door.clone(), Arc::clone(absence), Arc::clone(clock)).boxed().shared();
                    *state = LineState::Connecting(attempt.clone());
                    attempt
                }
            }
        };
        let made = attempt.clone().await;
        let mut state = self.0.lock();
        // Whoever comes first settles it; later ones may find the next attempt already.
        if matches!(&*state, LineState::Connecting(current) if current.ptr_eq(&attempt)) {
            *state = made.as_ref().map_or(LineState::Down, |wire| LineState::Up(Arc::clone(wire)));
        }
        made
    }

    /// How it is.
    pub(super) fn standing(&self) -> LineStanding {
        match &*self.0.lock() {
            LineState::Up(wire) if !wire.is_broken() => LineStanding::Up,
            LineState::Connecting(_) => LineStanding::Connecting,
            LineState::Down | LineState::Up(_) => LineStanding::Down,
        }
    }

    /// The calls in flight.
    pub(super) fn in_flight(&self) -> usize {
        match &*self.0.lock() {
            LineState::Up(wire) => wire.in_flight(),
            LineState::Down | LineState::Connecting(_) => 0,
        }
    }

    /// Lets go of the connection. Its calls in flight go on.
    pub(super) fn hang_up(&self) {
        *self.0.lock() = LineState::Down;
    }
}

async fn attempt(door: Door, absence: Arc<Absence>, clock: Arc<dyn Clock>) -> Result<Arc<Wire>, CallFailure> {
    let made = Wire::connect(&door, None, &clock).await.map_err(|CallFailure { cause, outcome, text }| {
        // What got no answer was a question of ours: nothing of a caller was sent yet.
        let cause = if outcome == EffectOutcome::Unknown { FailureCause::Unreachable } else { cause };
        CallFailure::new(cause, text)
    });
    match &made {
        Ok(_) => absence.end(),
        Err(failure) => absence.record_failure(clock.elapsed(), failure),
    }
    made.map(Arc::new)
}

impl Absence {
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

    /// Why the last attempt failed, while the next one may not be made yet.
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
        *self.0.lock() = AbsenceState::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_the_absence() {
        let absence = Absence::default();
        let failure = CallFailure::new(FailureCause::Moving, "it is a replica");
        let mut now = Duration::from_secs(5);
        assert_eq!((absence.pause_left(now), absence.lasts(now)), (Duration::ZERO, Duration::ZERO));
        let mut pause = REDIS_PAUSE_MIN;
        for _ in 0..20 {
            absence.record_failure(now, &failure);
            assert_eq!(absence.pause_left(now), pause);
            let refusal = absence.refusal(now).expect("during a pause");
            assert!(refusal.cause == failure.cause && refusal.text.contains("it is a replica"), "{refusal:?}");
            now += pause;
            assert_eq!((absence.pause_left(now), absence.lasts(now)), (Duration::ZERO, now - Duration::from_secs(5)));
            pause = (2 * pause).min(REDIS_PAUSE_MAX);
        }
        assert_eq!(absence.refusal(now), None);
        absence.end();
        assert_eq!((absence.pause_left(now), absence.lasts(now)), (Duration::ZERO, Duration::ZERO));
    }
}
