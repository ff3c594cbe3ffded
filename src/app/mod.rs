//! The composition root: settings, build, run, drain.

pub mod config;
