//! Decodes requests of queues into domain values.

use std::time::Duration;

use bytes::Bytes;

use crate::errors::ApiError;
use crate::time;
use tallystone_domain::access::{Asked, CallRights, Permitted};
use tallystone_domain::counter::uuid_v7;
use tallystone_domain::limits::{
    DEQUEUE_MESSAGES_MAX, MESSAGE_ID_BYTES_MAX, MESSAGE_TYPE_BYTES_MAX, QUEUE_BATCH_ITEMS_MAX, WORK_QUEUES_MAX,
};
use tallystone_domain::queue::bulk_operation::PurgedStates;
use tallystone_domain::queue::filter::Filter;
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::messages::key_syntax::MessageRefError;
use tallystone_domain::queue::messages::message::{AttemptError, MessageRef, Metadata, RoutingValue, SessionId};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::{MessageState, QueueId, QueueName};
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_engine::queues::{
    CancelRequest, DequeueRequest, DiscardRequest, LeaseActionRequest, QueueError, RedriveRequest, SentMessage,
    SentSessionCall, SettleRequest, UpdateRequest, WhenBlocked,
};
use tallystone_proto::queue::v1 as wire;

/// The time between the end of a dequeue's wait and the call's deadline, for sending the answer.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// Decodes the name of a queue that the caller may touch.
pub fn queue(rights: &CallRights, name: &str) -> Result<Permitted<QueueName>, ApiError> {
    Ok(rights.permit(Asked::new(QueueName::new(name)?))?)
}

/// Decodes the id that a queue must have, if the request has one.
pub fn queue_id(sent: &str) -> Result<Option<QueueId>, QueueError> {
    if sent.is_empty() {
        return Ok(None);
    }
    let read = u128::from_str_radix(sent, 16).ok().map(QueueId).filter(|id| id.to_string() == sent);
    let what = "queue_id is not valid; send the id from GetQueue";
    Ok(Some(read.ok_or_else(|| field_error("queue_id", Reason::InvalidArgument, what))?))
}

/// The refusal of a stream with more queues than it may serve.
pub fn too_many_queues(count: usize) -> QueueError {
    let what = format!("queues has {count} names; a stream serves at most {WORK_QUEUES_MAX}: open another stream");
    field_error("queues", Reason::InvalidArgument, what)
}

/// Decodes an optional text; empty means absent.
pub fn text(sent: &str) -> Option<Box<str>> {
    (!sent.is_empty()).then(|| sent.into())
}

/// Decodes an optional duration.
pub fn duration(field: &str, sent: Option<prost_types::Duration>) -> Result<Option<Duration>, QueueError> {
    let read = |sent| time::read_duration(field, &sent).map_err(|reject| with_field(field, reject));
    Ok(sent.map(read).transpose()?)
}

/// Decodes an optional time.
pub fn moment(field: &str, sent: Option<prost_types::Timestamp>) -> Result<Option<Timestamp>, QueueError> {
    let read = |sent| time::read(field, Reason::InvalidRange, &sent).map_err(|reject| with_field(field, reject));
    Ok(sent.map(read).transpose()?)
}

/// Adds the request's field name to an error of its value.
fn with_field(field: &str, reject: Reject) -> Reject {
    let what = reject.message.clone();
    reject.at(field, what)
}

/// An error of the request's field with its own message.
fn field_error(field: &str, reason: Reason, what: impl Into<String>) -> QueueError {
    with_field(field, Reject::new(reason, what)).into()
}

