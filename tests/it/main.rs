//! Behaviour through the public interfaces, and the rules of the repository. One binary, so that a change of the library links
//! once; one module for each behaviour.

mod api;
mod bridge;
mod cli;
mod clients;
mod console;
mod counting;
mod crash;
mod engines;
mod fleet;
#[path = "../linear/mod.rs"]
mod linear;
mod observability;
mod queues;
mod redis;
mod repository;
mod server;
#[path = "../servers/mod.rs"]
mod servers;
mod store_faults;
mod support;
