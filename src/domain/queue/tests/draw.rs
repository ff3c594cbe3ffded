//! Random numbers as choices.

use crate::queue::bulk_operation::PurgedStates;
use crate::queue::messages::state_machine::MessageState;

/// Takes small numbers from a random one, low bits first, so that smaller numbers give simpler commands.
pub struct Draw(pub u64);

impl Draw {
    pub fn below(&mut self, bound: u64) -> u64 {
        let taken = self.0 % bound;
        self.0 /= bound;
        taken
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("a small number")]
    }
}

/// Some states that a purge covers.
pub fn purged_states(draw: &mut Draw) -> PurgedStates {
    use MessageState::{Canceled, Completed, Pending};
    let states: &[MessageState] = draw.pick(&[&[], &[Completed], &[Canceled, Pending], &PurgedStates::ALLOWED]);
    PurgedStates::new(states.iter().copied()).expect("a purge covers them")
}
