//! The definition of a rule: its name, the counter that it watches, its threshold, and the message that it enqueues.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::counter::{CounterName, NamespaceName};
use crate::limits::{
    MESSAGE_TYPE_BYTES_MAX, METADATA_PAIRS_MAX, RULE_MESSAGES_PER_MINUTE_MAX, RULE_METADATA_PAIRS_MAX,
    RULE_NAME_BYTES_MAX, RULE_PAYLOAD_BYTES_MAX,
};
use crate::queue::QueueName;
use crate::queue::messages::message::Metadata;
use crate::reason::{Reason, Reject};

/// The metadata key of the last crossing that a message covers.
pub const CROSSING_KEY: &str = "crossing";
/// The metadata key of the last crossing before those that a message covers.
pub const CROSSED_FROM_KEY: &str = "crossed_from";

const MINUTE: Duration = Duration::from_secs(60);

// The rule's own pairs and those of the service fit into one message.
const _: () = assert!(RULE_METADATA_PAIRS_MAX + 2 == METADATA_PAIRS_MAX);

/// The name of a rule: `[A-Za-z0-9][A-Za-z0-9._:/-]{0,27}`. It is so short because a message id contains it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName(Arc<str>);

impl RuleName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        let refuse = |what: String| {
            let what = format!("rule name {what}");
            Err(Reject::new(Reason::InvalidArgument, what.clone()).at("name", what))
        };
        let bytes = name.as_bytes();
        let Some(first) = bytes.first() else {
            return refuse(format!("is missing; send a name of 1 to {RULE_NAME_BYTES_MAX} bytes"));
        };
        if bytes.len() > RULE_NAME_BYTES_MAX {
            return refuse(format!("has {} bytes; at most {RULE_NAME_BYTES_MAX} are allowed", bytes.len()));
        }
        if !first.is_ascii_alphanumeric() {
            return refuse("must begin with a letter or digit; letters are A-Z and a-z".to_owned());
        }
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(byte);
        match bytes.iter().position(|byte| !allowed(byte)) {
            Some(at) => refuse(format!("may contain only letters, digits and . _ : / -; its byte {at} is not allowed")),
            None => Ok(Self(name.into())),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// When a rule fires. Crossings are numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleCondition {
    /// Once, when the count reaches this. That is crossing 1.
    At(NonZeroU64),
    /// At each multiple of this. Crossing k is the count k times this.
    Every(NonZeroU64),
}

impl RuleCondition {
    /// The last crossing that a count has reached; 0 before the first.
    pub fn reached(self, count: i64) -> u64 {
        let count = u64::try_from(count).unwrap_or(0);
        match self {
            Self::At(threshold) => u64::from(count >= threshold.get()),
            Self::Every(step) => count / step,
        }
    }
}

/// The message of a rule, as each firing sends it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleMessage {
    pub payload: Bytes,
    /// At most 2 pairs; each message also has the pairs of its crossings.
    pub metadata: Metadata,
    pub priority: Option<i64>,
    pub kind: Option<Box<str>>,
    pub shard_key: Option<Box<str>>,
}

/// The definition of a rule; it never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleSpec {
    pub name: RuleName,
    pub namespace: NamespaceName,
    pub counter: CounterName,
    pub condition: RuleCondition,
    pub queue: QueueName,
    pub message: RuleMessage,
    /// The most messages of a minute, 1 to 600.
    pub max_per_minute: u32,
}

impl RuleSpec {
    /// Refuses a rule that can never work: limits, and pairs that the service adds itself.
    pub fn check(&self) -> Result<(), Reject> {
        let refuse =
            |field: &str, what: String| Err(Reject::new(Reason::InvalidArgument, what.clone()).at(field, what));
        let RuleMessage { payload, metadata, kind, .. } = &self.message;
        if !(1..=RULE_MESSAGES_PER_MINUTE_MAX).contains(&self.max_per_minute) {
            let what = format!("max_per_minute is {}; send 1 to {RULE_MESSAGES_PER_MINUTE_MAX}", self.max_per_minute);
            return refuse("rule.max_per_minute", what);
        }
        if payload.len() > RULE_PAYLOAD_BYTES_MAX {
            let what = format!(
                "the payload has {} bytes; at most {RULE_PAYLOAD_BYTES_MAX} are allowed in a rule",
                payload.len()
            );
            return refuse("rule.message.payload", what);
        }
        if metadata.pairs().count() > RULE_METADATA_PAIRS_MAX {
            let what = format!(
                "a rule's message has at most {RULE_METADATA_PAIRS_MAX} pairs of metadata, beside {CROSSING_KEY} and \
                 {CROSSED_FROM_KEY}"
            );
            return refuse("rule.message.metadata", what);
        }
        if let Some((key, _)) = metadata.pairs().find(|(key, _)| [CROSSING_KEY, CROSSED_FROM_KEY].contains(key)) {
            let what = format!("the rule sets the metadata key {key} itself; use another key");
            return refuse("rule.message.metadata", what);
        }
        if let Some(kind) = kind.as_ref().filter(|kind| kind.len() > MESSAGE_TYPE_BYTES_MAX) {
            let what = format!("type has {} bytes; at most {MESSAGE_TYPE_BYTES_MAX} are allowed", kind.len());
            return refuse("rule.message.type", what);
        }
        Ok(())
    }

    /// The least time between two messages.
    pub fn pause(&self) -> Duration {
        MINUTE / self.max_per_minute.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn above_zero(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).expect("above 0")
    }

    #[test]
    fn names_are_short_and_of_the_alphabet_of_queues() {
        for good in ["a", "7", "mail/eu:1.2_x-y", &"r".repeat(RULE_NAME_BYTES_MAX)] {
            assert_eq!(RuleName::new(good).expect("a name").as_str(), good);
        }
        for bad in ["", "-a", "a b", "a~b", "ä", &"r".repeat(RULE_NAME_BYTES_MAX + 1)] {
            let refused = RuleName::new(bad).expect_err(bad);
            assert_eq!(refused.reason, Reason::InvalidArgument);
            assert!(refused.message.starts_with("rule name "), "{refused}");
        }
    }

    #[test]
    fn crossings_are_the_multiples_that_a_count_has_reached() {
        let every = RuleCondition::Every(above_zero(100));
        let counts = [(i64::MIN, 0), (-100, 0), (0, 0), (99, 0), (100, 1), (199, 1), (1_000, 10)];
        for (count, reached) in counts {
            assert_eq!(every.reached(count), reached, "{count}");
        }
        assert_eq!(RuleCondition::Every(above_zero(1)).reached(i64::MAX), i64::MAX.unsigned_abs());
        assert_eq!(RuleCondition::Every(above_zero(u64::MAX)).reached(i64::MAX), 0);
        let at = RuleCondition::At(above_zero(100));
        assert_eq!([-1, 0, 99, 100, 5_000].map(|count| at.reached(count)), [0, 0, 0, 1, 1]);
    }
}
