//! Commands as arguments of functions.
//!
//! The parts that need only the command and the settings are decided here: ranges, defaults, classes, retry delays,
//! hashes. A part that is out of range travels along, because the library reports it at its place in the order of
//! checks.

use std::time::Duration;

use super::library::verb_code;
use super::packed::PackedBytes;
use super::stored_message::{hash_of, pack_pairs, pack_static, place_of_id};
use tallystone_domain::limits::{
    ATTEMPTS_MAX, BULK_MESSAGES_MAX, DEQUEUE_MESSAGES_MAX, ERROR_TEXT_BYTES_MAX, FILTER_WALK_MAX, INVISIBILITY_MAX,
    LEASE_MAX, LEASE_MIN, MESSAGE_TTL_MAX, PAYLOAD_BYTES_MAX, PRIORITY_MAX, VALUE_IN_FLIGHT_MAX,
};
use tallystone_domain::queue::command::{BulkRequest, Cursor, Dequeue, FailureReport, MessageUpdate, NewMessage};
use tallystone_domain::queue::messages::message::{LeaseToken, MessageKey, MessageRef, RoutingValue, SessionId};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::session_records::{Ending, SessionCall};
use tallystone_domain::queue::setup::settings::MessageRetryPolicy;
use tallystone_domain::queue::{InvalidCommandPart, Settings};
use tallystone_domain::time::Timestamp;
use tallystone_ports::MessageBody;

/// The arguments of one command, and the part of it that is out of range.
#[derive(Debug)]
pub struct FunctionRequest {
    pub arguments: Vec<Vec<u8>>,
    pub invalid: Option<InvalidCommandPart>,
}

/// The number of a settlement's extension, after the four ways to settle.
const EXTEND: u8 = 4;
/// A session's command.
const RECALL: u8 = 0;
const HEARTBEAT: u8 = 1;
const END: u8 = 2;
/// Sequences are those of a shard and never 0, so this names no message.
const NO_SEQUENCE: u64 = 0;

/// The action of a bulk command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkFunctionKind {
    Purge = 0,
    Redrive = 1,
    Discard = 2,
    Cancel = 3,
}

/// The action of a command on a single message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageCommand {
    Cancel = 0,
    Redrive = 2,
    Discard = 3,
}

const UPDATE: u8 = 1;

/// Requests of `cfg`, by their numbers.
pub const CONFIGURE: u8 = 0;
pub const DELETE: u8 = 1;
pub const RESET: u8 = 2;
const LIMIT_VALUE: u8 = 3;
pub const DROP_SHAPES: u8 = 4;
/// Says that a value gets a limit, and does not lose one.
const HAS_LIMIT: u8 = 4;

fn flags<const N: usize>(set: [bool; N]) -> u8 {
    set.into_iter().enumerate().fold(0, |flags, (bit, is_set)| flags | u8::from(is_set) << bit)
}

fn first<const N: usize>(checks: [(bool, InvalidCommandPart); N]) -> Option<InvalidCommandPart> {
    checks.into_iter().find(|(fits, _)| !fits).map(|(_, invalid)| invalid)
}

fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// The arguments of an enqueue: the request, the static part, the payload.
pub fn enqueue(sent: &NewMessage, body: &MessageBody, settings: &Settings) -> FunctionRequest {
    let (no_class, priority) = priority_of(sent, settings);
    let before = invalid_value(sent, settings).or(no_class);
    let invisibility = sent.invisibility.unwrap_or(settings.default_invisibility);
    let attempts = sent.max_attempts.unwrap_or(settings.default_attempts);
    // 0 says never, also in a queue that has a TTL.
    let ttl = sent.ttl.or(settings.default_ttl).filter(|ttl| !ttl.is_zero());
    let (payload_max, metadata_max) = (settings.payload_max_bytes, settings.metadata_max_bytes);
    let after = first([
        (sent.payload_bytes <= PAYLOAD_BYTES_MAX, InvalidCommandPart::Payload),
        (sent.payload_bytes <= payload_max, InvalidCommandPart::PayloadOfQueue(payload_max)),
        (sent.metadata.bytes() <= metadata_max as usize, InvalidCommandPart::MetadataOfQueue(metadata_max)),
        // The library knows now, so it judges a time.
        (sent.visible_at.is_some() || invisibility <= INVISIBILITY_MAX, InvalidCommandPart::Invisibility),
        ((1..=ATTEMPTS_MAX).contains(&attempts), InvalidCommandPart::Attempts),
        (sent.lease_duration.is_none_or(is_lease), InvalidCommandPart::Lease),
        (ttl.is_none_or(|ttl| ttl <= MESSAGE_TTL_MAX), InvalidCommandPart::Ttl),
    ]);
    let when_told = match (before, after) {
        (Some(_), _) => 1,
        (None, Some(_)) => 2,
        (None, None) => 0,
    };
    let has = flags([
        sent.token_time.is_some(),
        sent.priority.is_some(),
        sent.lease_duration.is_some(),
        ttl.is_some(),
        sent.visible_at.is_some(),
    ]);
    let packed = PackedBytes::default().byte(has).byte(when_told).raw(&sent.fingerprint.to_be_bytes());
    let packed = packed.raw(&place_of_id(&sent.id)).time(sent.token_time.unwrap_or_default());
    let packed = match sent.visible_at {
        Some(at) => packed.double(priority as f64).time(at),
        None => packed.double(priority as f64).duration(invisibility),
    };
    let packed = packed.u16(u16::try_from(attempts).unwrap_or(u16::MAX));
    let packed = packed.duration(sent.lease_duration.unwrap_or_default()).duration(ttl.unwrap_or_default());
    let arguments = vec![packed.u32(sent.payload_bytes).0, pack_static(sent, body), body.payload.to_vec()];
    FunctionRequest { arguments, invalid: before.or(after) }
}

/// In an exclusive queue a message has a value, which routed it.
fn invalid_value(sent: &NewMessage, settings: &Settings) -> Option<InvalidCommandPart> {
    let value = settings.exclusivity.as_ref().map(|rule| sent.metadata.get(&rule.key));
    let routed = sent.routing.as_ref().map(RoutingValue::as_str);
    let fits = value.is_none_or(|value| value.is_some() && value == routed);
    first([(fits, InvalidCommandPart::ExclusivityValue)])
}

/// The fault of the class, and the priority; or the offset from now in milliseconds, if the message has none.
fn priority_of(sent: &NewMessage, settings: &Settings) -> (Option<InvalidCommandPart>, i64) {
    if let Some(own) = sent.priority {
        // Out of range, a double may be rounded into it.
        let fits = (-PRIORITY_MAX..=PRIORITY_MAX).contains(&own);
        return (None, if fits { own } else { own.signum() * 2 * PRIORITY_MAX });
    }
    match settings.priority_offset(sent.class.as_deref(), &sent.metadata) {
        Ok(offset) => (None, offset),
        Err(invalid) => (Some(invalid), 0),
    }
}

fn is_lease(lease: Duration) -> bool {
    (LEASE_MIN..=LEASE_MAX).contains(&lease)
}

/// The arguments of a settlement: the request, the retry delays, the signature and the text of the error.
pub fn settle(
    (shard, token): (u32, LeaseToken),
    verb: SettleAction,
    failure: &FailureReport,
    retry: &MessageRetryPolicy,
) -> FunctionRequest {
    let error_bytes = failure.error.as_ref().map_or(0, |error| error.text.len().max(error.signature.len()));
    let invalid = first([
        (failure.delay.is_none_or(|delay| delay <= INVISIBILITY_MAX), InvalidCommandPart::Invisibility),
        (error_bytes <= ERROR_TEXT_BYTES_MAX, InvalidCommandPart::ErrorText),
    ]);
    let has = flags([failure.delay.is_some(), failure.error.is_some()]);
    let request = lease_request(verb_code(verb), (invalid, has), (shard, token), failure.delay.unwrap_or_default());
    let needs_delays = verb == SettleAction::Fail && failure.delay.is_none();
    let delays = if needs_delays { retry_delays(retry, failure.draw) } else { Vec::new() };
    let error = failure.error.as_ref().filter(|_| invalid.is_none());
    let [signature, text] = error.map_or([&[][..], &[]], |error| [error.signature.as_bytes(), error.text.as_bytes()]);
    FunctionRequest { arguments: vec![request, delays, signature.to_vec(), text.to_vec()], invalid }
}

/// The arguments of an extension.
pub fn extend(token: (u32, LeaseToken), lease: Duration) -> FunctionRequest {
    let invalid = first([(lease <= LEASE_MAX, InvalidCommandPart::Lease)]);
    let request = lease_request(EXTEND, (invalid, 0), token, lease);
    FunctionRequest { arguments: vec![request, Vec::new(), Vec::new(), Vec::new()], invalid }
}

