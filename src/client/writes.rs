//! Writes with tokens: adds and clears; `batches` has the batch calls.
//!
//! A token never changes between attempts. It is replaced only if the server said that it was not applied and never
//! will be, once, and only if the client made it.

use std::future::Future;

use tonic::{Request, Response, Status};

use crate::call::Hedge;
use crate::error::WriteError;
use crate::retry::{CallKind, RetryProgress};
use crate::{Client, Connection, counters_on};
use tallystone_proto::counter::v1::{
    AddAndGetCountRequest, AddAndGetCountResponse, AddCountRequest, AddCountResponse, ClearCountRequest,
    ClearCountResponse, IdempotencyToken,
};

/// A write that carries an idempotency token.
trait WriteRequest: Clone + Sync {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken>;
    fn namespace(&self) -> &str;
}

/// The response to such a write.
trait WriteResponse: Send {
    /// Whether a repeat of its token would be recognized.
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
        self.newest_as_of.note(&namespace, &counter_name, answer.as_of);
        Ok(answer)
    }

    /// Sets a counter to 0.
    pub async fn clear_count(&self, request: ClearCountRequest) -> Result<ClearCountResponse, WriteError> {
        self.write(request, |channel, request| async move { counters_on(channel).clear_count(request).await }).await
    }

    /// Makes a write until it is done, refused for good, or the budget is spent, always with one token. A token of the
    /// client that was finally not applied is replaced once, by one of the server's clock. In a namespace without
    /// tokens, an attempt that may have been applied is the last one.
    async fn write<Q: WriteRequest, A: WriteResponse, F>(
        &self,
        mut request: Q,
        call: impl Fn(Connection, Request<Q>) -> F + Sync,
    ) -> Result<A, WriteError>
    where
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let mut may_replace = request.token_mut().is_none();
        let work = if may_replace { CallKind::NewChange } else { CallKind::Change };
        let mut token = request.token_mut().get_or_insert_with(|| self.tokens.make()).clone();
        let hedge = if self.idempotent.has(request.namespace()) { Hedge::May } else { Hedge::Never };
        let mut progress = RetryProgress::begin(self.policy, work);
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
                progress.clear_effects();
                continue;
            }
            if !self.may_repeat(request.namespace(), &status, progress.time_left()).await {
                return Err(WriteError { token, error: progress.give_up(status) });
            }
            if let Err(error) = progress.wait_for_retry(status, pause, &self.budget).await {
                return Err(WriteError { token, error });
            }
        }
    }
}

impl WriteRequest for AddCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl WriteRequest for AddAndGetCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl WriteRequest for ClearCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl WriteResponse for AddCountResponse {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }
}

impl WriteResponse for AddAndGetCountResponse {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }
}

impl WriteResponse for ClearCountResponse {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }
}
