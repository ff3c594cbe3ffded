//! The parts of a message as the library stores them: the head that Lua writes, and the static part that is written
//! here.
//!
//! Only an update changes the static part, and only its metadata. Lua reads its beginning: fingerprint, place of the
//! id, token time, hash of the routing value, metadata. `lua/message.lua` has the form of both.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::library::{CANCELED_BY, VERBS};
use super::packed::{PackedBytes, PackedReader};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::counter::token::time_of_uuid;
use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::command::NewMessage;
use tallystone_domain::queue::messages::message::{
    AttemptError, CanceledBy, CountedUnder, Fence, Lease, LeaseSession, MessageExtras, MessageHead, MessageKey,
    Metadata, OptionalTime, RoutingValue, SessionId,
};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::{SettleAction, Settlement, UpdateToken};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{MessageBody, StoredMessage};

const HAS_TOKEN_TIME: u8 = 1;
const HAS_ROUTING: u8 = 2;
/// The id is a UUID, which is its own place: no text follows.
const IS_UUID: u8 = 4;
/// The time of the token is that of the UUID, in its first 48 bits as milliseconds.
const TOKEN_TIME_OF_ID: u8 = 8;
/// The byte of a place that has the version of a UUID in its upper half, and the version that no UUID has.
const VERSION_BYTE: usize = 6;
const NO_VERSION: u8 = 0xf0;
const HAS_KIND: u8 = 1;
const HAS_TRACE_CONTEXT: u8 = 2;

/// A hash that nobody can make two texts collide in.
pub type TextHash = [u8; 16];

/// The hash of a routing value.
pub fn hash_of(text: &str) -> TextHash {
    let digest = Sha256::digest(text.as_bytes());
    digest[..16].try_into().expect("a SHA-256 has 32 bytes")
}

/// The 16 bytes under which the library finds an id: a UUID itself, and the hash of any other text. A hash has a
/// version that no UUID has, so no caller can choose a UUID that has the place of a text.
pub fn place_of_id(id: &MessageId) -> TextHash {
    id.uuid().filter(has_version).unwrap_or_else(|| {
        let mut hash = hash_of(&id.text());
        hash[VERSION_BYTE] |= NO_VERSION;
        hash
    })
}

fn has_version(uuid: &[u8; 16]) -> bool {
    uuid[VERSION_BYTE] & NO_VERSION != NO_VERSION
}

/// Pairs as the library reads them.
pub fn pack_pairs(packed: PackedBytes, metadata: &Metadata) -> PackedBytes {
    let count = u8::try_from(metadata.pairs().count()).expect("a message has few pairs");
    metadata.pairs().fold(packed.byte(count), |packed, (key, value)| packed.text(key).text(value))
}

/// The static part of a message, with the parts of its body other than the payload.
pub fn pack_static(sent: &NewMessage, body: &MessageBody) -> Vec<u8> {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let uuid = sent.id.uuid().filter(has_version);
    // Lua has no exact numbers for later times, which no token has.
    let is_exact = |time: &Timestamp| time.micros() < 1 << 53;
    let is_of_id =
        uuid.map(|uuid| time_of_uuid(&uuid)).is_some_and(|time| is_exact(&time) && sent.token_time == Some(time));
    let token_time = sent.token_time.filter(|_| !is_of_id);
    let flags = flag(token_time.is_some(), HAS_TOKEN_TIME)
        | flag(sent.routing.is_some(), HAS_ROUTING)
        | flag(uuid.is_some(), IS_UUID)
        | flag(is_of_id, TOKEN_TIME_OF_ID);
    let mut packed = PackedBytes::default().byte(flags).raw(&sent.fingerprint.to_be_bytes());
    packed = packed.raw(&place_of_id(&sent.id));
    if let Some(time) = token_time {
        packed = packed.time(time);
    }
    if let Some(routing) = &sent.routing {
        packed = packed.raw(&hash_of(routing.as_str()));
    }
    packed = pack_pairs(packed, &sent.metadata);
    if uuid.is_none() {
        packed = packed.text(&sent.id.text());
    }
    if let Some(routing) = &sent.routing {
        packed = packed.text(routing.as_str());
    }
    let parts = flag(body.kind.is_some(), HAS_KIND) | flag(body.trace_context.is_some(), HAS_TRACE_CONTEXT);
    let parts = [&body.kind, &body.trace_context]
        .into_iter()
        .flatten()
        .fold(packed.byte(parts), |packed, part| packed.text(part));
    parts.0
}

