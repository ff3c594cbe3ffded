//! The causes why a message is not served, and why a dequeue gets nothing, as data.
//!
//! Explaining changes nothing. Due transitions that no command has applied yet count as applied. A bounded number of
//! messages is examined, and the result says if there were more.

use crate::limits::{EXPLAIN_HOLDERS_MAX, EXPLAIN_POSITION_MAX, FILTER_WALK_MAX};
use crate::queue::filter::Filter;
use crate::queue::index::shape_index::StateCounts;
use crate::queue::messages::message::{
    AttemptError, CanceledBy, Lease, MessageHead, MessageKey, MessageRef, RoutingValue, SessionId,
};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::state_machine::MessageState;
use crate::queue::shard::Shard;
use crate::queue::shard::dequeue::FilterSource;
use crate::time::Timestamp;

/// A cause of the state of a message. A message may have several causes: it may be invisible while dequeue is blocked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cause {
    QueueDeleted,
    /// The message does not exist: it never did, or its retention is over.
    Unknown,
    /// Dequeue is blocked, for this reason.
    DequeueBlocked(Box<str>),
    /// It is not to be served before this time.
    InvisibleUntil {
        /// The time.
        until: Timestamp,
        /// Whether that is the delay after a failure.
        after_failure: bool,
    },
    /// The messages of its exclusivity value in flight are at their limit.
    ValueHeld {
        value: RoutingValue,
        limit: u32,
        /// Their leases, at most 10.
        holders: Vec<HoldingLease>,
        /// The pending messages of the value.
        waiting: usize,
    },
    /// Order within its value is strict, and another message comes first.
    Behind {
        value: RoutingValue,
        /// The other message.
        id: MessageId,
        state: MessageState,
        /// Its lease, if it is running.
        holder: Option<Box<HoldingLease>>,
    },
    /// It waits for a dequeue.
    Ready {
        /// How many messages come before it that may be served, of an exclusive queue one for each value; counted up to
        /// 100.
        ahead: usize,
        /// Whether there are more than were counted.
        or_more: bool,
    },
    Running(HoldingLease),
    /// It is finished.
    Completed,
    /// It was canceled; none if that was before reasons were stored.
    Canceled(Option<CanceledBy>),
    /// It is out of attempts.
    Errored {
        attempts: u32,
        /// The error of the last failure; none if its last lease expired.
        error: Option<AttemptError>,
    },
}

/// A lease that holds a message, or others back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HoldingLease {
    /// The message, as its producer named it.
    pub id: MessageId,
    pub session: Option<SessionId>,
    /// When it was given.
    pub since: Timestamp,
    /// When it ends unless its worker extends it.
    pub expires: Timestamp,
    /// Whether a cancel of the message was requested.
    pub cancel_requested: bool,
}

/// A preview of a dequeue with a filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DequeuePreview {
    /// The reason of a dequeue block, if there is one.
    pub blocked: Option<Box<str>>,
    /// How many messages of each state meet the filter; none if it is not declared.
    pub counts: Option<StateCounts>,
    /// The message that would be served first.
    pub first: Option<MessageKey>,
    /// Pending messages that meet the filter and are held back, each with its causes; one for each value, at most 10.
    pub held: Vec<(MessageKey, Cause)>,
    /// When the first of the invisible messages that meet the filter may be served.
    pub next_visible: Option<Timestamp>,
    /// Whether more messages were there than were looked at, so that a message may have been missed.
    pub or_more: bool,
    /// How often the messages that are out of attempts were tried, whatever the filter; of the first 256 of them.
    pub failed: FailedAttempts,
}

/// How often messages that are out of attempts were tried.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FailedAttempts {
    /// How many messages were looked at.
    pub messages: u64,
    pub attempts: u64,
}

impl Shard {
    /// Tells why a message is where it is, what decides most first. O(log n), and O(100) for the position.
    pub fn explain(&self, message: &MessageRef, now: Timestamp) -> Vec<Cause> {
        if self.deleted.is_some() {
            return vec![Cause::QueueDeleted];
        }
        let Some(found) = self.get(message) else { return vec![Cause::Unknown] };
        let now = now.max(self.clock);
        let mut causes: Vec<Cause> = self.dequeue_blocked.iter().cloned().map(Cause::DequeueBlocked).collect();
        let over = self.next_due(found.key.sequence).is_some_and(|(at, _)| at <= now);
        match found.state {
            MessageState::Invisible if found.visible_at > now => {
                let after_failure = found.first_leased_at.is_some();
                causes.insert(0, Cause::InvisibleUntil { until: found.visible_at, after_failure });
            }
            MessageState::Running if !over => causes = self.holder(found).map(Cause::Running).into_iter().collect(),
            MessageState::Invisible | MessageState::Pending | MessageState::Running => {
                causes.push(self.waiting_cause(found));
            }
            MessageState::Completed => causes = vec![Cause::Completed],
            MessageState::Canceled => causes = vec![Cause::Canceled(found.canceled_by.clone())],
            MessageState::Errored => {
                causes = vec![Cause::Errored { attempts: found.attempt_number(), error: found.error.clone() }];
            }
        }
        causes
    }

