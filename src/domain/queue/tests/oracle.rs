//! A naive shard: one list, scanned for everything, without index, table or stored promotion.
//!
//! It implements the prose of the rules. Where it differs from the shard, one of them is wrong.

use std::time::Duration;

use crate::limits::{DEDUPE_BUCKET, DEDUPE_RECORD_BYTES, REUSED_ID_REPEATED_MAX, TOKEN_AHEAD_MAX};
use crate::queue::clock::StepTime;
use crate::queue::command::{
    Command, Completeness, Dequeue, FailureReport, LeaseGrant, NewMessage, Refusal, Reply, ShardCapacity,
};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{Fence, LeaseSession, LeaseToken, MessageKey, MessageRef, RoutingValue};
use crate::queue::messages::message_id::MessageId;
use crate::queue::messages::settlement::{SettleAction, Settlement, UpdateToken};
use crate::queue::messages::state_machine::{MessageState, Trigger};
use crate::queue::setup::settings::{Exclusivity, IdReuse, Settings, ShardSettings};
use crate::queue::transition::{Transition, TransitionDetail};
use crate::time::Timestamp;

use super::calls::Known;
use super::walks::Round;
use MessageState::{Canceled, Completed, Errored, Invisible, Pending, Running};

/// One message of the list.
#[derive(Clone, Debug)]
pub struct Item {
    pub sent: NewMessage,
    pub sequence: u64,
    pub enqueued_at: Timestamp,
    pub state: MessageState,
    pub version: u64,
    pub priority: i64,
    pub noted_priority: i64,
    pub tries: u32,
    pub tries_max: u32,
    pub releases: u32,
    pub visible_at: Timestamp,
    pub ttl_at: Option<Timestamp>,
    pub terminal_since: Timestamp,
    delete_at: Timestamp,
    pub serial: u64,
    pub leased_at: Timestamp,
    pub expires: Timestamp,
    pub cancel_requested: bool,
    pub session: Option<LeaseSession>,
    pub lapsed: bool,
    pub settled: Option<(u64, SettleAction, Settlement)>,
    pub updates: Vec<(UpdateToken, Settlement)>,
    pub first_state: MessageState,
    pub error_signature: Option<Box<str>>,
}

/// A kept reply: id, routing, time and fingerprint of the request, and the replied key and state.
type Kept = (MessageId, Option<RoutingValue>, Timestamp, u64, MessageKey, MessageState);

/// The list and the other state of the rules.
pub struct Oracle {
    pub settings: Settings,
    pub items: Vec<Item>,
    kept: Vec<Kept>,
    floor: Timestamp,
    clock: Timestamp,
    sequence: u64,
    serial: u64,
    /// The version of settings and blocks.
    pub version: u64,
    pub blocked: [Option<Box<str>>; 2],
    deleted: Option<u64>,
    /// For each declared shape, up to which sequence it is filled; none once it has every message.
    pub filled: Vec<Option<u64>>,
    /// Since the retention was shortened: up to which sequence it is applied.
    pub(super) shortened: Option<u64>,
    pub(super) moved_at: Timestamp,
    pub sessions: Vec<Known>,
    /// Whether a command made a write without a record.
    pub wrote: bool,
    limits: Vec<(RoutingValue, u32)>,
    pub(super) out: Vec<Transition>,
}

impl Oracle {
    pub fn new(settings: Settings) -> Self {
        Self {
            items: Vec::new(),
            kept: Vec::new(),
            floor: Timestamp::MIN,
            clock: Timestamp::MIN,
            sequence: 0,
            serial: 0,
            version: 0,
            blocked: [None, None],
            deleted: None,
            filled: vec![None; settings.shapes.len()],
            shortened: None,
            moved_at: Timestamp::MIN,
            sessions: Vec::new(),
            wrote: false,
            limits: Vec::new(),
            settings,
            out: Vec::new(),
        }
    }

    pub fn key(sequence: u64) -> MessageKey {
        MessageKey { shard: 0, epoch: 1, sequence }
    }

