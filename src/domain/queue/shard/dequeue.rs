//! Dequeue: the choice of messages to lease, and whether the reply is complete.
//!
//! Without a filter, or with a declared shape, the best message is at the head of an index. Any other filter walks the
//! smallest index that contains all possible matches, a bounded number of messages in a call, and returns a cursor. A
//! reply that may miss messages is never called complete.

use std::ops::Bound;
use std::time::Duration;

use crate::limits::{DEQUEUE_MESSAGES_MAX, DEQUEUE_PARKINGS_MAX, FILTER_WALK_MAX, LEASE_MAX, LEASE_MIN};
use crate::queue::command::{Completeness, Cursor, Dequeue, FIRST, LeaseGrant, Refusal, Reply};
use crate::queue::filter::Filter;
use crate::queue::index::exclusive_index::ShapeGroupKey;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{LeaseSession, MessageRef};
use crate::queue::messages::state_machine::MessageState;
use crate::queue::shard::{FilterScan, Shard};
use crate::time::Timestamp;

/// A dequeue in progress.
struct DequeuePass<'a> {
    max: usize,
    lease: Option<Duration>,
    session: Option<LeaseSession>,
    worker: Option<&'a str>,
    now: Timestamp,
    /// The due transitions that it may still apply.
    due_left: usize,
    /// The values that it may still hide.
    parkings_left: usize,
    leases: Vec<LeaseGrant>,
    /// Whether a bound ended it.
    stopped: bool,
}

/// The source of the possible matches of a filter.
pub(super) enum FilterSource {
    /// Nowhere.
    Nothing,
    /// All of these meet it.
    Best(Option<ShapeGroupKey>),
    /// Some of these may.
    Walk(Option<ShapeGroupKey>),
}

