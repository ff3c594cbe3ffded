//! Decodes requests of the history into domain values.

use crate::errors::ApiError;
use crate::grpc::queues::decode;
use crate::paging::PagedRequest;
use tallystone_domain::access::{CallRights, Permitted, ResourceKind};
use tallystone_domain::history::search::{HistoryQuery, QueryTime};
use tallystone_domain::queue::QueueName;
use tallystone_domain::queue::messages::message::{MessageKey, MessageRef};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::queues::CheckRequest;
use tallystone_proto::history::v1 as wire;
use tallystone_proto::history::v1::get_message_trace_request::Message;
use tallystone_proto::queue::v1::MessageState;

/// Decodes a request for a trace: the queue, the message, and what its page tokens are bound to.
pub fn trace(
    rights: &CallRights,
    sent: &wire::GetMessageTraceRequest,
) -> Result<(Permitted<QueueName>, MessageRef, PagedRequest), ApiError> {
    let name = decode::queue(rights, &sent.queue)?;
    let (text, message) = match &sent.message {
        Some(Message::MessageId(id)) => (id, decode::message_ref(id, "")?),
        Some(Message::MessageKey(key)) => (key, MessageRef::Key(message_key(key)?)),
        None => {
            let what = "the request names no message; send message_id or message_key";
            return Err(Reject::new(Reason::InvalidMessageId, what).at("message_id", what).into());
        }
    };
    let paged = PagedRequest::new("GetMessageTrace", &[name.as_str().as_bytes(), text.as_bytes()]);
    Ok((name, message, paged))
}

fn message_key(sent: &str) -> Result<MessageKey, Reject> {
    MessageKey::parse(sent).map_err(|bad| {
        let what = bad.to_string();
        Reject::new(Reason::InvalidMessageId, what.clone()).at("message_key", what)
    })
}

/// Decodes a search: the queue, the query, and what its page tokens are bound to.
pub fn search(
    rights: &CallRights,
    sent: &wire::SearchMessagesRequest,
) -> Result<(Permitted<QueueName>, HistoryQuery, PagedRequest), ApiError> {
    let name = decode::queue(rights, &sent.queue)?;
    let is_any = sent.state == MessageState::Unspecified as i32;
    let query = HistoryQuery {
        state: if is_any { None } else { Some(decode::state(sent.state)?) },
        filter: decode::filter(&sent.filter)?,
        signature: decode::text(&sent.error_signature),
        from: decode::moment("from", sent.from)?,
        to: decode::moment("to", sent.to)?,
        when: if sent.current_only.unwrap_or(true) { QueryTime::Now } else { QueryTime::Ever },
    };
    let mut arguments = vec![name.as_str().as_bytes().to_vec(), sent.state.to_be_bytes().to_vec()];
    arguments.push(sent.error_signature.clone().into_bytes());
    let times = [query.from, query.to].map(|time| time.map_or(Vec::new(), |time| time.micros().to_be_bytes().to_vec()));
    arguments.extend(times);
    arguments.push(vec![u8::from(query.when == QueryTime::Now)]);
    let pairs = query.filter.metadata().pairs();
    arguments.extend(pairs.flat_map(|(key, value)| [key.as_bytes().to_vec(), value.as_bytes().to_vec()]));
    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    Ok((name, query, PagedRequest::new("SearchMessages", &arguments)))
}

/// Decodes the request of a check: of one queue, or of all for callers who may touch every queue.
pub fn check(rights: &CallRights, sent: wire::CheckQueuesRequest) -> Result<CheckRequest, ApiError> {
    let wire::CheckQueuesRequest { queue, full, request_token } = sent;
    let queue = if queue.is_empty() {
        rights.every(ResourceKind::Queue)?;
        None
    } else {
        Some(decode::queue(rights, &queue)?.into_inner())
    };
    Ok(CheckRequest { queue, full, token: Some(request_token).filter(|token| !token.is_empty()) })
}
