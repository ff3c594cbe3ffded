//! The counts and the history of a shard: each applied row is counted and recorded in the step that applies it.

use crate::queue::messages::message::{AttemptError, CanceledBy, CountedAs, Lease, MessageHead};
use crate::queue::messages::state_machine::{ApplicableRow, MessageState, Trigger};
use crate::queue::setup::settings::HistoryKept;
use crate::queue::shard::Shard;
use crate::queue::tally::{ShardTally, TalliedRow};
use crate::queue::transition::{EnqueuedMessage, HistoryRow, RowPosition, Transition, TransitionDetail};
use crate::time::Timestamp;

/// The parts of a message before a row that the row needs.
pub(super) struct MessageBefore {
    state: MessageState,
    lease: Option<Lease>,
    attempt: u32,
    ready_since: Timestamp,
}

impl MessageBefore {
    pub fn of(message: &MessageHead) -> Self {
        let (state, lease, attempt) = (message.state, message.lease, message.attempt_number());
        Self { state, lease, attempt, ready_since: message.ready_since() }
    }
}

/// Counts the row that a message has just gone through, and returns its record. Without `before` it is an enqueue. The
/// message of a removal is as it was. O(log n).
pub(super) fn record_row(
    tally: &mut ShardTally,
    epoch: u32,
    (message, before): (&MessageHead, Option<&MessageBefore>),
    (row, trigger): (ApplicableRow, Trigger),
    now: Timestamp,
) -> Transition {
    let to = row.to;
    let lease = before.and_then(|before| before.lease).or(message.lease);
    let attempt = match (trigger, before) {
        (Trigger::Dequeue, _) | (_, None) => message.attempt_number(),
        (_, Some(before)) => before.attempt,
    };
    let since = match before {
        Some(MessageBefore { lease: Some(lease), .. }) => lease.since,
        Some(before) => before.ready_since,
        None => now,
    };
    let from = before.map(|before| before.state);
    tally.count(&TalliedRow { number: row.number, trigger, from, to, message, attempt, since, now });
    let (reason, error) = causes(message, trigger, to);
    let ends_lease = from == Some(MessageState::Running) && to != from;
    let detail = TransitionDetail {
        position: RowPosition { epoch, position: tally.counts().position },
        attempt,
        since: (trigger == Trigger::Dequeue || ends_lease).then_some(since),
        fence: lease.map(|lease| lease.fence),
        session: lease.and_then(|lease| lease.worker_session()).map(|own| own.id),
        worker: None, // a dequeue adds it
        reason,
        error,
    };
    let version = if to.is_some() { message.version } else { message.version + 1 };
    Transition { key: message.key, version, trigger, from, to, at: now, detail }
}

impl Shard {
    /// The rows of a command that the history keeps, with the parts of a new message that outlive it. `kind` is the
    /// type of the message's body. Call it before the next command. O(rows).
    pub fn history_rows(&self, transitions: &[Transition], kind: Option<&str>) -> Vec<HistoryRow> {
        match self.settings.history {
            HistoryKept::Nothing => Vec::new(),
            HistoryKept::All => transitions.iter().map(|row| self.history_row(row, kind)).collect(),
        }
    }

    fn history_row(&self, transition: &Transition, kind: Option<&str>) -> HistoryRow {
        let is_new = transition.trigger == Trigger::Enqueue;
        let message = is_new.then(|| self.messages.get(transition.key.sequence)).flatten();
        let enqueued = message.map(|message| Box::new(EnqueuedMessage::of(message, kind, self.own_keys(message))));
        HistoryRow { transition: transition.clone(), enqueued }
    }

    /// The counted keys that a message has.
    fn own_keys(&self, message: &MessageHead) -> Vec<Box<str>> {
        let has_value = |counted_as| counted_as != CountedAs::None;
        let keys = self.tally.counted_keys(message).filter(|(_, _, counted_as)| has_value(*counted_as));
        keys.map(|(key, _, _)| key.into()).collect()
    }

    /// The place of the newest row. O(1).
    pub fn position(&self) -> RowPosition {
        RowPosition { epoch: self.epoch, position: self.tally.counts().position }
    }

    /// The counts of the shard. O(1).
    pub fn tally(&self) -> &ShardTally {
        &self.tally
    }

    /// Says whether the store has room for another value with counts of its own. Messages of new values are counted as
    /// `~other` while it has none. O(1).
    pub fn set_values_full(&mut self, is_full: bool) {
        self.tally.set_store_full(is_full);
    }
}

/// The reason of a cancellation, and the error that ended an attempt.
fn causes(
    message: &MessageHead,
    trigger: Trigger,
    to: Option<MessageState>,
) -> (Option<Box<str>>, Option<Box<AttemptError>>) {
    let is_cancel = trigger == Trigger::CancelMessage || to == Some(MessageState::Canceled);
    let reason = match &message.canceled_by {
        Some(CanceledBy::Request(reason)) if is_cancel => Some(reason.clone()),
        Some(CanceledBy::Request(_) | CanceledBy::Worker | CanceledBy::Purge | CanceledBy::Ttl) | None => None,
    };
    // An attempt that fails brings an error. A message that runs out of attempts otherwise, such as by the end of its
    // lease, is counted and found under the error of its last failure.
    let failed = trigger == Trigger::Fail || to == Some(MessageState::Errored);
    let error = message.error.clone().filter(|_| failed).map(Box::new);
    (reason, error)
}
