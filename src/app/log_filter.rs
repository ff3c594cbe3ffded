//! The levels of the log, and the targets that they do not change.
//!
//! Spans of traces have their own target, `TRACES`. So they cost one comparison without a collector, and do not change
//! log lines.

use tracing_subscriber::EnvFilter;

use crate::suggestions::closest_name;

/// The target of the summary lines, which are never suppressed.
pub const SUMMARY: &str = "tallystone::repeated";
/// The target of all spans of traces.
pub const TRACES: &str = "tallystone::traces";
/// The levels of the log, from none to all.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Builds the log filter for a level, which may be set per module as well.
///
/// Fails on an unknown level: the library would take it for a module name and log nothing else.
pub fn filter(level: &str) -> Result<EnvFilter, String> {
    for directive in level.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        let word = directive.rsplit_once('=').map_or(directive, |(_, word)| word);
        if !LEVELS.contains(&word.to_ascii_lowercase().as_str()) {
            let levels = LEVELS.join(", ");
            let advice = match closest_name(word, LEVELS) {
                Some(level) => format!("did you mean {level}?"),
                None => format!(
                    "the levels are {levels}; for one module, write MODULE=LEVEL, as in \
                    tallystone::engine=debug"
                ),
            };
            return Err(format!("{word:?} is not a level; {advice}"));
        }
    }
    // The store library logs every file it creates; the adapter logs the important ones itself. Spans are not lines.
    // The summary of suppressed lines is shown wherever the lines themselves are.
    let summary = if level.trim().eq_ignore_ascii_case("off") { "off" } else { "info" };
    let level = format!("fjall=warn,lsm_tree=warn,{level},{SUMMARY}={summary},{TRACES}=off");
    EnvFilter::try_new(level).map_err(|error| error.to_string())
}