    /// Tells what a dequeue with this filter would meet. O(log n), and O(256) for a filter that is not declared.
    pub fn preview_dequeue(&self, filter: &Filter, now: Timestamp) -> DequeuePreview {
        let now = now.max(self.clock);
        let matches = |sequence: &u64| filter.matches(&self.message_at(*sequence).metadata);
        let invisible = &self.index.by_state[MessageState::Invisible as usize];
        let hidden = invisible.iter().take(FILTER_WALK_MAX).filter(matches);
        let mut prospect = DequeuePreview {
            blocked: self.dequeue_blocked.clone(),
            counts: self.depth(filter).ok(),
            first: None,
            held: Vec::new(),
            next_visible: hidden.map(|sequence| self.message_at(sequence).visible_at.max(now)).min(),
            or_more: invisible.len() > FILTER_WALK_MAX,
            failed: self.failed_attempts(),
        };
        if let FilterSource::Best(place) = self.source(filter) {
            let best = self.index.best(place.as_ref()).map(|(_, sequence)| self.message_at(sequence));
            prospect.first = best.filter(|message| self.index.may_serve(message)).map(|message| message.key);
        }
        let pending = self.index.ready.iter().take(FILTER_WALK_MAX);
        let mut values: Vec<&RoutingValue> = Vec::new();
        for message in pending.map(|(_, sequence)| self.message_at(*sequence)) {
            if !filter.matches(&message.metadata) {
                continue;
            }
            if self.index.may_serve(message) {
                prospect.first.get_or_insert(message.key);
            } else if let Some(value) = &message.routing
                && values.len() < EXPLAIN_HOLDERS_MAX
                && !values.contains(&value)
            {
                values.push(value);
                prospect.held.push((message.key, self.waiting_cause(message)));
            }
        }
        prospect.or_more |= self.index.ready.len() > FILTER_WALK_MAX;
        prospect
    }

    fn failed_attempts(&self) -> FailedAttempts {
        let errored = self.index.by_state[MessageState::Errored as usize].iter().take(FILTER_WALK_MAX);
        let attempts = |sequence| match self.messages.stub(sequence) {
            Some(stub) => stub.attempt,
            None => self.message_at(sequence).attempt_number(),
        };
        errored.fold(FailedAttempts::default(), |sum, sequence| FailedAttempts {
            messages: sum.messages + 1,
            attempts: sum.attempts + u64::from(attempts(sequence)),
        })
    }

    /// The cause why a pending message waits.
    fn waiting_cause(&self, message: &MessageHead) -> Cause {
        let held = self.index.exclusive.as_ref().zip(message.routing.as_ref());
        if let Some((exclusive, value)) = held
            && !exclusive.values.may_serve(value, message.rank())
        {
            if let Some((_, ahead)) = exclusive.values.first_blocking(value).filter(|ahead| *ahead < message.rank()) {
                let other = self.message_at(ahead);
                let (value, id, state) = (value.clone(), other.id.clone(), other.state);
                return Cause::Behind { value, id, state, holder: self.holder(other).map(Box::new) };
            }
            let running = exclusive.values.running(value).take(EXPLAIN_HOLDERS_MAX);
            let holders = running.filter_map(|sequence| self.holder(self.message_at(sequence))).collect();
            let (limit, waiting) = (exclusive.values.limit(value), exclusive.lanes.len(value));
            return Cause::ValueHeld { value: value.clone(), limit, holders, waiting };
        }
        let rank = message.rank();
        let before = match self.index.lanes(None) {
            Some(lanes) => lanes.heads_before(rank).take(EXPLAIN_POSITION_MAX + 1).count(),
            None => self.index.ready.range(..rank).take(EXPLAIN_POSITION_MAX + 1).count(),
        };
        Cause::Ready { ahead: before.min(EXPLAIN_POSITION_MAX), or_more: before > EXPLAIN_POSITION_MAX }
    }

    /// A message as it is shown: its lease ends at the time at which it will end if no caller is heard any more, with
    /// its session where that has confirmed it.
    pub fn with_effective_expiry(&self, message: &MessageHead) -> MessageHead {
        let mut shown = message.clone();
        if let Some((lease, (ends, _))) = message.lease.zip(self.next_due(message.key.sequence)) {
            shown.lease = Some(Lease { expires: ends, ..lease });
        }
        shown
    }

    fn holder(&self, message: &MessageHead) -> Option<HoldingLease> {
        let lease = message.lease?;
        Some(HoldingLease {
            id: message.id.clone(),
            session: lease.worker_session().map(|own| own.id),
            since: lease.since,
            expires: self.next_due(message.key.sequence).map_or(lease.expires, |(at, _)| at),
            cancel_requested: lease.cancel_requested,
        })
    }
}
