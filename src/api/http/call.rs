//! One call of one method: its deadline, its panics, its metrics.
//!
//! A call past its deadline returns; the work that it gave to the engine continues. Invariant: the caller gets a
//! response with a reason, and the server stays up, even after a panic.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};
use tracing::Instrument;

use crate::errors::{ApiError, with_reason};
use crate::grpc::CallTime;
use crate::http::audit::{self, ActSlot, AnswerNote};
use crate::http::buffers::{BufferPermit, Caller};
use crate::http::methods::{GrpcService, Method};
use crate::http::recorded_calls::{RecordedCalls, RecordedEnd};
use crate::http::recorded_stream::{RecordedStream, StreamLine};
use crate::http::request_body::{PendingResponsePermit, RequestBody, ResponsePermitSlot};
use crate::http::response_body::ResponseBody;
use crate::http::stream_body::{KeyEndStatus, StreamBody, StreamMonitor};
use crate::http::trace;
use tallystone_domain::Reason;
use tallystone_domain::access::{AccessRole, CallRights, KeyQuota, Principal};
use tallystone_domain::limits::{
    ACT_ENDS_WITHIN, DEADLINE_DEFAULT, DEADLINE_LEAST, DEADLINE_MAX, DEQUEUE_WAIT_MAX, KEY_CALL_UNCHECKED,
};
use tallystone_engine::access::{AccountPermit, Identity, PrincipalAccount};
use tallystone_engine::audit::{Audit, OperatorAct};
use tallystone_engine::call_limiter::{CallLimiter, CallPlace, StreamPlaces};
use tallystone_ports::Clock;

/// The context that the server gives to every call.
pub struct CallContext {
    pub clock: Arc<dyn Clock>,
    /// The calls in progress, and which of them are refused while they take too long.
    pub limiter: Arc<CallLimiter>,
    /// Ends streams when it is cancelled.
    pub drain: CancellationToken,
    /// The audit, which records acts of operators; absent until the server is open.
    pub audit: OnceLock<Audit>,
    /// The calls that are recorded, in progress.
    pub recorded: RecordedCalls,
}

impl CallContext {
    /// Admits a call of a principal by its quotas, before the call is read.
    pub fn admit(&self, identity: &Identity, connection: &Caller) -> Result<(), ApiError> {
        connection.occupy(&identity.account)?;
        Ok(identity.account.admit_call(&*self.clock)?)
    }

    /// The body of a stream, whose act is told when it ends, if it is one.
    fn told_at_its_end(&self, body: Body, line: Option<(&Audit, OperatorAct)>) -> Body {
        let Some((audit, act)) = line else { return body };
        let line = StreamLine { audit: audit.clone(), act, tasks: self.recorded.lines() };
        Body::new(RecordedStream::new(body, line))
    }

    /// The monitor that watches over a stream.
    fn monitor_stream(
        &self,
        method: &Method,
        began: Duration,
        deadline: Option<Duration>,
        (identity, place): (Option<Arc<Identity>>, Option<AccountPermit>),
    ) -> StreamMonitor {
        let deadline = deadline.map(|time| (Box::pin(tokio::time::sleep(time)), expired(method, time).into()));
        let stopping = || Status::from(ApiError::new(Reason::ShuttingDown, "the server is stopping"));
        // Streams of our own end themselves, when what they took is answered.
        let drain = (!method.own).then(|| (Box::pin(self.drain.clone().cancelled_owned()), stopping()));
        let key_end = identity.map(|identity| {
            let ended = Box::pin(identity.ended().clone().cancelled_owned());
            let ended_status = key_ended(method, identity.credential.word()).into();
            let status = KeyEndStatus { ended: ended_status, regranted: regranted(method).into() };
            (identity, ended, status)
        });
        StreamMonitor {
            key_end,
            place,
            deadline,
            drain,
            panicked: panicked(method).into(),
            metrics: method.metrics.clone(),
            clock: Arc::clone(&self.clock),
            began,
        }
    }
}

