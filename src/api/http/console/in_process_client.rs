//! Calls of the server's own methods, as any caller makes them: with deadline, metrics, audit and the caller's headers.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, BytesMut};
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::{BodyExt as _, Full};
use prost::Message;
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};

use super::ConsoleContext;
use super::shell::ShellTarget;
use super::view::AgeChip;
use crate::grpc::namespaces::{ACTOR_METADATA, actor_named, claimed, in_one_line};
use crate::http::audit::REASON_METADATA;
use crate::http::buffers::{Caller, FRAME_HEADER_BYTES};
use crate::http::call::call;
use crate::time;
use tallystone_domain::access::{AccessResource, AccessRole, KeyQuota, QuotaRefusal};
use tallystone_engine::access::{AccountPermit, Identity};

/// How long a page waits for all of its numbers.
const PAGE_WAIT: Duration = Duration::from_millis(700);
/// How long a call may take even if those before it took the time of the page.
const LEAST_WAIT: Duration = Duration::from_millis(100);

/// The calls of one request of the console.
#[derive(Clone)]
pub struct InProcessClient {
    pub context: ConsoleContext,
    /// The identity of the caller; none where callers need not say who they are.
    identity: Option<Arc<Identity>>,
    caller: Arc<Caller>,
    headers: HeaderMap,
    /// The server as the caller reached it.
    pub shell: ShellTarget,
    /// When the page began, as elapsed time.
    begun: Duration,
}

impl InProcessClient {
    /// The calls on behalf of a request.
    pub fn new<B>(
        context: ConsoleContext,
        identity: Option<Arc<Identity>>,
        request: &Request<B>,
        caller: &Arc<Caller>,
    ) -> Self {
        let mut headers = HeaderMap::new();
        if let Some(actor) = request.headers().get(ACTOR_METADATA) {
            headers.insert(ACTOR_METADATA, actor.clone());
        }
        let (shell, begun) = (ShellTarget::of(request, identity.is_some()), context.calls.clock.elapsed());
        Self { context, identity, caller: Arc::clone(caller), headers, shell, begun }
    }

    /// The same calls for a page that begins now.
    pub fn anew(&self) -> Self {
        Self { begun: self.context.calls.clock.elapsed(), ..self.clone() }
    }

    /// The name of the principal who asks; empty where callers need not say.
    pub fn user(&self) -> String {
        self.identity.as_ref().map_or_else(String::new, |identity| identity.principal.name.to_string())
    }

    /// Takes a place within the caller's quota of streams; none where callers need not say who they are.
    pub fn take_stream(&self) -> Result<Option<AccountPermit>, QuotaRefusal> {
        self.identity.as_ref().map(|identity| identity.account.take(KeyQuota::Streams)).transpose()
    }

    /// The caller that acts, as the audit names callers.
    pub fn actor(&self) -> String {
        let named = self.headers.get(ACTOR_METADATA).map(|word| claimed(word.as_bytes()));
        let actor = actor_named(self.identity.as_ref().map(|identity| &identity.principal), named.as_deref());
        actor.unwrap_or_else(|| self.caller.peer.ip().to_string())
    }

    /// The role that the caller lacks for calls of a method on a thing; none where it may make them. The call itself
    /// decides: this is for what a page offers.
    pub fn lacks(&self, method: &str, on: AccessResource<'_>) -> Option<AccessRole> {
        let role = self.context.methods.public(&format!("/{method}")).ok()?.role?;
        let identity = self.identity.as_ref()?;
        (!identity.grants.allows(role, on)).then_some(role)
    }

    /// The age of an answer that the store gave just now.
    pub fn live_age(&self) -> AgeChip {
        let now = time::write(self.context.calls.clock.now());
        AgeChip::of("live", Some(&now), Some(&now), false)
    }

    /// The reason why queues are not served; none while they are.
    pub fn queues_away(&self) -> Option<String> {
        self.context.health.queues_away()
    }

    /// The same calls with a reason for the audit, for methods whose request has none.
    pub fn with_reason(&self, reason: &str) -> Self {
        let mut calls = self.clone();
        let plain = in_one_line(reason);
        if let Ok(value) = HeaderValue::from_bytes(plain.as_bytes()) {
            calls.headers.insert(REASON_METADATA, value);
        }
        calls
    }

    /// Calls a method by its full name, and waits as long as the page still may.
    pub async fn ask<Answer: Message + Default>(&self, method: &str, request: &impl Message) -> Result<Answer, Status> {
        let since = self.context.calls.clock.elapsed().saturating_sub(self.begun);
        self.ask_within(method, request, PAGE_WAIT.saturating_sub(since).max(LEAST_WAIT)).await
    }

    /// Calls a method by its full name, with a deadline.
    pub async fn ask_within<Answer: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        time: Duration,
    ) -> Result<Answer, Status> {
        let known = self.context.methods.public(&format!("/{method}")).map_err(Status::from)?;
        let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + request.encoded_len());
        frame.put_u8(0);
        frame.put_u32(u32::try_from(request.encoded_len()).unwrap_or(u32::MAX));
        request.encode(&mut frame).map_err(|error| Status::internal(error.to_string()))?;
        let mut sent = Request::new(Body::new(Full::new(frame.freeze())));
        *sent.method_mut() = http::Method::POST;
        *sent.uri_mut() = format!("/{method}").parse().map_err(|_| Status::internal("a method name is a path"))?;
        *sent.headers_mut() = self.headers.clone();
        sent.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Ok(timeout) = HeaderValue::from_str(&format!("{}m", time.as_millis())) {
            sent.headers_mut().insert("grpc-timeout", timeout);
        }
        sent.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr: Some(self.caller.peer) });
        if let Some(identity) = &self.identity {
            sent.extensions_mut().insert(Arc::clone(identity));
        }
        // Boxed, because the call of any method is a large future.
        let response = Box::pin(call(&self.context.calls, known, sent, &self.caller)).await;
        if let Some(status) = response.extensions().get::<Status>() {
            return Err(status.clone());
        }
        let collected = response.into_body().collect().await?;
        if let Some(status) =
            collected.trailers().and_then(Status::from_header_map).filter(|status| status.code() != Code::Ok)
        {
            return Err(status);
        }
        let mut bytes = collected.to_bytes();
        if bytes.remaining() < FRAME_HEADER_BYTES {
            return Err(Status::internal("the answer has no message"));
        }
        bytes.advance(FRAME_HEADER_BYTES);
        Answer::decode(bytes).map_err(|error| Status::internal(error.to_string()))
    }
}