    /// Applies a command within its ranges; only the shard checks ranges.
    pub fn apply(&mut self, command: Command, at: StepTime) -> (Result<Reply, Refusal>, Vec<Transition>) {
        let now = at.now.max(self.clock);
        let reply = match command {
            Command::Enqueue(sent) => self.enqueue(*sent, at, now),
            Command::Delete => {
                let messages = *self.deleted.get_or_insert(self.items.len() as u64);
                self.items.clear();
                self.sessions.clear();
                self.shortened = None;
                Ok(Reply::Deleted { messages })
            }
            _ if self.deleted.is_some() => Err(Refusal::Deleted), // all other commands on a deleted queue
            Command::Dequeue(asked) => self.dequeue(&asked, now),
            Command::Settle { token, verb, failure } => self.settle(token, verb, &failure, now),
            Command::Extend { token, lease } => self.extend(token, lease, now),
            Command::CancelMessage { message, .. } => self.cancel(&message, now),
            Command::Recall(call) => self.replay(&call, now).map(|again| again.unwrap_or(Reply::Unanswered)),
            Command::Heartbeat { session, received_up_to } => self.heartbeat(session, received_up_to, now),
            Command::EndSession { session, ending, max } => Ok(self.end_session(session, ending, max, now)),
            Command::Update { message, update } => self.update(&message, &update, now),
            Command::Redrive { message } => {
                self.find(&message, now).and_then(|at| self.redrive(at, now).map(|()| self.settlement(at)))
            }
            Command::RedriveAll(bulk) => self.bulk(&[Errored], &bulk, now, Self::redrive),
            Command::Discard { message } => self
                .find(&message, now)
                .and_then(|at| self.discard(at, now).map(|()| Reply::Walked { count: 1, next: None })),
            Command::DiscardAll(bulk) => self.bulk(&[Errored], &bulk, now, Self::discard),
            Command::CancelAll { bulk, .. } => {
                self.bulk(&[Invisible, Pending, Running], &bulk, now, |oracle, at, now| {
                    oracle.cancel_item(at, now).expect("what is not over can be canceled");
                    Ok(())
                })
            }
            Command::Purge(bulk) => {
                let states: Vec<_> = bulk.states.iter().collect();
                self.bulk(&states, &bulk, now, |oracle, at, now| {
                    match oracle.items[at].state {
                        Completed | Canceled => oracle.gone(at, Trigger::Purge, now),
                        _ => oracle.set(at, Trigger::Purge, Canceled, now),
                    }
                    Ok(())
                })
            }
            Command::Configure(new) if new.version <= self.version => Ok(Reply::Configured),
            Command::Configure(new) => self.configure(*new, at),
            Command::SetValueLimit { value, limit } => self.set_limit(value, limit),
            Command::Sweep { max } => Ok(self.sweep(max, now)),
        };
        if std::mem::take(&mut self.wrote) || !self.out.is_empty() {
            self.clock = now;
        }
        (reply, std::mem::take(&mut self.out))
    }

    fn configure(&mut self, new: ShardSettings, at: StepTime) -> Result<Reply, Refusal> {
        let ShardSettings { version, settings, enqueue_blocked, dequeue_blocked } = new;
        let fixed = |rule: &Exclusivity| (rule.key.clone(), rule.strict_order_per_value);
        let [old, new] = [&self.settings, &settings].map(|settings| settings.exclusivity.as_ref().map(fixed));
        if old != new && !self.items.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        if old != new {
            self.limits.clear();
        }
        self.floor = self.floor.max(at.token_age_clock - self.settings.dedupe_window);
        self.kept.retain(|kept| kept.2 >= self.floor);
        let unfilled = (!self.items.is_empty()).then_some(0);
        let known = |keys| self.settings.shapes.iter().position(|known| known == keys && old == new);
        let filled = settings.shapes.iter().map(|keys| known(keys).map_or(unfilled, |at| self.filled[at]));
        self.filled = filled.collect();
        let kept = |settings: &Settings| [Completed, Canceled, Errored].map(|state| settings.retention.of(state));
        if kept(&settings).iter().zip(kept(&self.settings)).any(|(new, old)| *new < old) {
            self.shortened = self.items.iter().any(|item| item.state.is_terminal()).then_some(0);
        }
        (self.settings, self.version) = (settings, version);
        self.blocked = [enqueue_blocked, dequeue_blocked];
        Ok(Reply::Configured)
    }