/// Calls a method of a mounted service. A call that the audit records goes on if its caller goes away or its deadline
/// passes, so that what came of it is known.
pub async fn call(
    context: &Arc<CallContext>,
    method: &Arc<Method>,
    request: Request<Body>,
    caller: &Arc<Caller>,
) -> Response<Body> {
    if !method.audited || context.audit.get().is_none() {
        return answered(context, method, request, caller).await;
    }
    let held = (Arc::clone(context), Arc::clone(method), Arc::clone(caller));
    // One that cannot be read is refused within.
    let time = effective_timeout(deadline(request.headers()).unwrap_or_default(), method.waits);
    let whole = Box::pin(async move { answered(&held.0, &held.1, request, &held.2).await });
    match tokio::time::timeout(time, context.recorded.run(caller, whole)).await {
        Ok(RecordedEnd::Answered(response)) => response,
        Ok(RecordedEnd::Panicked) => answer_to_panic(method),
        Ok(RecordedEnd::CutOff) => Status::from(cut_off(method)).into_http(),
        Err(_elapsed) => Status::from(expired(method, time)).into_http(),
    }
}

async fn answered(
    context: &CallContext,
    method: &Method,
    mut request: Request<Body>,
    caller: &Arc<Caller>,
) -> Response<Body> {
    let began = context.clock.elapsed();
    let CallStart { asked, service, identity, stream, place } = match CallStart::of(context, method, &mut request) {
        Ok(start) => start,
        Err(refusal) => {
            let identity = request.extensions().get::<Arc<Identity>>().cloned();
            return refused(context, method, identity.as_ref(), refusal).await;
        }
    };
    let time = effective_timeout(asked, method.waits);
    let room = ResponsePermitSlot::default();
    let wanted = wanted_room(method, &room);
    let watched = |body| RequestBody::new(body, Arc::clone(caller), method.lists.clone(), wanted, place.clone());
    let mut request = request.map(|body| Body::new(watched(body)));
    if method.waits {
        request.extensions_mut().insert(CallTime(time));
    }
    let span = trace::of(method, request.headers());
    let (audit, act) = (context.audit.get().filter(|_| method.audited), ActSlot::default());
    let reads = audit.map(|_| (&caller.peer, &act));
    let served = served(context, (method, service), request, reads, (began, time));
    let work = on_behalf(identity.as_ref(), AssertUnwindSafe(served.instrument(span.clone())).catch_unwind());
    if method.streaming {
        let response = match until_key_ends(identity.as_deref(), work).await {
            Some(outcome) => into_response(outcome, method),
            None => Status::from(why_key_ended(method, identity.as_deref())).into_http(),
        };
        let note = AnswerNote::of(&response, act.into_inner());
        if let Some(status) = response.extensions().get::<Status>() {
            audit::note(context.audit.get(), method, identity.as_ref(), note).await;
            method.metrics.record(status.code(), context.clock.elapsed().saturating_sub(began));
            trace::answered(&span, status.code());
            return response;
        }
        let watch = context.monitor_stream(method, began, asked, (identity, stream));
        let line = audit.zip(note.into_act());
        return response.map(|body| {
            let body = context.told_at_its_end(Body::new(StreamBody::new(body, watch)), line);
            Body::new(ResponseBody::stream(body, Arc::clone(caller)))
        });
    }
    let patience = audit.map_or(time, |_| time.max(ACT_ENDS_WITHIN));
    let response = match within(patience, identity.as_deref(), method.waits, work).await {
        Ok(outcome) if method.answer_bytes == 0 => into_response(outcome, method),
        Ok(outcome) => {
            let permit = room.lock().take();
            made(into_response(outcome, method), permit, caller).await
        }
        Err(CallCut::Deadline) => Status::from(expired(method, patience)).into_http(),
        Err(CallCut::KeyEnded) => Status::from(why_key_ended(method, identity.as_deref())).into_http(),
    };
    drop(place);
    let note = AnswerNote::of(&response, act.into_inner());
    audit::note(context.audit.get(), method, identity.as_ref(), note).await;
    let took = context.clock.elapsed().saturating_sub(began);
    // The caller of an act that outlived its deadline had that answer before.
    let is_late = audit.is_some() && took > time;
    let code = response.extensions().get::<Status>().map_or(Code::Ok, Status::code);
    let code = if is_late { Code::DeadlineExceeded } else { code };
    method.metrics.record(code, took);
    trace::answered(&span, code);
    response
}

