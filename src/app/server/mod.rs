//! The life of a server: it opens its stores, serves, judges whether they answer, and closes.

mod admin_log;
pub mod backend;
pub mod first_entries;
pub(super) mod first_key;
pub(super) mod issuers;
pub(super) mod keyspace;
pub mod memcached;
pub mod metrics;
pub mod preset;
pub mod readiness;
pub mod redis;
pub(super) mod resources;
pub mod run;
mod startup_text;
pub(super) mod status;
pub mod tls;
