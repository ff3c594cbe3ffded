//! Writes under tokens: adds, clears, batches.
//!
//! A token never changes between tries. Only one that the server said was not applied and never will be is replaced, once,
//! and only if it was ours.

use std::future::Future;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::client::call::Hedge;
use crate::client::error::{CallError, EFFECT_UNKNOWN, RETRYABLE, WriteError, status_of};
use crate::client::retry::{Pause, Progress, Work};
use crate::client::{Client, counters_on};
use crate::proto::counter::v1::{
    AddAndGetCountRequest, AddAndGetCountResponse, AddCountRequest, AddCountResponse, AddItem, AddResult,
    BatchAddCountsRequest, ClearCountRequest, ClearCountResponse, IdempotencyToken,
};
use crate::proto::error::v1::ItemError;

/// The most items that one call carries; the service takes no more.
pub(super) const BATCH_ITEMS_MAX: usize = 1_000;

/// A write that carries an idempotency token.
trait Tokened: Clone {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken>;
    fn namespace(&self) -> &str;
}

/// An answer to such a write.
trait Answered {
    /// Whether a repeat under its token would be known.
    fn is_idempotent(&self) -> bool;
}

impl Client {
    /// Adds a delta.
    pub async fn add_count(&self, request: AddCountRequest) -> Result<AddCountResponse, WriteError> {
        self.write(request, |channel, request| async move { counters_on(channel).add_count(request).await }).await
    }

    /// Adds a delta and reads the count after it.
    pub async fn add_and_get_count(
        &self,
        request: AddAndGetCountRequest,
    ) -> Result<AddAndGetCountResponse, WriteError> {
        let (namespace, counter_name) = (request.namespace.clone(), request.counter_name.clone());
        let call = |channel, request| async move { counters_on(channel).add_and_get_count(request).await };
        let answer = self.write(request, call).await?;
        self.seen.note(&namespace, &counter_name, answer.as_of);
        Ok(answer)
    }

    /// Sets a counter to 0.
    pub async fn clear_count(&self, request: ClearCountRequest) -> Result<ClearCountResponse, WriteError> {
        self.write(request, |channel, request| async move { counters_on(channel).clear_count(request).await }).await
    }

    /// Adds many deltas, in calls of up to 1,000; answers each item in its order. Items without a token get one here.
    ///
    /// An item that was refused for a time is sent again, under its token, until the budget is spent; a token of ours that
    /// was finally not applied is replaced once, as for single adds. An error of the whole call says how far it came:
    /// `answered` holds the results of the calls before. The items of `rest` that have tokens may have been applied or not,
    /// the others were not sent.
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

    /// One call's worth of items, and again those of them that were refused for a time.
    async fn batch_part(&self, part: &mut BatchAddCountsRequest) -> Result<Vec<AddResult>, CallError> {
        // Made here, so that those of a long batch are no older than the call that carries them.
        let mut ours: Vec<bool> = part.items.iter().map(|item| item.idempotency_token.is_none()).collect();
        for item in &mut part.items {
            item.idempotency_token.get_or_insert_with(|| self.tokens.make());
        }
        let mut results = self.batch_once(part).await?;
        let mut progress = Progress::begin(self.policy, Work::Change);
        loop {
            let here = results.len().min(part.items.len());
            let again: Vec<usize> = (0..here)
                .filter(|at| {
                    is_worth_it(&results[*at]) || self.replace(&results[*at], &mut part.items[*at], &mut ours[*at])
                })
                .collect();
            if again.is_empty() {
                break;
            }
            // An item with a new token waits for nothing.
            let refusal =
                again.iter().filter(|at| is_worth_it(&results[**at])).find_map(|at| results[*at].error.clone());
            if let Some(refusal) = refusal
                && progress.go_on_after(status_of(refusal), Pause::Usual, &self.budget).await.is_err()
            {
                break;
            }
            let items = again.iter().map(|at| part.items[*at].clone()).collect();
            let repeat = BatchAddCountsRequest { namespace: part.namespace.clone(), items };
            let repeated = match self.batch_once(&repeat).await {
                Ok(repeated) => repeated,
                Err(error) => {
                    // What is known of the others stays known; of these nobody knows any more.
                    let open = again.into_iter().filter(|_| error.may_be_applied);
                    open.for_each(|at| results[at] = left_open(&part.items[at], &error));
                    break;
                }
            };
            for (at, result) in again.into_iter().zip(repeated) {
                // What may have been applied before still may, unless this try has settled it.
                if !leaves_it_open(&results[at]) || settles(&result) {
                    results[at] = result;
                }
            }
        }
        Ok(results)
    }

