//! Queues on the real binary.

mod history_relay;
mod pairing;
mod queue_catalog;
mod queue_clock;
mod shared;
mod undeclared_filters;
