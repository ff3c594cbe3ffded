//! The names of log targets: users write and read `tallystone::engine`, whatever crate the engine is in.
//!
//! A target begins with the name of the crate that a line is in. The layers are crates, so the names of their targets
//! would say `tallystone_engine`. Users know the layers by one name only, the path under `tallystone`: levels are given
//! by it, and lines have it. Targets that are written out in the code, as `tallystone::traces`, are in no crate of this
//! table.

use std::fmt;

use tracing::level_filters::LevelFilter;

/// The crates of the layers, with the names that users know.
const CRATES: [(&str, &str); 15] = [
    ("tallystone_adapters", "tallystone::adapters"),
    ("tallystone_api", "tallystone::api"),
    ("tallystone_app", "tallystone::app"),
    ("tallystone_cassandra", "tallystone::adapters::cassandra"),
    ("tallystone_cli", "tallystone::app::cli"),
    ("tallystone_client", "tallystone::client"),
    ("tallystone_coalesce", "tallystone::coalesce"),
    ("tallystone_domain", "tallystone::domain"),
    ("tallystone_embedded", "tallystone::adapters::embedded"),
    ("tallystone_engine", "tallystone::engine"),
    ("tallystone_experiments", "tallystone::domain::experiment"),
    ("tallystone_pem", "tallystone::pem"),
    ("tallystone_ports", "tallystone::ports"),
    ("tallystone_proto", "tallystone::proto"),
    ("tallystone_redis", "tallystone::adapters::redis"),
];
/// Before the name of every crate of a layer.
const CRATE_PREFIX: &str = "tallystone_";

/// The name of a target for users, in two parts, so that nothing is allocated for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserTarget<'a> {
    layer: &'static str,
    below: &'a str,
}

impl fmt::Display for UserTarget<'_> {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.write_str(self.layer)?;
        form.write_str(self.below)
    }
}

/// The name for users of a target in the crate of a layer; none if the target is its own name.
pub fn user_target(target: &str) -> Option<UserTarget<'_>> {
    if !target.starts_with(CRATE_PREFIX) {
        return None;
    }
    CRATES.iter().find_map(|(name, layer)| Some(UserTarget { layer, below: below(name, target)? }))
}