    /// The time and the trigger of a message's next timer.
    fn event(&self, item: &Item) -> Option<(Timestamp, Trigger)> {
        match item.state {
            Invisible | Pending => {
                let window = (item.state == Invisible).then_some((item.visible_at, Trigger::WindowOver));
                let ttl = item.ttl_at.map(|at| (at, Trigger::TtlOver));
                ttl.into_iter().chain(window).min_by_key(|(at, _)| *at)
            }
            Running => {
                let own = (item.expires, Trigger::LeaseOver);
                let ends = self.end_of(item).filter(|(ends, _)| *ends < item.expires);
                Some(ends.unwrap_or(own))
            }
            Completed | Canceled | Errored => Some((item.delete_at, Trigger::RetentionOver)),
        }
    }

    /// The earliest time at which the oracle changes without a command.
    pub fn next_event(&self) -> Option<Timestamp> {
        let forgotten = self.first_forgotten().map(|(at, _)| at);
        self.items.iter().filter_map(|item| self.event(item)).map(|(at, _)| at).chain(forgotten).min()
    }

    /// Records whether a newly pending message moved ahead of others.
    fn note(&mut self, at: usize, was_pending: bool, now: Timestamp) {
        let item = &self.items[at];
        let exclusive = self.settings.exclusivity.is_some();
        let rank = (item.priority, item.sequence);
        let others =
            self.items.iter().filter(|other| other.state == Pending && other.sent.routing == item.sent.routing);
        let before_others = exclusive && others.map(|other| (other.priority, other.sequence)).any(|other| rank < other);
        let moved_up = was_pending && item.priority < item.noted_priority;
        if item.state == Pending && (before_others || moved_up) {
            self.moved_at = now;
        }
        self.items[at].noted_priority = self.items[at].priority;
    }

    pub(super) fn set(&mut self, at: usize, trigger: Trigger, to: MessageState, now: Timestamp) {
        let was_pending = self.items[at].state == Pending;
        let item = &mut self.items[at];
        let from = Some(item.state);
        item.state = to;
        item.version += 1;
        item.terminal_since = now;
        item.delete_at = now + self.settings.retention.of(to).unwrap_or_default();
        if to == Pending && trigger != Trigger::Update {
            item.visible_at = now;
        }
        let (key, version) = (Self::key(item.sequence), item.version);
        self.out.push(Transition {
            key,
            version,
            trigger,
            from,
            to: Some(to),
            at: now,
            detail: TransitionDetail::default(),
        });
        self.note(at, was_pending, now);
        if to != Running
            && let Some(session) = self.items[at].session.take()
        {
            self.rest(session.id, now);
        }
    }

    fn lease_over(&mut self, at: usize, now: Timestamp) {
        let item = &mut self.items[at];
        item.lapsed = true;
        let to = match (item.cancel_requested, item.tries < item.tries_max) {
            (true, _) => Canceled,
            (false, true) => Pending,
            (false, false) => Errored,
        };
        self.set(at, Trigger::LeaseOver, to, now);
    }

    pub(super) fn by_time(&mut self, at: usize, now: Timestamp) -> bool {
        let Some((due, trigger)) = self.event(&self.items[at]) else { return false };
        if due > now || trigger == Trigger::RetentionOver {
            return false;
        }
        if let Some(session) = self.items[at].session {
            self.expire(session.id, now);
        }
        match trigger {
            Trigger::LeaseOver => self.lease_over(at, now),
            Trigger::Release => self.release(at, now),
            Trigger::TtlOver => self.set(at, trigger, Canceled, now),
            _ => self.set(at, trigger, Pending, now), // the only other timer is the end of an invisibility
        }
        true
    }

    pub(super) fn catch_up(&mut self, at: usize, now: Timestamp) {
        while self.by_time(at, now) {}
    }

    /// The message with the earliest due timer, among terminal or other messages.
    fn overdue(&self, terminal: bool, now: Timestamp) -> Option<usize> {
        let of_kind = (0..self.items.len()).filter(|at| self.items[*at].state.is_terminal() == terminal);
        let due = of_kind.filter_map(|at| Some((self.event(&self.items[at])?.0, self.items[at].sequence, at)));
        due.min().filter(|(due, ..)| *due <= now).map(|(.., at)| at)
    }

    fn promote(&mut self, max: usize, now: Timestamp) -> usize {
        let mut count = 0;
        while count < max
            && let Some(at) = self.overdue(false, now)
        {
            self.by_time(at, now);
            count += 1;
        }
        count
    }

