//! Idempotency tokens: the name of one change, and its time.
//!
//! A UUIDv7 carries its own time, so token and time cannot diverge; any other token needs a separate generation time.
//! Netflix's published requests carry both (Distributed Counter Abstraction, 2024).

use crate::counter::event::{EventId, EventKey};
use crate::limits::{SOURCE_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::reason::{Reason, Reject};
use crate::time::Timestamp;

/// The number of tokens that the server can make in one millisecond: the sequence number has 26 bits.
pub const SEQUENCES_PER_MS: u32 = 1 << 26;

/// A token as sent by a caller, not validated yet.
#[derive(Clone, Debug, Default)]
pub struct ClientToken {
    /// The text of the token.
    pub token: String,
    /// The generation time, truncated to microseconds.
    pub generation_time: Option<Timestamp>,
}

/// A valid token: the key of the event that it identifies, and its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdempotencyToken {
    pub key: EventKey,
    /// Whether the caller made the token, so that a retry is recognized.
    pub idempotent: bool,
}

impl IdempotencyToken {
    /// Validates a caller's token.
    pub fn parse(sent: &ClientToken) -> Result<Self, Reject> {
        let bytes = sent.token.len();
        if bytes == 0 {
            return Err(Reject::new(
                Reason::InvalidToken,
                "idempotency_token is present but empty; send a token of 1 to 64 bytes, or omit idempotency_token",
            ));
        }
        if bytes > TOKEN_BYTES_MAX {
            return Err(Reject::new(
                Reason::InvalidToken,
                format!("token has {bytes} bytes; shorten it to {TOKEN_BYTES_MAX}, or send a UUIDv7"),
            ));
        }
        let key = match uuid_v7(&sent.token) {
            Some((uuid, time)) => uuid_key(uuid, time, sent.generation_time)?,
            None => text_key(&sent.token, sent.generation_time)?,
        };
        Ok(Self { key, idempotent: true })
    }

    /// Makes a token of the server: a UUIDv7 of `millis`. The sequence number, below `SEQUENCES_PER_MS`, orders tokens
    /// of one millisecond. It occupies `rand_a` (12 bits) and the first 14 bits of `rand_b` (RFC 9562, 6.2, method 1).
    pub fn server_made(millis: i64, sequence: u32, random: [u8; 6]) -> Self {
        assert!(sequence < SEQUENCES_PER_MS, "a millisecond that is full is not used any more");
        let millis = u64::try_from(millis).unwrap_or(0);
        let [high, next, low, lowest] = [sequence >> 22, sequence >> 14, sequence >> 8 & 0x3f, sequence]
            .map(|bits| u8::try_from(bits & 0xff).expect("8 bits fit a byte"));
        let mut rest = [high, next, low, lowest, 0, 0, 0, 0, 0, 0];
        rest[4..].copy_from_slice(&random);
        // The version occupies the bits above the 4 bits of `high`, the variant those above the 6 bits of `low`.
        let uuid = uuid::Builder::from_unix_timestamp_millis(millis, &rest).into_uuid();
        let time = Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX));
        Self { key: EventKey { time, id: EventId::Uuid(*uuid.as_bytes()) }, idempotent: false }
    }
}

/// Parses a UUIDv7 in its 36-character form into its bytes and its time.
pub fn uuid_v7(token: &str) -> Option<([u8; 16], Timestamp)> {
    if token.len() != 36 {
        return None;
    }
    let uuid = uuid::Uuid::try_parse(token).ok()?;
    if uuid.get_version_num() != 7 || uuid.get_variant() != uuid::Variant::RFC4122 {
        return None;
    }
    let bytes = *uuid.as_bytes();
    Some((bytes, time_of_uuid(&bytes)))
}

/// The time in the first 48 bits of a UUID of version 7, in milliseconds.
pub fn time_of_uuid(uuid: &[u8; 16]) -> Timestamp {
    Timestamp::from_millis(uuid[..6].iter().fold(0_i64, |millis, byte| millis << 8 | i64::from(*byte)))
}

fn uuid_key(uuid: [u8; 16], time: Timestamp, generation_time: Option<Timestamp>) -> Result<EventKey, Reject> {
    match generation_time {
        Some(given) if given.millis() != time.millis() => Err(Reject::new(
            Reason::InvalidGenerationTime,
            format!(
                "generation_time differs from the time in the UUIDv7 token by {} ms; omit generation_time",
                given.millis().abs_diff(time.millis())
            ),
        )),
        Some(_) | None => Ok(EventKey { time, id: EventId::Uuid(uuid) }),
    }
}