/// Decodes a message to enqueue.
pub fn message(sent: Option<wire::Message>) -> Result<SentMessage, QueueError> {
    let sent =
        sent.ok_or_else(|| Reject::new(Reason::InvalidMessage, "message is missing; send at least its payload"))?;
    let (id, token_time) = token(&sent.message_id, sent.generation_time)?;
    for (field, text) in [("type", &sent.r#type), ("trace_context", &sent.trace_context)] {
        if text.len() > MESSAGE_TYPE_BYTES_MAX {
            let what = format!("{field} has {} bytes; at most {MESSAGE_TYPE_BYTES_MAX} are allowed", text.len());
            return Err(field_error(&format!("message.{field}"), Reason::InvalidMessage, what));
        }
    }
    if sent.visible_time.is_some() && sent.invisibility.is_some() {
        let what = "visible_time and invisibility set the same value; send only one of them";
        let reject = Reject::new(Reason::InvalidArgument, what).at("message.invisibility", what);
        return Err(reject.at("message.visible_time", what).into());
    }
    if sent.priority.is_some() && !sent.priority_class.is_empty() {
        let what = "priority and priority_class set the same value; send only one of them";
        let reject = Reject::new(Reason::InvalidArgument, what).at("message.priority", what);
        return Err(reject.at("message.priority_class", what).into());
    }
    Ok(SentMessage {
        id,
        token_time,
        payload: Bytes::from(sent.payload),
        priority: sent.priority,
        class: text(&sent.priority_class),
        metadata: Metadata::new(sent.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())))?,
        invisibility: duration("message.invisibility", sent.invisibility)?,
        visible_at: moment("message.visible_time", sent.visible_time)?,
        lease_duration: duration("message.lease_duration", sent.lease_duration)?,
        max_attempts: sent
            .max_attempts
            .map(|n| u32::try_from(n).map_err(|_negative| InvalidCommandPart::Attempts))
            .transpose()?,
        ttl: duration("message.ttl", sent.ttl)?,
        shard_key: text(&sent.shard_key),
        kind: text(&sent.r#type),
        trace_context: text(&sent.trace_context),
    })
}

/// The id of a message, which is its enqueue's idempotency token, with its generation time.
fn token(
    id: &str,
    generation_time: Option<prost_types::Timestamp>,
) -> Result<(Option<MessageId>, Option<Timestamp>), QueueError> {
    const FIELD: &str = "message.generation_time";
    let read = |sent| time::read("generation_time", Reason::InvalidGenerationTime, &sent);
    let given = generation_time.map(read).transpose().map_err(|reject| with_field(FIELD, reject))?;
    if id.is_empty() {
        if given.is_some() {
            let what = "generation_time belongs to message_id; send both or neither";
            return Err(field_error(FIELD, Reason::InvalidGenerationTime, what));
        }
        return Ok((None, None));
    }
    let id = MessageId::new(id)?;
    let time = match (uuid_v7(&id.text()), given) {
        (Some((_, time)), Some(given)) if given.millis() != time.millis() => {
            let what = "generation_time differs from the time in the UUIDv7; omit generation_time";
            return Err(field_error(FIELD, Reason::InvalidGenerationTime, what));
        }
        (Some((_, time)), _) => Some(time),
        (None, given) => given,
    };
    Ok((Some(id), time))
}

/// Decodes a reference to a message, by id or by key.
pub fn message_ref(id: &str, shard_key: &str) -> Result<MessageRef, QueueError> {
    let routing = (!shard_key.is_empty()).then(|| RoutingValue::new(shard_key)).transpose();
    let routing = routing.map_err(|invalid| QueueError::Argument { field: "shard_key", invalid })?;
    MessageRef::parse(id, routing).map_err(|bad| {
        let what = match bad {
            MessageRefError::Text(bad) => bad.to_string(),
            MessageRefError::Id(_) => format!(
                "message_id has {} bytes; send a message id of 1 to {MESSAGE_ID_BYTES_MAX} bytes, or a message_key",
                id.len()
            ),
        };
        field_error("message_id", Reason::InvalidMessageId, what)
    })
}

/// Decodes an optional reference to one message.
pub fn optional_message_ref(id: &str, shard_key: &str) -> Result<Option<MessageRef>, QueueError> {
    match (id, shard_key) {
        ("", "") => Ok(None),
        ("", _) => {
            let what = "shard_key is only for the search of message_id; send message_id too, or omit shard_key";
            Err(field_error("shard_key", Reason::InvalidArgument, what))
        }
        _ => message_ref(id, shard_key).map(Some),
    }
}

/// Decodes a reference to one message that may be absent. An empty one is refused: it would stand for other messages.
fn present_message_ref(id: Option<&str>, shard_key: &str) -> Result<Option<MessageRef>, QueueError> {
    match id {
        Some(id) => message_ref(id, shard_key).map(Some),
        None => optional_message_ref("", shard_key),
    }
}

