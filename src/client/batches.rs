//! Batches of adds: sent in parts of one call each, with retries of the items that were refused temporarily.
//!
//! A part and its retries have one budget. For each item it is recorded whether an earlier attempt may have applied it,
//! because the error of a later attempt does not say so.

use std::time::Duration;

use crate::call::Hedge;
use crate::error::{CallError, EFFECT_UNKNOWN, RETRYABLE, may_be_applied, status_of};
use crate::retry::{CallKind, Pause, RetryProgress};
use crate::{Client, counters_on};
use tallystone_proto::counter::v1::{AddItem, AddResult, BatchAddCountsRequest};
use tallystone_proto::error::v1::ItemError;

/// The most items of one call; the service accepts no more.
pub(super) const BATCH_ITEMS_MAX: usize = 1_000;

/// An item without a final result.
struct UnsettledItem {
    /// Its index in the part.
    at: usize,
    /// Whether its token was made here and was not replaced yet.
    is_ours: bool,
    /// Whether an attempt with its token may have applied it.
    may_be_applied: bool,
}

impl Client {
    /// Adds many deltas, in calls of up to 1,000. The results have the order of the items. Items without a token get
    /// one here.
    ///
    /// Each part has the budget of one call. An item that was refused temporarily is retried with its token until the
    /// budget is spent. A token made here that was finally not applied is replaced once, as for single adds. An item
    /// that an attempt may have applied, without a later verdict, gets `OUTCOME_UNKNOWN`, whatever the error of the
    /// last attempt.
    ///
    /// An error of the whole call says how far it came: `answered` has the results of the calls before. The items of
    /// `rest` with tokens may have been applied; the others were not sent.
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

    /// One part, with retries of items that were refused temporarily. After an error the part is complete.
    async fn batch_part(&self, part: &mut BatchAddCountsRequest) -> Result<Vec<AddResult>, CallError> {
        let call = |channel, request| async move { counters_on(channel).batch_add_counts(request).await };
        // Made here, so that the tokens of a long batch are no older than their call.
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
                    // An item with a new token needs no pause.
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
                    // The results of other items stay; those of these items are unknown.
                    for (item, one) in part.items.iter().zip(&open).filter(|(_, one)| one.may_be_applied) {
                        results[one.at] = unknown_outcome_result(item, error.status.message());
                    }
                    return Ok(results);
                }
            }
        }
    }

    /// Leaves items that an earlier attempt may have applied out of the next one, where a retry would count twice.
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

    /// Gives tokens to the items without one; none of them has been sent.
    fn assign_tokens(&self, part: &mut BatchAddCountsRequest) -> Vec<UnsettledItem> {
        let open = |(at, item): (usize, &mut AddItem)| {
            let is_ours = item.idempotency_token.is_none();
            item.idempotency_token.get_or_insert_with(|| self.tokens.make());
            UnsettledItem { at, is_ours, may_be_applied: false }
        };
        part.items.iter_mut().enumerate().map(open).collect()
    }

    /// Applies the results of one attempt, and keeps the items for a retry in the part. Returns the first error that
    /// needs a pause.
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
                .unwrap_or_else(|| unknown_outcome_result(item, "the response has no result for this item"));
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

    /// Replaces a token that was made here and was finally not applied; once for each item.
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
    /// The final result in place of one that covers only its own attempt.
    fn unknown_outcome(&self, item: &AddItem, result: &AddResult) -> Option<AddResult> {
        let error = result.error.as_ref().filter(|_| self.may_be_applied && !is_outcome_unknown(result))?;
        Some(unknown_outcome_result(item, &error.message))
    }
}

/// The error of an unfinished batch.
#[derive(Debug)]
pub struct BatchError {
    /// The results of the items before the failed call.
    pub answered: Vec<AddResult>,
    /// The items of that call and all after them, with their tokens: send them again as they are.
    pub rest: Box<BatchAddCountsRequest>,
    /// The error of the call.
    pub error: CallError,
}

impl std::fmt::Display for BatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} items have a result, {} have none: {}", self.answered.len(), self.rest.items.len(), self.error)
    }
}

impl std::error::Error for BatchError {}

/// The result of an item that an unanswered attempt may have applied, with the error of the last attempt.
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

/// Whether the result of an attempt is final, even after an unknown outcome.
fn is_final(result: &AddResult) -> bool {
    let Some(error) = &result.error else { return true };
    match error.reason.as_str() {
        "NOT_APPLIED" | "ALREADY_EXISTS" => true,
        // Another attempt may have met another clock.
        "INVALID_FUTURE_TIME" => false,
        // The item was invalid at every attempt.
        reason => reason.starts_with("INVALID_"),
    }
}
