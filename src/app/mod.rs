//! The composition root: settings, build, run, drain, and the command line in front of it.

pub mod backend;
pub mod cli;
pub mod commands;
pub mod config;
mod keyspace;
pub mod metrics;
mod migrate;
pub mod notices;
pub mod readiness;
mod resources;
pub mod run;
mod status;
mod suggestions;
pub mod telemetry;
pub mod units;
