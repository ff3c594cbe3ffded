//! The life of a server: it opens its stores, serves, judges whether they answer, and closes.

mod admin_log;
pub mod backend;
pub mod first_entries;
pub mod first_key;
pub mod issuers;
pub mod keyspace;
pub mod memcached;
pub mod metrics;
mod otlp;
pub mod preset;
pub mod readiness;
pub mod redis;
pub mod resources;
pub mod run;
mod startup_text;
pub(super) mod status;
pub mod tls;
