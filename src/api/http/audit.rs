//! The calls that are acts of operators, and what the audit says of each of them and of calls that are refused.
//!
//! The request is read by its descriptor. A handler that knows more of what it changed adds it to its answer, as an
//! `ActDetail`. The line is written after the answer is known and before the caller gets it. Payloads are never read.

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

use crate::documents;
use crate::grpc::ActDetail;
use crate::grpc::namespaces::{ACTOR_METADATA, actor_named, claimed, in_one_line};
use crate::http::buffers::FRAME_HEADER_BYTES;
use crate::http::methods::Method;
use tallystone_domain::Reason;
use tallystone_domain::limits::BODY_BYTES_MAX;
use tallystone_domain::reason::Effect;
use tallystone_engine::access::Identity;
use tallystone_engine::audit::{Audit, OperatorAct};
use tallystone_ports::StoreError;

/// The call that clears a counter: an act only if it is known who calls, by a key or by a claim.
const CLEAR: &str = "CounterService.ClearCount";

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
    let named = request.headers().get(ACTOR_METADATA).map(|word| claimed(word.as_bytes()));
    let named = named.as_deref();
    let identity = request.extensions().get::<Arc<Identity>>();
    let is_known = identity.is_some() || named.is_some_and(|name| !name.is_empty());
    if method.descriptor.full_name().ends_with(CLEAR) && !is_known {
        return Ok(request);
    }
    let actor = actor_named(identity.map(|identity| &identity.principal), named);
    let actor = actor.unwrap_or_else(|| peer.ip().to_string());
    let said =
        request.headers().get(REASON_METADATA).map(|said| in_one_line(&String::from_utf8_lossy(said.as_bytes())));
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
fn outcome_of(response: &Response<Body>) -> String {
    response.extensions().get::<Status>().map_or_else(|| "OK".to_owned(), outcome_text)
}

/// The outcome that a status tells, as a line says it.
pub fn outcome_text(status: &Status) -> String {
    if status.code() == Code::Ok {
        return "OK".to_owned();
    }
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
    reason.unwrap_or_else(|| format!("{:?}", status.code()))
}

/// Whether an answer says that its call surely changed nothing. Anybody can have such answers, at any rate.
fn is_without_effect(response: &Response<Body>) -> bool {
    let Some(details) = response.extensions().get::<Status>().map(Status::get_error_details) else { return false };
    let Some(info) = details.error_info() else { return false };
    let is_said = info.metadata.get("effect").is_some_and(|effect| effect == "nothing");
    is_said || Reason::from_name(&info.reason).is_some_and(|reason| reason.info().effect == Effect::Nothing)
}

/// The note of an answer in the audit.
pub struct AnswerNote {
    act: Option<OperatorAct>,
    /// Whether the act surely had no effect.
    is_refused: bool,
    /// Whether the caller lacks a role.
    is_role_missing: bool,
}

impl AnswerNote {
    /// Reads an answer: that of an act, or of another call.
    pub fn of(response: &Response<Body>, act: Option<OperatorAct>) -> Self {
        let status = response.extensions().get::<Status>();
        // Other answers, which are nearly all, cost nothing.
        let may_lack_role = status.is_some_and(|status| status.code() == Code::PermissionDenied);
        let is_role_missing = may_lack_role && outcome_of(response) == Reason::RoleMissing.info().name;
        let is_refused = act.is_some() && is_without_effect(response);
        let act = act.map(|act| {
            let detail = response.extensions().get::<ActDetail>().map(|detail| detail.0.clone());
            OperatorAct { outcome: outcome_of(response), part: detail.unwrap_or(act.part), ..act }
        });
        Self { act, is_refused, is_role_missing }
    }

    /// The act alone.
    pub fn into_act(self) -> Option<OperatorAct> {
        self.act
    }
}

