//! One shard as plain data. `apply` is the only way to change it.
//!
//! Every change of a message is a row of the transition table. `apply_transition` applies it and updates indexes, totals
//! and the version in the same step. A transition that is due by time alone is applied by the next command on the message,
//! by a dequeue, or by a sweep. Only the time of its record tells these apart.

mod dequeue;
mod enqueue;
pub mod explain;
mod lease_commands;
mod message_admin;
pub mod restore;
mod session_calls;
mod shard_admin;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::limits::{BULK_MESSAGES_MAX, DEQUEUE_DUE_MIN};
use crate::domain::queue::clock::StepTime;
use crate::domain::queue::command::{Command, Completeness, Refusal, Reply, Transition};
use crate::domain::queue::filter::{Filter, ShapeKeys};
use crate::domain::queue::index::dedupe_index::DedupeIndex;
use crate::domain::queue::index::id_index::IdIndex;
use crate::domain::queue::index::sequence_pages::MessagesBySequence;
use crate::domain::queue::index::shape_index::{ShapeGroup, StateCounts};
use crate::domain::queue::index::shard_index::ShardIndex;
use crate::domain::queue::invalid_command::InvalidCommandPart;
use crate::domain::queue::messages::message::{CanceledBy, Lease, MessageHead, MessageKey, MessageRef};
use crate::domain::queue::messages::state_machine::{MessageState, Trigger, next_state};
use crate::domain::queue::session_records::Sessions;
use crate::domain::queue::setup::settings::Settings;
use crate::domain::queue::shard::restore::ShardChanges;
use crate::domain::queue::totals::Totals;
use crate::domain::time::Timestamp;

/// One shard of a queue: its messages, their indexes, and the state that commands need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    number: u32,
    epoch: u32,
    settings: Settings,
    pub(super) clock: Timestamp,
    sequence: u64,
    serial: u64,
    pub(super) messages: MessagesBySequence,
    pub(super) id_index: IdIndex,
    pub(super) index: ShardIndex,
    dedupe: DedupeIndex,
    enqueue_blocked: Option<Box<str>>,
    dequeue_blocked: Option<Box<str>>,
    changes: ShardChanges,
    sessions: Sessions,
    /// The last time at which a pending message moved ahead of others. A walk in progress may have missed it.
    last_moved_ahead_at: Timestamp,
    /// The number of messages at the deletion of the queue; none before it.
    deleted: Option<u64>,
    journal: Vec<Transition>,
    /// The messages that the current command examined one by one.
    filter_walk: Option<FilterWalk>,
}

/// The walk of a dequeue whose filter has no index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterWalk {
    /// The keys of the filter. A declared shape of these keys would avoid the walk.
    pub keys: ShapeKeys,
    /// The number of messages that it examined, at most 256.
    pub messages: usize,
}

/// The error for a filter without a declared shape, or with one that is not filled yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UndeclaredFilter {
    /// The filled shape that differs from the filter by the fewest keys, if there is one.
    pub nearest: Option<ShapeKeys>,
    /// Whether the shape of the filter is declared but not filled yet.
    pub is_filling: bool,
}

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyResult {
    /// The answer.
    pub reply: Result<Reply, Refusal>,
    /// The applied transitions, in order. A refused command may have applied transitions that were due by time.
    pub transitions: Vec<Transition>,
    /// Further rows to store, besides the header and the messages of the transitions.
    pub changes: ShardChanges,
    /// The walk of a dequeue whose filter has no index; none if it examined no message.
    pub walked: Option<FilterWalk>,
}

impl Shard {
    /// Makes an empty shard. The settings are checked.
    pub fn new(number: u32, epoch: u32, settings: Settings) -> Result<Self, InvalidCommandPart> {
        settings.check()?;
        Ok(Self {
            number,
            epoch,
            clock: Timestamp::MIN,
            sequence: 0,
            serial: 0,
            messages: MessagesBySequence::default(),
            id_index: IdIndex::default(),
            index: ShardIndex::new(&settings, BTreeMap::new()),
            dedupe: DedupeIndex::default(),
            settings,
            enqueue_blocked: None,
            dequeue_blocked: None,
            changes: ShardChanges::default(),
            sessions: Sessions::default(),
            last_moved_ahead_at: Timestamp::MIN,
            deleted: None,
            journal: Vec::new(),
            filter_walk: None,
        })
    }

