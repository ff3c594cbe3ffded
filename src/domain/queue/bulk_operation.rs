//! A purge, redrive, discard or cancel of many messages, which walks over the shards of its queue in steps.

use crate::queue::filter::Filter;
use crate::queue::messages::state_machine::MessageState;
use crate::time::Timestamp;

/// The command that an operation repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkKind {
    Purge,
    Redrive,
    Discard,
    Cancel,
}

/// The states whose messages a purge covers: those that wait are canceled, those that are over are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PurgedStates(u8);

impl PurgedStates {
    /// The states that a purge may cover. Workers settle running messages, and a discard removes errored ones.
    pub const ALLOWED: [MessageState; 4] =
        [MessageState::Invisible, MessageState::Pending, MessageState::Completed, MessageState::Canceled];

    /// Makes a set of states; without any it is those that wait. Returns a state that no purge covers as an error.
    pub fn new(states: impl IntoIterator<Item = MessageState>) -> Result<Self, MessageState> {
        let mut bits = 0;
        for state in states {
            if !Self::ALLOWED.contains(&state) {
                return Err(state);
            }
            bits |= 1 << state as u8;
        }
        Ok(if bits == 0 { Self::default() } else { Self(bits) })
    }

    /// Returns the set with a bit for each state, the first state lowest.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set of these bits; `None` if it has a state that no purge covers.
    pub fn from_bits(bits: u8) -> Option<Self> {
        let states = MessageState::ALL.into_iter().filter(|state| bits & (1 << *state as u8) != 0);
        Self::new(states).ok().filter(|own| own.0 == bits)
    }

    /// Iterates over the states, in their order.
    pub fn iter(self) -> impl Iterator<Item = MessageState> {
        MessageState::ALL.into_iter().filter(move |state| self.0 & (1 << *state as u8) != 0)
    }
}

impl Default for PurgedStates {
    /// The messages that wait.
    fn default() -> Self {
        Self(1 << MessageState::Invisible as u8 | 1 << MessageState::Pending as u8)
    }
}

/// The action of an operation, and the messages that it covers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BulkOperation {
    pub kind: BulkKind,
    /// For a purge: the states that it covers.
    pub states: PurgedStates,
    /// The filter that messages must match.
    pub filter: Filter,
    /// For a redrive or discard: the signature that the last error must have; none for any.
    pub signature: Option<Box<str>>,
    /// For a discard: the time by which messages must have failed for good, if the caller named one.
    pub until: Option<Timestamp>,
    /// Whether it only counts.
    pub dry_run: bool,
    /// The most messages a second; 0 for no limit.
    pub rate: u32,
    /// For a cancel: why.
    pub reason: Box<str>,
}

impl BulkOperation {
    /// The states of the messages that a cancel covers: all that are not over.
    pub const CANCELED_STATES: [MessageState; 3] =
        [MessageState::Invisible, MessageState::Pending, MessageState::Running];

    /// The states of the messages that an operation covers; `purged` are those of a purge.
    pub fn states_of(kind: BulkKind, purged: PurgedStates) -> Vec<MessageState> {
        match kind {
            BulkKind::Purge => purged.iter().collect(),
            BulkKind::Redrive | BulkKind::Discard => vec![MessageState::Errored],
            BulkKind::Cancel => Self::CANCELED_STATES.into(),
        }
    }
}

/// The step that an operation does next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct BulkCursor {
    /// The shard. Those with lower numbers are done.
    pub shard: u32,
    /// The last sequence of earlier steps in the shard; 0 before the first.
    pub after: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use MessageState::{Canceled, Completed, Errored, Invisible, Pending, Running};

    #[test]
    fn a_purge_covers_what_waits_unless_it_names_states_and_never_what_others_settle() {
        assert_eq!(PurgedStates::new([]), Ok(PurgedStates::default()));
        assert!(PurgedStates::default().iter().eq([Invisible, Pending]));
        let over = PurgedStates::new([Canceled, Completed, Canceled]).expect("a purge covers what is over");
        assert!(over.iter().eq([Completed, Canceled]));
        for state in [Running, Errored] {
            assert_eq!(PurgedStates::new([Pending, state]), Err(state));
        }
        for bits in 1..=u8::MAX {
            let known = PurgedStates::from_bits(bits);
            let allowed = bits & !0b1_1011 == 0;
            assert_eq!(known.map(PurgedStates::bits), allowed.then_some(bits));
        }
    }
}
