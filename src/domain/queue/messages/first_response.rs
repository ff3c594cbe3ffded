//! The first reply to an enqueue, which a repeat of its token gets again.

use crate::queue::messages::message::{MessageHead, MessageKey};
use crate::queue::messages::state_machine::MessageState;

/// The reply to the first enqueue with a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstResponse {
    /// The hash of the request.
    pub fingerprint: u64,
    /// The assigned key.
    pub key: MessageKey,
    /// The replied state.
    pub state: MessageState,
}

impl FirstResponse {
    /// Makes the first reply to the enqueue of a message.
    pub fn of(message: &MessageHead) -> Self {
        Self { fingerprint: message.fingerprint, key: message.key, state: message.first_state }
    }
}