/// Decodes a change of a message, which must change something.
pub fn update(sent: wire::UpdateMessageRequest) -> Result<UpdateRequest, QueueError> {
    if sent.visible_time.is_some() && sent.invisibility.is_some() {
        let what = "visible_time and invisibility set the same value; send only one of them";
        return Err(field_error("invisibility", Reason::InvalidArgument, what));
    }
    if sent.clear_metadata && !sent.metadata.is_empty() {
        let what = "metadata and clear_metadata contradict each other; send only one of them";
        return Err(field_error("clear_metadata", Reason::InvalidArgument, what));
    }
    let metadata = if sent.clear_metadata || !sent.metadata.is_empty() {
        let pairs = sent.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Some(Metadata::new(pairs).map_err(|invalid| QueueError::Argument { field: "metadata", invalid })?)
    } else {
        None
    };
    let has_time = sent.visible_time.is_some() || sent.invisibility.is_some();
    if sent.priority.is_none() && !has_time && sent.payload.is_none() && metadata.is_none() {
        let what = "the update has no change; send priority, visible_time, invisibility, payload, metadata or \
            clear_metadata";
        return Err(field_error("priority", Reason::InvalidArgument, what));
    }
    if sent.only_if_sooner && !has_time {
        let what = "only_if_sooner is about a time; send it with visible_time or invisibility";
        return Err(field_error("only_if_sooner", Reason::InvalidArgument, what));
    }
    Ok(UpdateRequest {
        priority: sent.priority,
        visible_at: moment("visible_time", sent.visible_time)?,
        invisibility: duration("invisibility", sent.invisibility)?,
        only_if_sooner: sent.only_if_sooner,
        expected_version: sent.expected_version,
        payload: sent.payload.map(Bytes::from),
        metadata,
        token: (!sent.request_token.is_empty()).then_some(sent.request_token),
    })
}

/// Decodes a redrive.
pub fn redrive(sent: wire::RedriveMessagesRequest) -> Result<RedriveRequest, QueueError> {
    let message = present_message_ref(sent.message_id.as_deref(), &sent.shard_key)?;
    let rate = u32::try_from(sent.rate)
        .map_err(|_negative| field_error("rate", Reason::InvalidRange, "rate is negative; send 0 or more"))?;
    let of_several = [
        ("rate", rate > 0),
        ("filter", !sent.filter.is_empty()),
        ("error_signature", !sent.error_signature.is_empty()),
    ];
    if let Some((field, _)) = of_several.into_iter().find(|(_, is_sent)| message.is_some() && *is_sent) {
        let what =
            "filter, error_signature and rate belong to a redrive of several messages; omit them with message_id";
        return Err(field_error(field, Reason::InvalidArgument, what));
    }
    let token = (!sent.request_token.is_empty()).then_some(sent.request_token);
    let (filter, queue) = (filter(&sent.filter)?, queue_id(&sent.queue_id)?);
    let signature = optional_signature(&sent.error_signature);
    let author = Box::default();
    Ok(RedriveRequest { message, filter, signature, rate, dry_run: sent.dry_run, token, queue, author })
}

/// Decodes a cancel of many messages, which must select them.
pub fn cancel_messages(sent: wire::CancelMessagesRequest) -> Result<CancelRequest, QueueError> {
    if sent.filter.is_empty() != sent.all {
        let what = match sent.all {
            false => "select the messages to cancel: send filter or all",
            true => "filter and all contradict each other; send only one of them",
        };
        return Err(field_error("filter", Reason::InvalidArgument, what));
    }
    let token = (!sent.request_token.is_empty()).then_some(sent.request_token);
    let (filter, queue) = (filter(&sent.filter)?, queue_id(&sent.queue_id)?);
    let author = Box::default();
    Ok(CancelRequest { filter, reason: sent.reason, dry_run: sent.dry_run, token, queue, author })
}

/// Decodes a discard, which must select its messages.
pub fn discard(sent: wire::DiscardMessagesRequest) -> Result<DiscardRequest, QueueError> {
    let message = optional_message_ref(&sent.message_id, &sent.shard_key)?;
    let (one, signature) = (message.is_some(), sent.error_signature.as_str());
    let some = !sent.filter.is_empty() || !signature.is_empty();
    if one && (some || sent.all || sent.until_time.is_some()) {
        let what = "filter, error_signature, until_time and all belong to a discard of several messages; omit them \
            with message_id";
        return Err(field_error("message_id", Reason::InvalidArgument, what));
    }
    if !one && some == sent.all {
        let what = "select the messages to discard: send message_id; filter, error_signature or both; or all";
        return Err(field_error("all", Reason::InvalidArgument, what));
    }
    let token = (!sent.request_token.is_empty()).then_some(sent.request_token);
    let (filter, queue) = (filter(&sent.filter)?, queue_id(&sent.queue_id)?);
    let signature = optional_signature(signature);
    let until = moment("until_time", sent.until_time)?;
    let author = Box::default();
    Ok(DiscardRequest { message, filter, signature, until, dry_run: sent.dry_run, token, queue, author })
}