/// The content of a static part.
pub struct StaticPart {
    pub fingerprint: u64,
    pub token_time: OptionalTime,
    pub metadata: Metadata,
    pub id: MessageId,
    pub routing: Option<RoutingValue>,
    pub kind: Option<Box<str>>,
    pub trace_context: Option<Box<str>>,
}

/// Reads a static part.
pub fn read_static(bytes: &[u8]) -> Result<StaticPart, CorruptValue> {
    let mut reader = PackedReader::new("static part of a message", bytes);
    let flags = reader.byte()?;
    let fingerprint = reader.raw(8)?.try_into().map(u64::from_be_bytes).expect("eight bytes were taken");
    let place: TextHash = reader.raw(size_of::<TextHash>())?.try_into().expect("so many were taken");
    let token_time = match flags & (HAS_TOKEN_TIME | TOKEN_TIME_OF_ID) {
        0 => None,
        TOKEN_TIME_OF_ID => Some(time_of_uuid(&place)),
        _ => Some(reader.time()?), // the only other flag
    };
    if flags & HAS_ROUTING != 0 {
        reader.raw(size_of::<TextHash>())?;
    }
    let metadata = read_metadata(&mut reader)?;
    let illegal = |what: &str| CorruptValue::new("static part of a message", format!("{what} of an illegal form"));
    let id = match flags & IS_UUID {
        0 => MessageId::new(reader.text()?).map_err(|_| illegal("an id"))?,
        _ => MessageId::of_uuid(place),
    };
    let routing = if flags & HAS_ROUTING != 0 { Some(reader.text()?) } else { None };
    let routing = routing.map(RoutingValue::new).transpose().map_err(|_| illegal("a routing value"))?;
    let parts = reader.byte()?;
    let kind = if parts & HAS_KIND != 0 { Some(reader.text()?.into()) } else { None };
    let trace_context = if parts & HAS_TRACE_CONTEXT != 0 { Some(reader.text()?.into()) } else { None };
    Ok(StaticPart { fingerprint, token_time: token_time.into(), metadata, id, routing, kind, trace_context })
}

fn read_metadata(reader: &mut PackedReader<'_>) -> Result<Metadata, CorruptValue> {
    let count = reader.byte()?;
    let pairs = (0..count).map(|_| Ok((reader.text()?, reader.text()?))).collect::<Result<Vec<_>, CorruptValue>>()?;
    Metadata::new(pairs).map_err(|_| reader.corrupt("metadata of an illegal form"))
}

/// Reads a message from its three parts; the first begins with its sequence.
pub fn read_message(shard: u32, [head, fixed]: [&[u8]; 2], payload: Bytes) -> Result<StoredMessage, CorruptValue> {
    let mut reader = PackedReader::new("message", head);
    let sequence = reader.whole()?;
    let StaticPart { fingerprint, token_time, metadata, id, routing, kind, trace_context } = read_static(fixed)?;
    let has = reader.u16()?;
    let states = reader.byte()?;
    let (attempts_left, max_attempts) = (reader.u16()?.into(), reader.u16()?.into());
    let (version, payload_bytes, epoch) = (reader.u40()?, reader.u32()?, reader.u32()?);
    let counted = CountedUnder { key_set: reader.byte()?, values: reader.byte()? };
    let (priority, enqueued_at) = (reader.signed()?, reader.time()?);
    let (state, first_state) = (state_of(&reader, states % 16)?, state_of(&reader, states / 16)?);
    let ttl_at = if has & 1 != 0 { Some(reader.time()?) } else { None };
    let mut extras = read_extras(&mut reader, has)?;
    let visible_at = if has & 2_048 != 0 { reader.time()? } else { enqueued_at };
    if has & 4_096 != 0 {
        reader.u16()?; // the bytes that follow
        extras.counted_metadata = Some(read_metadata(&mut reader)?);
    }
    let head = MessageHead {
        key: MessageKey { shard, epoch, sequence },
        id,
        routing,
        metadata,
        payload_bytes,
        fingerprint,
        priority,
        max_attempts,
        attempts_left,
        enqueued_at,
        ttl_at: ttl_at.into(),
        token_time,
        visible_at,
        state,
        version,
        first_state,
        counted,
        extras: extras.into(),
    };
    let body = MessageBody { payload, kind, trace_context };
    Ok(StoredMessage { head, body })
}

