//! Enqueue: each message once, whatever is repeated.
//!
//! The order of checks is that of the promise to repeats: token, then deleted, blocked, quota, validity.

use crate::limits::{
    ATTEMPTS_MAX, INVISIBILITY_MAX, LEASE_MAX, LEASE_MIN, MESSAGE_TTL_MAX, PAYLOAD_BYTES_MAX, REUSED_ID_REPEATED_MAX,
    TOKEN_AHEAD_MAX,
};
use crate::queue::clock::StepTime;
use crate::queue::command::{NewMessage, Refusal, Reply, ShardCapacity};
use crate::queue::index::dedupe_index::DedupeLimits;
use crate::queue::index::id_index::Found;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::first_response::FirstResponse;
use crate::queue::messages::message::{
    CountedUnder, MessageExtras, MessageHead, MessageKey, MessageRef, OptionalTime, RoutingValue,
};
use crate::queue::messages::state_machine::{ApplicableRow, MessageState, TransitionInputs, Trigger, find_row};
use crate::queue::setup::settings::IdReuse;
use crate::queue::shard::Shard;
use crate::time::Timestamp;

/// The known state of an id when it is sent.
enum KnownId {
    /// It was enqueued, and this was the answer.
    Answered(FirstResponse),
    /// It may be that of a new message.
    Free {
        /// The message of the same id that is over, which goes then.
        over: Option<u64>,
    },
}

/// The enqueue of a message that may give its id away.
struct EarlierEnqueue {
    state: MessageState,
    token_time: Option<Timestamp>,
    fingerprint: u64,
    at: Timestamp,
}

impl EarlierEnqueue {
    fn of(message: &MessageHead) -> Self {
        Self {
            state: message.state,
            token_time: message.token_time.get(),
            fingerprint: message.fingerprint,
            at: message.enqueued_at,
        }
    }

    /// Whether its message is over and gives its id to this one. A repeat of it gets no new message. A repeat has the
    /// same time, or without a time the same content within a minute.
    fn frees_id(&self, sent: &NewMessage, now: Timestamp) -> bool {
        let is_repeat = match sent.token_time {
            Some(_) => self.token_time == sent.token_time,
            None => self.fingerprint == sent.fingerprint && now < self.at + REUSED_ID_REPEATED_MAX,
        };
        matches!(self.state, MessageState::Completed | MessageState::Canceled) && !is_repeat
    }
}

impl Shard {
    pub(super) fn enqueue(&mut self, sent: Box<NewMessage>, at: StepTime) -> Result<Reply, Refusal> {
        let now = at.now;
        let over = match self.known_id(&sent, at)? {
            KnownId::Answered(first) if first.fingerprint != sent.fingerprint => return Err(Refusal::TokenReused),
            KnownId::Answered(first) => {
                let state = self.present_state(first, now);
                return Ok(Reply::Enqueued { key: first.key, state, already_enqueued: true });
            }
            KnownId::Free { over } => over,
        };
        if self.deleted.is_some() {
            return Err(Refusal::Deleted);
        }
        if let Some(reason) = &self.enqueue_blocked {
            return Err(Refusal::EnqueueBlocked(reason.clone()));
        }
        self.check_quota(&sent, over)?;
        let (mut message, row) = self.message_of(&sent, now)?;
        if let Some(over) = over {
            self.remove_message(over, Trigger::RetentionOver, now)?;
        }
        let (key, state) = (message.key, message.state);
        (message.first_state, message.token_time) = (state, sent.token_time.into());
        let values_max = self.settings.count_by_values_max as usize;
        message.counted = self.tally.admit(&self.settings.count_by, &sent.metadata, values_max);
        self.sequence = key.sequence;
        self.insert_new(message, row, now);
        if let Some(time) = sent.token_time {
            let (window, bytes_max) = (self.settings.dedupe_window, self.settings.dedupe_max_bytes);
            self.dedupe.put(key.sequence, time, DedupeLimits { now: at.token_age_clock, window, bytes_max });
        }
        Ok(Reply::Enqueued { key, state, already_enqueued: false })
    }

    /// The state for the repeat of an enqueue: that of its message now, or after it is gone the first one.
    fn present_state(&mut self, first: FirstResponse, now: Timestamp) -> MessageState {
        if let Some(stub) = self.messages.stub(first.key.sequence).filter(|stub| stub.key == first.key) {
            return stub.state;
        }
        match self.find(&MessageRef::Key(first.key), now) {
            Ok(sequence) => self.message_at(sequence).state,
            Err(_) => first.state, // its retention is over, or its queue was deleted
        }
    }

