//! Encodings of stored queue values: protobuf by `stored_queue.proto`, the same on every engine.
//!
//! Encoders destructure every value, so a new field that is not stored does not compile. A value that no encoder wrote
//! is a `CorruptValue`. The shard decides whether readable parts fit together. Headers, settings and the catalog are in
//! `settings` and `catalog`.

pub mod catalog;
pub mod counts;
pub mod history;
pub mod operation;
pub mod register;
pub mod session;
pub mod settings;
pub mod stubs;

use std::time::Duration;

use prost::Message as _;

use self::session::{lease_session_from, lease_session_of};
use super::{CorruptValue, decode};
use tallystone_domain::queue::index::dedupe_index::DedupeRecord;
use tallystone_domain::queue::messages::first_response::FirstResponse;
use tallystone_domain::queue::messages::id_hash::IdHash;
use tallystone_domain::queue::messages::message::{
    AttemptError, CanceledBy, CountedUnder, Fence, Lease, MessageExtras, MessageKey, Metadata, RoutingValue,
};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::{SettleAction, Settlement, UpdateToken};
use tallystone_domain::queue::{MessageHead, MessageState};
use tallystone_domain::time::{Timestamp, micros_of};
use tallystone_ports::MessageBody;
use tallystone_proto::internal::v1::{
    StoredCanceledBy, StoredFence, StoredLease, StoredQueueAnswer, StoredQueueBody, StoredQueueMessage,
    StoredSettlement, StoredText, StoredUpdate, StoredWorkError,
};

/// Encodes the head of a message; its shard and its sequence are in its key.
pub fn encode_message(message: &MessageHead) -> Vec<u8> {
    let MessageHead {
        key: MessageKey { shard: _, epoch, sequence: _ },
        id,
        routing,
        metadata,
        payload_bytes,
        fingerprint,
        priority,
        max_attempts,
        attempts_left,
        enqueued_at,
        ttl_at,
        token_time,
        visible_at,
        state,
        version,
        first_state,
        counted: CountedUnder { key_set, values },
        extras: course,
    } = message;
    let MessageExtras {
        lease_duration,
        releases,
        first_leased_at,
        ended_at,
        delete_at: gone_at,
        lease,
        expired_lease: lapsed,
        last_settlement: settled,
        canceled_by,
        error,
        updates,
        counted_metadata,
    } = &**course;
    StoredQueueMessage {
        epoch: *epoch,
        id: id.to_string(),
        routing: routing.as_ref().map(|routing| routing.as_str().to_owned()),
        metadata: pairs_of(metadata),
        payload_bytes: *payload_bytes,
        fingerprint: *fingerprint,
        priority: *priority,
        lease_duration: lease_duration.map(micros),
        max_attempts: *max_attempts,
        attempts_left: *attempts_left,
        releases: *releases,
        enqueued_at: enqueued_at.micros(),
        ttl_at: ttl_at.get().map(Timestamp::micros),
        visible_at: visible_at.micros(),
        first_leased_at: first_leased_at.map(Timestamp::micros),
        ended_at: ended_at.get().map(Timestamp::micros),
        gone_at: (*gone_at != Timestamp::MAX).then(|| gone_at.micros()),
        state: state_code(*state),
        version: *version,
        lease: lease.map(lease_of),
        lapsed: lapsed.map(fence_of),
        settled: settled.map(settlement_of),
        canceled_by: canceled_by.as_ref().map(canceled_of),
        error: error.as_ref().map(error_of),
        updates: updates.iter().map(update_of).collect(),
        first_state: state_code(*first_state),
        token_time: token_time.get().map(Timestamp::micros),
        counted_key_set: u32::from(*key_set),
        counted_values: u32::from(*values),
        is_counted_apart: counted_metadata.is_some(),
        counted_metadata: counted_metadata.as_ref().map(pairs_of).unwrap_or_default(),
    }
    .encode_to_vec()
}

fn pairs_of(metadata: &Metadata) -> Vec<StoredText> {
    metadata.pairs().map(|(key, value)| text_of(key, value)).collect()
}

