//! The history of messages on disk: keys, periods, the entries of a batch, and reads.
//!
//! Rows lie in the period of their own time, and leave with their period as a whole. A row is named by its shard and
//! position, so a row that is written again changes nothing.

pub mod entries;
pub mod hits;
pub mod key;
pub mod periods;
pub mod read;
#[cfg(test)]
mod tests;
