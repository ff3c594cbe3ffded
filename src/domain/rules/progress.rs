//! The progress of a rule: pure decisions from the stored progress and an exact count.
//!
//! ```text
//! idle --observe: crossings (a, b] are due--> pending --settle--> idle, fired through b
//! idle --observe: the counter began again----> idle or pending, next generation, fired through 0
//! ```
//!
//! Each arrow is one compare-and-set. A message is sent only for a stored claim, and with what the claim says. So a
//! server that finds a pending claim sends the same message with the same token.
//!
//! A queue that refuses a message has looked for its token before, so nothing that was sent for the claim is in the
//! queue. The claim is then marked, and gets a new time before the next try: a queue may refuse for longer than it
//! knows tokens.
//!
//! A counter begins again in three cases, each only after the rule has fired:
//! - a clear was folded in that is newer than the known one
//! - the count is 0 or below
//! - the count lies below the last crossing, and every source of a cumulative counter has a higher epoch than was known
//!
//! A count that falls for another reason, as by a negative delta or a repair, is no new beginning.

use crate::counter::EventKey;
use crate::queue::messages::message::Metadata;
use crate::queue::messages::message_id::MessageId;
use crate::rules::rule::{CROSSED_FROM_KEY, CROSSING_KEY, RuleCondition, RuleName, RuleSpec};
use crate::time::Timestamp;

/// An exact count of the watched counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExactCount {
    pub count: i64,
    /// The count contains every event up to this time.
    pub as_of: Timestamp,
    /// The key of the newest clear in the count.
    pub clear: Option<EventKey>,
    /// For a cumulative counter with sources: their epochs.
    pub epochs: Option<SourceEpochs>,
}

/// The epochs of the sources of a cumulative counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceEpochs {
    pub lowest: u64,
    pub highest: u64,
}

/// Crossings whose message is being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrossingClaim {
    /// The last crossing before them.
    pub from: u64,
    /// The last of them.
    pub through: u64,
    /// When they were claimed, by the clock of queue tokens: the generation time of the message.
    pub time: Timestamp,
    /// Whether the queue refused the last message of the claim, and nothing was sent since.
    pub is_refused: bool,
}

/// A message that a queue has taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FiredMessage {
    pub id: MessageId,
    /// The time of its claim.
    pub time: Timestamp,
}

/// The part of a rule that changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleProgress {
    /// Raised each time that the counter begins again.
    pub generation: u32,
    /// The last crossing of the generation that is settled.
    pub fired_through: u64,
    pub pending: Option<CrossingClaim>,
    /// The `as_of` of the count that made the last decision.
    pub as_of: Timestamp,
    /// The newest clear in that count.
    pub clear: Option<EventKey>,
    /// The highest epoch of a source in that count; 0 without sources.
    pub epoch: u64,
    /// When crossings were last claimed.
    pub last_claimed: Option<Timestamp>,
    pub last_message: Option<FiredMessage>,
    /// Claims that met TOKEN_EXPIRED: their messages may or may not have been enqueued.
    pub uncertain: u64,
    /// The problem that keeps the rule from firing, since the last time that it was tried.
    pub problem: Option<Box<str>>,
}

impl RuleProgress {
    /// The progress of a rule that has read nothing yet.
    pub fn new(generation: u32) -> Self {
        Self {
            generation,
            fired_through: 0,
            pending: None,
            as_of: Timestamp::MIN,
            clear: None,
            epoch: 0,
            last_claimed: None,
            last_message: None,
            uncertain: 0,
            problem: None,
        }
    }

    /// The progress after a count was read, if the count changes it: the rule begins again, claims crossings, or both.
    /// The progress must have been read before the count. `now` is by the clock of queue tokens.
    #[must_use]
    pub fn observe(&self, spec: &RuleSpec, seen: &ExactCount, now: Timestamp) -> Option<Self> {
        if self.pending.is_some() || seen.as_of < self.as_of {
            return None;
        }
        let mut next = self.clone();
        if self.begins_anew(spec.condition, seen) {
            next.generation = self.generation.checked_add(1)?;
            next.fired_through = 0;
        }
        let reached = spec.condition.reached(seen.count);
        if reached > next.fired_through && self.may_fire(spec, now) {
            let from = next.fired_through;
            next.pending = Some(CrossingClaim { from, through: reached, time: now, is_refused: false });
            next.last_claimed = Some(now);
        }
        if next == *self {
            return None;
        }
        next.as_of = seen.as_of;
        next.clear = self.clear.clone().max(seen.clear.clone());
        next.epoch = seen.epochs.map_or(self.epoch, |epochs| epochs.highest.max(self.epoch));
        Some(next)
    }

    /// The progress after the queue has the message of the pending claim.
    #[must_use]
    pub fn fired(mut self, id: MessageId) -> Self {
        if let Some(claim) = self.pending.take() {
            self.fired_through = claim.through;
            self.last_message = Some(FiredMessage { id, time: claim.time });
        }
        self.problem = None;
        self
    }

    /// The progress after the queue refused the message of the pending claim, so that it surely has none of it.
    #[must_use]
    pub fn refused(mut self) -> Self {
        self.pending = self.pending.map(|claim| CrossingClaim { is_refused: true, ..claim });
        self
    }

    /// The progress before the message of a claim that was refused is sent again, with a new time. None if the claim is
    /// not known to be refused.
    #[must_use]
    pub fn timed_anew(&self, now: Timestamp) -> Option<Self> {
        let claim = self.pending.filter(|claim| claim.is_refused)?;
        let time = now.max(claim.time);
        Some(Self { pending: Some(CrossingClaim { time, is_refused: false, ..claim }), ..self.clone() })
    }

    /// The progress after the queue could no longer tell whether it has the message of the pending claim.
    #[must_use]
    pub fn expired(mut self) -> Self {
        if let Some(claim) = self.pending.take() {
            self.fired_through = claim.through;
            self.uncertain = self.uncertain.saturating_add(1);
        }
        self.problem = None;
        self
    }

    /// The id of the message of a claim of this generation.
    pub fn message_id(&self, rule: &RuleName, claim: &CrossingClaim) -> MessageId {
        let id = format!("rule-{rule}-{}-{}", self.generation, claim.through);
        MessageId::new(&id).expect("5 + 28 + 1 + 10 + 1 + 19 bytes at most, which is the longest id")
    }

    fn begins_anew(&self, condition: RuleCondition, seen: &ExactCount) -> bool {
        if self.fired_through == 0 {
            return false;
        }
        let restarted = seen.epochs.is_some_and(|epochs| epochs.lowest > self.epoch)
            && condition.reached(seen.count) < self.fired_through;
        seen.clear > self.clear || seen.count <= 0 || restarted
    }

    /// Whether the rule has paused long enough. A clock that went back pauses nothing.
    fn may_fire(&self, spec: &RuleSpec, now: Timestamp) -> bool {
        self.last_claimed.is_none_or(|last| last > now || now.since(last) >= spec.pause())
    }
}

impl CrossingClaim {
    /// The metadata of its message: the pairs of the rule, and its crossings.
    pub fn metadata(&self, own: &Metadata) -> Metadata {
        let (through, from) = (self.through.to_string(), self.from.to_string());
        let crossings = [(CROSSING_KEY, through.as_str()), (CROSSED_FROM_KEY, from.as_str())];
        Metadata::new(own.pairs().chain(crossings)).expect("a checked rule has 2 pairs at most, with other keys")
    }
}
