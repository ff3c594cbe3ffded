//! A message: its parts, its states, the text form of its key, and the tokens of its leases.

pub mod key_syntax;
pub mod lease_seal;
pub mod message;
pub mod shard_routing;
pub mod state_machine;
