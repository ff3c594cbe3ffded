//! Messages: their parts, states, text keys, routing, and lease tokens.

pub mod key_syntax;
pub mod lease_seal;
pub mod message;
pub mod shard_routing;
pub mod state_machine;