/// The state of a number.
pub fn state_of(reader: &PackedReader<'_>, code: u8) -> Result<MessageState, CorruptValue> {
    let state = MessageState::ALL.get(usize::from(code)).copied();
    state.ok_or_else(|| reader.corrupt(format!("state {code}")))
}

/// Reads the optional parts that follow the TTL, in the order of their flags.
fn read_extras(reader: &mut PackedReader<'_>, has: u16) -> Result<MessageExtras, CorruptValue> {
    let mut extras = MessageExtras::NONE;
    if has & 2 != 0 {
        extras.lease_duration = Some(reader.duration()?);
    }
    if has & 4 != 0 {
        extras.releases = reader.u16()?.into();
        extras.first_leased_at = reader.time_or_none()?;
    }
    if has & 8 != 0 {
        extras.ended_at = Some(reader.time()?).into();
        extras.delete_at = reader.time()?;
    }
    if has & 16 != 0 {
        extras.lease = Some(read_lease(reader, has & 32 != 0)?);
    }
    if has & 64 != 0 {
        extras.expired_lease = Some(read_fence(reader)?);
    }
    if has & 128 != 0 {
        let fence = read_fence(reader)?;
        let verb = verb_of(reader)?;
        extras.last_settlement = Some((fence, verb, read_settlement(reader)?));
    }
    if has & 256 != 0 {
        extras.canceled_by = Some(read_canceled(reader)?);
    }
    if has & 512 != 0 {
        extras.error = Some(AttemptError { signature: reader.text()?.into(), text: reader.text()?.into() });
    }
    if has & 1_024 != 0 {
        for _ in 0..reader.byte()? {
            let fingerprint = reader.raw(8)?.try_into().map(u64::from_be_bytes).expect("eight bytes were taken");
            let answer = read_settlement(reader)?;
            extras.updates.push((UpdateToken { text: reader.text()?.into(), fingerprint }, answer));
        }
    }
    Ok(extras)
}

fn read_lease(reader: &mut PackedReader<'_>, has_session: bool) -> Result<Lease, CorruptValue> {
    let fence = read_fence(reader)?;
    let (since, expires, bits) = (reader.time()?, reader.time()?, reader.byte()?);
    let session = match has_session {
        true => Some(LeaseSession { id: read_session(reader)?, call: read_call(reader)?, confirmed: bits & 2 != 0 }),
        false => None,
    };
    Ok(Lease { fence, since, expires, cancel_requested: bits & 1 != 0, session })
}

/// Reads the number of a lease.
pub fn read_fence(reader: &mut PackedReader<'_>) -> Result<Fence, CorruptValue> {
    Ok(Fence { epoch: reader.u32()?, serial: reader.u40()? })
}

/// Reads the id of a session, in 32 hex digits.
pub fn read_session(reader: &mut PackedReader<'_>) -> Result<SessionId, CorruptValue> {
    let id = std::str::from_utf8(reader.raw(32)?).ok().and_then(|digits| u128::from_str_radix(digits, 16).ok());
    id.map(SessionId).ok_or_else(|| reader.corrupt("a session id that is no number"))
}

/// Reads the number of a session's call, in 16 hex digits.
pub fn read_call(reader: &mut PackedReader<'_>) -> Result<u64, CorruptValue> {
    let call = std::str::from_utf8(reader.raw(16)?).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    call.ok_or_else(|| reader.corrupt("a call that is no number"))
}

fn verb_of(reader: &mut PackedReader<'_>) -> Result<SettleAction, CorruptValue> {
    let code = reader.byte()?;
    let verb = VERBS.get(usize::from(code)).copied();
    verb.ok_or_else(|| reader.corrupt(format!("settlement {code}")))
}