    /// Applies one command. A `now` before the shard's clock counts as the clock, because time never goes back.
    pub fn apply(&mut self, command: Command, at: impl Into<StepTime>) -> ApplyResult {
        let at: StepTime = at.into();
        let now = at.now.max(self.clock);
        let reply = self.execute(command, at.no_earlier_than(now));
        let transitions = std::mem::take(&mut self.journal);
        let mut changes = std::mem::take(&mut self.changes);
        changes.sessions = self.sessions.changes();
        if !transitions.is_empty() || !changes.sessions.is_empty() {
            self.clock = now; // stored only with another write
        }
        ApplyResult { reply, transitions, changes, walked: self.filter_walk.take() }
    }

    /// The time until the next change without a command: zero if a sweep has work, none if there will be no change. A `now`
    /// before the shard's clock counts as the clock. O(log n).
    pub fn next_event_in(&self, now: Timestamp) -> Option<Duration> {
        let now = now.max(self.clock);
        let unfinished = self.index.is_unfinished().then_some(Duration::ZERO);
        unfinished.or_else(|| self.next_event().map(|at| at.since(now)))
    }

    /// The time of the first transition that is due by time alone.
    fn next_event(&self) -> Option<Timestamp> {
        let ends = self.sessions.first_due().map(|(at, _)| at);
        let forgotten = self.sessions.first_gone().map(|(at, _)| at);
        [self.index.next_event(), ends, forgotten].into_iter().flatten().min()
    }

    /// The first message with a due transition at `now`, retention excluded.
    fn overdue(&self, now: Timestamp) -> Option<u64> {
        let first = [self.index.due.first().copied(), self.sessions.first_due()].into_iter().flatten().min();
        first.filter(|(at, _)| *at <= now).map(|(_, sequence)| sequence)
    }

    fn execute(&mut self, command: Command, at: StepTime) -> Result<Reply, Refusal> {
        let now = at.now;
        if self.deleted.is_some() && !matches!(command, Command::Enqueue(_) | Command::Delete) {
            return Err(Refusal::Deleted);
        }
        match command {
            Command::Enqueue(message) => self.enqueue(message, at),
            Command::Dequeue(asked) => self.dequeue(&asked, now),
            Command::Settle { token, verb, failure } => self.settle(token, verb, failure, now),
            Command::Extend { token, lease } => self.extend(token, lease, now),
            Command::CancelMessage { message, reason } => self.cancel_message(&message, reason, now),
            Command::Recall(call) => self.recall(&call, now),
            Command::Heartbeat { session, received_up_to } => self.heartbeat(session, received_up_to, now),
            Command::EndSession { session, ending, max } => self.end_session(session, ending, max, now),
            Command::Update { message, update } => self.update(&message, &update, now),
            Command::Redrive { message } => self.redrive(&message, now),
            Command::RedriveAll(bulk) => self.redrive_all(&bulk, now),
            Command::Discard { message } => self.discard(&message, now),
            Command::DiscardAll(bulk) => self.discard_all(&bulk, now),
            Command::Purge(bulk) => self.purge(&bulk, now),
            Command::Block { enqueue, dequeue } => {
                (self.enqueue_blocked, self.dequeue_blocked) = (enqueue, dequeue);
                Ok(Reply::Blocked)
            }
            Command::Configure(settings) => self.configure(*settings, at.token_age_clock),
            Command::SetValueLimit { value, limit } => self.set_value_limit(value, limit),
            Command::Delete => Ok(self.delete()),
            Command::Sweep { max } => self.sweep(max, now),
        }
    }

    /// Messages and bytes per state. O(1).
    pub fn totals(&self) -> &Totals {
        &self.index.totals
    }

    /// The reason for a blocked dequeue, if it is blocked. O(1).
    pub fn dequeue_blocked(&self) -> Option<&str> {
        self.dequeue_blocked.as_deref()
    }

    /// The priority of the message that would be served first. In an exclusive queue, messages of a value in use are
    /// skipped. O(log n).
    pub fn head(&self) -> Option<i64> {
        self.index.best(None).map(|(priority, _)| priority)
    }

    /// The age of the oldest ready message, to the second. O(log n).
    pub fn ready_for(&self, now: Timestamp) -> Option<Duration> {
        self.index.ages.oldest().map(|since| now.max(self.clock).since(since))
    }

    /// The number of matching messages by state. It is exact, and available for declared shapes that are filled. O(log n).
    pub fn depth(&self, filter: &Filter) -> Result<StateCounts, UndeclaredFilter> {
        if filter.is_empty() {
            return Ok(MessageState::ALL.map(|state| self.totals().of(state).messages));
        }
        let usable = || self.index.shapes.iter().filter(|shape| shape.is_complete());
        let Some(shape) = usable().find(|shape| shape.keys.has_keys_of(filter)) else {
            let nearest = usable().map(|shape| &shape.keys).min_by_key(|keys| keys.distance(filter));
            // No filled shape has the keys of the filter.
            let is_filling = self.index.shapes.iter().any(|shape| shape.keys.has_keys_of(filter));
            return Err(UndeclaredFilter { nearest: nearest.cloned(), is_filling });
        };
        let group = shape.values_for(filter).and_then(|set| shape.group(&set));
        Ok(group.map(ShapeGroup::counts).unwrap_or_default())
    }