/// The signature of an error that messages must have; none for any.
fn optional_signature(sent: &str) -> Option<Box<str>> {
    (!sent.is_empty()).then(|| sent.into())
}

/// Decodes a dequeue, whose wait ends before the call's deadline. `session` reads the id of a session.
pub fn dequeue_request(
    sent: wire::DequeueRequest,
    call_time: Option<Duration>,
    session: impl FnOnce(&str) -> Result<SessionId, QueueError>,
) -> Result<DequeueRequest, QueueError> {
    let session = call_of_session(&sent, session)?;
    let wait = duration("wait", sent.wait)?.unwrap_or_default();
    let message = present_message_ref(sent.message_id.as_deref(), &sent.shard_key)?;
    let max = count("max_messages", sent.max_messages, 1)?;
    let min = count("min_messages", sent.min_messages, 1)?;
    if min > max {
        let what = format!("min_messages is {min} and max_messages {max}; send a min_messages of at most max_messages");
        return Err(field_error("min_messages", Reason::InvalidRange, what));
    }
    Ok(DequeueRequest {
        max,
        min,
        lease: duration("lease_duration", sent.lease_duration)?,
        wait: call_time.map_or(wait, |time| wait.min(time.saturating_sub(ANSWER_TIME))),
        filter: filter(&sent.filter)?,
        message,
        blocked: WhenBlocked::Refuse,
        session,
    })
}

fn call_of_session(
    sent: &wire::DequeueRequest,
    session: impl FnOnce(&str) -> Result<SessionId, QueueError>,
) -> Result<Option<SentSessionCall>, QueueError> {
    if sent.session_id.is_empty() {
        if sent.sequence > 0 || sent.r#try > 0 || sent.received_up_to.is_some() {
            let what = "sequence, try and received_up_to belong to a session; send its session_id too";
            return Err(Reject::new(Reason::InvalidArgument, what).into());
        }
        return Ok(None);
    }
    let attempt = u32::try_from(sent.r#try).map_err(|_negative| InvalidCommandPart::Try)?;
    Ok(Some(SentSessionCall {
        id: session(&sent.session_id)?,
        sequence: sent.sequence,
        attempt: attempt.max(1),
        received_up_to: sent.received_up_to,
    }))
}

/// Decodes the metadata pairs that messages must have.
pub fn filter(sent: &std::collections::HashMap<String, String>) -> Result<Filter, QueueError> {
    Ok(Filter::new(sent.iter().map(|(key, value)| (key.as_str(), value.as_str())))?)
}

/// Decodes an exclusivity value.
pub fn exclusivity_value(sent: &str) -> Result<RoutingValue, QueueError> {
    let what = "value is not a valid exclusivity value; send 1 to 256 bytes";
    RoutingValue::new(sent).map_err(|_invalid| field_error("value", Reason::InvalidArgument, what))
}

/// Decodes the limit of an exclusivity value.
pub fn value_limit(sent: i32) -> Result<u32, QueueError> {
    u32::try_from(sent).map_err(|_negative| InvalidCommandPart::ValueLimit.into())
}

/// Decodes a number of messages; 0 means the default.
pub fn count(field: &str, sent: i32, default: usize) -> Result<usize, QueueError> {
    match usize::try_from(sent) {
        Ok(0) => Ok(default),
        Ok(count) if count <= DEQUEUE_MESSAGES_MAX => Ok(count),
        Ok(_) | Err(_) => {
            let what = format!("{field} is {sent}; send 1 to {DEQUEUE_MESSAGES_MAX}, or omit it for {default}");
            Err(field_error(field, Reason::InvalidRange, what))
        }
    }
}

/// Checks the number of items of a batch.
pub fn batch_size(field: &str, items: usize) -> Result<(), QueueError> {
    if (1..=QUEUE_BATCH_ITEMS_MAX).contains(&items) {
        return Ok(());
    }
    let what = format!("{field} has {items} items; nothing was applied: send 1 to {QUEUE_BATCH_ITEMS_MAX} in one call");
    Err(field_error(field, Reason::InvalidBatchSize, what))
}

