//! Batches of adds: sent in parts of one call's size, each with those of its items again that were refused for a time.
//!
//! A part and its repeats have one budget. Of each item is kept whether an earlier try may have applied it, because what a
//! later try is refused for does not say so.

use std::time::Duration;

use crate::client::call::Hedge;
use crate::client::error::{CallError, EFFECT_UNKNOWN, RETRYABLE, may_be_applied, status_of};
use crate::client::retry::{CallKind, Pause, RetryProgress};
use crate::client::{Client, counters_on};
use crate::proto::counter::v1::{AddItem, AddResult, BatchAddCountsRequest};
use crate::proto::error::v1::ItemError;

/// The most items that one call carries; the service takes no more.
pub(super) const BATCH_ITEMS_MAX: usize = 1_000;

/// An item whose last word is not said.
struct UnsettledItem {
    /// Its place in the part.
    at: usize,
    /// Whether its token was made here and was not replaced yet.
    is_ours: bool,
    /// Whether a try under its token may have applied it.
    may_be_applied: bool,
}

impl Client {
    /// Adds many deltas, in calls of up to 1,000; answers each item in its order. Items without a token get one here.
    ///
    /// Each call's worth of items has the budget of one call: an item that was refused for a time is sent again, under its
    /// token, until it is spent; a token of ours that was finally not applied is replaced once, as for single adds. An item
    /// that any try may have applied, and none settled, is told as `OUTCOME_UNKNOWN`, whatever the last one was refused for.
    ///
    /// An error of the whole call says how far it came: `answered` holds the results of the calls before. The items of
    /// `rest` that have tokens may have been applied or not, the others were not sent.
    pub async fn batch_add_counts(&self, request: BatchAddCountsRequest) -> Result<Vec<AddResult>, BatchError> {
        let BatchAddCountsRequest { namespace, mut items } = request;
        let mut answered = Vec::with_capacity(items.len());
        for first in (0..items.len()).step_by(BATCH_ITEMS_MAX) {
            let chunk = &items[first..items.len().min(first + BATCH_ITEMS_MAX)];
            let mut part = BatchAddCountsRequest { namespace: namespace.clone(), items: chunk.to_vec() };
            match self.batch_part(&mut part).await {
                Ok(results) => answered.extend(results),
                Err(error) => {
                    let behind = items.split_off(first + chunk.len());
                    part.items.extend(behind);
                    return Err(BatchError { answered, rest: Box::new(part), error });
                }
            }
        }
        Ok(answered)
    }

    /// One call's worth of items, and again those of them that were refused for a time. After an error the part is whole.
    async fn batch_part(&self, part: &mut BatchAddCountsRequest) -> Result<Vec<AddResult>, CallError> {
        let call = |channel, request| async move { counters_on(channel).batch_add_counts(request).await };
        // Made here, so that those of a long batch are no older than the call that carries them.
        let mut open = self.assign_tokens(part);
        let mut results = vec![AddResult::default(); open.len()];
        let mut is_answered = false;
        let mut progress = RetryProgress::begin(self.policy, CallKind::Change);
        loop {
            match self.attempt(&mut progress, Hedge::Never, &*part, call).await {
                Ok(answer) => {
                    is_answered = true;
                    let refusal = self.apply_results(answer.results, part, &mut open, &mut results);
                    if open.iter().any(|one| one.may_be_applied) && !self.idempotent.has(&part.namespace) {
                        self.drop_unsafe_retries(part, &mut open, progress.time_left()).await;
                        if open.is_empty() {
                            return Ok(results);
                        }
                    }
                    // An item with a new token waits for nothing.
                    let Some(refusal) = refusal else {
                        if open.is_empty() || progress.time_left().is_zero() {
                            return Ok(results);
                        }
                        continue;
                    };
                    if progress.wait_for_retry(status_of(refusal), Pause::Usual, &self.budget).await.is_err() {
                        return Ok(results);
                    }
                }
                Err((status, pause)) => {
                    let is_lost = may_be_applied(&status);
                    open.iter_mut().for_each(|one| one.may_be_applied |= is_lost);
                    let error = match self.may_repeat(&part.namespace, &status, progress.time_left()).await {
                        false => progress.give_up(status),
                        true => match progress.wait_for_retry(status, pause, &self.budget).await {
                            Ok(()) => continue,
                            Err(error) => error,
                        },
                    };
                    if !is_answered {
                        return Err(error);
                    }
                    // What is known of the others stays known; of these nobody knows any more.
                    for (item, one) in part.items.iter().zip(&open).filter(|(_, one)| one.may_be_applied) {
                        results[one.at] = unknown_outcome_result(item, error.status.message());
                    }
                    return Ok(results);
                }
            }
        }
    }

