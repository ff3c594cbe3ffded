//! The levels of the log, and the targets that they do not change.
//!
//! Spans of traces have their own target, `TRACES`. So they cost one comparison without a collector, and do not change
//! log lines.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use crate::log_targets::with_crate_targets;
use crate::suggestions::closest_name;

/// The target of the summary lines, which are never suppressed.
pub const SUMMARY: &str = "tallystone::repeated";
/// The target of all spans of traces.
pub const TRACES: &str = "tallystone::traces";
/// The levels of the log, from none to all.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Builds the log filter for a level, which may be set per module as well: `info`, or `info,tallystone::engine=debug`.
///
/// Fails on an unknown level: the library would take it for a module name and log nothing else.
pub fn filter(level: &str) -> Result<Targets, String> {
    // The store library logs every file it creates; the adapter logs the important ones itself.
    let mut levels = vec![("fjall".to_owned(), LevelFilter::WARN), ("lsm_tree".to_owned(), LevelFilter::WARN)];
    let mut default = None;
    for directive in level.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        match directive_of(directive)? {
            (None, level) => default = Some(level),
            (Some(module), level) => levels.push((module.to_owned(), level)),
        }
    }
    let mut levels = with_crate_targets(levels, default.unwrap_or(LevelFilter::OFF));
    // The summary of suppressed lines is shown wherever the lines themselves are. Spans are not lines.
    let is_off = level.trim().eq_ignore_ascii_case("off");
    levels.push((SUMMARY.to_owned(), if is_off { LevelFilter::OFF } else { LevelFilter::INFO }));
    levels.push((TRACES.to_owned(), LevelFilter::OFF));
    let filter = Targets::new().with_targets(levels);
    Ok(match default {
        Some(level) => filter.with_default(level),
        None => filter,
    })
}

/// Reads a level, with the module that it is for.
fn directive_of(directive: &str) -> Result<(Option<&str>, LevelFilter), String> {
    if directive.contains(['[', ']', '{', '}']) {
        return Err(format!(
            "{directive:?} selects lines by span or field, which is not possible; write MODULE=LEVEL, as in \
             tallystone::engine=debug"
        ));
    }
    let (module, word) = match directive.rsplit_once('=') {
        Some((module, word)) => (Some(module), word),
        None => (None, directive),
    };
    let level = level_of(word)?;
    match module {
        Some(module) if !is_module(module) => Err(format!("{module:?} is not the name of a module")),
        Some(_) | None => Ok((module, level)),
    }
}

fn level_of(word: &str) -> Result<LevelFilter, String> {
    // Not as the library reads it, which takes numbers for levels as well.
    if LEVELS.contains(&word.to_ascii_lowercase().as_str())
        && let Ok(level) = word.parse()
    {
        return Ok(level);
    }
    let levels = LEVELS.join(", ");
    let advice = match closest_name(word, LEVELS) {
        Some(level) => format!("did you mean {level}?"),
        None => {
            format!("the levels are {levels}; for one module, write MODULE=LEVEL, as in tallystone::engine=debug")
        }
    };
    Err(format!("{word:?} is not a level; {advice}"))
}

/// Whether a target of a line can have this name, or begin with it.
fn is_module(name: &str) -> bool {
    let is_usual = |letter: char| letter.is_alphanumeric() || ['-', ':', '_'].contains(&letter);
    name.starts_with(is_usual) && !name.contains(|letter: char| letter.is_whitespace() || ['=', '"'].contains(&letter))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    const LEVELS_SHOWN: [Level; 5] = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];

    /// The least important level that is shown of a target.
    fn shown(levels: &str, target: &str) -> Option<Level> {
        let filter = filter(levels).unwrap_or_else(|error| panic!("{levels:?}: {error}"));
        LEVELS_SHOWN.into_iter().take_while(|level| filter.would_enable(target, level)).last()
    }

    #[test]
    fn a_level_is_for_all_modules_or_for_one_and_the_nearest_counts() {
        let engine = "tallystone::engine::driver";
        for (levels, target, level) in [
            ("info", engine, Some(Level::INFO)),
            ("TRACE", engine, Some(Level::TRACE)),
            ("Off", engine, None),
            ("", engine, None),
            ("tallystone::api=debug", engine, None),
            ("info,tallystone::engine=debug", engine, Some(Level::DEBUG)),
            (" info , tallystone::engine=debug ,, ", engine, Some(Level::DEBUG)),
            ("tallystone::engine=debug,info", engine, Some(Level::DEBUG)),
            ("tallystone::engine::driver=error,tallystone::engine=debug,info", engine, Some(Level::ERROR)),
            ("debug,tallystone::engine=off", engine, None),
            ("debug,warn", engine, Some(Level::WARN)),
            ("info,tallystone::engine=debug", "hyper::proto", Some(Level::INFO)),
            ("debug", "fjall::journal", Some(Level::WARN)),
            ("debug,fjall=debug", "fjall::journal", Some(Level::DEBUG)),
            ("error,tallystone::engine=info", SUMMARY, Some(Level::INFO)),
            (" OFF ", SUMMARY, None),
            ("trace,tallystone::traces=trace", TRACES, None),
            ("info,tallystone::adapters=debug", "tallystone_redis::reader", Some(Level::DEBUG)),
            ("info,tallystone=debug", "tallystone", Some(Level::DEBUG)),
        ] {
            assert_eq!(shown(levels, target), level, "{target} of {levels:?}");
        }
    }

    #[test]
    fn what_is_no_level_of_a_module_is_refused_with_what_is() {
        let by_span = "selects lines by span or field, which is not possible";
        for (levels, refusal) in [
            ("inof", "\"inof\" is not a level; did you mean info?"),
            ("info,tallystone::engine=debgu", "\"debgu\" is not a level; did you mean debug?"),
            ("tallystone::engine", "\"tallystone::engine\" is not a level; the levels are off, error,"),
            ("3", "\"3\" is not a level"),
            ("tallystone=", "\"\" is not a level"),
            ("tallystone= debug", "\" debug\" is not a level"),
            ("[roll]=debug", by_span),
            ("[roll]", by_span),
            ("tallystone::engine[roll]=debug", by_span),
            ("tallystone::engine[{reason}]=debug", by_span),
            ("tallystone[roll{counters=3}]=debug", by_span),
            ("[{a=1,b=2}]=debug", by_span),
            ("=debug", "\"\" is not the name of a module"),
            ("tallystone =debug", "\"tallystone \" is not the name of a module"),
            ("a=b=debug", "\"a=b\" is not the name of a module"),
            ("\"tallystone\"=debug", "is not the name of a module"),
            ("*=debug", "\"*\" is not the name of a module"),
        ] {
            let error = filter(levels).expect_err(levels);
            assert!(error.contains(refusal), "{levels:?}: {error}");
        }
    }
}
