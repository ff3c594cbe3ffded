//! Names and numbers of queues, and the ids of their shards.

use std::fmt;
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use crate::limits::QUEUE_NAME_BYTES_MAX;
use crate::reason::{Reason, Reject};

/// The name of a queue: `[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        match check(name) {
            Ok(()) => Ok(Self(name.into())),
            Err(what) => Err(Reject::new(Reason::InvalidQueueName, format!("queue name {what}"))),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check(name: &str) -> Result<(), String> {
    let bytes = name.as_bytes();
    let Some(first) = bytes.first() else {
        return Err("is missing; send a name of 1 to 128 bytes".to_owned());
    };
    if bytes.len() > QUEUE_NAME_BYTES_MAX {
        return Err(format!("has {} bytes; at most {QUEUE_NAME_BYTES_MAX} are allowed", bytes.len()));
    }
    if !first.is_ascii_alphanumeric() {
        return Err("must begin with a letter or digit; letters are A-Z and a-z".to_owned());
    }
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(byte);
    match bytes.iter().position(|byte| !allowed(byte)) {
        Some(at) => Err(format!("may contain only letters, digits and . _ : / -; its byte {at} is not allowed")),
        None => Ok(()),
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// The number of a queue: random and never reused, not even for a queue with the name of a deleted one. It is formatted
/// as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u128);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for QueueId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId {
    pub queue: QueueId,
    /// The number of the shard, counted from 0.
    pub number: u32,
}

impl ShardId {
    /// Returns the range of all shards that a queue may have.
    pub const fn all_of(queue: QueueId) -> RangeInclusive<Self> {
        Self { queue, number: 0 }..=Self { queue, number: u32::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_published_alphabet() {
        for good in ["a", "7", "mail", "mail/eu:1.2_x-y", &"q".repeat(128)] {
            assert_eq!(QueueName::new(good).expect("a name").as_str(), good);
        }
        for bad in ["", ".a", "-", "a b", "a{b}", "a\0", "a\r\n", "ä", "a=b", &"q".repeat(129), &"q".repeat(1 << 20)] {
            let refused = QueueName::new(bad).expect_err("no name");
            assert!(refused.message.starts_with("queue name "), "{refused}");
            assert!(refused.message.len() < 200, "a long name is not repeated");
        }
    }

    #[test]
    fn numbers_are_written_with_all_their_digits() {
        assert_eq!(QueueId(255).to_string(), "000000000000000000000000000000ff");
    }
}