pub fn decode_message(shard: u32, sequence: u64, bytes: &[u8]) -> Result<MessageHead, CorruptValue> {
    const WHAT: &str = "message";
    let stored: StoredQueueMessage = decode(WHAT, bytes)?;
    let invalid = |what: &'static str| move |_| CorruptValue::new(WHAT, format!("{what} of an illegal form"));
    let metadata_of = |pairs: &[StoredText]| {
        let pairs = pairs.iter().map(|pair| (pair.key.as_str(), pair.value.as_str()));
        Metadata::new(pairs).map_err(invalid("metadata"))
    };
    let counted_metadata = stored.is_counted_apart.then(|| metadata_of(&stored.counted_metadata)).transpose()?;
    let course = MessageExtras {
        lease_duration: stored.lease_duration.map(duration),
        releases: stored.releases,
        first_leased_at: stored.first_leased_at.map(Timestamp::from_micros),
        ended_at: stored.ended_at.map(Timestamp::from_micros).into(),
        delete_at: stored.gone_at.map_or(Timestamp::MAX, Timestamp::from_micros),
        lease: stored.lease.map(lease_from).transpose()?,
        expired_lease: stored.lapsed.map(fence_from),
        last_settlement: stored.settled.map(settlement_from).transpose()?,
        canceled_by: stored.canceled_by.map(canceled_from).transpose()?,
        error: stored.error.map(|error| AttemptError { signature: error.signature.into(), text: error.text.into() }),
        updates: stored.updates.into_iter().map(update_from).collect::<Result<_, _>>()?,
        counted_metadata,
    };
    Ok(MessageHead {
        key: MessageKey { shard, epoch: stored.epoch, sequence },
        id: MessageId::new(&stored.id).map_err(invalid("an id"))?,
        routing: stored.routing.as_deref().map(RoutingValue::new).transpose().map_err(invalid("a routing value"))?,
        metadata: metadata_of(&stored.metadata)?,
        payload_bytes: stored.payload_bytes,
        fingerprint: stored.fingerprint,
        priority: stored.priority,
        max_attempts: stored.max_attempts,
        attempts_left: stored.attempts_left,
        enqueued_at: Timestamp::from_micros(stored.enqueued_at),
        ttl_at: stored.ttl_at.map(Timestamp::from_micros).into(),
        token_time: stored.token_time.map(Timestamp::from_micros).into(),
        visible_at: Timestamp::from_micros(stored.visible_at),
        state: state_from(WHAT, stored.state)?,
        version: stored.version,
        first_state: state_from(WHAT, stored.first_state)?,
        counted: CountedUnder {
            key_set: byte_from(WHAT, stored.counted_key_set)?,
            values: byte_from(WHAT, stored.counted_values)?,
        },
        extras: course.into(),
    })
}

fn byte_from(what: &'static str, number: u32) -> Result<u8, CorruptValue> {
    u8::try_from(number).map_err(|_| CorruptValue::new(what, format!("{number} where a byte belongs")))
}

fn update_of((token, answer): &(UpdateToken, Settlement)) -> StoredUpdate {
    let UpdateToken { text, fingerprint } = token;
    let Settlement { state, version } = *answer;
    StoredUpdate { request_token: text.to_string(), fingerprint: *fingerprint, state: state_code(state), version }
}

fn update_from(stored: StoredUpdate) -> Result<(UpdateToken, Settlement), CorruptValue> {
    let StoredUpdate { request_token, fingerprint, state, version } = stored;
    let answer = Settlement { state: state_from("message", state)?, version };
    Ok((UpdateToken { text: request_token.into(), fingerprint }, answer))
}

fn lease_of(lease: Lease) -> StoredLease {
    let Lease { fence, since, expires, cancel_requested, session } = lease;
    let fence = Some(fence_of(fence));
    let session = session.map(lease_session_of);
    StoredLease { fence, since: since.micros(), expires: expires.micros(), cancel_requested, session }
}

fn lease_from(stored: StoredLease) -> Result<Lease, CorruptValue> {
    let fence = stored.fence.ok_or_else(|| CorruptValue::new("message", "a lease without its number"))?;
    Ok(Lease {
        fence: fence_from(fence),
        since: Timestamp::from_micros(stored.since),
        expires: Timestamp::from_micros(stored.expires),
        cancel_requested: stored.cancel_requested,
        session: stored.session.map(lease_session_from).transpose()?,
    })
}

fn fence_of(Fence { epoch, serial }: Fence) -> StoredFence {
    StoredFence { epoch, serial }
}

fn fence_from(stored: StoredFence) -> Fence {
    Fence { epoch: stored.epoch, serial: stored.serial }
}

fn settlement_of((fence, verb, answer): (Fence, SettleAction, Settlement)) -> StoredSettlement {
    let verb = match verb {
        SettleAction::Complete => 1,
        SettleAction::Cancel => 2,
        SettleAction::Fail => 3,
        SettleAction::Release => 4,
    };
    let Settlement { state, version } = answer;
    StoredSettlement { fence: Some(fence_of(fence)), verb, state: state_code(state), version }
}