    /// Finds out what is known of the id, and what an earlier enqueue with this token was answered. A token with a time
    /// is judged by it alone; any other is known as long as its message, unless ids may come again before.
    fn known_id(&mut self, sent: &NewMessage, at: StepTime) -> Result<KnownId, Refusal> {
        if let Some(time) = sent.token_time {
            if self.dedupe.may_be_dropped(time, self.settings.dedupe_window, at.token_age_clock) {
                return Err(Refusal::TokenExpired);
            }
            if let Some(first) = self.dedupe.get(time, || self.id_index.key().hash(&sent.id)) {
                return Ok(KnownId::Answered(first.answer));
            }
        }
        let living = self.id_index.find(&self.messages, &sent.id).map(|found| match found {
            Found::Head(head) => (head.key.sequence, FirstResponse::of(head)),
            Found::Stub(stub) => (stub.key.sequence, stub.first_response()),
        });
        let over = living.map(|(sequence, _)| sequence).filter(|sequence| self.frees_id(*sequence, sent, at.now));
        if let (Some((_, first)), None) = (living, over) {
            return Ok(KnownId::Answered(first));
        }
        // A repeat is known whatever the clocks say meanwhile.
        if sent.token_time.is_some_and(|time| time > at.token_ahead_clock + TOKEN_AHEAD_MAX) {
            return Err(InvalidCommandPart::TokenTime.into());
        }
        Ok(KnownId::Free { over })
    }

    /// Whether a message is over and gives its id to this one.
    fn frees_id(&mut self, sequence: u64, sent: &NewMessage, now: Timestamp) -> bool {
        if self.settings.reuse_ids == IdReuse::AfterWindow {
            return false;
        }
        self.apply_due_to(sequence, now);
        EarlierEnqueue::of(self.message_at(sequence)).frees_id(sent, now)
    }

    /// Whether an enqueue would be taken as a new message, and neither be refused nor answered as a repeat. Changes
    /// nothing, so it is not exact where an id is given away: one that comes again without a time within a minute of
    /// the end of its message, with the same content, counts as a repeat. O(log n).
    pub fn would_add(&self, sent: &NewMessage, at: StepTime) -> bool {
        let window = self.settings.dedupe_window;
        let is_expired = |time| self.dedupe.may_be_dropped(time, window, at.token_age_clock);
        let is_refused = self.deleted.is_some()
            || self.enqueue_blocked.is_some()
            || sent.token_time.is_some_and(is_expired)
            || self.check_quota(sent, None).is_err()
            || self.message_of(sent, at.now).is_err();
        !is_refused && !self.has_answer_for(sent, at.now)
    }

    fn has_answer_for(&self, sent: &NewMessage, now: Timestamp) -> bool {
        let earlier = self.id_index.find(&self.messages, &sent.id).map(|found| match found {
            Found::Head(head) => EarlierEnqueue::of(head),
            Found::Stub(stub) => EarlierEnqueue {
                state: stub.state,
                token_time: stub.token_time,
                fingerprint: stub.fingerprint,
                // Only the store knows when it was enqueued: before its end.
                at: stub.delete_at - self.settings.retention.of(stub.state).unwrap_or_default(),
            },
        });
        let keeps_id = self.settings.reuse_ids == IdReuse::AfterWindow;
        let is_taken = earlier.is_some_and(|earlier| keeps_id || !earlier.frees_id(sent, now));
        let hash = || self.id_index.key().hash(&sent.id);
        is_taken || sent.token_time.is_some_and(|time| self.dedupe.get(time, hash).is_some())
    }

    /// Whether this shard, another one of the same queue than the message goes to, has a message of its id or keeps the
    /// answer to its token: then it was sent with another shard key or exclusivity value, which is other content.
    /// Messages that go by their ids meet in one shard anyway, so a queue where all do is not searched. O(log n).
    pub fn has_enqueued(&self, sent: &NewMessage) -> bool {
        let differs = |is_routed: bool| is_routed || sent.routing.is_some();
        let lives = || {
            let searched = sent.routing.is_some() || self.id_index.any_routed();
            let found = searched.then(|| self.id_index.find(&self.messages, &sent.id)).flatten();
            found.is_some_and(|message| differs(message.is_routed()))
        };
        let outlived = || {
            let hash = || self.id_index.key().hash(&sent.id);
            let kept = sent.token_time.and_then(|time| self.dedupe.get(time, hash));
            kept.is_some_and(|kept| differs(kept.is_routed))
        };
        lives() || outlived()
    }