    /// Gives an item a new token if the one it had was ours and was finally not applied; once.
    fn replace(&self, result: &AddResult, item: &mut AddItem, is_ours: &mut bool) -> bool {
        let Some(error) = result.error.as_ref().filter(|_| *is_ours) else { return false };
        let server_time = error.metadata.get("server_time").map(String::as_str);
        // An earlier try may have done what this one refuses: NOT_APPLIED alone settles that.
        if !self.tokens.learn(&error.reason, server_time, true) {
            return false;
        }
        item.idempotency_token = Some(self.tokens.make());
        *is_ours = false;
        true
    }

    async fn batch_once(&self, part: &BatchAddCountsRequest) -> Result<Vec<AddResult>, CallError> {
        let call = |channel, request| async move { counters_on(channel).batch_add_counts(request).await };
        Ok(self.repeated(Work::Change, part, call).await?.results)
    }

    /// Makes a write until it is done, refused for good, or the budget is spent; always under one token, except that a
    /// token of ours that was finally not applied is replaced once, by one of the server's clock.
    async fn write<Q: Tokened, A: Answered, F>(
        &self,
        mut request: Q,
        call: impl Fn(Channel, Request<Q>) -> F,
    ) -> Result<A, WriteError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut may_replace = request.token_mut().is_none();
        let work = if may_replace { Work::NewChange } else { Work::Change };
        let mut token = request.token_mut().get_or_insert_with(|| self.tokens.make()).clone();
        let hedge = if self.idempotent.has(request.namespace()) { Hedge::May } else { Hedge::Never };
        let mut progress = Progress::begin(self.policy, work);
        loop {
            let (status, pause) = match self.attempt(&mut progress, hedge, &request, &call).await {
                Ok(answer) => {
                    self.idempotent.note(request.namespace(), answer.is_idempotent());
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            if may_replace && self.tokens.learn_from(&status, progress.may_be_applied()) {
                may_replace = false;
                token = self.tokens.make();
                *request.token_mut() = Some(token.clone());
                progress.forget_effects();
                continue;
            }
            if let Err(error) = progress.go_on_after(status, pause, &self.budget).await {
                return Err(WriteError { token, error });
            }
        }
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

/// The result of an item whose call may have been applied and was not answered.
fn left_open(item: &AddItem, error: &CallError) -> AddResult {
    let refusal = ItemError {
        code: error.status.code().into(),
        reason: "OUTCOME_UNKNOWN".to_owned(),
        message: format!("the change may have been applied: retry with the same token ({})", error.status.message()),
        ..ItemError::default()
    };
    AddResult { idempotency_token: item.idempotency_token.clone(), error: Some(refusal), ..AddResult::default() }
}

/// Whether an item may have been applied although it was refused.
fn leaves_it_open(result: &AddResult) -> bool {
    result.error.as_ref().is_some_and(|error| EFFECT_UNKNOWN.contains(&error.reason.as_str()))
}

/// Whether a try has said for good what became of an item, whatever was unknown before.
fn settles(result: &AddResult) -> bool {
    result.error.as_ref().is_none_or(|error| error.reason == "NOT_APPLIED" || error.reason == "ALREADY_EXISTS")
}

/// Whether an item may be taken under its token later.
fn is_worth_it(result: &AddResult) -> bool {
    result.error.as_ref().is_some_and(|error| RETRYABLE.contains(&error.reason.as_str()))
}

impl Tokened for AddCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Tokened for AddAndGetCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Tokened for ClearCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Answered for AddCountResponse {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }
}

impl Answered for AddAndGetCountResponse {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }
}

impl Answered for ClearCountResponse {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }
}
