//! The queue shard on a Redis server: random commands against the core, and what only this store does.

mod catalog_answers;
mod commands;
mod failover;
mod half_steps;
mod injected_errors;
mod keys;
mod long_calls;
mod many_messages;
mod mutations;
mod on_cluster;
mod random;
mod removals;
mod restarts;
mod rests;
pub mod server;
mod servers_at_once;
mod shapes;
mod shard_news;
mod tiers;
mod values;