    /// Whether there is room for a message, in place of one that is over.
    fn check_quota(&self, sent: &NewMessage, over: Option<u64>) -> Result<(), Refusal> {
        let mut all = self.index.totals.all();
        if let Some(over) = over.map(|sequence| self.message_at(sequence)) {
            all.messages -= 1;
            all.bytes -= u64::from(over.payload_bytes);
        }
        let bytes = all.bytes.saturating_add(u64::from(sent.payload_bytes));
        let has_room = |time| self.dedupe.has_room(time, self.settings.dedupe_max_bytes);
        let checks = [
            (all.messages < self.settings.quota_messages, ShardCapacity::Messages),
            (bytes <= self.settings.quota_bytes, ShardCapacity::Bytes),
            (sent.token_time.is_none_or(has_room), ShardCapacity::Answers),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map_or(Ok(()), |(_, full)| Err(Refusal::Full(full)))
    }

    /// The new message, and the row that lets it in.
    fn message_of(
        &self,
        sent: &NewMessage,
        now: Timestamp,
    ) -> Result<(MessageHead, ApplicableRow), InvalidCommandPart> {
        if let Some(rule) = &self.settings.exclusivity {
            let value = sent.metadata.get(&rule.key);
            let routed = sent.routing.as_ref().map(RoutingValue::as_str);
            if value.is_none() || value != routed {
                return Err(InvalidCommandPart::ExclusivityValue);
            }
        }
        let told = sent.visible_at.map(|at| at.since(now)).or(sent.invisibility);
        let invisibility = told.unwrap_or(self.settings.default_invisibility);
        let visible_at = now + invisibility.min(INVISIBILITY_MAX); // a longer one is refused below
        let class = sent.class.as_deref();
        let priority = self.settings.priority(sent.priority, class, &sent.metadata, visible_at)?;
        let attempts = sent.max_attempts.unwrap_or(self.settings.default_attempts);
        // 0 says never, also in a queue that has a TTL.
        let ttl = sent.ttl.or(self.settings.default_ttl).filter(|ttl| !ttl.is_zero());
        let (payload_max, metadata_max) = (self.settings.payload_max_bytes, self.settings.metadata_max_bytes);
        let checks = [
            (sent.payload_bytes <= PAYLOAD_BYTES_MAX, InvalidCommandPart::Payload),
            (sent.payload_bytes <= payload_max, InvalidCommandPart::PayloadOfQueue(payload_max)),
            (sent.metadata.bytes() <= metadata_max as usize, InvalidCommandPart::MetadataOfQueue(metadata_max)),
            (sent.visible_at.is_some() || invisibility <= INVISIBILITY_MAX, InvalidCommandPart::Invisibility),
            ((1..=ATTEMPTS_MAX).contains(&attempts), InvalidCommandPart::Attempts),
            (
                sent.lease_duration.is_none_or(|lease| (LEASE_MIN..=LEASE_MAX).contains(&lease)),
                InvalidCommandPart::Lease,
            ),
            (ttl.is_none_or(|ttl| ttl <= MESSAGE_TTL_MAX), InvalidCommandPart::Ttl),
            (invisibility <= INVISIBILITY_MAX, InvalidCommandPart::Invisibility),
        ];
        if let Some((_, invalid)) = checks.into_iter().find(|(fits, _)| !fits) {
            return Err(invalid);
        }
        let facts = TransitionInputs { delayed: !invisibility.is_zero(), ..TransitionInputs::default() };
        let row = find_row(&facts, Trigger::Enqueue).expect("the table lets messages in");
        let state = row.to.expect("an enqueue leads to a state");
        let message = MessageHead {
            key: MessageKey { shard: self.number, epoch: self.epoch, sequence: self.sequence + 1 },
            id: sent.id.clone(),
            routing: sent.routing.clone(),
            metadata: sent.metadata.clone(),
            payload_bytes: sent.payload_bytes,
            fingerprint: sent.fingerprint,
            priority,
            max_attempts: attempts,
            attempts_left: attempts,
            enqueued_at: now,
            ttl_at: ttl.map(|ttl| visible_at + ttl).into(),
            token_time: OptionalTime::NONE,
            visible_at,
            state,
            version: 1,
            first_state: state,
            counted: CountedUnder::default(),
            extras: MessageExtras { lease_duration: sent.lease_duration, ..MessageExtras::NONE }.into(),
        };
        Ok((message, row))
    }
}
