//! Which calls are acts of operators, and what the audit says of each.
//!
//! The request is read by its descriptor, so a handler knows nothing of the audit. The line is written after the answer is
//! known and before the caller gets it. Payloads are never read.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use parking_lot::Mutex;
use prost_reflect::{DynamicMessage, Value};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::api::grpc::namespaces::{ACTOR_METADATA, actor_named};
use crate::api::http::buffers::FRAME_HEADER_BYTES;
use crate::api::http::methods::Method;
use crate::api::http::recorded_methods::CLEAR;
use crate::domain::limits::BODY_BYTES_MAX;
use crate::engine::access::Identity;
use crate::engine::audit::{Audit, OperatorAct};

/// The act of a call, once it was read; none if it is not recorded.
pub type ActSlot = Mutex<Option<OperatorAct>>;

/// The reason of an act, in the metadata of a call whose request has none.
pub const REASON_METADATA: &str = "tallystone-reason";

/// Reads the act of a call into its slot, and returns the request as it was.
pub async fn read_act(
    method: &Method,
    request: Request<Body>,
    peer: &SocketAddr,
    slot: &ActSlot,
) -> Result<Request<Body>, Status> {
    let named = request.headers().get(ACTOR_METADATA).and_then(|word| word.to_str().ok());
    if method.descriptor.full_name().ends_with(CLEAR) && named.is_none_or(str::is_empty) {
        return Ok(request);
    }
    let identity = request.extensions().get::<Arc<Identity>>();
    let actor = actor_named(identity.map(|identity| &identity.principal), named);
    let actor = actor.unwrap_or_else(|| peer.ip().to_string());
    let said = request.headers().get(REASON_METADATA).map(|said| String::from_utf8_lossy(said.as_bytes()).into_owned());
    let (parts, body) = request.into_parts();
    let collected = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let bytes = collected.map_err(Status::from_error)?;
    let bytes = bytes.to_bytes();
    let act = decoded(method, bytes.clone()).map(|message| OperatorAct { actor, ..read(method, &message) });
    let act = act.filter(|_| !is_dry_run(method, &bytes));
    *slot.lock() = act.map(|act| match said {
        Some(said) if act.reason.is_empty() => OperatorAct { reason: said, ..act },
        Some(_) | None => act,
    });
    Ok(Request::from_parts(parts, Body::new(Full::new(bytes))))
}

/// The outcome of a call, as its line says it: `OK`, or the reason of the refusal.
pub fn outcome_of(response: &Response<Body>) -> String {
    match response.extensions().get::<Status>() {
        None => "OK".to_owned(),
        Some(status) if status.code() == Code::Ok => "OK".to_owned(),
        Some(status) => {
            let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
            reason.unwrap_or_else(|| format!("{:?}", status.code()))
        }
    }
}

/// Writes an act down, with the outcome of its call. A line that cannot be written is told in the log: the act is done.
pub async fn record(audit: &Audit, act: OperatorAct, outcome: String) {
    let (action, target) = (act.action.clone(), act.target.clone());
    if let Err(error) = audit.record(OperatorAct { outcome, ..act }).await {
        tracing::error!(%error, action, target, "an admin action cannot be recorded");
    }
}

fn decoded(method: &Method, mut frame: Bytes) -> Option<DynamicMessage> {
    if frame.remaining() < FRAME_HEADER_BYTES {
        return None;
    }
    frame.advance(FRAME_HEADER_BYTES);
    DynamicMessage::decode(method.descriptor.input(), frame).ok()
}

fn is_dry_run(method: &Method, frame: &Bytes) -> bool {
    let message = decoded(method, frame.clone());
    message.and_then(|message| message.get_field_by_name("dry_run")?.as_bool()).unwrap_or(false)
}

/// What a request is about, by the names of its fields.
fn read(method: &Method, message: &DynamicMessage) -> OperatorAct {
    let text = |name: &str| text_of(message, name);
    let inner = |field: &str| {
        let value = message.get_field_by_name(field)?;
        let inner = value.as_message()?;
        Some(text_of(inner, "name")).filter(|name| !name.is_empty())
    };
    let targets = ["queue", "namespace", "rule", "experiment"].iter().filter_map(|field| inner(field));
    let names = ["queue", "namespace", "name", "rule"].iter().map(|field| text(field)).filter(|name| !name.is_empty());
    let parts =
        ["message_id", "value", "counter_name", "operation_id", "error_signature"].iter().map(|field| text(field));
    OperatorAct {
        action: method.descriptor.name().to_owned(),
        target: targets.chain(names).next().unwrap_or_default(),
        part: parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "),
        reason: text("reason"),
        request_token: text("request_token"),
        ..OperatorAct::default()
    }
}

fn text_of(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    let text = value.as_deref().and_then(Value::as_str).map(str::to_owned);
    text.unwrap_or_default()
}
