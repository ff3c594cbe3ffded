//! The ordered indexes over the messages of a shard.
//!
//! Every index is a function of the messages: a message leaves all of them before it changes and enters them anew
//! after, so that a rebuild from the messages gives the same. Each step costs O(log n), whatever lies ahead.

use std::collections::BTreeSet;

use crate::domain::queue::message::Message;
use crate::domain::queue::state::State;
use crate::domain::queue::totals::Totals;
use crate::domain::time::Timestamp;

/// The indexes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Index {
    /// Pending messages by (priority, sequence): earliest deadline first, FIFO among equals.
    pub ready: BTreeSet<(i64, u64)>,
    /// When time changes an invisible, pending or running message next: exactly its next event, if it has one.
    pub due: BTreeSet<(Timestamp, u64)>,
    /// When a terminal message is forgotten.
    pub gone: BTreeSet<(Timestamp, u64)>,
    /// The sequences of each state.
    pub by_state: [BTreeSet<u64>; State::ALL.len()],
    /// Counts and bytes of each state.
    pub totals: Totals,
}

impl Index {
    /// Takes a message in.
    pub fn enter(&mut self, message: &Message) {
        let sequence = message.key.sequence;
        if message.state == State::Pending {
            self.ready.insert(message.rank());
        }
        if let Some((at, _)) = message.next_due() {
            self.timers(message.state).insert((at, sequence));
        }
        self.by_state[message.state as usize].insert(sequence);
        self.totals.add(message.state, message.payload_bytes);
    }

    /// Takes a message out, as it was when it entered.
    pub fn leave(&mut self, message: &Message) {
        let sequence = message.key.sequence;
        if message.state == State::Pending {
            self.ready.remove(&message.rank());
        }
        if let Some((at, _)) = message.next_due() {
            self.timers(message.state).remove(&(at, sequence));
        }
        self.by_state[message.state as usize].remove(&sequence);
        self.totals.remove(message.state, message.payload_bytes);
    }

    /// The first time at which time alone changes anything.
    pub fn next_event(&self) -> Option<Timestamp> {
        let firsts = [self.due.first(), self.gone.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    /// The first message that time has changed already by `now`, retention apart.
    pub fn overdue(&self, now: Timestamp) -> Option<u64> {
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, sequence)| *sequence)
    }

    fn timers(&mut self, state: State) -> &mut BTreeSet<(Timestamp, u64)> {
        if state.is_terminal() { &mut self.gone } else { &mut self.due }
    }
}
