//! One shard of a priority queue as plain data: `Shard::apply(command, now)` returns a reply and the transitions it
//! made.
//!
//! No IO, no clock, no randomness: times, durations and random draws are arguments, so the same commands always produce
//! the same shard. This is the core that stores run, and the oracle for stores with their own implementation.
//! `ports/queue_store.rs` has the contract of stores. The store of a shard also stores the payloads. The service
//! manages session labels and the liveness of sessions across shards.
//!
//! The invariant: every index is a function of the messages, and every change of a message is a row of the transition
//! table in `messages::state_machine`.

pub mod activity;
mod allocation;
pub mod bulk_operation;
pub mod clock;
pub mod command;
pub mod counter_names;
pub mod filter;
pub mod index;
pub mod invalid_command;
pub mod messages;
pub mod name;
pub mod session_records;
pub mod session_rows;
pub mod setup;
pub mod shard;
pub mod shard_routing;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod totals;
pub mod transition;
mod urgency;

pub use command::{Command, Refusal, Reply};
pub use filter::Filter;
pub use invalid_command::InvalidCommandPart;
pub use messages::message::MessageHead;
pub use messages::state_machine::{MessageState, Trigger};
pub use name::{QueueId, QueueName, ShardId};
pub use setup::queue_spec::{CatalogQueue, Durability, QueueSpec};
pub use setup::settings::{Settings, ShardSettings};
pub use shard::{ApplyResult, Shard};
pub use transition::{HistoryRow, Transition};
pub use urgency::Urgency;
