//! One queue shard as an in-memory state machine. Every change goes through `apply`.
//!
//! Every state change of a message is a row of the transition table. `apply_transition` applies the row and updates the
//! indexes, totals and version in the same step. Timer transitions are applied lazily: by the next command on the
//! message, by a dequeue, or by a sweep. These cases differ only in the recorded time.

mod counted_rows;
mod dequeue;
mod enqueue;
pub mod explain;
mod lease_commands;
pub mod memory;
mod message_admin;
pub mod messages_over;
pub mod restore;
mod session_calls;
mod shard_admin;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{BULK_MESSAGES_MAX, DEQUEUE_DUE_MIN};
use crate::queue::clock::StepTime;
use crate::queue::command::{Command, Completeness, Refusal, Reply};
use crate::queue::filter::{Filter, ShapeKeys};
use crate::queue::index::dedupe_index::{DedupeIndex, DedupeRecord};
use crate::queue::index::id_index::{Found, IdIndex};
use crate::queue::index::sequence_pages::MessagesBySequence;
use crate::queue::index::shape_index::{ShapeGroup, StateCounts};
use crate::queue::index::shard_index::ShardIndex;
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::{CanceledBy, Lease, MessageHead, MessageKey, MessageRef};
use crate::queue::messages::state_machine::{ApplicableRow, MessageState, Trigger, find_row};
use crate::queue::session_records::Sessions;
use crate::queue::setup::settings::{Settings, ShardSettings};
use crate::queue::shard::counted_rows::{MessageBefore, record_row};
use crate::queue::shard::messages_over::EndedHeads;
use crate::queue::shard::restore::ShardChanges;
use crate::queue::tally::ShardTally;
use crate::queue::totals::Totals;
use crate::queue::transition::Transition;
use crate::time::Timestamp;

/// One shard of a queue: its messages, their indexes, and the state that commands need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    number: u32,
    epoch: u32,
    settings: Settings,
    /// The version of settings and blocks.
    settings_version: u64,
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
    /// The last time at which a message overtook other pending messages. A scan that started earlier may have skipped
    /// it.
    last_moved_ahead_at: Timestamp,
    /// The number of messages when the queue was deleted; `None` if it is not deleted.
    deleted: Option<u64>,
    /// Since the retention was shortened: the sequence up to which sweeps have applied it; `None` when that is done.
    shortened_through: Option<u64>,
    /// The heads of messages that are over, until they become stubs.
    ended: EndedHeads,
    journal: Vec<Transition>,
    /// The linear scan of the current command, if it made one.
    filter_walk: Option<FilterScan>,
    tally: ShardTally,
}

/// The linear scan of a dequeue whose filter has no index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilterScan {
    /// The keys of the filter. Declaring a filter shape with these keys avoids the scan.
    pub keys: ShapeKeys,
    /// The number of messages scanned, at most 256.
    pub messages: usize,
}

/// The error for a filter that has no declared shape, or whose shape is still being indexed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UndeclaredFilter {
    /// The complete shape with the fewest differing keys, if there is one.
    pub nearest: Option<ShapeKeys>,
    /// Whether the shape of the filter is declared but still being indexed.
    pub is_filling: bool,
}

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyResult {
    /// The reply to the caller, or the reason why the command was refused.
    pub reply: Result<Reply, Refusal>,
    /// The applied transitions, in order. Even a refused command may apply due timer transitions.
    pub transitions: Vec<Transition>,
    /// Rows to store in addition to the shard header and the messages in `transitions`.
    pub changes: ShardChanges,
    /// The linear scan of a dequeue whose filter has no index; `None` if no message was scanned.
    pub walked: Option<FilterScan>,
}

