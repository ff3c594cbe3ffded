//! One call until it succeeds, is refused for good, or its budgets are spent: attempts on one server after another,
//! each with a deadline, and a second attempt next to a slow one where that cannot count twice.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tonic::{Code, Request, Response, Status};

use crate::error::{CallError, is_retryable, may_be_applied, no_time_left, should_switch_server, was_never_sent};
use crate::retry::{CallKind, DEADLINE_LEAST, Pause, RetryProgress};
use crate::{ACTOR_METADATA, Client, Connection, REASON_METADATA, late};

/// Whether an attempt may be hedged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hedge {
    /// A second attempt has no further effect.
    May,
    /// Two may count twice.
    Never,
}

/// One call that is under way. It leaves its answer in an `AnswerSlot`.
type Sending<'a> = Pin<Box<dyn Future<Output = Result<(), Status>> + Send + 'a>>;

/// Sends a call to a server with this metadata. It names neither the request nor the answer, so that all calls share
/// one compiled retry loop.
type SendCall<'a> = dyn Fn(Connection, Request<()>) -> Sending<'a> + Sync + 'a;

/// The answer of a call, from its attempt that succeeded. No attempt goes on after one has.
struct AnswerSlot<A>(Mutex<Option<A>>);

impl<A: Send> AnswerSlot<A> {
    fn empty() -> Self {
        Self(Mutex::new(None))
    }

    /// A way to send this request as often as necessary.
    fn sender<'a, Q, F>(
        &'a self,
        message: &'a Q,
        call: &'a (impl Fn(Connection, Request<Q>) -> F + Sync),
    ) -> impl Fn(Connection, Request<()>) -> Sending<'a> + Sync + 'a
    where
        Q: Clone + Sync,
        F: Future<Output = Result<Response<A>, Status>> + Send + 'a,
    {
        move |channel, metadata| {
            let answer = call(channel, metadata.map(|()| message.clone()));
            Box::pin(async move {
                let answer = answer.await?.into_inner();
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
                Ok(())
            })
        }
    }

    fn into_answer(self) -> A {
        let answer = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        answer.expect("an attempt that succeeds leaves its answer")
    }
}