    fn sweep(&mut self, max: usize, now: Timestamp) -> Reply {
        let mut count = self.promote(max, now);
        while let Some(through) = self.shortened {
            let mut left = self.items.iter_mut().filter(|item| item.state.is_terminal() && item.sequence > through);
            match left.next() {
                Some(_) if count == max => break,
                Some(item) => {
                    let kept = self.settings.retention.of(item.state).unwrap_or_default();
                    item.delete_at = item.delete_at.min(item.terminal_since + kept);
                    (self.shortened, count) = (Some(item.sequence), count + 1);
                }
                None => self.shortened = None,
            }
        }
        while count < max
            && let Some(at) = self.overdue(true, now)
        {
            self.gone(at, Trigger::RetentionOver, now);
            count += 1;
        }
        while count < max
            && let Some((at, id)) = self.first_forgotten()
            && at <= now
        {
            self.sessions.retain(|known| known.id != id);
            self.wrote = true;
            count += 1;
        }
        while let Some(shape) = self.filled.iter().position(Option::is_some) {
            match self.items.iter().find(|item| Some(item.sequence) > self.filled[shape]) {
                Some(_) if count == max => break,
                Some(item) => (self.filled[shape], count) = (Some(item.sequence), count + 1),
                None => self.filled[shape] = None,
            }
        }
        let unfilled = self.filled.iter().any(Option::is_some) || self.shortened.is_some();
        touched(count, unfilled || self.next_event().is_some_and(|at| at <= now))
    }

    /// Whether there is room for a message, in place of one that is over.
    fn check_room(&self, sent: &NewMessage, over: Option<u64>) -> Result<(), Refusal> {
        let others = || self.items.iter().filter(|item| Some(item.sequence) != over);
        let bytes: u64 = others().map(|item| u64::from(item.sent.payload_bytes)).sum();
        if others().count() as u64 >= self.settings.quota_messages {
            return Err(Refusal::Full(ShardCapacity::Messages));
        }
        if bytes + u64::from(sent.payload_bytes) > self.settings.quota_bytes {
            return Err(Refusal::Full(ShardCapacity::Bytes));
        }
        Ok(())
    }

    /// The message of the same id that is over and gives it to this one.
    fn gives_way(&mut self, sent: &NewMessage, now: Timestamp) -> Option<u64> {
        let at = self.items.iter().position(|item| item.sent.id == sent.id)?;
        if self.settings.reuse_ids == IdReuse::AfterWindow {
            return None;
        }
        self.catch_up(at, now);
        let item = &self.items[at];
        let young = now < item.enqueued_at + REUSED_ID_REPEATED_MAX;
        let same_call = match sent.token_time {
            Some(time) => item.sent.token_time == Some(time),
            None => young && item.sent.fingerprint == sent.fingerprint,
        };
        (matches!(item.state, Completed | Canceled) && !same_call).then_some(item.sequence)
    }

