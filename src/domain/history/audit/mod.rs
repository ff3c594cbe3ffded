//! The audit of queues: what a shard holds, what it counts and what its history keeps must agree.
//!
//! `levels` judges the counts of a shard at one position. `rows` compares the rows of the history with the counts
//! between two positions. `versions` compares one message with its rows. Two numbers are compared only if they belong
//! to one position of the shard, so traffic causes no findings.

pub mod levels;
pub mod rows;
pub mod versions;

use std::fmt;

use crate::queue::messages::message::MessageKey;
use crate::queue::{MessageState, ShardId};

/// The subject of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FindingKind {
    /// The depth of a state does not follow from the rows that the shard counted.
    Depth,
    /// The messages enqueued are not those that are there and those removed.
    Sum,
    /// The counts by attempt number do not add up to the flow.
    ByAttempt,
    /// The counts by time do not add up to the flow.
    ByTime,
    /// The counts by value of a metadata key do not add up to those of the shard.
    ByValue,
    /// The rows in the history are not the rows that the shard counted.
    Rows,
    /// A version of a message is not in the history.
    Version,
    /// The history does not follow the shard.
    Relay,
    /// The newest total in the log of a counter is not that of the shard.
    Counter,
}

impl FindingKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 9] = [
        Self::Depth,
        Self::Sum,
        Self::ByAttempt,
        Self::ByTime,
        Self::ByValue,
        Self::Rows,
        Self::Version,
        Self::Relay,
        Self::Counter,
    ];

    /// The name, as metrics and API show it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Depth => "depth",
            Self::Sum => "sum",
            Self::ByAttempt => "by_attempt",
            Self::ByTime => "by_time",
            Self::ByValue => "by_value",
            Self::Rows => "rows",
            Self::Version => "version",
            Self::Relay => "relay",
            Self::Counter => "counter",
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Two numbers of a shard that should be equal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub kind: FindingKind,
    pub shard: ShardId,
    /// The state of the messages, where one state is concerned.
    pub state: Option<MessageState>,
    /// The message, where one is concerned.
    pub message: Option<MessageKey>,
    /// The version of that message.
    pub version: Option<u64>,
    pub expected: i64,
    pub found: i64,
    /// The difference, in words for people.
    pub text: String,
}

impl Finding {
    /// A finding about a whole shard. Numbers above the range of `i64` are shown as its maximum.
    pub fn of_shard(kind: FindingKind, shard: ShardId, (expected, found): (u64, u64), text: String) -> Self {
        let shown = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (expected, found) = (shown(expected), shown(found));
        Self { kind, shard, state: None, message: None, version: None, expected, found, text }
    }

    /// The same about the messages of one state.
    #[must_use]
    pub fn of_state(self, state: MessageState) -> Self {
        Self { state: Some(state), ..self }
    }
}
