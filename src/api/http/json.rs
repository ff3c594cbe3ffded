//! JSON over HTTP: transcodes a body to the gRPC message of its method and the answer back, for every unary method.
//!
//! `POST /package.Service/Method` with canonical protobuf JSON. Answers contain every field, also fields with default
//! values, in lowerCamelCase, with 64-bit numbers as texts. Errors are `{code, message, details[]}` with the HTTP
//! status of their reason. The code here is generic and names no method.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderValue, Method as HttpMethod, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::errors::ApiError;
use crate::http::buffers::{BufferPermit, Caller, FRAME_HEADER_BYTES};
use crate::http::call::{CallContext, call, deadline, effective_timeout};
use crate::http::json_read;
use crate::http::methods::{Method, Methods};
use crate::http::response_body::{ResponseBody, with_type};
use crate::http::unread_body::{discard, discard_up_to};
use tallystone_domain::Reason;
use tallystone_domain::limits::{BODY_BYTES_DISCARDED_MAX, BODY_BYTES_MAX};

const JSON_TYPE: &str = "application/json";
/// A larger body is decoded or encoded on a blocking thread.
const JSON_ON_RUNTIME_BYTES: usize = 64 * 1024;

/// Answers a request that is not gRPC.
pub async fn answer(
    methods: &Methods,
    calls: &Arc<CallContext>,
    request: Request<Body>,
    caller: &Arc<Caller>,
) -> Response<Body> {
    let found = checked(methods, &request);
    let (method, time) = match found {
        Ok(found) => found,
        Err(refusal) => {
            match refusal.reason {
                // It goes on for a while, and its client reads the answer at its end.
                Reason::InvalidBodyTooLarge => {
                    let time = effective_timeout(deadline(request.headers()).unwrap_or_default(), false);
                    discard_up_to(request, BODY_BYTES_DISCARDED_MAX, time).await;
                }
                _ => discard(request).await, // nothing of it was wanted
            }
            return refused(&Status::from(refusal));
        }
    };
    match transcoded(method, time, calls, request, caller).await {
        Ok(response) => response,
        Err(refusal) => {
            method.metrics.record(refusal.code(), Duration::ZERO);
            refused(&Status::from(refusal))
        }
    }
}

/// The method of a request, and the time for it, by what comes before the body.
fn checked<'m>(methods: &'m Methods, request: &Request<Body>) -> Result<(&'m Arc<Method>, Duration), ApiError> {
    let method = methods.public(request.uri().path())?;
    if request.method() != HttpMethod::POST {
        let what = format!("{} is not allowed here; call the path with POST", request.method());
        return Err(ApiError::new(Reason::MethodNotAllowed, what));
    }
    let counted = |refusal: ApiError| {
        method.metrics.record(refusal.code(), Duration::ZERO);
        refusal
    };
    if method.streaming {
        let what = format!("{} is a stream; call it with gRPC", method.descriptor.name());
        return Err(counted(ApiError::new(Reason::UnknownMethod, what)));
    }
    check_content_type(request.headers().get(header::CONTENT_TYPE)).map_err(counted)?;
    check_content_encoding(request.headers().get(header::CONTENT_ENCODING)).map_err(counted)?;
    // By its head; a body that says no length is refused while it is read.
    if request.body().size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(counted(body_too_large()));
    }
    Ok((method, effective_timeout(deadline(request.headers()).map_err(counted)?, false)))
}

/// Transcodes a checked request. What is refused here never came to its method.
async fn transcoded(
    method: &Arc<Method>,
    time: Duration,
    calls: &Arc<CallContext>,
    request: Request<Body>,
    caller: &Arc<Caller>,
) -> Result<Response<Body>, ApiError> {
    let (mut parts, body) = request.into_parts();
    let body = tokio::time::timeout(time, read_body(body, caller)).await;
    let (body, place) = body.unwrap_or_else(|_elapsed| Err(late_body(time)))?;
    let input = method.descriptor.input();
    let message = off_the_runtime(body.len(), move || json_read::read(&input, &body).map(|message| frame(&message)));
    let message = message.await.and_then(|read| read)?;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let framed = Body::new(Full::new(message));
    let response = call(calls, method, Request::from_parts(parts, framed), caller).await;
    drop(place);
    Ok(read_answer(method, response, caller).await)
}

/// Decodes or encodes a body; a large one on a blocking thread, so that it delays no other call.
pub async fn off_the_runtime<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if bytes <= JSON_ON_RUNTIME_BYTES {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_panic| {
        ApiError::new(Reason::Internal, "reading or writing the JSON failed because of a defect of the service")
    })
}

fn check_content_type(sent: Option<&HeaderValue>) -> Result<(), ApiError> {
    let Some(sent) = sent else {
        let what = "content-type is missing; send content-type: application/json";
        return Err(ApiError::new(Reason::InvalidContentType, what));
    };
    let text = sent.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let is_json = parts.next() == Some(JSON_TYPE);
    let is_utf8 = parts.all(|part| !part.starts_with("charset=") || part.trim_end_matches('"').ends_with("utf-8"));
    if is_json && is_utf8 {
        return Ok(());
    }
    let shown: String = text.chars().take(100).collect();
    Err(ApiError::new(
        Reason::InvalidContentType,
        format!("content-type {shown} is not supported; send content-type: application/json"),
    ))
}

fn check_content_encoding(sent: Option<&HeaderValue>) -> Result<(), ApiError> {
    let text = sent.map_or("identity", |sent| sent.to_str().unwrap_or("this")).trim().to_ascii_lowercase();
    if text.is_empty() || text == "identity" {
        return Ok(());
    }
    let shown: String = text.chars().take(100).collect();
    let what = format!("content-encoding {shown} is not supported; send the body uncompressed");
    Err(ApiError::new(Reason::InvalidContentType, what))
}

