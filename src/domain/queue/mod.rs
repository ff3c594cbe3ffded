//! One shard of a priority queue as plain data: `Shard::apply(command, now)` answers a reply and the transitions made.
//!
//! No IO, no clock, no chance: times, durations and draws are arguments, so the same commands always give the same
//! shard. This is the core that stores run, and the oracle of those that do the same in another way;
//! `ports/queue_store.rs` is what they promise. Payloads live with whoever stores a shard; labels of sessions, and whether
//! a session lives on other shards, belong to the service.
//!
//! The invariant to know: every index is a function of the messages, and every change of a message is a row of the
//! transition table in `state`.

mod admin;
mod ages;
pub mod answers;
mod calls;
mod change;
pub mod command;
mod dequeue;
pub mod durable;
mod enqueue;
mod exclusive;
pub mod explain;
pub mod filter;
pub mod footprint;
mod index;
mod lanes;
mod lease;
pub mod message;
pub mod name;
mod names;
pub mod pace;
pub mod ranges;
pub mod route;
pub mod seal;
mod sequences;
pub mod session;
pub mod settings;
mod shapes;
pub mod shard;
pub mod spec;
pub mod state;
#[cfg(test)]
mod tests;
pub mod text;
pub mod totals;
mod urgency;
mod values;

pub use command::{Command, Invalid, Refusal, Reply, Transition};
pub use filter::Filter;
pub use message::Message;
pub use name::{QueueId, QueueName, ShardId};
pub use settings::Settings;
pub use shard::{Applied, Shard};
pub use spec::{Durability, Queue, QueueSpec};
pub use state::{State, Trigger};
pub use urgency::Urgency;
