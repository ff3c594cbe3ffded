//! Messages that are over leave memory: a shard keeps a stub of each, and its store keeps the head.
//!
//! A store that asks for stubs calls `shed_heads` once the heads are durable. Before a command it asks which heads the
//! command needs, reads them, and gives them back with `restore_head`. A shard whose store does not ask keeps all
//! heads.

use crate::limits::BULK_MESSAGES_MAX;
use crate::queue::bulk_operation::BulkOperation;
use crate::queue::command::{BulkRequest, Command, NewMessage, Refusal};
use crate::queue::index::dedupe_index::DedupeRecord;
use crate::queue::index::id_index::{Found, IdIndex};
use crate::queue::index::sequence_pages::page_of;
use crate::queue::index::stubs::{Stub, StubPage};
use crate::queue::messages::id_hash::IdKey;
use crate::queue::messages::message::{MessageHead, MessageRef};
use crate::queue::messages::state_machine::{MessageState, Trigger, find_row};
use crate::queue::setup::settings::IdReuse;
use crate::queue::shard::Shard;
use crate::queue::shard::counted_rows::{MessageBefore, record_row};
use crate::time::Timestamp;

/// The sequences of heads in memory that can become stubs; none are noted for a store that keeps all heads.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct EndedHeads {
    become_stubs: bool,
    sequences: Vec<u64>,
}

impl EndedHeads {
    /// Notes a head that is over, or was read again.
    pub fn note(&mut self, sequence: u64) {
        if self.become_stubs {
            self.sequences.push(sequence);
        }
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.sequences.clear();
    }
}

/// The messages of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageCounts {
    /// The number of messages that are not over.
    pub live: usize,
    /// The number of messages that are over.
    pub over: usize,
}

/// The reason why a head that was read is not that of its stub: the store is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the stored head of message {0} differs from what is known of it")]
pub struct ForeignHead(pub u64);

impl Shard {
    /// Keeps stubs of messages that are over from now on, with ids hashed under this key. For a shard without messages.
    #[must_use]
    pub fn with_stubs(self, id_key: IdKey) -> Self {
        let ended = EndedHeads { become_stubs: true, sequences: Vec::new() };
        Self { id_index: IdIndex::new(id_key), ended, ..self }
    }

    /// Keeps all heads from now on: for comparisons.
    #[cfg(test)]
    pub fn keeping_heads(self) -> Self {
        Self { ended: EndedHeads::default(), ..self }
    }

    /// Turns heads into stubs, of the messages that are over and durable. O(heads log n).
    pub fn shed_heads(&mut self) {
        for sequence in std::mem::take(&mut self.ended.sequences) {
            let Some(head) = self.messages.get(sequence).filter(|head| head.state.is_terminal()) else { continue };
            let stub = Stub::of(head, self.id_index.key());
            let head = self.messages.remove(sequence).expect("it was just found");
            if self.messages.insert_stub(&stub) {
                self.index.retention_ends.remove(&(stub.delete_at, sequence));
            } else {
                self.messages.insert(head); // it does not fit: it keeps its head
            }
        }
    }

    /// Takes back the head of a stub. O(log n + 64).
    pub fn restore_head(&mut self, head: MessageHead) -> Result<(), ForeignHead> {
        let sequence = head.key.sequence;
        let Some(stub) = self.messages.stub(sequence) else { return Ok(()) };
        if Stub::of(&head, self.id_index.key()) != stub {
            return Err(ForeignHead(sequence));
        }
        self.messages.remove_stub(sequence);
        self.index.retention_ends.insert((stub.delete_at, sequence));
        self.messages.insert(head);
        self.ended.note(sequence);
        Ok(())
    }

    /// The sequences of the stubs whose heads a command needs: they have to be given back before it is applied. Most
    /// commands need none. O(log n); O(max log n) for a walk, a sweep and a purge.
    pub fn heads_needed(&self, command: &Command, now: Timestamp) -> Vec<u64> {
        if self.deleted.is_some() {
            return Vec::new();
        }
        match command {
            Command::Enqueue(sent) => self.needed_by_enqueue(sent).into_iter().collect(),
            Command::Settle { token, .. } | Command::Extend { token, .. } => {
                self.stub_of(&MessageRef::Key(token.key)).into_iter().collect()
            }
            Command::CancelMessage { message, .. }
            | Command::Update { message, .. }
            | Command::Redrive { message }
            | Command::Discard { message } => self.stub_of(message).into_iter().collect(),
            Command::Dequeue(asked) => {
                asked.message.as_ref().and_then(|message| self.stub_of(message)).into_iter().collect()
            }
            Command::RedriveAll(bulk) | Command::DiscardAll(bulk) => {
                self.needed_by_walk(&[MessageState::Errored], bulk)
            }
            Command::CancelAll { bulk, .. } => self.needed_by_walk(&BulkOperation::CANCELED_STATES, bulk),
            Command::Purge(bulk) => self.needed_by_walk(&bulk.states.iter().collect::<Vec<_>>(), bulk),
            Command::Sweep { max } => self.needed_by_sweep(*max, now.max(self.clock)),
            Command::Recall(_)
            | Command::Heartbeat { .. }
            | Command::EndSession { .. }
            | Command::Configure(_)
            | Command::SetValueLimit { .. }
            | Command::Delete => Vec::new(),
        }
    }

    /// The sequence of the stub of a message, if it is one. The id is known by its hash, the routing value not at all.
    pub fn stub_of(&self, message: &MessageRef) -> Option<u64> {
        match message {
            MessageRef::Key(key) => {
                self.messages.stub(key.sequence).filter(|stub| stub.key == *key).map(|stub| stub.key.sequence)
            }
            MessageRef::Id(id, _) => match self.id_index.find(&self.messages, id)? {
                Found::Stub(stub) => Some(stub.key.sequence),
                Found::Head(_) => None,
            },
        }
    }

