//! The queue shard on a Redis server: random commands against the core, and what only this store does.

mod catalog_answers;
mod commands;
mod random;
pub mod server;
mod servers_at_once;
mod shard_news;