impl Client {
    /// Makes a read until it succeeds, is refused for good, or the budget is spent. `call` is called for each attempt,
    /// and gets `counters()` or `namespaces()` again, because another server may be preferred by then.
    pub async fn asked<Q, A, F>(&self, request: &Q, call: impl Fn(Request<Q>) -> F + Sync) -> Result<A, CallError>
    where
        Q: Clone + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        self.call_with_retries(CallKind::Read, request, |_, request| call(request)).await
    }

    /// Makes an idempotent call until it succeeds, is refused for good, or the budget is spent. `call` as for
    /// `asked`.
    pub async fn retried<Q, A, F>(&self, request: &Q, call: impl Fn(Request<Q>) -> F + Sync) -> Result<A, CallError>
    where
        Q: Clone + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        self.call_with_retries(CallKind::Change, request, |_, request| call(request)).await
    }

    /// Makes a call on one server after another.
    pub(super) async fn call_with_retries<Q, A, F>(
        &self,
        work: CallKind,
        request: &Q,
        call: impl Fn(Connection, Request<Q>) -> F + Sync,
    ) -> Result<A, CallError>
    where
        Q: Clone + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let hedge = if work == CallKind::Read { Hedge::May } else { Hedge::Never };
        self.call_with_progress(RetryProgress::begin(self.policy, work), hedge, request, call).await
    }

    /// The same within a budget of its own.
    pub(super) async fn call_with_progress<Q, A, F>(
        &self,
        progress: RetryProgress,
        hedge: Hedge,
        request: &Q,
        call: impl Fn(Connection, Request<Q>) -> F + Sync,
    ) -> Result<A, CallError>
    where
        Q: Clone + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let slot = AnswerSlot::empty();
        self.send_until_done(progress, hedge, &slot.sender(request, &call)).await?;
        Ok(slot.into_answer())
    }

    /// One attempt. An error says how soon the next may begin.
    pub(super) async fn attempt<Q, A, F>(
        &self,
        progress: &mut RetryProgress,
        hedge: Hedge,
        message: &Q,
        call: impl Fn(Connection, Request<Q>) -> F + Sync,
    ) -> Result<A, (Status, Pause)>
    where
        Q: Clone + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let slot = AnswerSlot::empty();
        self.send_attempt(progress, hedge, &slot.sender(message, &call)).await?;
        Ok(slot.into_answer())
    }

    /// One attempt on one server.
    pub(super) async fn send_once<Q, A, F>(
        &self,
        at: usize,
        time: Duration,
        message: &Q,
        call: impl Fn(Connection, Request<Q>) -> F + Sync,
    ) -> Result<A, Status>
    where
        Q: Clone + Sync,
        A: Send,
        F: Future<Output = Result<Response<A>, Status>> + Send,
    {
        let slot = AnswerSlot::empty();
        self.send_to(at, time, &slot.sender(message, &call)).await?;
        Ok(slot.into_answer())
    }

    async fn send_until_done(
        &self,
        mut progress: RetryProgress,
        hedge: Hedge,
        call: &SendCall<'_>,
    ) -> Result<(), CallError> {
        loop {
            match self.send_attempt(&mut progress, hedge, call).await {
                Ok(()) => return Ok(()),
                Err((status, pause)) => progress.wait_for_retry(status, pause, &self.budget).await?,
            }
        }
    }

    async fn send_attempt(
        &self,
        progress: &mut RetryProgress,
        hedge: Hedge,
        call: &SendCall<'_>,
    ) -> Result<(), (Status, Pause)> {
        let at = self.endpoints.preferred();
        let time = progress.time_left().min(self.policy.attempt_max);
        let answer = match (hedge, self.policy.hedge_after) {
            (Hedge::May, Some(after)) => self.send_hedged(at, time, after, call).await,
            (Hedge::May, None) | (Hedge::Never, _) => self.send_to(at, time, call).await,
        };
        match answer {
            Ok(()) => {
                self.budget.earn();
                Ok(())
            }
            Err(status) => {
                // If the caller's deadline is too near for any server, this one is not at fault.
                if time >= DEADLINE_LEAST && should_switch_server(&status) {
                    self.endpoints.switch_from(at);
                }
                // The server was not reached: the next one is tried at once, each once.
                let is_free = was_never_sent(&status) && progress.note_unreached(self.endpoints.len());
                Err((status, if is_free { Pause::None } else { Pause::Usual }))
            }
        }
    }

    /// Sends a second call to the next server if the first one has no answer yet; the first answer counts.
    async fn send_hedged(&self, at: usize, time: Duration, after: Duration, call: &SendCall<'_>) -> Result<(), Status> {
        let first = std::pin::pin!(self.send_to(at, time, call));
        let first = match futures_util::future::select(first, std::pin::pin!(tokio::time::sleep(after))).await {
            futures_util::future::Either::Left((answer, _)) => return answer,
            futures_util::future::Either::Right(((), first)) => first,
        };
        if after >= time || !self.budget.spend() {
            return first.await;
        }
        let second = std::pin::pin!(self.send_to(self.endpoints.after(at), time - after, call));
        match futures_util::future::select(first, second).await {
            futures_util::future::Either::Left((answer, second)) => better_of(answer, second).await,
            futures_util::future::Either::Right((answer, first)) => better_of(answer, first).await,
        }
    }

    async fn send_to(&self, at: usize, time: Duration, call: &SendCall<'_>) -> Result<(), Status> {
        if time < DEADLINE_LEAST {
            return Err(no_time_left(time));
        }
        let mut request = Request::new(());
        request.set_timeout(time);
        if let Some(actor) = &self.actor {
            request.metadata_mut().insert(ACTOR_METADATA, actor.clone());
        }
        if let Some(reason) = &self.reason {
            request.metadata_mut().insert(REASON_METADATA, reason.clone());
        }
        // The deadline is sent with the call, and also enforced here, for a server without any response.
        match tokio::time::timeout(time, call(self.endpoints.channel(at), request)).await {
            // The transport enforces the deadline as well, and reports a cancellation.
            Ok(Err(status)) if status.code() == Code::Cancelled && status.message() == "Timeout expired" => Err(late()),
            Ok(answer) => answer,
            Err(_) => Err(late()),
        }
    }
}

/// The better of two results, at least one of which exists: a success, else a final one, else one that may have had an
/// effect.
async fn better_of(
    answer: Result<(), Status>,
    other: Pin<&mut (impl Future<Output = Result<(), Status>> + Send)>,
) -> Result<(), Status> {
    let one = match answer {
        Ok(()) => return Ok(()),
        Err(status) => status,
    };
    let two = match other.await {
        Ok(()) => return Ok(()),
        Err(status) => status,
    };
    let says_more = match (is_retryable(&one), is_retryable(&two)) {
        (false, true) => one,
        (true, false) => two,
        // Both are final or neither is.
        (true, true) | (false, false) if may_be_applied(&one) => one,
        (true, true) | (false, false) => two,
    };
    Err(says_more)
}