/// Notes an answered call in the audit: its act, if it was one; else that its caller lacks a role for it, if that is
/// the answer.
pub async fn note(audit: Option<&Audit>, method: &Method, identity: Option<&Arc<Identity>>, note: AnswerNote) {
    let Some(audit) = audit else { return };
    match (note.act, identity) {
        (Some(act), _) if note.is_refused => {
            let (action, target) = (act.action.clone(), act.target.clone());
            tell_unwritten(Box::pin(audit.record_refusal(act)).await, &action, &target);
        }
        (Some(act), _) => Box::pin(record(audit, act)).await,
        (None, Some(identity)) if note.is_role_missing => {
            let actor = identity.principal.name.to_string();
            Box::pin(record_refusal(Some(audit), actor, method.descriptor.name(), Reason::RoleMissing)).await;
        }
        (None, _) => {}
    }
}

/// Writes an act down.
pub async fn record(audit: &Audit, act: OperatorAct) {
    let (action, target) = (act.action.clone(), act.target.clone());
    tell_unwritten(audit.record(act).await, &action, &target);
}

/// A line that cannot be written is told in the log: the act is done.
fn tell_unwritten(written: Result<(), StoreError>, action: &str, target: &str) {
    if let Err(error) = written {
        tracing::error!(%error, action, target, "an admin action cannot be recorded");
    }
}

/// Writes down that a call was refused, unless one like it was written just now.
pub async fn record_refusal(audit: Option<&Audit>, actor: String, action: &str, why: Reason) {
    let Some(audit) = audit else { return };
    let outcome = why.info().name.to_owned();
    let refused = OperatorAct { actor, action: action.to_owned(), outcome, ..OperatorAct::default() };
    if let Err(error) = audit.record_refusal(refused).await {
        tracing::error!(%error, action, "a refused call cannot be recorded");
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

/// Reads the act that a request is, by the names of its fields.
fn read(method: &Method, message: &DynamicMessage) -> OperatorAct {
    let text = |name: &str| text_of(message, name);
    let inner = |field: &str| {
        let value = message.get_field_by_name(field)?;
        let inner = value.as_message()?;
        Some(text_of(inner, "name")).filter(|name| !name.is_empty())
    };
    let targets = ["queue", "namespace", "rule", "experiment"].iter().filter_map(|field| inner(field));
    let names = ["queue", "namespace", "name", "rule"].iter().map(|field| text(field)).filter(|name| !name.is_empty());
    let parts = ["message_id", "value", "counter_name", "operation_id", "error_signature"].map(text);
    let parts = parts.into_iter().chain([blocked(message)]);
    OperatorAct {
        action: method.descriptor.name().to_owned(),
        target: targets.chain(names).next().or_else(|| documented(&text("document"))).unwrap_or_default(),
        part: parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "),
        // What a clear says of itself is its reason too. A line is one line: the words of two lines stay apart.
        reason: ["reason", "provenance"]
            .map(text)
            .into_iter()
            .find(|said| !said.is_empty())
            .map(|said| in_one_line(&said))
            .unwrap_or_default(),
        request_token: text("request_token"),
        ..OperatorAct::default()
    }
}

/// The words for what an update of a queue blocks or unblocks; empty without such a change.
fn blocked(message: &DynamicMessage) -> String {
    let Some(queue) = message.get_field_by_name("queue") else { return String::new() };
    let Some(queue) = queue.as_message() else { return String::new() };
    let word = |field: &str, blocks: &str, opens: &str| {
        let is_set = queue.has_field_by_name(field);
        let value = queue.get_field_by_name(field).and_then(|value| value.as_bool()).filter(|_| is_set);
        value.map_or_else(String::new, |is_blocked| if is_blocked { blocks.to_owned() } else { opens.to_owned() })
    };
    let words = [
        word("enqueue_blocked", "block enqueue", "unblock enqueue"),
        word("dequeue_blocked", "block dequeue", "unblock dequeue"),
    ];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The namespaces of a document that has their names.
fn documented(document: &str) -> Option<String> {
    let found = documents::parse(document, None).ok()?;
    let names: Vec<String> = found.iter().map(|one| one.draft.name.to_string()).collect();
    Some(names.join(" "))
}

fn text_of(message: &DynamicMessage, field: &str) -> String {
    let value = message.get_field_by_name(field);
    let text = value.as_deref().and_then(Value::as_str).map(str::to_owned);
    text.unwrap_or_default()
}