impl Shard {
    pub(super) fn dequeue(&mut self, asked: &Dequeue, now: Timestamp) -> Result<Reply, Refusal> {
        if let Some(call) = &asked.session
            && let Some(again) = self.replay(call, now)?
        {
            return Ok(again);
        }
        if let Some(reason) = &self.dequeue_blocked {
            return Err(Refusal::DequeueBlocked(reason.clone()));
        }
        if !(1..=DEQUEUE_MESSAGES_MAX).contains(&asked.max) || asked.look_at > FILTER_WALK_MAX {
            return Err(InvalidCommandPart::Count.into());
        }
        if asked.lease.is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease)) {
            return Err(InvalidCommandPart::Lease.into());
        }
        if let Some(message) = &asked.message {
            let leases = vec![self.dequeue_one(message, asked, now)?];
            return Ok(Reply::Leases { leases, completeness: Completeness::Complete, cursor: None });
        }
        self.index.recheck();
        let bound = Self::due_transitions_max(asked.max);
        let promoted = self.apply_due_transitions(bound, now);
        let mut round = DequeuePass {
            max: asked.max,
            lease: asked.lease,
            session: session_of(asked),
            worker: asked.worker.as_deref(),
            now,
            due_left: bound - promoted,
            parkings_left: DEQUEUE_PARKINGS_MAX,
            leases: Vec::with_capacity(asked.max.min(self.index.ready.len())),
            stopped: false,
        };
        let cursor = match self.source(&asked.filter) {
            FilterSource::Nothing => None,
            FilterSource::Best(place) => {
                self.take_best(place.as_ref(), &mut round)?;
                None
            }
            FilterSource::Walk(place) => {
                let mut seen = 0;
                let walked = self.walk(place.as_ref(), asked, &mut round, &mut seen);
                self.filter_walk = (seen > 0).then(|| FilterScan { keys: asked.filter.keys(), messages: seen });
                walked?
            }
        };
        self.record(asked, &round.leases, now);
        let short = round.leases.len() < round.max;
        let unfinished = round.stopped || self.overdue(now).is_some() || self.index.is_rechecking();
        let completeness = match cursor {
            Some(_) => Completeness::Partial,
            None if short && unfinished => Completeness::More,
            None => Completeness::Complete,
        };
        Ok(Reply::Leases { leases: round.leases, completeness, cursor })
    }

    fn dequeue_one(&mut self, message: &MessageRef, asked: &Dequeue, now: Timestamp) -> Result<LeaseGrant, Refusal> {
        let sequence = self.find(message, now)?;
        let found = self.message_at(sequence);
        if found.state == MessageState::Pending && !self.index.may_serve(found) {
            return Err(Refusal::ValueHeld);
        }
        let leased = self.lease(sequence, asked.lease, (session_of(asked), asked.worker.as_deref()), now)?;
        self.record(asked, std::slice::from_ref(&leased), now);
        Ok(leased)
    }

    /// The smallest index that contains all possible matches of a filter. O(shapes log n).
    pub(super) fn source(&self, filter: &Filter) -> FilterSource {
        if filter.is_empty() {
            return FilterSource::Best(None);
        }
        let usable = self.index.shapes.iter().enumerate().filter(|(_, shape)| shape.is_complete());
        let mut smallest = (self.index.ready.len(), None);
        for (number, shape) in usable {
            let Some(set) = shape.values_for(filter) else { continue };
            let Some(group) = shape.group(&set) else { return FilterSource::Nothing };
            if shape.keys.has_keys_of(filter) {
                return FilterSource::Best(Some((number, set)));
            }
            let pending = group.counts()[MessageState::Pending as usize] as usize;
            if pending < smallest.0 {
                smallest = (pending, Some((number, set)));
            }
        }
        FilterSource::Walk(smallest.1)
    }

    fn take_best(&mut self, place: Option<&ShapeGroupKey>, round: &mut DequeuePass<'_>) -> Result<(), Refusal> {
        while round.leases.len() < round.max
            && !round.stopped
            && let Some((_, sequence)) = self.index.best(place)
        {
            if self.index.may_serve(self.message_at(sequence)) {
                self.take(sequence, round)?;
            } else {
                self.hide_value(place, sequence, round);
            }
        }
        Ok(())
    }

    /// Leases a message that may be served, unless its TTL is over.
    fn take(&mut self, sequence: u64, round: &mut DequeuePass<'_>) -> Result<(), Refusal> {
        if self.next_due(sequence).is_none_or(|(at, _)| at > round.now) {
            let leased = self.lease(sequence, round.lease, (round.session, round.worker), round.now)?;
            round.leases.push(leased);
        } else if round.due_left > 0 {
            self.apply_due_to(sequence, round.now);
            round.due_left -= 1;
        } else {
            round.stopped = true;
        }
        Ok(())
    }

    /// Hides a value whose messages in flight are at their limit.
    fn hide_value(&mut self, place: Option<&ShapeGroupKey>, sequence: u64, round: &mut DequeuePass<'_>) {
        if round.parkings_left == 0 {
            round.stopped = true;
            return;
        }
        round.parkings_left -= 1;
        if let Some(value) = self.messages.get(sequence).and_then(|message| message.routing.as_ref()) {
            self.index.hide_lane(place, value);
        }
    }

    /// Examines and counts messages from the cursor on. Returns the new cursor, if it did not reach the end.
    fn walk(
        &mut self,
        place: Option<&ShapeGroupKey>,
        asked: &Dequeue,
        round: &mut DequeuePass<'_>,
        seen: &mut usize,
    ) -> Result<Option<Cursor>, Refusal> {
        let began = asked.cursor.clone();
        let mut cursor = began.clone().unwrap_or_else(|| Cursor::start(round.now));
        let look_at = if asked.look_at == 0 { FILTER_WALK_MAX } else { asked.look_at };
        while round.leases.len() < round.max {
            let before = cursor.clone();
            let Some(sequence) = self.next_of_walk(place, &mut cursor, round) else {
                if round.stopped {
                    return Ok(Some(before));
                }
                // Messages that moved before the cursor were missed; only a new walk can find them.
                let is_behind = began.is_some() && self.last_moved_ahead_at >= cursor.since;
                return Ok(is_behind.then(|| Cursor::start(round.now)));
            };
            if *seen == look_at {
                return Ok(Some(before));
            }
            *seen += 1;
            if asked.filter.matches(&self.message_at(sequence).metadata) {
                self.take(sequence, round)?;
                if round.stopped {
                    return Ok(Some(before));
                }
            }
        }
        Ok(None)
    }

    /// Moves the cursor to the next message that may be served: by rank, or by values in the order of their heads and
    /// then by rank. None at the end, or once too many values were set aside.
    fn next_of_walk(
        &mut self,
        place: Option<&ShapeGroupKey>,
        cursor: &mut Cursor,
        round: &mut DequeuePass<'_>,
    ) -> Option<u64> {
        if self.index.exclusive.is_none() {
            let later = (Bound::Excluded(cursor.after), Bound::Unbounded);
            cursor.after = *self.index.pending(place)?.range(later).next()?;
            return Some(cursor.after.1);
        }
        loop {
            let lanes = self.index.lanes(place)?;
            if let Some((value, after)) = cursor.inside.take()
                && let Some(rank) = lanes.next_in(&value, after)
                && self.index.may_serve(self.message_at(rank.1))
            {
                cursor.inside = Some((value, rank));
                return Some(rank.1);
            }
            let head = lanes.next_head(cursor.after)?;
            let message = self.message_at(head.1);
            if self.index.may_serve(message) {
                cursor.inside = message.routing.clone().map(|value| (value, FIRST));
                cursor.after = head;
            } else {
                self.hide_value(place, head.1, round);
                if round.stopped {
                    return None;
                }
            }
        }
    }
}

fn session_of(asked: &Dequeue) -> Option<LeaseSession> {
    asked.session.map(|call| LeaseSession { id: call.id, call: call.sequence, confirmed: false })
}
