//! Queues on Redis and Valkey: each step of a shard is one call of a function that the server runs atomically.
//!
//! `client` reaches the servers: a single one, one behind Sentinels, or a cluster. It knows nothing of queues. `lua`
//! has the functions, `library` makes them one library. The Rust side checks ranges, fills in settings, and reads the
//! replies of the functions. `docs/redis-keys.md` describes the keys.

mod catalog;
pub mod client;
mod client_wire;
mod counts;
mod epoch;
mod epoch_raises;
mod explain;
mod functions;
mod handle;
mod keys;
mod library;
pub mod limits;
mod loss_check;
mod losses;
mod lost_steps;
mod membership;
mod open;
mod operations;
mod outbox;
mod packed;
mod reader;
mod registry;
mod removal;
mod replies;
mod report;
mod requests;
mod rights;
mod runs;
mod server_report;
mod server_watch;
mod sessions;
mod shard_events;
mod shard_settings;
mod shards;
mod store_calls;
mod stored_message;
mod stored_row;
mod stored_settings;
mod stored_shard;
mod time;
pub mod wire;

pub use client_wire::ClientWire;
pub use functions::{RedisQueueOptions, RedisQueues};
pub use library::QueueLibrary;
pub use open::{OpenError, RedisStoreOptions, RedisStores, open};
pub use rights::needed_rights;
pub use server_report::{AskedOfServers, ServerReport};
pub use server_watch::ServerWatch;
pub use sessions::RedisSessions;