fn lease_request(
    verb: u8,
    (invalid, has): (Option<InvalidCommandPart>, u8),
    (shard, token): (u32, LeaseToken),
    duration: Duration,
) -> Vec<u8> {
    let MessageKey { shard: of, epoch, sequence } = token.key;
    let sequence = if of == shard { sequence } else { NO_SEQUENCE };
    let packed = PackedBytes::default().byte(verb).byte(u8::from(invalid.is_some())).byte(has).u32(epoch);
    packed.whole(sequence).u32(token.fence.epoch).whole(token.fence.serial).duration(duration).0
}

/// The delays after attempts 1, 2 and so on with this draw; further ones equal the last.
fn retry_delays(retry: &MessageRetryPolicy, draw: u32) -> Vec<u8> {
    let mut packed = PackedBytes::default();
    let mut last = None;
    for attempt in 1..=ATTEMPTS_MAX {
        let delay = retry.delay(attempt, draw);
        if last == Some(delay) {
            break; // the delay has reached its maximum
        }
        packed = packed.duration(delay);
        last = Some(delay);
    }
    packed.0
}

/// A reference to a message of this shard.
pub fn message_ref(shard: u32, message: &MessageRef) -> Vec<u8> {
    match message {
        MessageRef::Key(key) => {
            let sequence = if key.shard == shard { key.sequence } else { NO_SEQUENCE };
            PackedBytes::default().byte(b'k').u32(key.epoch).whole(sequence).0
        }
        MessageRef::Id(id, routing) => {
            let packed = PackedBytes::default().byte(b'i').raw(&place_of_id(id));
            routing.as_ref().map(RoutingValue::as_str).map_or(packed.clone(), |routing| packed.raw(&hash_of(routing))).0
        }
    }
}

fn session_text(id: SessionId) -> Vec<u8> {
    format!("{:032x}", id.0).into_bytes()
}

fn call_text(call: u64) -> Vec<u8> {
    format!("{call:016x}").into_bytes()
}

fn invalid_call(call: &SessionCall) -> Option<InvalidCommandPart> {
    first([
        (call.lease.is_none_or(is_lease), InvalidCommandPart::SessionLease),
        (call.sequence > 0, InvalidCommandPart::Sequence),
        (call.attempt > 0, InvalidCommandPart::Try),
    ])
}

/// The arguments of a dequeue: the request, session, call, confirmed call, worker, message, filter, cursor.
pub fn dequeue(shard: u32, asked: &Dequeue) -> FunctionRequest {
    let of_call = asked.session.as_ref().and_then(invalid_call);
    let invalid = first([
        (
            (1..=DEQUEUE_MESSAGES_MAX).contains(&asked.max) && asked.look_at <= FILTER_WALK_MAX,
            InvalidCommandPart::Count,
        ),
        (asked.lease.is_none_or(is_lease), InvalidCommandPart::Lease),
    ]);
    let session = asked.session.as_ref();
    let received = session.and_then(|call| call.received_up_to);
    let has = flags([
        asked.lease.is_some(),
        session.is_some(),
        session.is_some_and(|call| call.lease.is_some()),
        asked.worker.is_some(),
        received.is_some(),
        asked.cursor.is_some(),
    ]);
    let look_at = if asked.look_at == 0 { FILTER_WALK_MAX } else { asked.look_at };
    let packed = PackedBytes::default().byte(has).byte(u8::from(of_call.is_some())).byte(u8::from(invalid.is_some()));
    let packed = packed.u16(small(asked.max)).duration(asked.lease.unwrap_or_default()).u16(small(look_at));
    let packed = packed.u32(session.map_or(1, |call| call.attempt));
    let packed = packed.duration(session.and_then(|call| call.lease).unwrap_or_default());
    let arguments = vec![
        packed.0,
        session.map(|call| session_text(call.id)).unwrap_or_default(),
        session.map(|call| call_text(call.sequence)).unwrap_or_default(),
        received.map(call_text).unwrap_or_default(),
        asked.worker.as_deref().unwrap_or_default().as_bytes().to_vec(),
        asked.message.as_ref().map(|message| message_ref(shard, message)).unwrap_or_default(),
        pack_pairs(PackedBytes::default(), asked.filter.metadata()).0,
        asked.cursor.as_ref().map(pack_cursor).unwrap_or_default(),
    ];
    FunctionRequest { arguments, invalid: of_call.or(invalid) }
}