    fn enqueue(&mut self, sent: NewMessage, at: StepTime, now: Timestamp) -> Result<Reply, Refusal> {
        let mut first = None;
        if let Some(time) = sent.token_time {
            if time < at.token_age_clock - self.settings.dedupe_window || time < self.floor {
                return Err(Refusal::TokenExpired);
            }
            let kept = self.kept.iter().find(|(id, _, at, ..)| *id == sent.id && *at == time);
            first = kept.map(|(_, _, _, fingerprint, key, state)| (*fingerprint, *key, *state));
        }
        let is_there = |key: MessageKey| self.items.iter().any(|item| Self::key(item.sequence) == key);
        let outlived = first.is_some_and(|(_, key, _)| !is_there(key));
        let over = if outlived { None } else { self.gives_way(&sent, now) };
        let living = self.items.iter().find(|item| item.sent.id == sent.id && Some(item.sequence) != over);
        let first =
            first.or_else(|| living.map(|item| (item.sent.fingerprint, Self::key(item.sequence), item.first_state)));
        match first {
            Some((fingerprint, ..)) if fingerprint != sent.fingerprint => return Err(Refusal::TokenReused),
            Some((_, key, first_state)) => {
                let present = self.find(&MessageRef::Key(key), now).map(|at| self.items[at].state);
                let state = present.unwrap_or(first_state);
                return Ok(Reply::Enqueued { key, state, already_enqueued: true });
            }
            None if sent
                .token_time
                .is_some_and(|time| time > at.no_earlier_than(now).token_ahead_clock + TOKEN_AHEAD_MAX) =>
            {
                return Err(Refusal::Invalid(InvalidCommandPart::TokenTime));
            }
            None => {}
        }
        if self.deleted.is_some() {
            return Err(Refusal::Deleted);
        }
        if let Some(reason) = self.blocked[0].clone() {
            return Err(Refusal::EnqueueBlocked(reason));
        }
        let bucket = |time: Timestamp| time.floor_to(DEDUPE_BUCKET);
        let most = self.settings.dedupe_max_bytes / DEDUPE_RECORD_BYTES;
        let no_room = sent
            .token_time
            .is_some_and(|time| self.kept.len() >= most && !self.kept.iter().any(|kept| bucket(kept.2) < bucket(time)));
        self.check_room(&sent, over)?;
        if no_room {
            return Err(Refusal::Full(ShardCapacity::Answers));
        }
        if let Some(rule) = &self.settings.exclusivity
            && (sent.metadata.get(&rule.key).is_none()
                || sent.metadata.get(&rule.key) != sent.routing.as_ref().map(RoutingValue::as_str))
        {
            return Err(Refusal::Invalid(InvalidCommandPart::ExclusivityValue));
        }
        if let Some(at) = over.and_then(|over| self.items.iter().position(|item| item.sequence == over)) {
            self.gone(at, Trigger::RetentionOver, now);
        }
        let state = self.append(&sent, now);
        let key = Self::key(self.sequence);
        if let Some(time) = sent.token_time {
            while let Some(oldest) = self.kept.iter().map(|kept| bucket(kept.2)).min()
                && (oldest + DEDUPE_BUCKET <= at.token_age_clock - self.settings.dedupe_window
                    || self.kept.len() >= most && oldest < bucket(time))
            {
                self.kept.retain(|kept| bucket(kept.2) != oldest);
                self.floor = self.floor.max(oldest + DEDUPE_BUCKET);
            }
            self.kept.push((sent.id, sent.routing, time, sent.fingerprint, key, state));
        }
        Ok(Reply::Enqueued { key, state, already_enqueued: false })
    }

    fn append(&mut self, sent: &NewMessage, now: Timestamp) -> MessageState {
        self.sequence += 1;
        let window = match sent.visible_at {
            Some(at) => at.since(now),
            None => sent.invisibility.unwrap_or(self.settings.default_invisibility),
        };
        let state = if window > Duration::ZERO { Invisible } else { Pending };
        let ttl = sent.ttl.or(self.settings.default_ttl).filter(|ttl| !ttl.is_zero());
        let priority = sent.priority.unwrap_or((now + window).millis());
        self.items.push(Item {
            sequence: self.sequence,
            enqueued_at: now,
            state,
            version: 1,
            priority,
            noted_priority: priority,
            tries: 0,
            tries_max: sent.max_attempts.unwrap_or(self.settings.default_attempts),
            releases: 0,
            visible_at: now + window,
            ttl_at: ttl.map(|ttl| now + window + ttl),
            terminal_since: now,
            delete_at: Timestamp::MAX,
            serial: 0,
            leased_at: now,
            expires: now,
            cancel_requested: false,
            session: None,
            lapsed: false,
            settled: None,
            updates: Vec::new(),
            first_state: state,
            error_signature: None,
            sent: sent.clone(),
        });
        let key = Self::key(self.sequence);
        let record = Transition {
            key,
            version: 1,
            trigger: Trigger::Enqueue,
            from: None,
            to: Some(state),
            at: now,
            detail: TransitionDetail::default(),
        };
        self.out.push(record);
        let at = self.items.len() - 1;
        self.note(at, false, now);
        self.catch_up(at, now);
        self.items[at].first_state = self.items[at].state;
        self.items[at].state
    }