/// Passes a request to its service. The act of a recorded call is read first; the call does not begin once its time is
/// over.
async fn served(
    context: &CallContext,
    (method, service): (&Method, &dyn GrpcService),
    request: Request<Body>,
    reads: Option<(&SocketAddr, &ActSlot)>,
    (began, time): (Duration, Duration),
) -> Result<Response<Body>, Infallible> {
    let Some((peer, act)) = reads else { return service.call(request).await };
    match audit::read_act(method, request, peer, act).await {
        Ok(_) if context.clock.elapsed().saturating_sub(began) > time => {
            Ok(Status::from(expired(method, time).without_effect()).into_http())
        }
        Ok(request) => service.call(request).await,
        Err(status) => Ok(status.into_http()),
    }
}

/// The room for the answer of a call, if the answer may be large. The call waits for it before its request is passed
/// on.
fn wanted_room(method: &Method, room: &ResponsePermitSlot) -> Option<PendingResponsePermit> {
    // A call that waits for an event holds no permit meanwhile.
    let bytes = (!method.waits).then_some(method.answer_bytes);
    (method.answer_bytes > 0 && !method.streaming).then(|| PendingResponsePermit::new(bytes, room))
}

/// Answers a call that is refused before its body is read.
async fn refused(
    context: &CallContext,
    method: &Method,
    identity: Option<&Arc<Identity>>,
    refusal: ApiError,
) -> Response<Body> {
    method.metrics.record(refusal.code(), Duration::ZERO);
    let response = Status::from(refusal).into_http();
    audit::note(context.audit.get(), method, identity, AnswerNote::of(&response, None)).await;
    response
}

/// The state of a call before its body is read.
struct CallStart<'a> {
    /// The time that its caller gives it.
    asked: Option<Duration>,
    service: &'a dyn GrpcService,
    identity: Option<Arc<Identity>>,
    /// Of a call that stays open: its place within the quota of the caller.
    stream: Option<AccountPermit>,
    /// Of any other call: its place among those in progress.
    place: Option<Arc<CallPlace>>,
}

impl<'a> CallStart<'a> {
    /// Refuses a malformed deadline, a service that is not open yet, a key that has ended, one without the role, a
    /// class for which calls take too long, and a key with too many open streams. Gives the request its rights; methods
    /// of health and reflection touch nothing that has any.
    fn of(context: &CallContext, method: &'a Method, request: &mut Request<Body>) -> Result<Self, ApiError> {
        let asked = deadline(request.headers())?;
        let not_open =
            || ApiError::new(Reason::StoreUnavailable, "the server is starting and its store is not open yet");
        let service = method.service.get().ok_or_else(not_open)?.as_ref();
        let identity = request.extensions().get::<Arc<Identity>>().cloned();
        if identity.as_ref().is_some_and(|identity| identity.has_ended()) {
            return Err(why_key_ended(method, identity.as_deref()).without_effect());
        }
        let rights = match (&identity, method.role) {
            (_, None) => None,
            (None, Some(role)) => Some(CallRights::unlimited(role)),
            (Some(identity), Some(role)) if identity.grants.may_call(role) => {
                Some(CallRights::of(identity.principal.name.clone(), identity.grants.clone(), role))
            }
            (Some(identity), Some(role)) => {
                return Err(role_missing(&identity.principal, role, method.descriptor.name()));
            }
        };
        if let Some(rights) = rights {
            request.extensions_mut().insert(rights);
        }
        let place = begin(context, method, identity.as_deref(), request)?;
        let stays = identity.as_ref().filter(|_| method.streaming || method.waits);
        let stream = stays.map(|identity| identity.account.take(KeyQuota::Streams)).transpose()?;
        Ok(Self { asked, service, identity, stream, place })
    }
}

/// Lets a call begin unless calls of its class are refused at the moment. Answers its place among those in progress. A
/// stream has none: its request gets what gives places to its messages. Neither has a call that waits for an event.
fn begin(
    context: &CallContext,
    method: &Method,
    identity: Option<&Identity>,
    request: &mut Request<Body>,
) -> Result<Option<Arc<CallPlace>>, ApiError> {
    let Some(class) = method.class else { return Ok(None) };
    let (limiter, account) = (&context.limiter, identity.map(|identity| &identity.account));
    limiter.admit(class, account)?;
    if method.streaming {
        request.extensions_mut().insert(StreamPlaces::new(limiter, account));
    }
    let counts = !method.streaming && !method.waits;
    Ok(counts.then(|| Arc::new(CallPlace::new(limiter, class, method.timing, account))))
}

