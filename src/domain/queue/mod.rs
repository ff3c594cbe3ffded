//! One shard of a priority queue as plain data: `Shard::apply(command, now)` answers a reply and the transitions made.
//!
//! No IO, no clock, no chance: times, durations and draws are arguments, so the same commands always give the same
//! shard. This is the core that stores run, and the oracle of those that do the same in another way;
//! `ports/queue_store.rs` is what they promise. Payloads live with whoever stores a shard; labels of sessions, and whether
//! a session lives on other shards, belong to the service.
//!
//! The invariant to know: every index is a function of the messages, and every change of a message is a row of the
//! transition table in `state`.

pub mod clock;
pub mod command;
pub mod commands;
pub mod filter;
pub mod index;
pub mod messages;
pub mod name;
pub mod session_records;
pub mod setup;
pub mod shard;
pub mod shard_restore;
#[cfg(test)]
mod tests;
pub mod totals;
mod urgency;

pub use command::{Command, InvalidCommandPart, Refusal, Reply, Transition};
pub use filter::Filter;
pub use messages::message::MessageHead;
pub use messages::state_machine::{MessageState, Trigger};
pub use name::{QueueId, QueueName, ShardId};
pub use setup::queue_spec::{CatalogQueue, Durability, QueueSpec};
pub use setup::settings::Settings;
pub use shard::{ApplyResult, Shard};
pub use urgency::Urgency;
