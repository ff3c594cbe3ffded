//! The history of messages: which rows it keeps, and by which terms they are found.
//!
//! `run` follows the rows of a shard and finds the holes. `audit` compares what the shard, its counts and its history
//! say.

pub mod audit;
pub mod run;

pub mod search;
#[cfg(test)]
mod tests;
pub mod trace;

use crate::queue::messages::message::MessageKey;
use crate::queue::transition::{HistoryRow, RowPosition};
use crate::queue::{MessageState, Trigger};
use crate::time::Timestamp;

/// A term by which rows are found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HistoryTerm {
    /// Enqueue rows, whatever their first state.
    Enqueued,
    /// Rows that entered a state from another one, or from none.
    Entered(MessageState),
    /// Rows that ended an attempt by an error with this signature.
    Error(Box<str>),
    /// Enqueue rows of messages with this value of a counted metadata key.
    Value { key: Box<str>, value: Box<str> },
}

impl HistoryTerm {
    /// The terms of a row, each once. At most 7: an enqueue has one for each counted key.
    pub fn of(row: &HistoryRow) -> Vec<Self> {
        let transition = &row.transition;
        let mut terms = Vec::new();
        if transition.trigger == Trigger::Enqueue {
            terms.push(Self::Enqueued);
        }
        if let Some(to) = transition.to
            && transition.from != transition.to
        {
            terms.push(Self::Entered(to));
        }
        if let Some(error) = &transition.detail.error {
            terms.push(Self::Error(error.signature.clone()));
        }
        if let Some(message) = &row.enqueued {
            let values = message.counted_keys.iter().filter_map(|key| Some((key, message.metadata.get(key)?)));
            terms.extend(values.map(|(key, value)| Self::Value { key: key.clone(), value: value.into() }));
        }
        terms
    }
}

/// A found row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HistoryHit {
    /// The time of the row.
    pub at: Timestamp,
    /// The shard of the row.
    pub shard: u32,
    /// Its place in the shard.
    pub position: RowPosition,
    /// Its message.
    pub message: MessageKey,
}

/// Rows of a shard that are missing from the history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HistoryGap {
    pub shard: u32,
    /// The epoch of the missing rows.
    pub epoch: u32,
    /// The first missing position.
    pub from_position: u64,
    /// The last missing position.
    pub to_position: u64,
    /// A time not after the first missing row.
    pub from_time: Timestamp,
    /// A time not before the last missing row.
    pub to_time: Timestamp,
}

/// How far the history of a shard has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryCursor {
    /// The last row that is written, or known to be missing.
    pub position: RowPosition,
    /// The data with which the writer continues its checks from there, at most 4 KiB. The history does not read it.
    pub register: Box<[u8]>,
}
