//! Whether what several callers saw of one shard can be told as one story: a linearizability check of recorded histories.
//!
//! `history` records calls with when they began and ended, `model` is a shard as a plain list, `search` looks for an order of
//! the calls that agrees with both. A call without an answer may have been applied or not, until a moment that the recorder
//! knows. Nothing here falls due by time: leases outlast the tests and no message is delayed.

pub mod history;
pub mod model;
pub mod search;

pub use history::Recorder;
pub use model::{Answer, Call, Verb};