impl Shard {
    /// Creates an empty shard. Returns an error if the settings are invalid.
    pub fn new(number: u32, epoch: u32, settings: impl Into<ShardSettings>) -> Result<Self, InvalidCommandPart> {
        let ShardSettings { version, settings, enqueue_blocked, dequeue_blocked } = settings.into();
        settings.check()?;
        let mut tally = ShardTally::default();
        tally.declare_keys(&settings.count_by, |_| false);
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
            settings_version: version,
            enqueue_blocked,
            dequeue_blocked,
            changes: ShardChanges::default(),
            sessions: Sessions::default(),
            last_moved_ahead_at: Timestamp::MIN,
            deleted: None,
            shortened_through: None,
            ended: EndedHeads::default(),
            journal: Vec::new(),
            filter_walk: None,
            tally,
        })
    }

    /// Applies one command. Shard time is monotonic: if `at` is before the shard's clock, the clock is used instead.
    pub fn apply(&mut self, command: Command, at: impl Into<StepTime>) -> ApplyResult {
        let at: StepTime = at.into();
        let now = at.now.max(self.clock);
        let reply = self.execute(command, at.no_earlier_than(now));
        let transitions = std::mem::take(&mut self.journal);
        let mut changes = std::mem::take(&mut self.changes);
        changes.sessions = self.sessions.changes();
        changes.tally = self.tally.take_changes();
        if !transitions.is_empty() || !changes.sessions.is_empty() {
            self.clock = now; // the clock is persisted only together with another write
        }
        ApplyResult { reply, transitions, changes, walked: self.filter_walk.take() }
    }

    /// The time until the next timer is due: zero if a sweep has work, `None` if there is no timer. If `now` is before
    /// the shard's clock, the clock is used instead. O(log n).
    pub fn next_event_in(&self, now: Timestamp) -> Option<Duration> {
        let now = now.max(self.clock);
        let unfinished = self.is_unfinished().then_some(Duration::ZERO);
        unfinished.or_else(|| self.next_event().map(|at| at.since(now)))
    }

    /// Whether a sweep has something to go on with.
    fn is_unfinished(&self) -> bool {
        self.index.is_unfinished() || self.shortened_through.is_some()
    }

    /// The time of the earliest timer.
    fn next_event(&self) -> Option<Timestamp> {
        let ends = self.sessions.first_due().map(|(at, _)| at);
        let forgotten = self.sessions.first_to_forget().map(|(at, _)| at);
        let stub_ends = self.messages.earliest_stub_end();
        [self.index.next_event(), ends, forgotten, stub_ends].into_iter().flatten().min()
    }

    /// The message with the earliest timer that is due at `now`, not counting retention.
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
            Command::CancelAll { bulk, reason } => self.cancel_all(&bulk, &reason, now),
            Command::Purge(bulk) => self.purge(&bulk, now),
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

    /// The reason why dequeues are blocked; `None` if they are not. O(1).
    pub fn dequeue_blocked(&self) -> Option<&str> {
        self.dequeue_blocked.as_deref()
    }

    /// The priority of the next message to serve. In an exclusive queue, messages whose exclusivity value is at its
    /// limit are skipped. O(log n).
    pub fn head(&self) -> Option<i64> {
        self.index.best(None).map(|(priority, _)| priority)
    }

    /// The time at which the next message to serve arrived: its place among messages of the same priority, within the
    /// shard and next to those of other shards. A message that returns, or whose delay is over, has the place of its
    /// arrival. O(log n).
    pub fn head_arrived(&self) -> Option<Timestamp> {
        self.index.best(None).map(|(_, sequence)| self.message_at(sequence).enqueued_at)
    }

    /// How long the oldest ready message has been ready, with a precision of one second. O(log n).
    pub fn ready_for(&self, now: Timestamp) -> Option<Duration> {
        self.index.ages.oldest().map(|since| now.max(self.clock).since(since))
    }

    /// The exact number of matching messages in each state. Needs a declared and complete filter shape. O(log n).
    pub fn depth(&self, filter: &Filter) -> Result<StateCounts, UndeclaredFilter> {
        if filter.is_empty() {
            return Ok(MessageState::ALL.map(|state| self.totals().of(state).messages));
        }
        let usable = || self.index.shapes.iter().filter(|shape| shape.is_complete());
        let Some(shape) = usable().find(|shape| shape.keys.has_keys_of(filter)) else {
            let nearest = usable().map(|shape| &shape.keys).min_by_key(|keys| keys.distance(filter));
            // Complete shapes were checked above, so a shape found here is still being indexed.
            let is_filling = self.index.shapes.iter().any(|shape| shape.keys.has_keys_of(filter));
            return Err(UndeclaredFilter { nearest: nearest.cloned(), is_filling });
        };
        let group = shape.values_for(filter).and_then(|set| shape.group(&set));
        Ok(group.map(ShapeGroup::counts).unwrap_or_default())
    }

    /// The sequence number of the newest message; 0 if there was none yet. O(1).
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Looks up a message by key or by id; none also if it is a stub. O(log n).
    pub fn get(&self, message: &MessageRef) -> Option<&MessageHead> {
        match message {
            MessageRef::Key(key) => self.messages.get(key.sequence).filter(|found| found.key == *key),
            MessageRef::Id(id, routing) => match self.id_index.find(&self.messages, id)? {
                Found::Head(head) => (routing.is_none() || head.routing == *routing).then_some(head),
                Found::Stub(_) => None,
            },
        }
    }

    /// Iterates over the pending messages by rank, including those blocked by their exclusivity value. O(log n) each.
    pub fn peek(&self) -> impl Iterator<Item = &MessageHead> {
        self.index.ready.iter().map(|(_, sequence)| self.message_at(*sequence))
    }

    /// Iterates over the heads in `state` whose sequence number is above `after`, in sequence order. Stubs are left
    /// out. O(log n) each.
    pub fn list(&self, state: MessageState, after: u64) -> impl Iterator<Item = &MessageHead> {
        self.sequences(state, after).filter_map(|sequence| self.messages.get(sequence))
    }

    /// Iterates over the sequences above `after` of the messages in `state`, stubs included, in order. O(log n) each.
    pub fn sequences(&self, state: MessageState, after: u64) -> impl Iterator<Item = u64> {
        self.index.by_state[state as usize].after(after)
    }

    /// Applies due transitions, deletes terminal messages past their retention, forgets ended sessions, and indexes
    /// messages in new filter shapes: at most `max` steps in total.
    fn sweep(&mut self, max: usize, now: Timestamp) -> Result<Reply, Refusal> {
        check_bulk_size(max)?;
        let mut count = self.apply_due_transitions(max, now);
        count += self.shorten_retentions(max - count);
        while count < max
            && let Some((at, sequence)) = self.first_end()
            && at <= now
        {
            self.remove_message(sequence, Trigger::RetentionOver, now)?;
            count += 1;
        }
        while count < max
            && let Some((at, id)) = self.sessions.first_to_forget()
            && at <= now
        {
            self.sessions.forget(id);
            count += 1;
        }
        count += self.fill_shapes(max - count);
        self.index.recheck();
        let more = self.next_event().is_some_and(|at| at <= now) || self.is_unfinished();
        Ok(Reply::Touched { count, completeness: if more { Completeness::More } else { Completeness::Complete } })
    }

    /// Indexes up to `max` messages that existed before a filter shape was declared. Returns the number indexed.
    fn fill_shapes(&mut self, max: usize) -> usize {
        let mut count = 0;
        while let Some(filled) = self.index.fill_position() {
            match self.messages.next_after(filled) {
                Some(_) if count == max => break,
                Some(next) => {
                    self.index.fill(self.messages.get(next).expect("its head was read"));
                    count += 1;
                }
                None => self.index.finish_filling(),
            }
        }
        count
    }

    /// Applies up to `max` due transitions in time order. Returns the number applied.
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

    /// The maximum number of due transitions that a dequeue of up to `max` messages applies.
    fn due_transitions_max(max: usize) -> usize {
        DEQUEUE_DUE_MIN.max(2 * max)
    }

    /// Applies the due timer transitions of one message, except retention. There are at most three: the end of its
    /// lease, of its invisibility, and of its TTL.
    fn apply_due_to(&mut self, sequence: u64, now: Timestamp) {
        while self.next_due(sequence).is_some_and(|(at, _)| at <= now) && !self.message_at(sequence).state.is_terminal()
        {
            self.apply_due_transition(sequence, now);
        }
    }

    fn apply_due_transition(&mut self, sequence: u64, now: Timestamp) {
        let (_, trigger) = self.next_due(sequence).expect("a due message has a timer");
        if let Some(session) = self.message_at(sequence).lease.and_then(|lease| lease.session) {
            self.expire(session.id, now);
        }
        let stepped = match trigger {
            Trigger::LeaseOver => self.expire_lease(sequence, now),
            Trigger::Release => self.release(sequence, now),
            Trigger::TtlOver => self.apply_transition(sequence, trigger, false, now, |message, _| {
                message.canceled_by = Some(CanceledBy::Ttl);
            }),
            // the end of the invisibility: the only other timer of a message that is not terminal
            _ => self.apply_transition(sequence, trigger, false, now, |_, _| ()),
        };
        stepped.expect("the transition table has a row for every timer");
    }

    /// Expires a lease. The worker that held it may still complete the message.
    fn expire_lease(&mut self, sequence: u64, now: Timestamp) -> Result<MessageState, Refusal> {
        self.apply_transition(sequence, Trigger::LeaseOver, false, now, |message, _| {
            message.expired_lease = message.lease.map(|lease| lease.fence);
        })
    }

    /// Applies one transition to a message. `change` sets the other fields of the message; indexes, version and journal
    /// are updated here. Returns `Refusal::WrongState` with the current state if the table has no such row.
    fn apply_transition(
        &mut self,
        sequence: u64,
        trigger: Trigger,
        waits: bool,
        now: Timestamp,
        change: impl FnOnce(&mut MessageHead, MessageState),
    ) -> Result<MessageState, Refusal> {
        let mut message = self.messages.get_mut(sequence).ok_or(Refusal::NotFound)?;
        let (from, rank) = (message.state, message.rank());
        let row = find_row(&message.transition_inputs(waits), trigger);
        let (row, to) = row.and_then(|row| Some((row, row.to?))).ok_or(Refusal::WrongState(from))?;
        let before = MessageBefore::of(&message);
        let held_by = message.lease.and_then(|lease| lease.session).map(|session| session.id);
        self.index.leave(&message);
        self.sessions.leave(&message);
        change(&mut message, to);
        message.state = to;
        message.version += 1;
        if to != MessageState::Running && message.lease.is_some() {
            message.lease = None;
        }
        if to == MessageState::Pending && trigger != Trigger::Update {
            message.visible_at = now;
        }
        message.end_ttl_once_leased();
        if let Some(kept) = self.settings.retention.of(to) {
            message.ended_at = Some(now).into();
            message.delete_at = now + kept;
            self.ended.note(sequence);
        }
        self.index.enter(&message);
        self.index.refresh_lanes(&message);
        self.sessions.enter(&message);
        held_by.inspect(|session| self.sessions.rest(*session, now));
        let moved_up = from == MessageState::Pending && message.rank() < rank;
        if to == MessageState::Pending && (moved_up || self.index.is_before_others(&message)) {
            self.last_moved_ahead_at = now;
        }
        drop(message);
        let message = self.messages.get(sequence).expect("it was just changed");
        let recorded = record_row(&mut self.tally, self.epoch, (message, Some(&before)), (row, trigger), now);
        self.journal.push(recorded);
        Ok(to)
    }

    /// Changes a lease without a state transition, and reschedules its timer.
    fn update_lease(&mut self, sequence: u64, change: impl FnOnce(&mut Lease)) {
        let mut message = self.messages.get_mut(sequence).expect("an indexed message exists");
        let due = message.next_due();
        self.sessions.leave(&message);
        message.lease.as_mut().map(change);
        self.index.reschedule(due, &message);
        self.sessions.enter(&message);
        let session = message.lease.and_then(|lease| lease.session);
        session.inspect(|session| self.sessions.refresh_timers(session.id));
        self.changes.heads.push(sequence);
    }

    /// Inserts a new message. The caller has set its initial state from the transition table.
    fn insert_new(&mut self, message: MessageHead, row: ApplicableRow, now: Timestamp) {
        self.index.enter(&message);
        self.index.refresh_lanes(&message);
        if self.index.is_before_others(&message) {
            self.last_moved_ahead_at = now;
        }
        self.id_index.insert(&message);
        let recorded = record_row(&mut self.tally, self.epoch, (&message, None), (row, Trigger::Enqueue), now);
        self.journal.push(recorded);
        self.messages.insert(message);
    }

    /// Removes a message. Returns `Refusal::WrongState` with the current state if the table has no such row.
    fn remove_message(&mut self, sequence: u64, trigger: Trigger, now: Timestamp) -> Result<(), Refusal> {
        if let Some(stub) = self.messages.stub(sequence) {
            return self.remove_stub(&stub, trigger, now);
        }
        let found = self.messages.get(sequence).ok_or(Refusal::NotFound)?;
        let row = find_row(&found.transition_inputs(false), trigger).filter(|row| row.to.is_none());
        let row = row.ok_or(Refusal::WrongState(found.state))?;
        let message = self.messages.remove(sequence).expect("the message was found above");
        self.index.leave(&message);
        self.id_index.remove(&message);
        let outlives = self.dedupe.detach_message(sequence, DedupeRecord::of(&message, self.id_index.key()));
        self.changes.answers.extend(outlives);
        let before = MessageBefore::of(&message);
        let recorded = record_row(&mut self.tally, self.epoch, (&message, Some(&before)), (row, trigger), now);
        self.journal.push(recorded);
        Ok(())
    }

    /// The message with this sequence number. Panics if it does not exist; the caller got the number from an index.
    fn message_at(&self, sequence: u64) -> &MessageHead {
        self.messages.get(sequence).expect("an indexed message exists")
    }

    /// Finds a message, applies its due transitions, and returns its sequence number.
    fn find(&mut self, message: &MessageRef, now: Timestamp) -> Result<u64, Refusal> {
        let MessageKey { sequence, .. } = self.get(message).ok_or(Refusal::NotFound)?.key;
        self.apply_due_to(sequence, now);
        Ok(sequence)
    }
}

/// Validates the `max` of a bulk command.
fn check_bulk_size(max: usize) -> Result<(), Refusal> {
    if (1..=BULK_MESSAGES_MAX).contains(&max) { Ok(()) } else { Err(InvalidCommandPart::Count.into()) }
}
