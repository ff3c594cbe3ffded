//! The retry policy of calls.
//!
//! The budget is a deadline for all attempts and a maximum of attempts. Between two attempts the client waits for the
//! delay that the server asked for, else twice as long as before, less a random part, so that clients do not return all
//! at once.

use std::time::{Duration, Instant};

use tonic::Status;

use crate::budget::RetryBudget;
use crate::error::{CallError, is_retryable, may_be_applied, reason_of, retry_delay_of};

/// A call with less time than this is not sent, because servers refuse it. `domain::limits` has the same value; a test
/// compares the two.
pub const DEADLINE_LEAST: Duration = Duration::from_millis(1);

/// The retry policy of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// The most attempts, including the first.
    pub attempts_max: u32,
    /// The time for all attempts and the pauses between them.
    pub total: Duration,
    /// The pause after the first attempt.
    pub pause_first: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The timeout of one attempt. With several servers it should be shorter than `total`, so that a server that hangs
    /// leaves time for the next.
    pub attempt_max: Duration,
    /// The hedging delay: after this time without a response the call goes to the next server too, and the first
    /// response counts. For reads, and for writes with a token in namespaces that recognize repeats. None: never.
    pub hedge_after: Option<Duration>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 5,
            total: Duration::from_secs(10),
            pause_first: Duration::from_millis(100),
            pause_max: Duration::from_secs(2),
            attempt_max: Duration::from_secs(10),
            hedge_after: None,
        }
    }
}

/// The pause before the next attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pause {
    /// None, and it counts as no attempt: the server was not reached.
    None,
    /// The delay of the server, else longer each time.
    Usual,
}

/// The kind of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallKind {
    /// A read.
    Read,
    /// A write.
    Change,
    /// A write with a token that was never sent before.
    NewChange,
}

/// The progress of a call.
pub(super) struct RetryProgress {
    policy: RetryPolicy,
    kind: CallKind,
    began: Instant,
    attempts: u32,
    /// The servers in a row that could not be reached.
    unreached: usize,
    may_be_applied: bool,
    /// The newest error without an effect, while no attempt may have been applied.
    refused: Option<Status>,
}

impl RetryProgress {
    pub fn begin(policy: RetryPolicy, work: CallKind) -> Self {
        Self {
            policy,
            kind: work,
            began: Instant::now(),
            attempts: 0,
            unreached: 0,
            may_be_applied: false,
            refused: None,
        }
    }

    /// The time left for the next attempt.
    pub fn time_left(&self) -> Duration {
        self.policy.total.saturating_sub(self.began.elapsed())
    }

    /// Whether any attempt so far may have been applied.
    pub fn may_be_applied(&self) -> bool {
        self.may_be_applied
    }

    /// Clears that earlier attempts may have been applied, after a verdict of the server that they were not.
    pub fn clear_effects(&mut self) {
        self.attempts += 1;
        self.may_be_applied = false;
    }

    /// Notes a server that could not be reached. Returns whether there are others to try.
    pub fn note_unreached(&mut self, servers: usize) -> bool {
        self.unreached += 1;
        self.unreached < servers
    }

    /// Waits for the next attempt, or ends the call.
    pub async fn wait_for_retry(
        &mut self,
        status: Status,
        pause: Pause,
        budget: &RetryBudget,
    ) -> Result<(), CallError> {
        if pause == Pause::None {
            return Ok(());
        }
        self.unreached = 0;
        self.attempts += 1;
        let pause = retry_delay_of(&status).unwrap_or_else(|| self.pause());
        let may_go_on = is_retryable(&status)
            && self.attempts < self.policy.attempts_max
            && pause < self.time_left()
            && budget.spend();
        let status = self.note(status);
        if may_go_on {
            tokio::time::sleep(pause).await;
            // The error of the last attempt says more than that there is no time for another.
            if self.time_left() >= DEADLINE_LEAST {
                return Ok(());
            }
        }
        Err(self.failure(status))
    }

    /// Ends the call without another attempt.
    pub fn give_up(&mut self, status: Status) -> CallError {
        self.attempts += 1;
        let status = self.note(status);
        self.failure(status)
    }

    fn failure(&self, status: Status) -> CallError {
        let may_be_applied = self.may_be_applied && !is_not_applied(&status);
        CallError { status: Box::new(status), attempts: self.attempts, may_be_applied }
    }

    /// Notes the possible effect of an attempt. Returns the error of the call if it was the last one.
    fn note(&mut self, status: Status) -> Status {
        if self.kind == CallKind::NewChange && !self.may_be_applied && is_token_time_refusal(&status) {
            // Refusals outlasted the token's time. No other caller has the token and no attempt did anything, so
            // nothing was applied. The error to report is the refusal.
            if let Some(refused) = &self.refused {
                return refused.clone();
            }
        }
        self.may_be_applied |= self.kind != CallKind::Read && may_be_applied(&status);
        let did_nothing = !self.may_be_applied && reason_of(&status).is_some();
        self.refused = (did_nothing && is_retryable(&status)).then(|| status.clone());
        status
    }

