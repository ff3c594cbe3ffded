//! One shard of a priority queue as plain data: `Shard::apply(command, now)` answers a reply and the transitions made.
//!
//! No IO, no clock, no chance: times, durations and draws are arguments, so the same commands always give the same
//! shard. This is the core that stores run, and the oracle of those that do the same in another way;
//! `ports/queue_store.rs` is what they promise. Payloads live with whoever stores a shard; labels of sessions, and whether
//! a session lives on other shards, belong to the service.
//!
//! The invariant to know: every index is a function of the messages, and every change of a message is a row of the
//! transition table in `state`.

mod ages;
pub mod clock;
pub mod command;
pub mod dedupe_index;
mod dequeue;
mod enqueue;
mod exclusive_index;
mod exclusivity_values;
pub mod explain;
pub mod filter;
mod id_index;
pub mod key_syntax;
mod lanes;
mod lease_commands;
pub mod lease_seal;
pub mod message;
mod message_admin;
pub mod name;
pub mod queue_spec;
mod sequence_pages;
mod session_calls;
pub mod session_records;
pub mod setting_ranges;
pub mod settings;
mod shape_index;
pub mod shape_memory;
pub mod shard;
mod shard_admin;
mod shard_index;
pub mod shard_restore;
pub mod shard_routing;
pub mod state_machine;
#[cfg(test)]
mod tests;
pub mod totals;
mod urgency;

pub use command::{Command, InvalidCommandPart, Refusal, Reply, Transition};
pub use filter::Filter;
pub use message::MessageHead;
pub use name::{QueueId, QueueName, ShardId};
pub use queue_spec::{CatalogQueue, Durability, QueueSpec};
pub use settings::Settings;
pub use shard::{ApplyResult, Shard};
pub use state_machine::{MessageState, Trigger};
pub use urgency::Urgency;