    fn dequeue(&mut self, asked: &Dequeue, now: Timestamp) -> Result<Reply, Refusal> {
        let Dequeue { max, lease, message, .. } = asked;
        let max = *max;
        if let Some(call) = &asked.session
            && let Some(again) = self.replay(call, now)?
        {
            return Ok(again);
        }
        if let Some(reason) = self.blocked[1].clone() {
            return Err(Refusal::DequeueBlocked(reason));
        }
        if let Some(message) = message {
            let at = self.find(message, now)?;
            if self.items[at].state != Pending {
                return Err(Refusal::WrongState(self.items[at].state));
            }
            if !self.may_serve(&self.items[at]) {
                return Err(Refusal::ValueHeld);
            }
            let leases = vec![self.lease(at, *lease, session_of(asked), now)];
            asked.session.inspect(|call| self.record(call, now));
            return Ok(Reply::Leases { leases, completeness: Completeness::Complete, cursor: None });
        }
        let mut round = Round {
            max,
            lease: *lease,
            session: session_of(asked),
            due_left: (2 * max).max(16),
            leases: Vec::new(),
            stopped: false,
        };
        round.due_left -= self.promote(round.due_left, now);
        let cursor = self.choose(asked, &mut round, now);
        asked.session.filter(|_| !round.leases.is_empty()).inspect(|call| self.record(call, now));
        let short = round.leases.len() < max && (round.stopped || self.overdue(false, now).is_some());
        let completeness = match cursor {
            Some(_) => Completeness::Partial,
            None if short => Completeness::More,
            None => Completeness::Complete,
        };
        Ok(Reply::Leases { leases: round.leases, completeness, cursor })
    }

    pub(super) fn lease(
        &mut self,
        at: usize,
        lease: Option<Duration>,
        session: Option<LeaseSession>,
        now: Timestamp,
    ) -> LeaseGrant {
        self.serial += 1;
        let wish = lease.or(self.items[at].sent.lease_duration).unwrap_or(self.settings.default_lease);
        let expires_in = wish.min(self.settings.max_run_time);
        let item = &mut self.items[at];
        (item.serial, item.leased_at, item.expires) = (self.serial, now, now + expires_in);
        (item.cancel_requested, item.lapsed, item.session) = (false, false, session);
        item.tries += 1;
        item.ttl_at = None;
        let fence = Fence { epoch: 1, serial: self.serial };
        let token = LeaseToken { key: Self::key(item.sequence), fence };
        let attempt_number = item.tries;
        self.set(at, Trigger::Dequeue, Running, now);
        LeaseGrant { token, attempt_number, expires_in }
    }

    /// Whether the message's value does not hold it back.
    pub(super) fn may_serve(&self, item: &Item) -> bool {
        let Some(rule) = &self.settings.exclusivity else { return true };
        let own = self.limits.iter().find(|(value, _)| Some(value) == item.sent.routing.as_ref());
        let limit = own.map_or(rule.max_in_flight_per_value, |(_, limit)| *limit);
        let others = || self.items.iter().filter(|other| other.sent.routing == item.sent.routing);
        let in_flight = others().filter(|other| other.state == Running).count();
        let earlier = |other: &Item| (other.priority, other.sequence) < (item.priority, item.sequence);
        let waits = others().any(|other| matches!(other.state, Running | Invisible) && earlier(other));
        in_flight < limit as usize && !(rule.strict_order_per_value && waits)
    }

    fn set_limit(&mut self, value: RoutingValue, limit: Option<u32>) -> Result<Reply, Refusal> {
        if self.settings.exclusivity.is_none() {
            return Err(Refusal::Invalid(InvalidCommandPart::NotExclusive));
        }
        self.limits.retain(|(known, _)| *known != value);
        self.limits.extend(limit.map(|limit| (value, limit)));
        Ok(Reply::ValueLimitSet)
    }

    /// The position of a token's message, and whether the token's lease is valid.
    fn held(&mut self, token: LeaseToken, now: Timestamp) -> Option<(usize, bool)> {
        let at = self.items.iter().position(|item| Self::key(item.sequence) == token.key)?;
        let item = &self.items[at];
        let own = Fence { epoch: 1, serial: item.serial } == token.fence;
        if own && (item.state == Running || item.lapsed) {
            self.catch_up(at, now);
        }
        Some((at, own && self.items[at].state == Running))
    }

    fn extend(&mut self, token: LeaseToken, lease: Duration, now: Timestamp) -> Result<Reply, Refusal> {
        let Some((at, true)) = self.held(token, now) else { return Err(Refusal::LeaseLost) };
        let item = &mut self.items[at];
        let cancel_requested = item.cancel_requested;
        let expires = (now + lease).min(item.leased_at + self.settings.max_run_time);
        if expires <= now {
            self.lease_over(at, now);
            self.catch_up(at, now);
        } else {
            item.expires = expires;
            self.set(at, Trigger::Extend, Running, now);
        }
        let expires = self.event(&self.items[at]).filter(|_| expires > now).map_or(expires, |(at, _)| at);
        Ok(Reply::Extended { expires_in: expires.since(now), cancel_requested })
    }