fn text_key(token: &str, generation_time: Option<Timestamp>) -> Result<EventKey, Reject> {
    match generation_time {
        Some(time) => Ok(EventKey { time, id: EventId::text(token) }),
        None => Err(Reject::new(
            Reason::InvalidGenerationTime,
            "token is not a UUIDv7 and has no generation_time; send the time of the change, the same on every retry",
        )),
    }
}

/// The source of cumulative reports: 1 to 40 bytes of text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReportSource(Box<str>);

impl ReportSource {
    /// Validates a source.
    pub fn new(source: &str) -> Result<Self, Reject> {
        if source.is_empty() || source.len() > SOURCE_BYTES_MAX {
            return Err(Reject::new(
                Reason::InvalidReport,
                format!("source has {} bytes; send a name of 1 to {SOURCE_BYTES_MAX} bytes", source.len()),
            ));
        }
        Ok(Self(source.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V7: &str = "0192f5a0-1c2b-7def-8abc-0123456789ab";
    const V7_MILLIS: i64 = 0x0192_f5a0_1c2b;

    fn parse(token: &str, time: Option<Timestamp>) -> Result<IdempotencyToken, Reason> {
        IdempotencyToken::parse(&ClientToken { token: token.to_owned(), generation_time: time })
            .map_err(|reject| reject.reason)
    }

    #[test]
    fn a_uuid_v7_carries_its_time_in_either_letter_case() {
        let lower = parse(V7, None).expect("a valid token");
        assert_eq!(lower.key.time, Timestamp::from_millis(V7_MILLIS));
        assert_eq!(parse(&V7.to_uppercase(), None).expect("a valid token"), lower);
    }

    #[test]
    fn a_generation_time_beside_a_uuid_must_fall_into_its_millisecond() {
        let inside = Timestamp::from_micros(V7_MILLIS * 1_000 + 999);
        let token = parse(V7, Some(inside)).expect("the same millisecond");
        assert_eq!(token.key.time, Timestamp::from_millis(V7_MILLIS), "the UUID's time counts");
        let beside = Timestamp::from_micros(V7_MILLIS * 1_000 + 1_000);
        assert_eq!(parse(V7, Some(beside)), Err(Reason::InvalidGenerationTime));
    }

    #[test]
    fn any_other_token_needs_a_generation_time() {
        let v4 = "0192f5a0-1c2b-4def-8abc-0123456789ab";
        for token in ["a", v4, &V7.replace('-', ""), &format!("{{{V7}}}")] {
            assert_eq!(parse(token, None), Err(Reason::InvalidGenerationTime), "{token}");
            let time = Timestamp::from_micros(7);
            assert_eq!(parse(token, Some(time)).expect("a time is there").key.time, time);
        }
    }

    #[test]
    fn tokens_have_1_to_64_bytes() {
        let time = Some(Timestamp::from_micros(7));
        assert_eq!(parse("", time), Err(Reason::InvalidToken));
        assert_eq!(parse("", None), Err(Reason::InvalidToken));
        assert!(parse(&"x".repeat(64), time).is_ok());
        assert_eq!(parse(&"x".repeat(65), time), Err(Reason::InvalidToken));
    }

    #[test]
    fn a_server_made_token_is_a_uuid_v7_of_its_millisecond() {
        let made = IdempotencyToken::server_made(V7_MILLIS, 7, [7; 6]);
        let read = parse(&made.key.id.to_string(), None).expect("a valid token");
        assert_eq!(read.key, made.key);
    }

    #[test]
    fn server_made_tokens_are_ordered_by_time_and_sequence_whatever_else_is_in_them() {
        let sequences = [0, 1, 0xff, 0x100, 0x3fff, 0x4000, 0x3f_ffff, 0x40_0000, SEQUENCES_PER_MS - 1];
        let mut keys: Vec<EventKey> = Vec::new();
        for millis in [V7_MILLIS, V7_MILLIS + 1] {
            for sequence in sequences {
                let greatest = IdempotencyToken::server_made(millis, sequence, [255; 6]).key;
                keys.extend([IdempotencyToken::server_made(millis, sequence, [0; 6]).key, greatest]);
            }
        }
        for pair in keys.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
        }
    }
}
