//! Behaviour through the public interfaces, and the law of the house. One binary, so that a change of the library links
//! once; one module for each behaviour.

mod api;
mod cassandra;
mod cli;
mod client;
mod client_faults;
#[allow(dead_code, reason = "each test takes what it needs")]
mod clockskew;
mod clusters;
mod compose;
mod count_cache;
mod counting;
mod crash;
mod docs;
mod documents;
mod embedded_damage;
mod engines_by_role;
mod explained;
mod fleet;
mod golden;
#[allow(dead_code, reason = "each test takes what it needs")]
mod harness;
mod hosts;
mod hot_counters;
mod judging;
mod late_slices;
mod licences;
#[path = "../linear/mod.rs"]
mod linear;
mod linters;
mod logs;
mod memcached;
mod namespaces;
mod observability;
#[allow(dead_code, reason = "each test takes what it needs")]
mod powerloss;
mod private_files;
mod protos;
mod python;
mod queue_catalog;
mod queue_clock;
mod readiness;
mod readme;
mod refused_starts;
#[path = "../servers/mod.rs"]
mod servers;
mod shares;
mod stop;
mod store_faults;
mod strangers;
mod tidy;
mod traces;
mod two_clusters;
mod undeclared_filters;
mod worker;