    /// The sequence of the newest message, 0 before the first. O(1).
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// A message. O(log n).
    pub fn get(&self, message: &MessageRef) -> Option<&MessageHead> {
        match message {
            MessageRef::Key(key) => self.messages.get(key.sequence).filter(|found| found.key == *key),
            MessageRef::Id(id, routing) => {
                let found = self.id_index.find(&self.messages, id);
                found.filter(|message| routing.is_none() || message.routing == *routing)
            }
        }
    }

    /// Pending messages by rank, including those that an exclusive value holds back. O(log n) each.
    pub fn peek(&self) -> impl Iterator<Item = &MessageHead> {
        self.index.ready.iter().map(|(_, sequence)| self.message_at(*sequence))
    }

    /// The messages of a state after a sequence, by sequence. O(log n) each.
    pub fn list(&self, state: MessageState, after: u64) -> impl Iterator<Item = &MessageHead> {
        self.index.by_state[state as usize].after(after).map(|sequence| self.message_at(sequence))
    }

    /// Applies at most `max` due transitions, then deletes terminal messages past their retention.
    fn sweep(&mut self, max: usize, now: Timestamp) -> Result<Reply, Refusal> {
        bulk_size(max)?;
        let mut count = self.apply_due_transitions(max, now);
        while count < max
            && let Some(&(at, sequence)) = self.index.retention_ends.first()
            && at <= now
        {
            self.remove_message(sequence, Trigger::RetentionOver, now)?;
            count += 1;
        }
        while count < max
            && let Some((at, id)) = self.sessions.first_gone()
            && at <= now
        {
            self.sessions.forget(id);
            count += 1;
        }
        count += self.fill_shapes(max - count);
        self.index.recheck();
        let more = self.next_event().is_some_and(|at| at <= now) || self.index.is_unfinished();
        Ok(Reply::Touched { count, completeness: if more { Completeness::More } else { Completeness::Complete } })
    }

    /// Adds up to `max` messages to shapes that were declared late. Returns their number.
    fn fill_shapes(&mut self, max: usize) -> usize {
        let mut count = 0;
        while let Some(filled) = self.index.fill_position() {
            match self.messages.next_after(filled) {
                Some(_) if count == max => break,
                Some(message) => {
                    self.index.fill(message);
                    count += 1;
                }
                None => self.index.finish_filling(),
            }
        }
        count
    }

    /// Applies up to `max` due transitions in the order of their times. Returns their number.
    fn apply_due_transitions(&mut self, max: usize, now: Timestamp) -> usize {
        let mut count = 0;
        while count < max
            && let Some(sequence) = self.overdue(now)
        {
            self.apply_due_transition(sequence, now);
            count += 1;
        }
        count
    }

    /// The number of due transitions that a dequeue of `max` applies.
    fn due_transitions_max(max: usize) -> usize {
        DEQUEUE_DUE_MIN.max(2 * max)
    }

    /// Applies the due transitions of one message, retention excluded. At most three: the end of its lease or invisibility,
    /// then its TTL.
    fn apply_due_to(&mut self, sequence: u64, now: Timestamp) {
        while self.next_due(sequence).is_some_and(|(at, _)| at <= now) && !self.message_at(sequence).state.is_terminal()
        {
            self.apply_due_transition(sequence, now);
        }
    }

    fn apply_due_transition(&mut self, sequence: u64, now: Timestamp) {
        let (_, trigger) = self.next_due(sequence).expect("what is due has an event");
        if let Some(session) = self.message_at(sequence).lease.and_then(|lease| lease.session) {
            self.expire(session.id, now);
        }
        let stepped = match trigger {
            Trigger::LeaseOver => self.expire_lease(sequence, now),
            Trigger::Release => self.release(sequence, now),
            Trigger::TtlOver => self.apply_transition(sequence, trigger, false, now, |message, _| {
                message.canceled_by = Some(CanceledBy::Ttl);
            }),
            // the invisibility is over; no other transition is due by time while a message lives
            _ => self.apply_transition(sequence, trigger, false, now, |_, _| ()),
        };
        stepped.expect("the table has a row for every event of the clock");
    }