fn read_settlement(reader: &mut PackedReader<'_>) -> Result<Settlement, CorruptValue> {
    let state = reader.byte()?;
    Ok(Settlement { state: state_of(reader, state)?, version: reader.u40()? })
}

fn read_canceled(reader: &mut PackedReader<'_>) -> Result<CanceledBy, CorruptValue> {
    let code = reader.byte()?;
    let why = reader.text()?;
    let name = CANCELED_BY.iter().find(|(_, number)| *number == code).map(|(name, _)| *name);
    match name {
        Some("Worker") => Ok(CanceledBy::Worker),
        Some("Request") => Ok(CanceledBy::Request(why.into())),
        Some("Purge") => Ok(CanceledBy::Purge),
        Some("Ttl") => Ok(CanceledBy::Ttl),
        Some(_) | None => Err(reader.corrupt(format!("canceled by {code}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn sent(
        id: &str,
        token_time: Option<Timestamp>,
        metadata: &BTreeMap<String, String>,
        routing: Option<&str>,
    ) -> NewMessage {
        NewMessage {
            id: MessageId::new(id).expect("a legal id"),
            token_time,
            routing: routing.map(|value| RoutingValue::new(value).expect("a legal value")),
            metadata: Metadata::new(metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())))
                .expect("legal pairs"),
            payload_bytes: 0,
            fingerprint: 9,
            priority: None,
            class: None,
            invisibility: None,
            visible_at: None,
            lease_duration: None,
            max_attempts: None,
            ttl: None,
        }
    }

    proptest! {
        #[test]
        fn a_static_part_reads_as_it_was_packed(
            text in "[a-l0-9-][ -~]{0,63}",
            uuid in prop_oneof![any::<u128>(), any::<u128>().prop_map(|uuid| uuid >> 5)],
            metadata in prop::collection::btree_map("[a-z]{1,8}", "[ -~]{0,20}", 0..4),
            routing in prop::option::of("[a-z]{1,20}"),
            other_time in prop::option::of(0..(1_i64 << 53) / 1_000),
        ) {
            let time = other_time.map(Timestamp::from_millis);
            let own_time = Some(time_of_uuid(&uuid.to_be_bytes())).filter(|time| time.micros() < 1 << 53);
            let uuid = uuid::Uuid::from_u128(uuid).to_string();
            for (id, time) in [(text, time), (uuid.clone(), time), (uuid, own_time)] {
                let sent = sent(&id, time, &metadata, routing.as_deref());
                let body = MessageBody { payload: Bytes::new(), kind: Some("mail".into()), trace_context: None };
                let read = read_static(&pack_static(&sent, &body)).expect("it is whole");
                prop_assert_eq!((read.id, read.routing, read.metadata), (sent.id, sent.routing, sent.metadata));
                prop_assert_eq!((read.fingerprint, read.kind, read.trace_context), (9, body.kind, None));
                prop_assert_eq!(read.token_time, sent.token_time.into());
            }
        }

        /// Otherwise whoever knows the id of a message could hide it behind a UUID.
        #[test]
        fn no_uuid_has_the_place_of_a_text(text in "[a-l0-9-][ -~]{0,63}") {
            let of_text = MessageId::new(&text).expect("a legal id");
            let place = place_of_id(&of_text);
            let uuid = MessageId::of_uuid(place);
            prop_assert!(of_text == uuid || place_of_id(&uuid) != place);
        }
    }

    #[test]
    fn a_uuid_is_its_own_place_and_neither_its_text_nor_its_time_is_kept() {
        let id = MessageId::new("0189d3f1-0000-7000-8000-00000000000a").expect("a legal id");
        assert_eq!(Some(place_of_id(&id)), id.uuid());
        let body = MessageBody { payload: Bytes::new(), kind: None, trace_context: None };
        for time in [None, Some(time_of_uuid(&place_of_id(&id)))] {
            let sent = sent(&id.text(), time, &BTreeMap::new(), None);
            assert_eq!(pack_static(&sent, &body).len(), 27);
        }
    }
}