fn pack_cursor(cursor: &Cursor) -> Vec<u8> {
    let (priority, sequence) = cursor.after;
    let priority = if priority == i64::MIN { f64::NEG_INFINITY } else { priority as f64 };
    let packed = PackedBytes::default().double(priority).whole(sequence).time(cursor.since);
    let Some((value, (priority, sequence))) = &cursor.inside else { return packed.byte(0).0 };
    let packed = packed.byte(1).raw(&hash_of(value.as_str())).signed(*priority).whole(*sequence);
    packed.raw(value.as_str().as_bytes()).0
}

/// The arguments of a request that says no more than what it is.
pub fn plain_config(kind: u8) -> FunctionRequest {
    let request = PackedBytes::default().byte(kind).byte(0).byte(0).byte(0).whole(0);
    FunctionRequest { arguments: vec![request.0], invalid: None }
}

/// The arguments of a value's own limit; none for the limit of the queue.
pub fn value_limit(value: &RoutingValue, limit: Option<u32>, settings: &Settings) -> FunctionRequest {
    let invalid = first([
        (settings.exclusivity.is_some(), InvalidCommandPart::NotExclusive),
        (limit.is_none_or(|limit| limit <= VALUE_IN_FLIGHT_MAX), InvalidCommandPart::ValueLimit),
    ]);
    let packed = PackedBytes::default().byte(LIMIT_VALUE).byte(0).byte(u8::from(invalid.is_some()));
    let packed = packed.byte(if limit.is_some() { HAS_LIMIT } else { 0 }).whole(limit.unwrap_or(0).into());
    FunctionRequest { arguments: vec![packed.0, hash_of(value.as_str()).to_vec()], invalid }
}

/// The arguments of a recall.
pub fn recall(call: &SessionCall) -> FunctionRequest {
    let invalid = invalid_call(call);
    let has = flags([call.lease.is_some(), call.received_up_to.is_some()]);
    let packed = PackedBytes::default().byte(RECALL).byte(has).byte(u8::from(invalid.is_some()));
    let packed = packed.u32(call.attempt).duration(call.lease.unwrap_or_default()).u16(0).byte(0);
    let received = call.received_up_to.map(call_text).unwrap_or_default();
    FunctionRequest { arguments: vec![packed.0, session_text(call.id), call_text(call.sequence), received], invalid }
}

/// The arguments of a heartbeat.
pub fn heartbeat(session: SessionId, received_up_to: Option<u64>) -> FunctionRequest {
    let has = flags([false, received_up_to.is_some()]);
    let packed = PackedBytes::default().byte(HEARTBEAT).byte(has).byte(0).u32(1).whole(0).u16(0).byte(0);
    let received = received_up_to.map(call_text).unwrap_or_default();
    FunctionRequest { arguments: vec![packed.0, session_text(session), Vec::new(), received], invalid: None }
}

/// The arguments of a step of a session's end, which ends at most so many leases of those that were asked for.
pub fn end_session(session: SessionId, ending: Ending, asked: usize, max: usize) -> FunctionRequest {
    let invalid = invalid_bulk_size(asked);
    let how = match ending {
        Ending::Closed => 0,
        Ending::Replaced => 1,
        Ending::Expired => 2,
    };
    let packed = PackedBytes::default().byte(END).byte(0).byte(u8::from(invalid.is_some())).u32(1).whole(0);
    let packed = packed.u16(small(max)).byte(how);
    FunctionRequest { arguments: vec![packed.0, session_text(session), Vec::new(), Vec::new()], invalid }
}

fn invalid_bulk_size(max: usize) -> Option<InvalidCommandPart> {
    first([((1..=BULK_MESSAGES_MAX).contains(&max), InvalidCommandPart::Count)])
}

/// The arguments of a command on a single message.
pub fn message_command(shard: u32, kind: MessageCommand, message: &MessageRef, reason: &str) -> FunctionRequest {
    let packed = PackedBytes::default().byte(kind as u8).u16(0).byte(0).whole(0).whole(0).whole(0).raw(&[0; 8]).u32(0);
    let texts = [reason.as_bytes(), &[], &[], &[]].map(<[u8]>::to_vec);
    let arguments = [packed.0, message_ref(shard, message)].into_iter().chain(texts).collect();
    FunctionRequest { arguments, invalid: None }
}

