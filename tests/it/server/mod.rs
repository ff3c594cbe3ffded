//! The life of a server process: startup, readiness, logs, traces, stop.

mod audit;
mod hosts;
mod keys;
mod logs;
mod private_files;
pub mod readiness;
mod refused_starts;
mod stop;
mod traces;