fn late_body(time: Duration) -> ApiError {
    let what = format!("the body did not arrive within {time:?}; nothing was applied: retry");
    ApiError::new(Reason::DeadlineExceeded, what).without_effect()
}

/// Reads a body. Part of a too large body is read and discarded: some clients do not read the answer if their upload is
/// cut off.
async fn read_body(mut body: Body, caller: &Caller) -> Result<(Bytes, BufferPermit), ApiError> {
    let told = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(BODY_BYTES_MAX);
    let place = caller.reserve_request(told.min(BODY_BYTES_MAX)).await?;
    let mut collected = BytesMut::new();
    let mut bytes = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::new(
                Reason::InvalidJson,
                format!("the body did not arrive in full: {error}; nothing was applied: retry"),
            )
        })?;
        let Ok(data) = frame.into_data() else { continue };
        bytes = bytes.saturating_add(data.len());
        if bytes <= BODY_BYTES_MAX {
            collected.extend_from_slice(&data);
        } else if bytes > BODY_BYTES_DISCARDED_MAX {
            break;
        }
    }
    if bytes > BODY_BYTES_MAX {
        return Err(body_too_large());
    }
    Ok((collected.freeze(), place))
}

fn body_too_large() -> ApiError {
    ApiError::new(Reason::InvalidBodyTooLarge, format!("the body is larger than {BODY_BYTES_MAX} bytes"))
}

fn frame(message: &DynamicMessage) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEADER_BYTES + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("a message of a bounded body is below 4 GiB"));
    message.encode(&mut frame).expect("the buffer grows as needed");
    frame.freeze()
}

async fn read_answer(method: &Method, response: Response<Body>, caller: &Caller) -> Response<Body> {
    if let Some(status) = response.extensions().get::<Status>() {
        return refused(status);
    }
    let collected = match response.into_body().collect().await {
        Ok(collected) => collected,
        Err(status) => return refused(&status),
    };
    let status = collected.trailers().and_then(Status::from_header_map);
    if let Some(status) = status.filter(|status| status.code() != Code::Ok) {
        return refused(&status);
    }
    let (output, frame) = (method.descriptor.output(), collected.to_bytes());
    let place = caller.try_reserve_response(frame.len());
    let written = off_the_runtime(frame.len(), move || to_json(&output, frame).map_err(|error| error.to_string()));
    match written.await {
        Err(refusal) => refused(&refusal.into()),
        Ok(Ok(body)) => {
            let body = ResponseBody::complete(body.into(), place, caller, Body::empty());
            with_type(StatusCode::OK, JSON_TYPE, Bytes::new()).map(|_| Body::new(body))
        }
        Ok(Err(error)) => {
            tracing::error!(method = method.descriptor.full_name(), %error, "a response cannot be written as JSON");
            refused(&ApiError::new(Reason::Internal, "the response cannot be written as JSON").into())
        }
    }
}

fn to_json(descriptor: &MessageDescriptor, mut frame: Bytes) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    if frame.remaining() < FRAME_HEADER_BYTES {
        return Err("the response has no message".into());
    }
    frame.advance(FRAME_HEADER_BYTES);
    let message = DynamicMessage::decode(descriptor.clone(), frame)?;
    let options = SerializeOptions::new().skip_default_fields(false);
    let mut body = Vec::new();
    message.serialize_with_options(&mut serde_json::Serializer::new(&mut body), &options)?;
    body.push(b'\n');
    Ok(body)
}

/// Encodes an error as JSON.
pub fn refused(status: &Status) -> Response<Body> {
    let details = status.get_error_details();
    let reason = details.error_info().and_then(|info| Reason::from_name(&info.reason));
    let http = match reason {
        Some(reason) => reason.info().http,
        None => http_status_of(status.code()),
    };
    let mut shown: Vec<Value> = Vec::new();
    if let Some(info) = details.error_info() {
        shown.push(json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": info.reason,
            "domain": info.domain,
            "metadata": info.metadata,
        }));
    }
    let delay = details.retry_info().and_then(|info| info.retry_delay);
    if let Some(delay) = delay {
        shown.push(json!({
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": canonical(delay),
        }));
    }
    if let Some(bad) = details.bad_request() {
        let violations = bad
            .field_violations
            .iter()
            .map(|violation| json!({ "field": violation.field, "description": violation.description }));
        shown.push(json!({
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": violations.collect::<Vec<_>>(),
        }));
    }
    let body = json!({ "code": status.code() as i32, "message": status.message(), "details": shown });
    let status = StatusCode::from_u16(http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = with_type(status, JSON_TYPE, format!("{body}\n"));
    if let Some(delay) = delay {
        // The header has a resolution of one second.
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, delay.as_secs_f64().ceil().max(1.0).to_string().parse().expect("digits"));
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    }
    response
}

/// Formats a duration as protobuf JSON: 0, 3, 6 or 9 decimals.
fn canonical(duration: Duration) -> String {
    prost_types::Duration::try_from(duration).unwrap_or_default().to_string()
}

/// The HTTP status of a code without one of our reasons: those of health and reflection.
fn http_status_of(code: Code) -> u16 {
    match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Cancelled => 499,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_digits_of_canonical_json() {
        for (millis, text) in [(0, "0s"), (250, "0.250s"), (1_000, "1s"), (61_007, "61.007s")] {
            assert_eq!(canonical(Duration::from_millis(millis)), text);
        }
        assert_eq!(canonical(Duration::from_micros(1_500)), "0.001500s");
    }
}
