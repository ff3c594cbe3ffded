//! Queues on the real binary.

mod history_relay;
mod pairing;
mod queue_catalog;
mod queue_clock;
mod several_servers;
mod undeclared_filters;
