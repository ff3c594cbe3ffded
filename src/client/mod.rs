//! The client for applications: one connection, calls with a deadline, retries that cannot count twice.
//!
//! Every write carries an idempotency token, made here when the caller brings none, and a retry sends the same token
//! again; so a write whose answer was lost counts once (in a best-effort namespace, which keeps no tokens, it may count
//! twice). A token is replaced only when the server said that it was not applied and never will be. A read is at least as
//! new as what the client saw of the counter before, on whatever server. Uses the protocol alone, so it builds without
//! the feature `server`.

mod error;
mod reads;
mod retry;
mod seen;
mod tokens;

use std::future::Future;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::proto::admin::v1::namespace_service_client::NamespaceServiceClient;
use crate::proto::counter::v1::counter_service_client::CounterServiceClient;
use crate::proto::counter::v1::{
    AddAndGetCountRequest, AddAndGetCountResponse, AddCountRequest, AddCountResponse, ClearCountRequest,
    ClearCountResponse, IdempotencyToken,
};

pub use error::{AddressError, CallError, EFFECT_UNKNOWN, RETRYABLE, WriteError};
pub use retry::RetryPolicy;
use retry::{Progress, Work};
use seen::Seen;
use tokens::TokenMaker;

/// The largest message that is taken, in bytes; the service sends no larger one.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The metadata that says who calls.
pub const ACTOR_METADATA: &str = "tallystone-actor";
/// How long a connection may take to stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection to a server. Cheap to clone; connects at the first call and again whenever it has to.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    policy: RetryPolicy,
    tokens: TokenMaker,
    seen: Seen,
    actor: Option<MetadataValue<Ascii>>,
}

/// A write that carries an idempotency token.
trait Tokened: Clone {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken>;
}

impl Client {
    /// Prepares a connection to `HOST:PORT`, with or without `http://`.
    pub fn new(address: &str, policy: RetryPolicy) -> Result<Self, AddressError> {
        let channel = endpoint(address)?.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect_lazy();
        Ok(Self { channel, policy, tokens: TokenMaker::default(), seen: Seen::default(), actor: None })
    }

    /// Says who calls, for the history of namespaces. A name that cannot travel as metadata is left out, and the server
    /// notes the address instead.
    #[must_use]
    pub fn acting_as(mut self, actor: &str) -> Self {
        self.actor = actor.parse().ok();
        self
    }

    /// The counter service, call by call without retries.
    pub fn counters(&self) -> CounterServiceClient<Channel> {
        CounterServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The namespace service, call by call without retries.
    pub fn namespaces(&self) -> NamespaceServiceClient<Channel> {
        NamespaceServiceClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Makes a call that changes nothing until it succeeds, is refused for good, or the budget is spent.
    pub async fn asked<Q, A, F>(&self, request: &Q, call: impl Fn(Request<Q>) -> F) -> Result<A, CallError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.repeated(Work::Read, request, call).await
    }

    /// Makes a call that changes the same thing however often it is made, until it succeeds, is refused for good, or the
    /// budget is spent.
    pub async fn retried<Q, A, F>(&self, request: &Q, call: impl Fn(Request<Q>) -> F) -> Result<A, CallError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.repeated(Work::Change, request, call).await
    }

    async fn repeated<Q, A, F>(&self, work: Work, request: &Q, call: impl Fn(Request<Q>) -> F) -> Result<A, CallError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut progress = Progress::begin(self.policy, work);
        loop {
            match self.attempt(&progress, request.clone(), &call).await {
                Ok(answer) => return Ok(answer),
                Err(status) => progress.go_on_after(status).await?,
            }
        }
    }

    /// Adds a delta.
    pub async fn add_count(&self, request: AddCountRequest) -> Result<AddCountResponse, WriteError> {
        let client = self.counters();
        self.write(request, |request| {
            let mut client = client.clone();
            async move { client.add_count(request).await }
        })
        .await
    }

    /// Adds a delta and reads the count after it.
    pub async fn add_and_get_count(
        &self,
        request: AddAndGetCountRequest,
    ) -> Result<AddAndGetCountResponse, WriteError> {
        let client = self.counters();
        let (namespace, counter_name) = (request.namespace.clone(), request.counter_name.clone());
        let answer = self.write(request, |request| {
            let mut client = client.clone();
            async move { client.add_and_get_count(request).await }
        });
        let answer = answer.await?;
        self.seen.note(&namespace, &counter_name, answer.as_of);
        Ok(answer)
    }

    /// Sets a counter to 0.
    pub async fn clear_count(&self, request: ClearCountRequest) -> Result<ClearCountResponse, WriteError> {
        let client = self.counters();
        self.write(request, |request| {
            let mut client = client.clone();
            async move { client.clear_count(request).await }
        })
        .await
    }

    /// Makes a write until it is done, refused for good, or the budget is spent; always under one token, except that a
    /// token of ours that was finally not applied is replaced once, by one of the server's clock.
    async fn write<Q: Tokened, A, F>(&self, mut request: Q, call: impl Fn(Request<Q>) -> F) -> Result<A, WriteError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut may_replace = request.token_mut().is_none();
        let work = if may_replace { Work::NewChange } else { Work::Change };
        let mut token = request.token_mut().get_or_insert_with(|| self.tokens.make()).clone();
        let mut progress = Progress::begin(self.policy, work);
        loop {
            let status = match self.attempt(&progress, request.clone(), &call).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if may_replace && self.tokens.learn_from(&status, progress.may_be_applied()) {
                may_replace = false;
                token = self.tokens.make();
                *request.token_mut() = Some(token.clone());
                progress.forget_effects();
                continue;
            }
            if let Err(error) = progress.go_on_after(status).await {
                return Err(WriteError { token, error });
            }
        }
    }

    async fn attempt<Q, A, F>(
        &self,
        progress: &Progress,
        message: Q,
        call: impl Fn(Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut request = Request::new(message);
        let time_left = progress.time_left();
        request.set_timeout(time_left);
        if let Some(actor) = &self.actor {
            request.metadata_mut().insert(ACTOR_METADATA, actor.clone());
        }
        // The deadline travels with the call; it is kept here too, for a server that answers nothing at all.
        match tokio::time::timeout(time_left, call(request)).await {
            // The transport keeps the deadline as well, and calls its end a cancellation.
            Ok(Err(status)) if status.code() == Code::Cancelled && status.message() == "Timeout expired" => Err(late()),
            Ok(answer) => answer.map(Response::into_inner),
            Err(_) => Err(late()),
        }
    }
}

/// Reads the address of a server, `HOST:PORT` with or without `http://`.
pub fn endpoint(address: &str) -> Result<Endpoint, AddressError> {
    let refuse = |cause: String| AddressError { address: address.to_owned(), cause };
    let uri = match address.split_once("://") {
        None => format!("http://{address}"),
        Some(("http", _)) => address.to_owned(),
        Some((scheme, _)) => return Err(refuse(format!("{scheme} is not spoken; leave it out, or write http"))),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|error| refuse(error.to_string()))?;
    match endpoint.uri().port() {
        Some(_) => Ok(endpoint),
        None => Err(refuse("the port is missing".to_owned())),
    }
}

/// What is known of a call that got no answer within its time.
pub fn late() -> Status {
    Status::deadline_exceeded("the server did not answer in time")
}

impl Tokened for AddCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }
}

impl Tokened for AddAndGetCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }
}

impl Tokened for ClearCountRequest {
    fn token_mut(&mut self) -> &mut Option<IdempotencyToken> {
        &mut self.idempotency_token
    }
}