    /// Between half of the pause and all of it.
    fn pause(&self) -> Duration {
        let doublings = self.attempts.saturating_sub(1).min(16);
        let whole = self.policy.pause_first.saturating_mul(1 << doublings).min(self.policy.pause_max);
        let random = uuid::Uuid::now_v7().as_bytes()[15];
        whole / 2 + whole.mul_f64(f64::from(random) / 512.0)
    }
}

/// Whether the server has said for good that the token was not applied, whatever was unknown before.
fn is_not_applied(status: &Status) -> bool {
    reason_of(status).is_some_and(|reason| reason == "NOT_APPLIED")
}

/// Whether a write is refused because the time of its token is over.
fn is_token_time_refusal(status: &Status) -> bool {
    reason_of(status).is_some_and(|reason| reason == "PENDING" || reason == "NOT_APPLIED")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> RetryPolicy {
        RetryPolicy {
            pause_first: Duration::from_nanos(2),
            pause_max: Duration::from_nanos(8),
            ..RetryPolicy::default()
        }
    }

    #[tokio::test]
    async fn attempts_are_bounded() {
        let mut progress = RetryProgress::begin(policy(), CallKind::Change);
        for _ in 1..5 {
            progress
                .wait_for_retry(Status::unavailable("gone"), Pause::Usual, &RetryBudget::default())
                .await
                .expect("one more attempt");
        }
        let error = progress
            .wait_for_retry(Status::unavailable("gone"), Pause::Usual, &RetryBudget::default())
            .await
            .expect_err("five are the most");
        assert_eq!((error.attempts, error.may_be_applied), (5, true));
    }

    #[tokio::test]
    async fn a_spent_budget_ends_the_attempts() {
        let budget = RetryBudget::default();
        while budget.spend() {}
        let mut progress = RetryProgress::begin(policy(), CallKind::Change);
        let error = progress.wait_for_retry(Status::unavailable("gone"), Pause::Usual, &budget).await;
        assert_eq!(error.expect_err("no repeat is left").attempts, 1);
    }

    #[tokio::test]
    async fn servers_that_cannot_be_reached_are_passed_over_at_once_each_once() {
        let mut progress = RetryProgress::begin(policy(), CallKind::Change);
        assert_eq!([(); 3].map(|()| progress.note_unreached(3)), [true, true, false]);
        let budget = RetryBudget::default();
        progress.wait_for_retry(Status::unavailable("gone"), Pause::None, &budget).await.expect("it is free");
        assert_eq!(progress.attempts, 0);
        progress.wait_for_retry(Status::unavailable("gone"), Pause::Usual, &budget).await.expect("it is the first");
        assert!(progress.note_unreached(3), "a round is over");
    }

    #[tokio::test]
    async fn a_refusal_is_final_and_had_no_effect() {
        let mut progress = RetryProgress::begin(policy(), CallKind::Change);
        let error = progress
            .wait_for_retry(Status::invalid_argument("no"), Pause::Usual, &RetryBudget::default())
            .await
            .expect_err("it is final");
        assert_eq!((error.attempts, error.may_be_applied), (1, false));
    }

    #[tokio::test]
    async fn a_read_that_got_no_answer_had_no_effect() {
        let mut progress = RetryProgress::begin(RetryPolicy { attempts_max: 1, ..policy() }, CallKind::Read);
        let error = progress
            .wait_for_retry(Status::deadline_exceeded("late"), Pause::Usual, &RetryBudget::default())
            .await
            .expect_err("one is the most");
        assert!(!error.may_be_applied && error.got_no_answer());
    }

    #[tokio::test]
    async fn no_attempt_begins_when_the_time_is_over() {
        let mut progress = RetryProgress::begin(RetryPolicy { total: Duration::ZERO, ..policy() }, CallKind::Change);
        assert!(
            progress.wait_for_retry(Status::unavailable("gone"), Pause::Usual, &RetryBudget::default()).await.is_err()
        );
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut progress = RetryProgress::begin(RetryPolicy::default(), CallKind::Change);
        for (attempts, millis) in [(1, 100), (2, 200), (3, 400), (9, 2_000), (u32::MAX, 2_000)] {
            progress.attempts = attempts;
            let whole = Duration::from_millis(millis);
            let pause = progress.pause();
            assert!(pause >= whole / 2 && pause <= whole, "{attempts}: {pause:?}");
        }
    }
}
