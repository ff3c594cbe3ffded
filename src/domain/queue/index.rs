//! The ordered indexes over the messages of a shard.
//!
//! Every index is a function of the messages: a message leaves all of them before it changes and enters them anew
//! after, so that a rebuild from the messages gives the same. Each step costs O(log n), whatever lies ahead.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::queue::exclusive::Exclusive;
use crate::domain::queue::message::{Message, Rank, Routing};
use crate::domain::queue::settings::Settings;
use crate::domain::queue::state::State;
use crate::domain::queue::totals::Totals;
use crate::domain::time::Timestamp;

/// The indexes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Index {
    /// Pending messages by (priority, sequence): earliest deadline first, FIFO among equals.
    pub ready: BTreeSet<Rank>,
    /// When time changes an invisible, pending or running message next: exactly its next event, if it has one.
    pub due: BTreeSet<(Timestamp, u64)>,
    /// When a terminal message is forgotten.
    pub gone: BTreeSet<(Timestamp, u64)>,
    /// The sequences of each state.
    pub by_state: [BTreeSet<u64>; State::ALL.len()],
    /// Counts and bytes of each state.
    pub totals: Totals,
    /// Of an exclusive queue, what is held back and what may be served.
    pub exclusive: Option<Exclusive>,
}

impl Index {
    /// The indexes over no messages; `limits` are those of single values.
    pub fn new(settings: &Settings, limits: BTreeMap<Routing, u32>) -> Self {
        Self {
            ready: BTreeSet::new(),
            due: BTreeSet::new(),
            gone: BTreeSet::new(),
            by_state: Default::default(),
            totals: Totals::default(),
            exclusive: settings.exclusivity.clone().map(|rule| Exclusive::new(rule, limits)),
        }
    }

    /// Takes a message in; `settle` follows.
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
        if let Some((exclusive, value)) = self.exclusive.as_mut().zip(message.routing.as_ref()) {
            exclusive.enter(value, message);
        }
    }

    /// Takes a message out, as it was when it entered; `settle` follows.
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
        if let Some((exclusive, value)) = self.exclusive.as_mut().zip(message.routing.as_ref()) {
            exclusive.leave(value, message);
        }
    }

    /// Offers what may be served of the message's value, after the message has left or entered.
    pub fn settle(&mut self, message: &Message) {
        if let Some((exclusive, value)) = self.exclusive.as_mut().zip(message.routing.as_ref()) {
            exclusive.settle(value);
        }
    }

    /// The first message in rank that may be served; one whose limit was lowered since is still among them.
    pub fn best(&self) -> Option<Rank> {
        match &self.exclusive {
            Some(exclusive) => exclusive.best(),
            None => self.ready.first().copied(),
        }
    }

    /// Whether a pending message may be leased: nothing else of its value holds it back.
    pub fn may_serve(&self, message: &Message) -> bool {
        let held = self.exclusive.as_ref().zip(message.routing.as_ref());
        held.is_none_or(|(exclusive, value)| exclusive.values.may_serve(value, message.rank()))
    }

    /// Whether a raised limit is not taken up everywhere yet.
    pub fn is_rechecking(&self) -> bool {
        self.exclusive.as_ref().is_some_and(Exclusive::is_rechecking)
    }

    /// Takes up a raised limit for some more values.
    pub fn recheck(&mut self) {
        if let Some(exclusive) = &mut self.exclusive {
            exclusive.recheck();
        }
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