    /// Leaves those items out of the next try that an earlier one may have applied, where a repeat would count twice.
    async fn drop_unsafe_retries(
        &self,
        part: &mut BatchAddCountsRequest,
        open: &mut Vec<UnsettledItem>,
        within: Duration,
    ) {
        if self.recognises_repeats_within(&part.namespace, within).await == Some(true) {
            return;
        }
        let mut keeps = open.iter().map(|one| !one.may_be_applied);
        part.items.retain(|_| keeps.next() == Some(true));
        open.retain(|one| !one.may_be_applied);
    }

    /// Gives tokens to the items that have none; none of them has been sent.
    fn assign_tokens(&self, part: &mut BatchAddCountsRequest) -> Vec<UnsettledItem> {
        let open = |(at, item): (usize, &mut AddItem)| {
            let is_ours = item.idempotency_token.is_none();
            item.idempotency_token.get_or_insert_with(|| self.tokens.make());
            UnsettledItem { at, is_ours, may_be_applied: false }
        };
        part.items.iter_mut().enumerate().map(open).collect()
    }

    /// Takes in what one try answered, and leaves those items in the part that are worth another; says for what the first
    /// of them was refused that has to wait.
    fn apply_results(
        &self,
        answered: Vec<AddResult>,
        part: &mut BatchAddCountsRequest,
        open: &mut Vec<UnsettledItem>,
        results: &mut [AddResult],
    ) -> Option<ItemError> {
        let mut refusal = None;
        let mut answered = answered.into_iter();
        let mut again = Vec::with_capacity(open.len());
        for (item, one) in part.items.iter_mut().zip(open.iter_mut()) {
            let result = answered
                .next()
                .unwrap_or_else(|| unknown_outcome_result(item, "the server left this item out of its answer"));
            one.may_be_applied = !is_final(&result) && (one.may_be_applied || is_outcome_unknown(&result));
            let is_worth_it = result.error.as_ref().is_some_and(|error| RETRYABLE.contains(&error.reason.as_str()));
            if is_worth_it && refusal.is_none() {
                refusal.clone_from(&result.error);
            }
            let told = one.unknown_outcome(item, &result);
            again.push(is_worth_it || self.replace(&result, item, one));
            results[one.at] = told.unwrap_or(result);
        }
        let mut keeps = again.iter();
        part.items.retain(|_| keeps.next() == Some(&true));
        let mut keeps = again.iter();
        open.retain(|_| keeps.next() == Some(&true));
        refusal
    }

    /// Gives an item a new token if the one it had was ours and was finally not applied; once.
    fn replace(&self, result: &AddResult, item: &mut AddItem, one: &mut UnsettledItem) -> bool {
        let Some(error) = result.error.as_ref().filter(|_| one.is_ours) else { return false };
        let server_time = error.metadata.get("server_time").map(String::as_str);
        if !self.tokens.learn(&error.reason, server_time, one.may_be_applied) {
            return false;
        }
        item.idempotency_token = Some(self.tokens.make());
        one.is_ours = false;
        true
    }
}

impl UnsettledItem {
    /// What is told instead of a result that speaks of its own try alone.
    fn unknown_outcome(&self, item: &AddItem, result: &AddResult) -> Option<AddResult> {
        let error = result.error.as_ref().filter(|_| self.may_be_applied && !is_outcome_unknown(result))?;
        Some(unknown_outcome_result(item, &error.message))
    }
}

/// A batch that could not be sent to its end.
#[derive(Debug)]
pub struct BatchError {
    /// The results of the items before the call that failed.
    pub answered: Vec<AddResult>,
    /// That call's items and all after them, under their tokens: send it again as it is.
    pub rest: Box<BatchAddCountsRequest>,
    /// How it failed.
    pub error: CallError,
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} items have an answer, {} have none: {}", self.answered.len(), self.rest.items.len(), self.error)
    }
}

impl std::error::Error for BatchError {}

/// The result of an item that an unanswered try may have applied; with what the last try met.
fn unknown_outcome_result(item: &AddItem, met: &str) -> AddResult {
    let refusal = ItemError {
        code: tonic::Code::Unknown.into(),
        reason: "OUTCOME_UNKNOWN".to_owned(),
        message: format!("the change may have been applied: retry with the same token ({met})"),
        ..ItemError::default()
    };
    AddResult { idempotency_token: item.idempotency_token.clone(), error: Some(refusal), ..AddResult::default() }
}

/// Whether an item may have been applied although it was refused.
fn is_outcome_unknown(result: &AddResult) -> bool {
    result.error.as_ref().is_some_and(|error| EFFECT_UNKNOWN.contains(&error.reason.as_str()))
}

/// Whether a try has said for good what became of an item, whatever was unknown before.
fn is_final(result: &AddResult) -> bool {
    let Some(error) = &result.error else { return true };
    match error.reason.as_str() {
        "NOT_APPLIED" | "ALREADY_EXISTS" => true,
        // Another try may have met another clock.
        "INVALID_FUTURE_TIME" => false,
        // What is wrong with the item was wrong with it at every try.
        reason => reason.starts_with("INVALID_"),
    }
}