/// Runs the work of a call on behalf of its principal.
fn on_behalf<W: Future>(identity: Option<&Arc<Identity>>, work: W) -> impl Future<Output = W::Output> + use<W> {
    PrincipalAccount::on_behalf(identity.map(|identity| &identity.account), work)
}

/// The reason why a call returns before its work is done.
enum CallCut {
    Deadline,
    KeyEnded,
}

/// Waits for the work of a unary call, no longer than its deadline and its caller's key allow. A call that is not
/// expected to wait runs for a moment before it looks at its key, so that quick calls cost nothing.
async fn within<W: Future>(
    time: Duration,
    identity: Option<&Identity>,
    waits: bool,
    work: W,
) -> Result<W::Output, CallCut> {
    let cut = |_elapsed| CallCut::Deadline;
    if identity.is_none() {
        return tokio::time::timeout(time, work).await.map_err(cut);
    }
    let mut work = std::pin::pin!(work);
    let unchecked = if waits { Duration::ZERO } else { KEY_CALL_UNCHECKED.min(time) };
    if let Ok(done) = tokio::time::timeout(unchecked, work.as_mut()).await {
        return Ok(done);
    }
    let rest = tokio::time::timeout(time - unchecked, work);
    until_key_ends(identity, rest).await.ok_or(CallCut::KeyEnded)?.map_err(cut)
}

/// Waits for work, unless the caller's key ends first.
async fn until_key_ends<W: Future>(identity: Option<&Identity>, work: W) -> Option<W::Output> {
    let Some(identity) = identity else { return Some(work.await) };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = identity.ended().cancelled() => None,
    }
}

/// Reads a response from its encoder, so that its bytes are known and counted.
async fn made(response: Response<Body>, place: Option<BufferPermit>, caller: &Caller) -> Response<Body> {
    let (parts, mut body) = response.into_parts();
    let body = match body.frame().await.map(|first| first.map(Frame::into_data)) {
        Some(Ok(Ok(bytes))) => Body::new(ResponseBody::complete(bytes, place, caller, body)),
        // An error after the headers.
        Some(Ok(Err(frame))) => {
            let trailers = frame.into_trailers().ok();
            let status = trailers.as_ref().and_then(Status::from_header_map);
            return status.unwrap_or_else(|| Status::internal("an answer without a message")).into_http();
        }
        Some(Err(status)) => return status.into_http(),
        None => Body::empty(),
    };
    Response::from_parts(parts, body)
}

type CaughtCallResult = Result<Result<Response<Body>, Infallible>, Box<dyn std::any::Any + Send>>;

fn into_response(outcome: CaughtCallResult, method: &Method) -> Response<Body> {
    match outcome {
        Ok(Ok(response)) => with_error_reason(response, method),
        Err(_panic) => answer_to_panic(method),
    }
}

fn answer_to_panic(method: &Method) -> Response<Body> {
    method.metrics.panicked();
    Status::from(panicked(method)).into_http()
}

/// Adds our reason to an error of the gRPC library.
fn with_error_reason(mut response: Response<Body>, method: &Method) -> Response<Body> {
    if !method.own {
        return response;
    }
    match response.extensions_mut().remove::<Status>() {
        None => response,
        Some(status) => with_reason(status).into_http(),
    }
}

/// The error of a call that panicked; the panic hook has logged the panic.
fn panicked(method: &Method) -> ApiError {
    let name = method.descriptor.full_name();
    ApiError::new(Reason::Internal, format!("{name} failed because of a defect of the service"))
}

/// The error of an act that did not end before the server did.
fn cut_off(method: &Method) -> ApiError {
    let what = format!("the server stopped before {} ended", method.descriptor.name());
    ApiError::new(Reason::OutcomeUnknown, what)
}

/// The error of a call past its deadline.
fn expired(method: &Method, time: Duration) -> ApiError {
    let advice = match method.changes {
        true => "a write may have been applied: retry it with the same token",
        false => "nothing was changed: allow more time, or request less",
    };
    let what = format!("the deadline of {time:?} passed before the call finished; {advice}");
    let refusal = ApiError::new(Reason::DeadlineExceeded, what);
    if method.changes { refusal } else { refusal.without_effect() }
}

/// The error of a call whose role no grant of its caller allows.
pub fn role_missing(principal: &Principal, role: AccessRole, what: &str) -> ApiError {
    ApiError::new(
        Reason::RoleMissing,
        format!("{what} needs the role {role}, which no grant of {} allows", principal.name),
    )
}

