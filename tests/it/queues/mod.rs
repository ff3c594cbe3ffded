//! Queues on the real binary.

mod queue_catalog;
mod queue_clock;
mod undeclared_filters;
