//! The composition root: settings, construction, serving, drain.

pub mod config;
pub mod log_filter;
mod log_targets;
pub mod notices;
pub mod server;
pub mod suggestions;
pub mod telemetry;
pub mod units;