    /// Whether a sequence is that of a stub. O(log n).
    pub fn is_stub(&self, sequence: u64) -> bool {
        self.messages.is_stub(sequence)
    }

    /// How many messages of a page of 64 sequences are over, and how many are not. O(log n + heads of the page).
    pub fn page_counts(&self, page: u64) -> PageCounts {
        let heads = self.messages.heads_of(page);
        let over = heads.filter(|head| head.state.is_terminal()).count();
        let live = self.messages.heads_of(page).count() - over;
        PageCounts { live, over: over + self.messages.stubs_held(page) }
    }

    /// The stubs of the messages of a page that are over, those included whose heads are in memory, in the order of
    /// their sequences; none if they cannot all be stubs of one page. O(log n + 64).
    pub fn over_in_page(&self, page: u64) -> Option<Vec<Stub>> {
        let heads = self.messages.heads_of(page).filter(|head| head.state.is_terminal());
        let heads = heads.map(|head| Stub::of(head, self.id_index.key()));
        let mut stubs: Vec<Stub> = self.messages.stubs_of(page).chain(heads).collect();
        stubs.sort_unstable_by_key(|stub| stub.key.sequence);
        let mut probe = StubPage::new(stubs.first()?);
        let bit = |stub: &Stub| 1 << (stub.key.sequence % u64::from(u64::BITS));
        stubs.iter().all(|stub| probe.insert(bit(stub), stub)).then_some(stubs)
    }

    /// The page of a sequence.
    pub const fn page_of(sequence: u64) -> u64 {
        page_of(sequence)
    }

    /// Whether all sequences of a page were given to messages.
    pub fn is_page_given(&self, page: u64) -> bool {
        page < page_of(self.sequence + 1)
    }

    /// A repeat is answered from the stub, unless the message may give its id away.
    fn needed_by_enqueue(&self, sent: &NewMessage) -> Option<u64> {
        if self.settings.reuse_ids == IdReuse::AfterWindow {
            return None;
        }
        match self.id_index.find(&self.messages, &sent.id)? {
            Found::Stub(stub) => Some(stub.key.sequence),
            Found::Head(_) => None,
        }
    }

    /// The stubs among the messages that a walk looks at.
    fn needed_by_walk(&self, states: &[MessageState], bulk: &BulkRequest) -> Vec<u64> {
        let (mut reached, mut needed) = (bulk.after, Vec::new());
        for _ in 0..bulk.max.min(BULK_MESSAGES_MAX) {
            let firsts = states.iter().filter_map(|state| self.sequences(*state, reached).next());
            let Some(next) = firsts.min().filter(|sequence| *sequence <= bulk.through) else { break };
            reached = next;
            needed.extend(self.is_stub(next).then_some(next));
        }
        needed
    }

    /// The stubs that a sweep looks at: those that get a shorter retention, those that are removed and leave a trace in
    /// counts, and those that a new shape gets.
    fn needed_by_sweep(&self, max: usize, now: Timestamp) -> Vec<u64> {
        let max = max.min(BULK_MESSAGES_MAX); // a sweep of more is refused
        let mut needed: Vec<u64> = Vec::new();
        if let Some(through) = self.shortened_through {
            let next = |after: &u64| self.first_terminal_after(*after);
            let walked = std::iter::successors(self.first_terminal_after(through), next).take(max);
            needed.extend(walked.filter(|sequence| self.is_stub(*sequence)));
        }
        let ended = self.messages.stubs_ended_by(now, max).into_iter();
        needed.extend(
            ended.filter(|sequence| self.messages.stub(*sequence).is_some_and(|stub| self.leaves_traces(&stub))),
        );
        for filled in self.index.fill_positions() {
            let next = |after: &u64| self.messages.next_after(*after);
            let walked = std::iter::successors(self.messages.next_after(filled), next).take(max);
            needed.extend(walked.filter(|sequence| self.is_stub(*sequence)));
        }
        needed.sort_unstable();
        needed.dedup();
        needed
    }

    /// Whether counts by value or shapes change when a message leaves: then its metadata are needed.
    fn leaves_traces(&self, stub: &Stub) -> bool {
        stub.key_set != 0 || !self.index.shapes.is_empty()
    }

    /// The end of the message that is over and leaves first, and its sequence.
    pub(super) fn first_end(&self) -> Option<(Timestamp, u64)> {
        let of_heads = self.index.retention_ends.first().copied();
        [of_heads, self.messages.first_stub_end()].into_iter().flatten().min()
    }

    /// Removes a message that is a stub and leaves no trace in counts by value and shapes.
    pub(super) fn remove_stub(&mut self, stub: &Stub, trigger: Trigger, now: Timestamp) -> Result<(), Refusal> {
        let message = stub.head_to_remove();
        let row = find_row(&message.transition_inputs(false), trigger).filter(|row| row.to.is_none());
        let row = row.ok_or(Refusal::WrongState(stub.state))?;
        let sequence = stub.key.sequence;
        self.messages.remove_stub(sequence);
        self.index.leave_stub(stub);
        self.id_index.remove_stub(stub);
        let outlives = self.dedupe.detach_message(sequence, DedupeRecord::of_stub(stub));
        self.changes.answers.extend(outlives);
        let before = MessageBefore::of(&message);
        let recorded = record_row(&mut self.tally, self.epoch, (&message, Some(&before)), (row, trigger), now);
        self.journal.push(recorded);
        Ok(())
    }
}