    /// Expires a lease. Its worker may still complete the message.
    fn expire_lease(&mut self, sequence: u64, now: Timestamp) -> Result<MessageState, Refusal> {
        self.apply_transition(sequence, Trigger::LeaseOver, false, now, |message, _| {
            message.expired_lease = message.lease.map(|lease| lease.fence);
        })
    }

    /// Applies one transition to a message. `change` sets its other fields; indexes, version and records follow. Refused with
    /// the current state if the table has no such row.
    fn apply_transition(
        &mut self,
        sequence: u64,
        trigger: Trigger,
        waits: bool,
        now: Timestamp,
        change: impl FnOnce(&mut MessageHead, MessageState),
    ) -> Result<MessageState, Refusal> {
        let message = self.messages.get_mut(sequence).ok_or(Refusal::NotFound)?;
        let (from, rank) = (message.state, message.rank());
        let to = next_state(&message.transition_inputs(waits), trigger).flatten().ok_or(Refusal::WrongState(from))?;
        let held_by = message.lease.and_then(|lease| lease.session).map(|session| session.id);
        self.index.leave(message);
        self.sessions.leave(message);
        change(message, to);
        message.state = to;
        message.version += 1;
        if to != MessageState::Running && message.lease.is_some() {
            message.lease = None;
        }
        if to == MessageState::Pending {
            message.visible_at = now;
        }
        if let Some(kept) = self.settings.retention.of(to) {
            message.ended_at = Some(now).into();
            message.delete_at = now + kept;
        }
        self.index.enter(message);
        self.index.refresh_lanes(message);
        self.sessions.enter(message);
        held_by.inspect(|session| self.sessions.rest(*session, now));
        let moved_up = from == MessageState::Pending && message.rank() < rank;
        if to == MessageState::Pending && (moved_up || self.index.is_before_others(message)) {
            self.last_moved_ahead_at = now;
        }
        let (key, version) = (message.key, message.version);
        self.journal.push(Transition { key, version, trigger, from: Some(from), to: Some(to), at: now });
        Ok(to)
    }

    /// Changes a lease without a transition: the state of the message stays, and its timer moves.
    fn update_lease(&mut self, sequence: u64, change: impl FnOnce(&mut Lease)) {
        let message = self.messages.get_mut(sequence).expect("what is indexed exists");
        let due = message.next_due();
        self.sessions.leave(message);
        message.lease.as_mut().map(change);
        self.index.reschedule(due, message);
        self.sessions.enter(message);
        let session = message.lease.and_then(|lease| lease.session);
        session.inspect(|session| self.sessions.refresh_timers(session.id));
        self.changes.heads.push(sequence);
    }

    /// Inserts a new message in the state that the table gives.
    fn insert_new(&mut self, message: MessageHead, now: Timestamp) {
        let (key, version, to) = (message.key, message.version, Some(message.state));
        self.index.enter(&message);
        self.index.refresh_lanes(&message);
        if self.index.is_before_others(&message) {
            self.last_moved_ahead_at = now;
        }
        self.id_index.insert(&message);
        self.messages.insert(message);
        self.journal.push(Transition { key, version, trigger: Trigger::Enqueue, from: None, to, at: now });
    }

    /// Removes a message. Refused with the current state if the table has no such row.
    fn remove_message(&mut self, sequence: u64, trigger: Trigger, now: Timestamp) -> Result<(), Refusal> {
        let found = self.messages.get(sequence).ok_or(Refusal::NotFound)?;
        if next_state(&found.transition_inputs(false), trigger) != Some(None) {
            return Err(Refusal::WrongState(found.state));
        }
        let message = self.messages.remove(sequence).expect("it was just found");
        self.index.leave(&message);
        self.id_index.remove(&message);
        self.dedupe.detach_message(&message);
        let (key, version, from) = (message.key, message.version + 1, Some(message.state));
        self.journal.push(Transition { key, version, trigger, from, to: None, at: now });
        Ok(())
    }

    /// The message of this sequence. The caller has just found it by an index or a lookup.
    fn message_at(&self, sequence: u64) -> &MessageHead {
        self.messages.get(sequence).expect("what is indexed exists")
    }

    /// The sequence of a message, after its due transitions.
    fn find(&mut self, message: &MessageRef, now: Timestamp) -> Result<u64, Refusal> {
        let MessageKey { sequence, .. } = self.get(message).ok_or(Refusal::NotFound)?.key;
        self.apply_due_to(sequence, now);
        Ok(sequence)
    }
}

/// Checks the maximum of a bulk command.
fn bulk_size(max: usize) -> Result<(), Refusal> {
    if (1..=BULK_MESSAGES_MAX).contains(&max) { Ok(()) } else { Err(InvalidCommandPart::Count.into()) }
}