/// The arguments of an update: the request, the message, the token; the payload, the metadata, and the hash of the
/// exclusivity value that these have.
pub fn update(
    shard: u32,
    (message, update): (&MessageRef, &MessageUpdate),
    payload: &[u8],
    settings: &Settings,
) -> FunctionRequest {
    let by_delay = update.visible_at.is_none() && update.invisibility.is_some();
    let has = flags([
        update.priority.is_some(),
        update.visible_at.is_some(),
        by_delay,
        update.only_if_sooner,
        update.expected_version.is_some(),
        update.token.is_some(),
        update.payload_bytes.is_some(),
        update.metadata.is_some(),
    ]);
    let invalid = invalid_update(update, settings);
    let packed = PackedBytes::default().byte(UPDATE).u16(u16::from(has)).byte(u8::from(invalid.is_some()));
    let packed = packed.signed(update.priority.unwrap_or(0));
    let packed = match update.visible_at {
        Some(at) => packed.time(at.max(Timestamp::from_micros(0))), // the past means now
        None => packed.duration(update.invisibility.unwrap_or_default()),
    };
    let (text, fingerprint) = update.token.as_ref().map_or(("", 0), |token| (&*token.text, token.fingerprint));
    let packed = packed.whole(update.expected_version.unwrap_or(0)).raw(&fingerprint.to_be_bytes());
    let packed = packed.u32(update.payload_bytes.unwrap_or(0));
    let metadata = update.metadata.as_ref();
    let value = settings.exclusivity.as_ref().and_then(|rule| metadata?.get(&rule.key));
    let arguments = vec![
        packed.0,
        message_ref(shard, message),
        text.as_bytes().to_vec(),
        if update.payload_bytes.is_some() { payload.to_vec() } else { Vec::new() },
        metadata.map(|metadata| pack_pairs(PackedBytes::default(), metadata).0).unwrap_or_default(),
        value.map(|value| hash_of(value).to_vec()).unwrap_or_default(),
    ];
    FunctionRequest { arguments, invalid }
}

fn invalid_update(update: &MessageUpdate, settings: &Settings) -> Option<InvalidCommandPart> {
    let (payload_max, metadata_max) = (settings.payload_max_bytes, settings.metadata_max_bytes);
    let (payload, metadata) = (update.payload_bytes.unwrap_or(0), update.metadata.as_ref());
    let range = -PRIORITY_MAX..=PRIORITY_MAX;
    first([
        (update.priority.is_none_or(|priority| range.contains(&priority)), InvalidCommandPart::Priority),
        (payload <= PAYLOAD_BYTES_MAX, InvalidCommandPart::Payload),
        (payload <= payload_max, InvalidCommandPart::PayloadOfQueue(payload_max)),
        (
            metadata.is_none_or(|metadata| metadata.bytes() <= metadata_max as usize),
            InvalidCommandPart::MetadataOfQueue(metadata_max),
        ),
    ])
}

/// The arguments of a step of a bulk command, of at most this size. `reason` is that of a cancel.
pub fn bulk((kind, asked, reason): (BulkFunctionKind, &BulkRequest, &str), after: u64, max: usize) -> FunctionRequest {
    let invalid = invalid_bulk_size(asked.max);
    let has = flags([asked.signature.is_some(), asked.ended_by.is_some(), asked.dry_run]);
    let packed = PackedBytes::default().byte(kind as u8).byte(has).byte(u8::from(invalid.is_some()));
    let packed = packed
        .byte(asked.states.bits())
        .u16(small(max))
        .whole(after)
        .whole(asked.through)
        .time(asked.ended_by.unwrap_or_default());
    let arguments = vec![
        packed.0,
        pack_pairs(PackedBytes::default(), asked.filter.metadata()).0,
        asked.signature.as_deref().unwrap_or_default().as_bytes().to_vec(),
        reason.as_bytes().to_vec(),
    ];
    FunctionRequest { arguments, invalid }
}

/// The argument of a sweep that takes at most so many steps of those that were asked for.
pub fn sweep(asked: usize, max: usize) -> FunctionRequest {
    let invalid = invalid_bulk_size(asked);
    let packed = PackedBytes::default().byte(u8::from(invalid.is_some())).u16(small(max));
    FunctionRequest { arguments: vec![packed.0], invalid }
}
