//! The laws of the ports, each under its number, on every backend.
//!
//! A test is named `<port>_law_<number>_<law>` after the doc comment of the port in `src/ports`. `backends.rs` has the list
//! of backends and what each can do; `model.rs` gives random sequences of commands to all of them and compares every
//! answer with the memory stores. A law that only shows over a restart runs where there is something to restart.

mod admin_log;
mod backends;
mod catalog;
mod clock;
mod count_cache;
mod event_log;
mod export;
mod fast_counts;
mod fleet_store;
mod given;
mod history_cassandra;
mod history_given;
mod history_random;
mod history_search;
mod history_store;
mod hot_counters;
mod in_doubt;
mod keyspaces;
#[allow(dead_code, reason = "each test takes what it needs")]
#[path = "../linear/mod.rs"]
mod linear;
mod model;
mod namespace_store;
mod operation_directory;
mod progress;
mod queue_catalog;
mod queue_clock;
mod queue_durable;
mod queue_given;
mod queue_items;
mod queue_linear;
mod queue_memory;
mod queue_outbox;
mod queue_over;
mod queue_redis;
mod queue_servers;
mod queue_store;
mod racing;
mod rollup_store;
mod rule_store;
#[path = "../servers/mod.rs"]
mod servers;
mod session_directory;
mod simulated_cache;
#[allow(dead_code, reason = "each test binary takes what it needs")]
#[path = "../sim/caches/items.rs"]
mod simulated_memcached;
mod time_slices;
mod tokens;
mod touches;
