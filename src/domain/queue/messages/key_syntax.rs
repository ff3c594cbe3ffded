//! The text forms of message keys, lease tokens and session numbers, as callers see and send them.
//!
//! A message key reads `m.<shard>.<epoch>.<sequence>`. A lease token is opaque: base64 over a version byte, the queue's
//! number, the message's key, the fence, and the seal of all these. It contains the queue's number, so that a token of
//! another queue can be distinguished from a lost lease. The seal prevents outsiders from forging tokens. Whether the
//! lease is still valid is decided by comparing the other parts with the lease in the shard.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::lease_seal::{LeaseKey, SEAL_BYTES};
use crate::queue::messages::message::{Fence, LeaseToken, MessageKey, MessageRef, RoutingValue, SessionId};
use crate::queue::messages::message_id::{KEY_PREFIX, MessageId};

/// The prefix of a session's number.
const SESSION_PREFIX: &str = "s.";

/// The first byte of a lease token: the version of its layout. The first layout had no seal and is no longer accepted.
const LEASE_VERSION: u8 = 2;
/// The length of the sealed part.
const LEASE_BYTES: usize = 1 + 16 + 4 + 4 + 8 + 4 + 8;
const SEALED_BYTES: usize = LEASE_BYTES + SEAL_BYTES;

/// The reason for refusing a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyTextError {
    /// The text begins like a message key but is not one.
    #[error("a message key has the form m.<shard>.<epoch>.<sequence>; send it unchanged")]
    Key,
    /// The text is not a lease token.
    #[error("this is not a lease token; send the token of the dequeue unchanged")]
    Lease,
    /// The text is a lease token of another queue.
    #[error(
        "this lease token was issued by another queue, or by a deleted queue of this name; settle it at the queue \
         that issued it, or stop working on the message if that queue is deleted"
    )]
    OtherQueue,
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_PREFIX}{}.{}.{}", self.shard, self.epoch, self.sequence)
    }
}

impl MessageKey {
    /// Parses a key, only in its canonical form.
    pub fn parse(text: &str) -> Result<Self, KeyTextError> {
        let numbers = text.strip_prefix(KEY_PREFIX).ok_or(KeyTextError::Key)?;
        let mut parts = numbers.split('.');
        let mut part = || parts.next().ok_or(KeyTextError::Key);
        let shard = part()?.parse().map_err(|_| KeyTextError::Key)?;
        let epoch = part()?.parse().map_err(|_| KeyTextError::Key)?;
        let sequence = part()?.parse().map_err(|_| KeyTextError::Key)?;
        let key = Self { shard, epoch, sequence };
        if key.to_string() == text { Ok(key) } else { Err(KeyTextError::Key) }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SESSION_PREFIX}{:032x}", self.0)
    }
}

impl SessionId {
    /// Parses a session's number, only in its canonical form.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(SESSION_PREFIX)?;
        let id = Self(u128::from_str_radix(digits, 16).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

/// The reason why a text refers to no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageRefError {
    /// It has the prefix of a key but is not a key.
    Text(KeyTextError),
    /// It is not a valid id.
    Id(InvalidCommandPart),
}

impl MessageRef {
    /// Parses either reference to a message; an id is combined with this routing value.
    pub fn parse(text: &str, routing: Option<RoutingValue>) -> Result<Self, MessageRefError> {
        if text.starts_with(KEY_PREFIX) {
            return MessageKey::parse(text).map(Self::Key).map_err(MessageRefError::Text);
        }
        MessageId::new(text).map(|id| Self::Id(id, routing)).map_err(MessageRefError::Id)
    }
}

impl LeaseToken {
    /// Formats the token for the queue of this number: 76 characters of the URL-safe base64 alphabet.
    pub fn to_text(self, queue: u128, key: &LeaseKey) -> String {
        let mut bytes = Vec::with_capacity(SEALED_BYTES);
        bytes.push(LEASE_VERSION);
        bytes.extend(queue.to_be_bytes());
        bytes.extend(self.key.shard.to_be_bytes());
        bytes.extend(self.key.epoch.to_be_bytes());
        bytes.extend(self.key.sequence.to_be_bytes());
        bytes.extend(self.fence.epoch.to_be_bytes());
        bytes.extend(self.fence.serial.to_be_bytes());
        bytes.extend(key.seal(&bytes));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Parses a token that must belong to this queue and be sealed with this key.
    pub fn parse(text: &str, queue: u128, key: &LeaseKey) -> Result<Self, KeyTextError> {
        let bytes = decode(text).ok_or(KeyTextError::Lease)?;
        let (sealed, seal) = split::<LEASE_BYTES>(&bytes);
        let seal = seal.try_into().map_err(|_| KeyTextError::Lease)?;
        let (version, rest) = split::<1>(&sealed);
        if version != [LEASE_VERSION] || !key.is_sealed(&sealed, seal) {
            return Err(KeyTextError::Lease);
        }
        let (owner, rest) = split::<16>(rest);
        if u128::from_be_bytes(owner) != queue {
            return Err(KeyTextError::OtherQueue);
        }
        let (shard, rest) = split::<4>(rest);
        let (epoch, rest) = split::<4>(rest);
        let (sequence, rest) = split::<8>(rest);
        let (fence_epoch, rest) = split::<4>(rest);
        let (serial, _) = split::<8>(rest);
        let key = MessageKey {
            shard: u32::from_be_bytes(shard),
            epoch: u32::from_be_bytes(epoch),
            sequence: u64::from_be_bytes(sequence),
        };
        let fence = Fence { epoch: u32::from_be_bytes(fence_epoch), serial: u64::from_be_bytes(serial) };
        Ok(Self { key, fence })
    }
}

/// Returns the queue number in a lease token, whether or not its seal is valid.
pub fn queue_of_lease(text: &str) -> Option<u128> {
    let bytes = decode(text)?;
    let (owner, _) = split::<16>(&bytes[1..]);
    Some(u128::from_be_bytes(owner))
}

fn decode(text: &str) -> Option<[u8; SEALED_BYTES]> {
    let mut bytes = [0; SEALED_BYTES + 2]; // the decoder requires space for whole groups
    let count = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
    if count == SEALED_BYTES { bytes.first_chunk().copied() } else { None }
}

/// Splits off the first `N` bytes. The caller must have checked the length.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    bytes.split_first_chunk::<N>().map(|(first, rest)| (*first, rest)).expect("the length was checked")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: MessageKey = MessageKey { shard: 3, epoch: 1, sequence: 42 };
    const TOKEN: LeaseToken = LeaseToken { key: KEY, fence: Fence { epoch: 2, serial: u64::MAX >> 24 } };

