//! The composition root: settings, construction, serving, drain, and the command line in front of it.

pub mod cli;
pub mod config;
mod log_filter;
pub mod notices;
pub mod server;
mod suggestions;
pub mod telemetry;
pub mod units;
