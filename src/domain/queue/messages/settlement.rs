//! The record that a message keeps of its last settlement and updates, so that a repeat gets the same reply.

use crate::queue::messages::state_machine::MessageState;

/// The action that ends a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleAction {
    /// Finished.
    Complete,
    /// Failed for good.
    Cancel,
    /// Failed, to be retried.
    Fail,
    /// Given back before any work.
    Release,
}

/// The state of a message after a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settlement {
    pub state: MessageState,
    pub version: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpdateToken {
    /// The token, at most 64 bytes.
    pub text: Box<str>,
    /// A hash of all parts that the caller sent. A repeat has the same hash.
    pub fingerprint: u64,
}