/// Decodes a worker's error.
pub fn error(sent: Option<wire::WorkerError>) -> Option<AttemptError> {
    sent.map(|sent| AttemptError { signature: sent.signature.into(), text: sent.text.into() })
}

/// A field of a settlement that one verb alone uses, and whether it is there.
type FieldOfVerb = (&'static str, wire::Verb, fn(&wire::Settlement) -> bool);

const OF_ONE_VERB: [FieldOfVerb; 3] = [
    ("delay", wire::Verb::Fail, |sent| sent.delay.is_some()),
    ("error", wire::Verb::Fail, |sent| sent.error.is_some()),
    ("lease_duration", wire::Verb::Extend, |sent| sent.lease_duration.is_some()),
];

/// Refuses what the verb would not use: a delay that a release dropped would have the message run again at once.
fn refuse_unused(sent: &wire::Settlement) -> Result<(), QueueError> {
    let unused = OF_ONE_VERB.iter().find(|(_, verb, is_sent)| *verb != sent.verb() && is_sent(sent));
    match unused {
        Some((field, verb, _)) => {
            let verb = verb.as_str_name().trim_start_matches("VERB_");
            let what = format!("only {verb} has it; omit it, or send verb {verb}");
            Err(field_error(field, Reason::InvalidArgument, what))
        }
        None => Ok(()),
    }
}

/// Decodes one settlement or extension of a batch.
pub fn settlement(sent: wire::Settlement) -> Result<LeaseActionRequest, QueueError> {
    let verb = match wire::Verb::try_from(sent.verb) {
        Ok(wire::Verb::Complete) => SettleAction::Complete,
        Ok(wire::Verb::Cancel) => SettleAction::Cancel,
        Ok(wire::Verb::Fail) => SettleAction::Fail,
        Ok(wire::Verb::Release) => SettleAction::Release,
        Ok(wire::Verb::Extend) => {
            refuse_unused(&sent)?;
            let lease = duration("lease_duration", sent.lease_duration)?;
            return Ok(LeaseActionRequest::Extend { token: sent.lease_token, lease });
        }
        Ok(wire::Verb::Unspecified) | Err(_) => {
            let what = "verb is missing or unknown; send COMPLETE, CANCEL, FAIL, RELEASE or EXTEND";
            return Err(Reject::new(Reason::InvalidArgument, what).into());
        }
    };
    refuse_unused(&sent)?;
    let delay = duration("delay", sent.delay)?;
    Ok(LeaseActionRequest::Settle(SettleRequest { token: sent.lease_token, verb, delay, error: error(sent.error) }))
}

/// Decodes the states that a purge covers.
pub fn purged_states(sent: &[i32]) -> Result<PurgedStates, QueueError> {
    let what = "a purge cancels PENDING and INVISIBLE messages, and removes COMPLETED and CANCELED ones; end a RUNNING message \
                with CancelMessage or CancelMessages, and remove ERRORED ones with DiscardMessages";
    let named = |sent: &i32| match wire::MessageState::try_from(*sent) {
        Ok(wire::MessageState::Unspecified) | Err(_) => None,
        Ok(_) => state(*sent).ok(),
    };
    let states = sent.iter().map(named).collect::<Option<Vec<_>>>();
    let states = states.and_then(|states| PurgedStates::new(states).ok());
    states.ok_or_else(|| field_error("states", Reason::InvalidArgument, what))
}

/// Decodes the state of a list's filter.
pub fn state(sent: i32) -> Result<MessageState, QueueError> {
    match wire::MessageState::try_from(sent) {
        Ok(wire::MessageState::Unspecified | wire::MessageState::Pending) => Ok(MessageState::Pending),
        Ok(wire::MessageState::Invisible) => Ok(MessageState::Invisible),
        Ok(wire::MessageState::Running) => Ok(MessageState::Running),
        Ok(wire::MessageState::Completed) => Ok(MessageState::Completed),
        Ok(wire::MessageState::Canceled) => Ok(MessageState::Canceled),
        Ok(wire::MessageState::Errored) => Ok(MessageState::Errored),
        Err(_unknown) => {
            let what = format!(
                "state {sent} does not exist; send INVISIBLE, PENDING, RUNNING, COMPLETED, CANCELED or ERRORED"
            );
            Err(field_error("state", Reason::InvalidArgument, what))
        }
    }
}
