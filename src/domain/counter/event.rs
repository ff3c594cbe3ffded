//! Events: the rows of the log. A row is (event time, event id) and a change; the token permanently determines the
//! change.

use std::fmt;

use crate::limits::{PROVENANCE_BYTES_MAX, STORED_PROVENANCE_BYTES_MAX};
use crate::reason::{Reason, Reject};
use crate::time::Timestamp;

/// The id of an event. Its bytes begin with a tag: 1 UUID, 2 text token, 3 total.
///
/// The order is that of the bytes, so every store sorts events alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventId {
    /// A UUID token, 16 bytes.
    Uuid([u8; 16]),
    /// Any other id, tag byte first.
    Tagged(Box<[u8]>),
}

const TAG_UUID: u8 = 1;
const TAG_TEXT: u8 = 2;
const TAG_TOTAL: u8 = 3;

impl EventId {
    /// Makes the id of a token that is not a UUIDv7.
    pub fn text(token: &str) -> Self {
        let mut bytes = Vec::with_capacity(token.len() + 1);
        bytes.push(TAG_TEXT);
        bytes.extend_from_slice(token.as_bytes());
        Self::Tagged(bytes.into())
    }

    /// Makes the id of a reported total: tag, epoch, serial (big endian), source.
    pub fn total(source: &str, epoch: u64, serial: u64) -> Self {
        let mut bytes = Vec::with_capacity(source.len() + 17);
        bytes.push(TAG_TOTAL);
        bytes.extend_from_slice(&epoch.to_be_bytes());
        bytes.extend_from_slice(&serial.to_be_bytes());
        bytes.extend_from_slice(source.as_bytes());
        Self::Tagged(bytes.into())
    }

    /// Splits the id of a total into (source, epoch, serial).
    pub fn as_total(&self) -> Option<(&str, u64, u64)> {
        let Self::Tagged(bytes) = self else { return None };
        let (tag, rest) = bytes.split_first()?;
        if *tag != TAG_TOTAL || rest.len() < 16 {
            return None;
        }
        let epoch = u64::from_be_bytes(rest[..8].try_into().ok()?);
        let serial = u64::from_be_bytes(rest[8..16].try_into().ok()?);
        Some((std::str::from_utf8(&rest[16..]).ok()?, epoch, serial))
    }

    /// Returns the number of bytes that `write_to` appends.
    pub fn stored_len(&self) -> usize {
        match self {
            Self::Uuid(uuid) => 1 + uuid.len(),
            Self::Tagged(tagged) => tagged.len(),
        }
    }

    /// Appends the stored bytes.
    pub fn write_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Uuid(uuid) => {
                bytes.push(TAG_UUID);
                bytes.extend_from_slice(uuid);
            }
            Self::Tagged(tagged) => bytes.extend_from_slice(tagged),
        }
    }

    /// Returns the stored bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.stored_len());
        self.write_to(&mut bytes);
        bytes
    }

    /// Parses stored bytes; `None` for bytes that are not a valid id.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match *bytes.first()? {
            TAG_UUID => bytes[1..].try_into().ok().map(Self::Uuid),
            TAG_TEXT | TAG_TOTAL => Some(Self::Tagged(bytes.into())),
            _ => None,
        }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(bytes) => write!(f, "{}", uuid::Uuid::from_bytes(*bytes)),
            Self::Tagged(bytes) => match self.as_total() {
                Some((source, epoch, serial)) => write!(f, "{source}/{epoch}/{serial}"),
                None => f.write_str(&String::from_utf8_lossy(&bytes[1..])),
            },
        }
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The position of an event in its counter's order: by time, then by id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventKey {
    /// The time of the change, taken from its token.
    pub time: Timestamp,
    /// The id, taken from the token.
    pub id: EventId,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// Adds the delta.
    Add(i64),
    /// Removes every add at or before it from the count.
    Clear,
    /// Marks the token as one that will never count.
    Void,
    /// Reports the running total of a source.
    Total(i64),
}

impl Change {
    /// Returns the stored code of the kind.
    pub const fn code(self) -> u32 {
        match self {
            Self::Add(_) => 1,
            Self::Clear => 2,
            Self::Void => 3,
            Self::Total(_) => 4,
        }
    }

    /// Returns the delta of an add or the total of a total, otherwise 0.
    pub const fn delta(self) -> i64 {
        match self {
            Self::Add(delta) | Self::Total(delta) => delta,
            Self::Clear | Self::Void => 0,
        }
    }

    /// Parses the stored form; `None` for an unknown code.
    pub const fn from_code(code: u32, delta: i64) -> Option<Self> {
        match code {
            1 => Some(Self::Add(delta)),
            2 => Some(Self::Clear),
            3 => Some(Self::Void),
            4 => Some(Self::Total(delta)),
            _ => None,
        }
    }

    /// Returns whether the event can change the count; a void cannot.
    pub const fn is_mutation(self) -> bool {
        !matches!(self, Self::Void)
    }
}

/// The origin of a change, a person or a program: at most 256 bytes of text, and the principal of the call before it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Provenance(Option<Box<str>>);

impl Provenance {
    /// Validates what a call claims; an empty text means none.
    pub fn new(text: &str) -> Result<Self, Reject> {
        Self::of_at_most(PROVENANCE_BYTES_MAX, text)
    }

    /// Reads what was stored.
    pub fn stored(text: &str) -> Result<Self, Reject> {
        Self::of_at_most(STORED_PROVENANCE_BYTES_MAX, text)
    }

    fn of_at_most(most: usize, text: &str) -> Result<Self, Reject> {
        if text.len() > most {
            let what = format!("provenance has {} bytes; shorten it to {most}", text.len());
            return Err(Reject::new(Reason::InvalidProvenance, what));
        }
        Ok(Self((!text.is_empty()).then(|| text.into())))
    }

    /// The same behind the principal of the call: `PRINCIPAL (CLAIM)`. A principal has no bracket in its name, so no
    /// claim looks like one. Without a principal it is the claim alone.
    pub fn by(self, caller: Option<&str>) -> Self {
        match (caller, &self.0) {
            (None, _) => self,
            (Some(caller), None) => Self(Some(caller.into())),
            (Some(caller), Some(claim)) => Self(Some(format!("{caller} ({claim})").into())),
        }
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the text, empty if there is none.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

/// One row of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The position in the counter's order.
    pub key: EventKey,
    pub change: Change,
    /// The origin of the change.
    pub provenance: Provenance,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_as_their_bytes() {
        let ids = [
            EventId::Uuid([0; 16]),
            EventId::Uuid([255; 16]),
            EventId::text("a"),
            EventId::text("ab"),
            EventId::text("b"),
            EventId::total("s", 1, 9),
            EventId::total("a", 2, 0),
        ];
        for pair in ids.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
            assert!(pair[0].to_bytes() < pair[1].to_bytes(), "{pair:?}");
        }
        for id in ids {
            assert_eq!(EventId::from_bytes(&id.to_bytes()), Some(id));
        }
    }

    #[test]
    fn foreign_bytes_are_no_id() {
        for bytes in [&[][..], &[0], &[1, 2, 3], &[9, 9]] {
            assert_eq!(EventId::from_bytes(bytes), None);
        }
    }
}
