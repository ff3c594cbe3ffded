//! Structured logs on standard error. Nothing of a payload or a token is ever logged.

use std::io::IsTerminal;
use std::panic::PanicHookInfo;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

use crate::app::config::{LogConfig, LogFormat};

/// What is logged at a level, which may be given by module as well.
pub fn filter(level: &str) -> Result<EnvFilter, String> {
    // The store library tells of every file it makes; what matters of it the adapter says itself.
    let level = format!("fjall=warn,lsm_tree=warn,{level}");
    EnvFilter::try_new(level).map_err(|error| error.to_string())
}

/// Starts logging. Fails on a level that is none; a second call in one process changes nothing.
pub fn start(log: &LogConfig) -> Result<(), String> {
    let filter = filter(&log.level).map_err(|error| format!("log.level cannot be used: {error}"))?;
    let registry = tracing_subscriber::registry().with(filter);
    // A line that cannot be written is lost; the library would say so on the same stderr, and panic if that has gone.
    let started = match log.format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            registry
                .with(
                    layer()
                        .with_writer(std::io::stderr)
                        .log_internal_errors(false)
                        .with_ansi(colours)
                        .with_target(false),
                )
                .try_init()
        }
        LogFormat::Json => registry
            .with(layer().json().flatten_event(true).with_writer(std::io::stderr).log_internal_errors(false))
            .try_init(),
    };
    // Tests of one process start it more than once.
    let _ = started;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// A panic is a line of the log like any other, so that it is found where people look.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let what = panic.payload_as_str().unwrap_or("a panic without a text");
    let at = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(at, "a defect: {what}");
}