/// The error of a call whose caller's key ended, or has other grants now.
fn why_key_ended(method: &Method, identity: Option<&Identity>) -> ApiError {
    match identity {
        Some(identity) if identity.is_regranted() => regranted(method),
        Some(identity) => key_ended(method, identity.credential.word()),
        None => key_ended(method, "credential"),
    }
}

/// The error of a call whose caller's key has other grants now. It may be made again with the same key.
fn regranted(method: &Method) -> ApiError {
    let what = "the grants of the API key of the call have changed; make the call again";
    match method.changes {
        true => ApiError::new(Reason::OutcomeUnknown, what),
        false => ApiError::new(Reason::RetryLater, what).without_effect(),
    }
}

/// The error of a call whose caller's key or token ended.
fn key_ended(method: &Method, credential: &str) -> ApiError {
    let effect = match method.changes {
        true => "a write may have been applied",
        false => "nothing was changed",
    };
    let refusal =
        ApiError::new(Reason::Unauthenticated, format!("the {credential} of the call is no longer valid; {effect}"));
    if method.changes { refusal } else { refusal.without_effect() }
}

/// The deadline of a caller, as time from now.
pub fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(header) = headers.get("grpc-timeout") else { return Ok(None) };
    let Some(time) = timeout(header) else {
        let what = "grpc-timeout is malformed; send 1 to 8 digits and one of H M S m u n, for example 500m";
        return Err(ApiError::new(Reason::InvalidArgument, what).at("grpc-timeout"));
    };
    if time < DEADLINE_LEAST {
        let what = format!("a deadline of {time:?} leaves no time for the call; nothing was started: allow more time");
        return Err(ApiError::new(Reason::DeadlineExceeded, what).without_effect());
    }
    Ok(Some(time))
}

/// The timeout of a unary call. A call that waits for an event may take longer.
pub fn effective_timeout(asked: Option<Duration>, waits: bool) -> Duration {
    asked.unwrap_or(if waits { DEADLINE_DEFAULT + DEQUEUE_WAIT_MAX } else { DEADLINE_DEFAULT }).min(DEADLINE_MAX)
}

/// Parses a timeout in the form of the gRPC protocol: 1 to 8 digits and a unit.
fn timeout(header: &HeaderValue) -> Option<Duration> {
    let text = header.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None, // no other unit is defined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Option<Duration> {
        timeout(&HeaderValue::from_static(text))
    }

    #[test]
    fn timeouts_are_read_as_the_protocol_writes_them() {
        assert_eq!(read("2S"), Some(Duration::from_secs(2)));
        assert_eq!(read("1H"), Some(Duration::from_secs(3_600)));
        assert_eq!(read("3M"), Some(Duration::from_secs(180)));
        assert_eq!(read("500m"), Some(Duration::from_millis(500)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(read("7u"), Some(Duration::from_micros(7)));
    }

    #[test]
    fn no_call_but_a_stream_takes_longer_than_an_hour() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", HeaderValue::from_static("99999999H"));
        let asked = deadline(&headers).expect("it is well formed");
        assert!(asked > Some(DEADLINE_MAX), "a stream has what it asks for");
        for waits in [false, true] {
            assert_eq!(effective_timeout(asked, waits), DEADLINE_MAX);
            assert!(effective_timeout(None, waits) < DEADLINE_MAX);
        }
    }

    #[test]
    fn malformed_timeouts_are_refused() {
        for text in ["", "S", "2", "-1S", "123456789S", "2s", "2 S", "+2S"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_deadline_too_near_is_refused_before_anything_is_started() {
        let mut headers = HeaderMap::new();
        assert_eq!(deadline(&headers), Ok(None));
        headers.insert("grpc-timeout", HeaderValue::from_static("999u"));
        let refused = deadline(&headers).expect_err("too near");
        assert_eq!(refused.reason, Reason::DeadlineExceeded);
        assert_eq!(refused.metadata, [("effect", "nothing".to_owned())]);
        headers.insert("grpc-timeout", HeaderValue::from_static("1m"));
        assert_eq!(deadline(&headers), Ok(Some(Duration::from_millis(1))));
        headers.insert("grpc-timeout", HeaderValue::from_static("soon"));
        assert_eq!(deadline(&headers).expect_err("malformed").reason, Reason::InvalidArgument);
    }
}
