//! Queues on the real binary.

mod queue_clock;
mod undeclared_filters;