    fn settle(
        &mut self,
        token: LeaseToken,
        verb: SettleAction,
        failure: &FailureReport,
        now: Timestamp,
    ) -> Result<Reply, Refusal> {
        let settled = self.items.iter().find(|item| Self::key(item.sequence) == token.key);
        if let Some((serial, known, answer)) = settled.and_then(|item| item.settled)
            && (Fence { epoch: 1, serial }, known) == (token.fence, verb)
        {
            return Ok(Reply::Settled(answer));
        }
        let Some((at, holds)) = self.held(token, now) else { return Err(Refusal::LeaseLost) };
        let item = &self.items[at];
        let own = Fence { epoch: 1, serial: item.serial } == token.fence;
        let late = own && item.lapsed && matches!(item.state, Invisible | Pending | Errored);
        match verb {
            SettleAction::Complete if holds => self.set(at, Trigger::Complete, Completed, now),
            // A canceled message remembers its expired lease and returns its state.
            SettleAction::Complete if own && item.lapsed && !late => return Err(Refusal::WrongState(item.state)),
            SettleAction::Complete if late => {
                self.items[at].lapsed = false;
                self.set(at, Trigger::LateComplete, Completed, now);
            }
            SettleAction::Complete | SettleAction::Cancel | SettleAction::Fail | SettleAction::Release if !holds => {
                return Err(Refusal::LeaseLost);
            }
            SettleAction::Cancel => self.set(at, Trigger::Cancel, Canceled, now),
            SettleAction::Complete => unreachable!("holds or does not"),
            SettleAction::Fail => self.fail(at, failure, now),
            SettleAction::Release => self.release(at, now),
        }
        self.catch_up(at, now);
        let item = &mut self.items[at];
        let answer = Settlement { state: item.state, version: item.version };
        item.settled = Some((item.serial, verb, answer));
        Ok(Reply::Settled(answer))
    }

    fn fail(&mut self, at: usize, failure: &FailureReport, now: Timestamp) {
        let item = &self.items[at];
        let delay = failure.delay.unwrap_or_else(|| self.settings.retry.delay(item.tries, failure.draw));
        let to = match () {
            () if item.cancel_requested => Canceled,
            () if item.tries == item.tries_max => Errored,
            () if delay > Duration::ZERO => Invisible,
            () => Pending,
        };
        self.items[at].visible_at = now + delay;
        self.items[at].error_signature = failure.error.as_ref().map(|error| error.signature.clone());
        self.set(at, Trigger::Fail, to, now);
    }

    fn release(&mut self, at: usize, now: Timestamp) {
        let item = &mut self.items[at];
        let to = match () {
            () if item.cancel_requested => Canceled,
            () if item.releases < 10 => {
                item.releases += 1;
                item.tries -= 1;
                Pending
            }
            () if item.tries < item.tries_max => Pending,
            () => Errored,
        };
        self.set(at, Trigger::Release, to, now);
    }

    pub(super) fn find(&mut self, message: &MessageRef, now: Timestamp) -> Result<usize, Refusal> {
        let names = |item: &Item| match message {
            MessageRef::Key(key) => *key == Self::key(item.sequence),
            MessageRef::Id(id, routing) => *id == item.sent.id && (routing.is_none() || *routing == item.sent.routing),
        };
        let at = self.items.iter().position(names).ok_or(Refusal::NotFound)?;
        self.catch_up(at, now);
        Ok(at)
    }

    pub(super) fn settlement(&self, at: usize) -> Reply {
        Reply::Settled(Settlement { state: self.items[at].state, version: self.items[at].version })
    }
}

pub fn session_of(asked: &Dequeue) -> Option<LeaseSession> {
    asked.session.map(|call| LeaseSession { id: call.id, call: call.sequence, confirmed: false })
}

pub fn touched(count: usize, more: bool) -> Reply {
    Reply::Touched { count, completeness: if more { Completeness::More } else { Completeness::Complete } }
}
