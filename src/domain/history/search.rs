//! The rules of a search: by which term it walks, which rows it still has to see, and what it finds.
//!
//! A walk goes over the rows with one term, newest first. A hit is judged by the later rows of its message, so no index
//! of the present is kept. Each message is found by its newest hit, once, over all pages.

use crate::history::HistoryTerm;
use crate::queue::filter::Filter;
use crate::queue::messages::message::{MessageKey, Metadata};
use crate::queue::transition::{EnqueuedMessage, Transition};
use crate::queue::{MessageState, Trigger};
use crate::time::Timestamp;

/// The conditions of a search. All of them must hold.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HistoryQuery {
    pub state: Option<MessageState>,
    /// The metadata that the message must have.
    pub filter: Filter,
    /// The signature of an error.
    pub signature: Option<Box<str>>,
    /// The earliest time of a hit.
    pub from: Option<Timestamp>,
    /// The time before which a hit lies.
    pub to: Option<Timestamp>,
    pub when: QueryTime,
}

/// When the conditions must hold.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum QueryTime {
    /// As far as the history has come.
    #[default]
    Now,
    /// At any time, in one row.
    Ever,
}

/// A message that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryMatch {
    pub key: MessageKey,
    /// The message as it was enqueued; none if that row is missing.
    pub enqueued: Option<Box<EnqueuedMessage>>,
    /// The state; none if it was removed.
    pub state: Option<MessageState>,
    /// When it entered the state.
    pub entered_at: Timestamp,
    /// The number of its running or last attempt then.
    pub attempt: u32,
    /// The signature of its error.
    pub signature: Option<Box<str>>,
}

impl HistoryQuery {
    /// The term to walk by: the rarest that is indexed. `counted_keys` are the metadata keys that the queue counts by.
    pub fn term(&self, counted_keys: &[Box<str>]) -> HistoryTerm {
        if let Some(signature) = &self.signature {
            return HistoryTerm::Error(signature.clone());
        }
        if let Some(state) = self.state {
            return HistoryTerm::Entered(state);
        }
        let mut pairs = self.filter.metadata().pairs();
        match pairs.find(|(key, _)| counted_keys.iter().any(|counted| **counted == **key)) {
            Some((key, value)) => HistoryTerm::Value { key: key.into(), value: value.into() },
            None => HistoryTerm::Enqueued,
        }
    }

    /// Whether a message with this newest row can be found at all, before its other rows are read.
    pub fn may_match(&self, last: &Transition) -> bool {
        self.when == QueryTime::Ever || self.state.is_none() || self.state == last.to
    }

    /// Whether the metadata matches; without its enqueue row a message matches only a search without a filter.
    pub fn filter_matches(&self, metadata: Option<&Metadata>) -> bool {
        self.filter.is_empty() || metadata.is_some_and(|metadata| self.filter.matches(metadata))
    }

    /// Judges a hit by the rows of its message from the hit on, by position. Returns nothing if the message does not
    /// match, or if a newer hit finds it. O(rows).
    pub fn judge(&self, term: &HistoryTerm, rows: &[Transition]) -> Option<HistoryMatch> {
        let rows = without_undone(rows);
        let (&hit, later) = rows.split_first()?;
        let last = later.last().copied().unwrap_or(hit);
        match term {
            HistoryTerm::Enqueued | HistoryTerm::Value { .. } => {
                let entry = rows.iter().rev().find(|row| row.from != row.to).copied().unwrap_or(hit);
                Some(found(last, entry, entry))
            }
            HistoryTerm::Entered(state) if self.when == QueryTime::Now => {
                let stays = later.iter().all(|row| row.to == Some(*state));
                stays.then(|| found(last, hit, hit))
            }
            HistoryTerm::Error(_) if self.when == QueryTime::Now => {
                let is_over = later.iter().any(|row| row.trigger == Trigger::Fail || row.detail.error.is_some());
                let entry = rows.iter().rev().find(|row| row.from != row.to).copied().unwrap_or(hit);
                (!is_over && self.may_match(last)).then(|| found(last, entry, hit))
            }
            HistoryTerm::Entered(_) | HistoryTerm::Error(_) => {
                let is_newest = !later.iter().any(|row| self.is_hit(term, row));
                (is_newest && self.is_hit(term, hit)).then(|| found(hit, hit, hit))
            }
        }
    }

    /// Whether a row by itself meets the term and the conditions on rows.
    fn is_hit(&self, term: &HistoryTerm, row: &Transition) -> bool {
        let has_term = match term {
            HistoryTerm::Entered(state) => row.to == Some(*state) && row.from != row.to,
            HistoryTerm::Error(signature) => {
                row.detail.error.as_ref().is_some_and(|error| error.signature == *signature)
            }
            HistoryTerm::Enqueued | HistoryTerm::Value { .. } => row.trigger == Trigger::Enqueue,
        };
        has_term && (self.state.is_none() || self.state == row.to) && self.to.is_none_or(|to| row.at < to)
    }
}

/// The state after `last`, which the message has had since `entry`, with the error of a row.
fn found(last: &Transition, entry: &Transition, failure: &Transition) -> HistoryMatch {
    HistoryMatch {
        key: last.key,
        enqueued: None,
        state: last.to,
        entered_at: entry.at,
        attempt: last.detail.attempt,
        signature: failure.detail.error.as_ref().map(|error| error.signature.clone()),
    }
}

/// The rows that count: a row of a later epoch undoes those before it with no lower version. Nothing if the first is
/// undone.
fn without_undone(rows: &[Transition]) -> Vec<&Transition> {
    let mut kept: Vec<&Transition> = Vec::with_capacity(rows.len());
    for row in rows {
        while let Some(before) = kept.last()
            && before.detail.position.epoch < row.detail.position.epoch
            && before.version >= row.version
        {
            kept.pop();
            if kept.is_empty() {
                return Vec::new();
            }
        }
        kept.push(row);
    }
    kept
}