/// The rest of a target behind a module, empty for the module itself; none if the target is elsewhere.
fn below<'a>(module: &str, target: &'a str) -> Option<&'a str> {
    target.strip_prefix(module).filter(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Adds to levels of targets by the names for users those by the names of crates, so that each line has the level of
/// its name for users. The longest name that a target begins with decides, and of equal names the last one.
pub fn with_crate_targets(levels: Vec<(String, LevelFilter)>, default: LevelFilter) -> Vec<(String, LevelFilter)> {
    let by_user_name = |(target, level): (String, LevelFilter)| match user_target(&target) {
        Some(name) => (name.to_string(), level),
        None => (target, level),
    };
    let mut levels: Vec<_> = levels.into_iter().map(by_user_name).collect();
    let mut of_crates = Vec::new();
    for (name, layer) in CRATES {
        let around = levels.iter().filter(|(target, _)| layer.starts_with(&**target));
        let level = around.max_by_key(|(target, _)| target.len()).map_or(default, |(_, level)| *level);
        // Even where it is the default: the name of another crate may be the beginning of this one.
        of_crates.push((name.to_owned(), level));
        let within = levels.iter().filter_map(|(target, level)| Some((below(layer, target)?, *level)));
        of_crates.extend(within.map(|(below, level)| (format!("{name}{below}"), level)));
    }
    levels.extend(of_crates);
    levels
}

#[cfg(test)]
mod tests {
    use tracing::Level;
    use tracing_subscriber::filter::Targets;

    use super::*;

    #[test]
    fn every_crate_and_what_is_below_it_has_one_name_for_users() {
        for (name, layer) in CRATES {
            for below in ["", "::reader", "::a::b"] {
                let shown = user_target(&format!("{name}{below}")).map(|shown| shown.to_string());
                assert_eq!(shown, Some(format!("{layer}{below}")));
            }
        }
        let shown = |target| user_target(target).map(|shown| shown.to_string());
        assert_eq!(shown("tallystone_cli::status").as_deref(), Some("tallystone::app::cli::status"));
        assert_eq!(shown("tallystone_client::call").as_deref(), Some("tallystone::client::call"));
        assert_eq!(shown("tallystone_redis::reader").as_deref(), Some("tallystone::adapters::redis::reader"));
    }

    #[test]
    fn other_targets_are_their_own_names() {
        for target in [
            "",
            "tallystone",
            "tallystone::engine::driver",
            "tallystone::repeated",
            "tallystone::traces",
            "tallystone_",
            "tallystone_engines",
            "tallystone_engine:x",
            "tallystone_simulation::clock",
            "hyper::proto",
        ] {
            assert_eq!(user_target(target), None, "{target}");
        }
    }

    fn filter(levels: &[(&str, LevelFilter)]) -> Targets {
        let levels = levels.iter().map(|(target, level)| ((*target).to_owned(), *level)).collect();
        Targets::new().with_default(LevelFilter::INFO).with_targets(with_crate_targets(levels, LevelFilter::INFO))
    }

    /// The targets among these that are logged at DEBUG.
    fn debugged<'a>(levels: &[(&str, LevelFilter)], targets: &[&'a str]) -> Vec<&'a str> {
        let filter = filter(levels);
        targets.iter().copied().filter(|target| filter.would_enable(target, &Level::DEBUG)).collect()
    }

    #[test]
    fn a_line_has_the_level_of_its_name_for_users_in_whatever_crate_it_is() {
        use LevelFilter as To;
        let samples: [&[(&str, To)]; 14] = [
            &[],
            &[("tallystone", To::DEBUG)],
            &[("tallystone", To::OFF), ("tallystone::app::cli", To::DEBUG)],
            &[("tallystone::adapters", To::DEBUG)],
            &[("tallystone::adapters::redis", To::DEBUG), ("tallystone::adapters", To::WARN)],
            &[("tallystone::adapters", To::DEBUG), ("tallystone::adapters::redis::reader", To::ERROR)],
            &[("tallystone::adapters::re", To::DEBUG)],
            &[("tallystone::app", To::DEBUG), ("tallystone::app::cli", To::WARN)],
            &[("tallystone::app::cli", To::DEBUG)],
            &[("tallystone::client", To::DEBUG)],
            &[("tallystone::domain", To::DEBUG), ("tallystone::domain::experiment::plan", To::WARN)],
            &[("tallystone::domain::experiment", To::DEBUG)],
            &[("tallystone::engine", To::DEBUG), ("tallystone::engine", To::WARN)],
            &[("tallystone::engine::driver", To::TRACE), ("tallystone::", To::WARN)],
        ];
        for levels in samples {
            let filter = filter(levels);
            for (name, layer) in CRATES {
                for below in ["", "::reader", "::driver::run", "::plan"] {
                    let (target, shown) = (format!("{name}{below}"), format!("{layer}{below}"));
                    for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
                        let (is, should_be) =
                            (filter.would_enable(&target, &level), filter.would_enable(&shown, &level));
                        assert_eq!(is, should_be, "{levels:?}: {target} at {level}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_level_of_a_layer_covers_all_its_crates() {
        let to_debug = |target| [(target, LevelFilter::DEBUG)];
        let stores =
            ["tallystone_redis::reader", "tallystone_embedded", "tallystone_cassandra::log", "tallystone_adapters"];
        assert_eq!(debugged(&to_debug("tallystone::adapters"), &stores), stores);
        assert_eq!(debugged(&to_debug("tallystone::adapters::redis"), &stores), stores[..1]);
        let ends = ["tallystone_cli", "tallystone_app::telemetry", "tallystone_client", "tallystone_api", "tallystone"];
        assert_eq!(debugged(&to_debug("tallystone::app"), &ends), ends[..2]);
        assert_eq!(debugged(&to_debug("tallystone::app::cli"), &ends), ends[..1], "not the client, whose name goes on");
        assert_eq!(debugged(&to_debug("tallystone"), &ends), ends);
        assert_eq!(debugged(&to_debug("tallystone_cli"), &ends), ends[..1], "the name of the crate means the layer");
    }
}
