//! Running totals of a shard: messages and payload bytes per state.
//!
//! They change together with the messages, so they always equal a full count.

use crate::queue::messages::state_machine::MessageState;

/// The number of messages in a state, and their payload bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Total {
    /// The number of messages.
    pub messages: u64,
    /// The payload bytes.
    pub bytes: u64,
}

/// One total per state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals([Total; MessageState::ALL.len()]);

impl Totals {
    /// Makes totals, in the order of `MessageState::ALL`.
    pub const fn of_states(totals: [Total; MessageState::ALL.len()]) -> Self {
        Self(totals)
    }

    /// Returns the total of a state. O(1).
    pub fn of(&self, state: MessageState) -> Total {
        self.0[state as usize]
    }

    /// Returns the total of all states. O(1).
    pub fn all(&self) -> Total {
        self.0.iter().fold(Total::default(), |sum, total| Total {
            messages: sum.messages + total.messages,
            bytes: sum.bytes + total.bytes,
        })
    }

    /// Returns the messages of each state, in the order of `MessageState::ALL`. O(1).
    pub fn messages(&self) -> [u64; MessageState::ALL.len()] {
        self.0.map(|total| total.messages)
    }

    pub(crate) fn add(&mut self, state: MessageState, bytes: u32) {
        let total = &mut self.0[state as usize];
        total.messages += 1;
        total.bytes += u64::from(bytes);
    }

    pub(crate) fn remove(&mut self, state: MessageState, bytes: u32) {
        let total = &mut self.0[state as usize];
        let left = total.messages.checked_sub(1).zip(total.bytes.checked_sub(u64::from(bytes)));
        (total.messages, total.bytes) = left.expect("a message leaves the state it entered");
    }
}