fn settlement_from(stored: StoredSettlement) -> Result<(Fence, SettleAction, Settlement), CorruptValue> {
    const WHAT: &str = "message";
    let fence = stored.fence.ok_or_else(|| CorruptValue::new(WHAT, "a settlement without its lease"))?;
    let verb = match stored.verb {
        1 => SettleAction::Complete,
        2 => SettleAction::Cancel,
        3 => SettleAction::Fail,
        4 => SettleAction::Release,
        other => return Err(CorruptValue::new(WHAT, format!("settled by verb {other}"))),
    };
    let answer = Settlement { state: state_from(WHAT, stored.state)?, version: stored.version };
    Ok((fence_from(fence), verb, answer))
}

fn canceled_of(canceled_by: &CanceledBy) -> StoredCanceledBy {
    let (by, reason) = match canceled_by {
        CanceledBy::Worker => (1, ""),
        CanceledBy::Request(reason) => (2, &**reason),
        CanceledBy::Purge => (3, ""),
        CanceledBy::Ttl => (4, ""),
    };
    StoredCanceledBy { by, reason: reason.to_owned() }
}

fn canceled_from(stored: StoredCanceledBy) -> Result<CanceledBy, CorruptValue> {
    match stored.by {
        1 => Ok(CanceledBy::Worker),
        2 => Ok(CanceledBy::Request(stored.reason.into())),
        3 => Ok(CanceledBy::Purge),
        4 => Ok(CanceledBy::Ttl),
        other => Err(CorruptValue::new("message", format!("canceled by {other}"))),
    }
}

fn error_of(AttemptError { signature, text }: &AttemptError) -> StoredWorkError {
    StoredWorkError { signature: (**signature).to_owned(), text: (**text).to_owned() }
}

/// Encodes the parts of a message that no rule inspects.
pub fn encode_body(body: &MessageBody) -> Vec<u8> {
    let MessageBody { payload, kind, trace_context } = body;
    StoredQueueBody {
        payload: payload.to_vec(),
        kind: kind.as_deref().map(str::to_owned),
        trace_context: trace_context.as_deref().map(str::to_owned),
    }
    .encode_to_vec()
}

/// Decodes the parts of a message that no rule inspects.
pub fn decode_body(bytes: &[u8]) -> Result<MessageBody, CorruptValue> {
    let stored: StoredQueueBody = decode("message body", bytes)?;
    let (kind, trace_context) = (stored.kind.map(Into::into), stored.trace_context.map(Into::into));
    Ok(MessageBody { payload: stored.payload.into(), kind, trace_context })
}

/// Encodes the first answer to a token; the hash of the id and the time are in its key.
pub fn encode_answer(kept: &DedupeRecord) -> Vec<u8> {
    let DedupeRecord { id: _, is_routed, time: _, answer } = *kept;
    let FirstResponse { fingerprint, key: MessageKey { shard: _, epoch, sequence }, state } = answer;
    StoredQueueAnswer { fingerprint, epoch, sequence, state: state_code(state), is_routed }.encode_to_vec()
}

/// Decodes the first answer to a token of a shard.
pub fn decode_answer(shard: u32, (id, time): (IdHash, Timestamp), bytes: &[u8]) -> Result<DedupeRecord, CorruptValue> {
    const WHAT: &str = "kept answer";
    let stored: StoredQueueAnswer = decode(WHAT, bytes)?;
    let key = MessageKey { shard, epoch: stored.epoch, sequence: stored.sequence };
    let answer = FirstResponse { fingerprint: stored.fingerprint, key, state: state_from(WHAT, stored.state)? };
    Ok(DedupeRecord { id, is_routed: stored.is_routed, time, answer })
}

/// The stored number of a state; it never changes.
pub fn state_code(state: MessageState) -> u32 {
    match state {
        MessageState::Invisible => 1,
        MessageState::Pending => 2,
        MessageState::Running => 3,
        MessageState::Completed => 4,
        MessageState::Canceled => 5,
        MessageState::Errored => 6,
    }
}

fn state_from(what: &'static str, code: u32) -> Result<MessageState, CorruptValue> {
    let found = MessageState::ALL.into_iter().find(|state| state_code(*state) == code);
    found.ok_or_else(|| CorruptValue::new(what, format!("state {code}")))
}

fn text_of(key: &str, value: &str) -> StoredText {
    StoredText { key: key.to_owned(), value: value.to_owned() }
}

/// Whole microseconds, the unit of the core.
fn micros(duration: Duration) -> u64 {
    u64::try_from(micros_of(duration)).unwrap_or(0)
}

