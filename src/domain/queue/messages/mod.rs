//! Messages: their parts, states, text keys, and lease tokens.

pub mod first_response;
mod head_memory;
pub mod id_hash;
pub mod key_syntax;
pub mod lease_seal;
pub mod message;
pub mod message_id;
pub mod settlement;
pub mod state_machine;