    #[test]
    fn a_key_is_read_in_the_form_in_which_it_is_written_only() {
        assert_eq!(KEY.to_string(), "m.3.1.42");
        let most = MessageKey { shard: u32::MAX, epoch: u32::MAX, sequence: u64::MAX };
        for key in [KEY, most] {
            assert_eq!(MessageKey::parse(&key.to_string()), Ok(key));
        }
        let others = [
            "",
            "m",
            "m.",
            "m.3.1",
            "m.3.1.",
            "m.3.1.42.",
            "m.3.1.42.5",
            "m.03.1.42",
            "m.+3.1.42",
            "m.-3.1.42",
            "M.3.1.42",
        ];
        for other in others.into_iter().chain(["m.3.1.18446744073709551616", "m.3. 1.42", "3.1.42", "m.3.1.４"]) {
            assert_eq!(MessageKey::parse(other), Err(KeyTextError::Key), "{other:?}");
        }
    }

    #[test]
    fn either_name_of_a_message_is_read() {
        assert!(matches!(MessageRef::parse("m.3.1.42", None), Ok(MessageRef::Key(KEY))));
        assert!(matches!(MessageRef::parse("order-7", None), Ok(MessageRef::Id(id, None)) if *id.text() == *"order-7"));
        assert_eq!(MessageRef::parse("m.order", None).err(), Some(MessageRefError::Text(KeyTextError::Key)));
        assert_eq!(MessageRef::parse("", None).err(), Some(MessageRefError::Id(InvalidCommandPart::MessageId)));
    }

    #[test]
    fn a_session_is_read_in_the_form_in_which_it_is_written_only() {
        for id in [0, 7, u128::MAX] {
            assert_eq!(SessionId::parse(&SessionId(id).to_string()), Some(SessionId(id)));
        }
        let text = SessionId(7).to_string();
        for other in
            ["", "s.", "s.7", &text[2..], &format!("{text}0"), &text.to_uppercase(), &format!("s.+{}", &text[3..])]
        {
            assert_eq!(SessionId::parse(other), None, "{other:?}");
        }
    }

    const STORE: LeaseKey = LeaseKey([9; 16]);

    #[test]
    fn a_lease_token_is_read_by_its_own_queue_and_store_only() {
        let text = TOKEN.to_text(7, &STORE);
        assert_eq!(text.len(), 76);
        assert_eq!(LeaseToken::parse(&text, 7, &STORE), Ok(TOKEN));
        assert_eq!(LeaseToken::parse(&text, 8, &STORE), Err(KeyTextError::OtherQueue));
        assert_eq!(LeaseToken::parse(&text, 7, &LeaseKey([8; 16])), Err(KeyTextError::Lease));
        assert_eq!((queue_of_lease(&text), queue_of_lease("x")), (Some(7), None));
    }

    #[test]
    fn whoever_knows_all_of_a_lease_but_the_key_cannot_make_its_token() {
        let sealed = URL_SAFE_NO_PAD.decode(TOKEN.to_text(7, &STORE)).expect("base64");
        let first_layout: Vec<u8> = [&[1], &sealed[1..LEASE_BYTES]].concat();
        assert_eq!(LeaseToken::parse(&URL_SAFE_NO_PAD.encode(first_layout), 7, &STORE), Err(KeyTextError::Lease));
        for bit in 0..8 * sealed.len() {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let forged = LeaseToken::parse(&URL_SAFE_NO_PAD.encode(forged), 7, &STORE);
            assert_eq!(forged, Err(KeyTextError::Lease), "bit {bit}");
        }
    }

    #[test]
    fn a_text_that_is_no_lease_token_is_told_so() {
        let text = TOKEN.to_text(7, &STORE);
        let (longer, long) = (format!("{text}AAAA"), "A".repeat(10_000));
        let newer = format!("B{}", &text[1..]);
        for other in ["", "x", "{}", "m.3.1.42", &text[..75], &text[..72], &text[..60], &longer, &long, &newer, "\0"] {
            assert_eq!(LeaseToken::parse(other, 7, &STORE), Err(KeyTextError::Lease), "{other:?}");
            assert_eq!(queue_of_lease(other).filter(|_| other.len() != text.len()), None);
        }
    }
}