fn duration(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::queue::messages::message::{LeaseSession, OptionalTime, SessionId};

    fn update((version, state): (u64, MessageState)) -> (UpdateToken, Settlement) {
        (UpdateToken { text: format!("token {version}").into(), fingerprint: u64::MAX }, Settlement { state, version })
    }

    /// A message with every optional part.
    fn whole() -> MessageHead {
        let at = Timestamp::from_secs;
        let fence = Fence { epoch: 2, serial: 1 << 33 };
        let session = LeaseSession { id: SessionId(7), call: 3, confirmed: true };
        let course = MessageExtras {
            lease_duration: Some(Duration::from_secs(7)),
            releases: 10,
            first_leased_at: Some(at(3)),
            ended_at: Some(at(3)).into(),
            delete_at: at(4),
            lease: Some(Lease { fence, since: at(5), expires: at(6), cancel_requested: true, session: Some(session) }),
            expired_lease: Some(fence),
            last_settlement: Some((
                fence,
                SettleAction::Release,
                Settlement { state: MessageState::Pending, version: 11 },
            )),
            canceled_by: Some(CanceledBy::Request("asked".into())),
            error: Some(AttemptError { signature: "E".into(), text: "text".into() }),
            updates: [(1, MessageState::Invisible), (2, MessageState::Pending)].map(update).into(),
            counted_metadata: Some(Metadata::new([("b", "y")]).expect("valid pairs")),
        };
        MessageHead {
            key: MessageKey { shard: 3, epoch: 2, sequence: 9 },
            id: MessageId::new("id").expect("a valid id"),
            routing: Some(RoutingValue::new("somewhere").expect("a valid value")),
            metadata: Metadata::new([("b", ""), ("a", "x")]).expect("valid pairs"),
            payload_bytes: 32_768,
            fingerprint: u64::MAX,
            priority: -5,
            max_attempts: 10_000,
            attempts_left: 9_999,
            enqueued_at: at(-1),
            ttl_at: Some(at(0)).into(),
            token_time: Some(at(1)).into(),
            visible_at: at(2),
            state: MessageState::Running,
            version: 12,
            first_state: MessageState::Invisible,
            counted: CountedUnder { key_set: 64, values: 0b10_01_00_01 },
            extras: course.into(),
        }
    }

    #[test]
    fn a_message_is_read_as_it_was_stored_with_and_without_what_may_be_missing() {
        let mut bare = whole();
        (bare.routing, bare.metadata, bare.extras) = (None, Metadata::default(), MessageExtras::NONE.into());
        (bare.ttl_at, bare.token_time) = (OptionalTime::NONE, OptionalTime::NONE);
        let mut cases = vec![whole(), bare];
        for state in MessageState::ALL {
            cases.push(MessageHead { state, first_state: state, ..whole() });
        }
        for by in [CanceledBy::Worker, CanceledBy::Purge, CanceledBy::Ttl] {
            let mut canceled = whole();
            canceled.canceled_by = Some(by);
            cases.push(canceled);
        }
        for verb in [SettleAction::Complete, SettleAction::Cancel, SettleAction::Fail] {
            let mut settled = whole();
            settled.last_settlement = settled.last_settlement.map(|(fence, _, answer)| (fence, verb, answer));
            cases.push(settled);
        }
        let mut counted_without = whole();
        counted_without.counted_metadata = Some(Metadata::default());
        cases.push(counted_without);
        for message in cases {
            let found = decode_message(3, 9, &encode_message(&message)).expect("whole");
            assert!(found == message, "{found:?} is not {message:?}");
        }
    }

    #[test]
    fn what_no_encoder_has_written_is_damaged() {
        let damaged = |change: fn(&mut StoredQueueMessage)| {
            let mut stored: StoredQueueMessage = decode("message", &encode_message(&whole())).expect("whole");
            change(&mut stored);
            decode_message(3, 9, &stored.encode_to_vec()).is_err()
        };
        assert!(!damaged(|_| ()));
        assert!(damaged(|stored| stored.state = 0) && damaged(|stored| stored.first_state = 7));
        assert!(damaged(|stored| stored.id.clear()) && damaged(|stored| stored.routing = Some(String::new())));
        assert!(damaged(|stored| stored.metadata[0] = stored.metadata[1].clone()));
        assert!(damaged(|stored| stored.lease = Some(StoredLease::default())));
        assert!(damaged(|stored| stored.settled = Some(StoredSettlement::default())));
        assert!(damaged(|stored| stored.canceled_by = Some(StoredCanceledBy::default())));
        let token = (IdHash(1), Timestamp::from_secs(1));
        assert!(decode_body(&[7]).is_err() && decode_answer(0, token, &[]).is_err(), "cut values");
    }

    #[test]
    fn a_body_is_read_as_it_was_stored() {
        for kind in [None, Some("".into()), Some("invoice".into())] {
            let payload = b"\x00\xff".as_slice().into();
            let body = MessageBody { payload, kind, trace_context: Some("00-1".into()) };
            assert_eq!(decode_body(&encode_body(&body)), Ok(body));
        }
    }
}
