//! Values and rules: pure and synchronous. Nothing here does IO, reads a clock, draws random bytes or depends on a
//! runtime or a wire format. Constructors validate all inputs; every decision is a function of its arguments.

pub mod access;
pub mod call_limit;
pub mod capacity;
pub mod constant_time;
pub mod counter;
pub mod fleet;
pub mod hex;
pub mod history;
pub mod limits;
pub mod namespace;
pub mod queue;
pub mod reason;
pub mod rollup;
pub mod rules;
pub mod shell_word;
pub mod time;

pub use reason::{Reason, Reject};
pub use time::Timestamp;
