//! Taking messages in, each once whatever is repeated.
//!
//! The order of checks is that of the promise to repeats: token, then deleted, blocked, quota, validity.

use crate::domain::limits::{
    ATTEMPTS_MAX, INVISIBILITY_MAX, LEASE_MAX, LEASE_MIN, MESSAGE_TTL_MAX, PAYLOAD_BYTES_MAX, TOKEN_AHEAD_MAX,
};
use crate::domain::queue::answers::{FirstAnswer, Keep};
use crate::domain::queue::command::{Full, Invalid, NewMessage, Refusal, Reply};
use crate::domain::queue::durable::KeptAnswer;
use crate::domain::queue::message::{Course, MaybeTime, Message, MessageKey, Routing};
use crate::domain::queue::pace::StepTime;
use crate::domain::queue::shard::Shard;
use crate::domain::queue::state::{Facts, State, Trigger, next};
use crate::domain::time::Timestamp;

impl Shard {
    pub(super) fn enqueue(&mut self, sent: Box<NewMessage>, at: StepTime) -> Result<Reply, Refusal> {
        let now = at.now;
        if let Some(first) = self.first_answer(&sent, at)? {
            if first.fingerprint != sent.fingerprint {
                return Err(Refusal::TokenReused);
            }
            return Ok(Reply::Enqueued { key: first.key, state: first.state, already_enqueued: true });
        }
        if self.deleted.is_some() {
            return Err(Refusal::Deleted);
        }
        if let Some(reason) = &self.enqueue_blocked {
            return Err(Refusal::EnqueueBlocked(reason.clone()));
        }
        self.check_quota(&sent)?;
        let message = self.message_of(&sent, now)?;
        let key = message.key;
        self.sequence = key.sequence;
        self.admit(message, now);
        let state = self.at(key.sequence).state;
        let message = self.messages.get_mut(key.sequence).expect("it was just taken in");
        (message.first_state, message.token_time) = (state, sent.token_time.into());
        if let Some(time) = sent.token_time {
            let (window, bytes_max) = (self.settings.dedupe_window, self.settings.dedupe_max_bytes);
            let answer = FirstAnswer { fingerprint: sent.fingerprint, key, state };
            let token = (sent.id, sent.routing);
            self.answers.put(key.sequence, time, Keep { now: at.earlier, window, bytes_max });
            self.changes.answers.push(KeptAnswer { token, time, answer });
        }
        Ok(Reply::Enqueued { key, state, already_enqueued: false })
    }

    /// What an earlier enqueue with this token was answered. A token with a time is judged by it alone; any other is
    /// known as long as its message.
    fn first_answer(&self, sent: &NewMessage, at: StepTime) -> Result<Option<FirstAnswer>, Refusal> {
        if let Some(time) = sent.token_time {
            if self.answers.may_have_forgotten(time, self.settings.dedupe_window, at.earlier) {
                return Err(Refusal::TokenExpired);
            }
            if let Some((_, first)) = self.answers.get(&sent.id, time) {
                return Ok(Some(*first));
            }
        }
        let living = self.names.find(&self.messages, &sent.id).map(FirstAnswer::of);
        // A repeat is known whatever the clocks say meanwhile.
        if living.is_none() && sent.token_time.is_some_and(|time| time > at.later + TOKEN_AHEAD_MAX) {
            return Err(Invalid::TokenTime.into());
        }
        Ok(living)
    }

    /// Whether this shard, another one of the same queue than the message goes to, has a message of its id or keeps the
    /// answer to its token: then it was sent with another shard key or exclusivity value, which is other content. Messages
    /// that go by their ids meet in one shard anyway, so a queue where all do is not searched. O(log n).
    pub fn has_taken(&self, sent: &NewMessage) -> bool {
        let differs = |routing: &Option<Routing>| routing.is_some() || sent.routing.is_some();
        let lives = || {
            let searched = sent.routing.is_some() || self.names.any_routed();
            let found = searched.then(|| self.names.find(&self.messages, &sent.id)).flatten();
            found.is_some_and(|message| differs(&message.routing))
        };
        let outlived = || {
            let kept = sent.token_time.and_then(|time| self.answers.get(&sent.id, time));
            kept.is_some_and(|(routing, _)| differs(routing))
        };
        lives() || outlived()
    }

    fn check_quota(&self, sent: &NewMessage) -> Result<(), Refusal> {
        let all = self.index.totals.all();
        let bytes = all.bytes.saturating_add(u64::from(sent.payload_bytes));
        let has_room = |time| self.answers.has_room(time, self.settings.dedupe_max_bytes);
        let checks = [
            (all.messages < self.settings.quota_messages, Full::Messages),
            (bytes <= self.settings.quota_bytes, Full::Bytes),
            (sent.token_time.is_none_or(has_room), Full::Answers),
        ];
        checks.into_iter().find(|(fits, _)| !fits).map_or(Ok(()), |(_, full)| Err(Refusal::Full(full)))
    }

    fn message_of(&self, sent: &NewMessage, now: Timestamp) -> Result<Message, Invalid> {
        if let Some(rule) = &self.settings.exclusivity {
            let value = sent.metadata.get(&rule.key);
            let routed = sent.routing.as_ref().map(Routing::as_str);
            if value.is_none() || value != routed {
                return Err(Invalid::ExclusivityValue);
            }
        }
        let priority = self.settings.priority(sent.priority, sent.class.as_deref(), &sent.metadata, now)?;
        let invisibility = sent.invisibility.unwrap_or(self.settings.default_invisibility);
        let attempts = sent.max_attempts.unwrap_or(self.settings.default_attempts);
        // 0 says never, also in a queue that has a TTL.
        let ttl = sent.ttl.or(self.settings.default_ttl).filter(|ttl| !ttl.is_zero());
        let (payload_max, metadata_max) = (self.settings.payload_max_bytes, self.settings.metadata_max_bytes);
        let checks = [
            (sent.payload_bytes <= PAYLOAD_BYTES_MAX, Invalid::Payload),
            (sent.payload_bytes <= payload_max, Invalid::PayloadOfQueue(payload_max)),
            (sent.metadata.bytes() <= metadata_max as usize, Invalid::MetadataOfQueue(metadata_max)),
            (invisibility <= INVISIBILITY_MAX, Invalid::Invisibility),
            ((1..=ATTEMPTS_MAX).contains(&attempts), Invalid::Attempts),
            (sent.lease_duration.is_none_or(|lease| (LEASE_MIN..=LEASE_MAX).contains(&lease)), Invalid::Lease),
            (ttl.is_none_or(|ttl| ttl <= MESSAGE_TTL_MAX), Invalid::Ttl),
        ];
        if let Some((_, invalid)) = checks.into_iter().find(|(fits, _)| !fits) {
            return Err(invalid);
        }
        let facts = Facts { waits: !invisibility.is_zero(), ..Facts::default() };
        let state = next(&facts, Trigger::Enqueue).flatten().expect("the table lets messages in");
        Ok(Message {
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
            ttl_at: ttl.map(|ttl| now + ttl).into(),
            token_time: MaybeTime::NONE,
            visible_at: now + invisibility,
            state,
            version: 1,
            first_state: State::Pending,
            course: Course { lease_duration: sent.lease_duration, ..Course::NONE }.into(),
        })
    }
}
