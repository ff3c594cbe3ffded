//! `[limits]`: when this server refuses calls because calls take too long.

use std::time::Duration;

use serde::Deserialize;

use crate::config::Config;
use tallystone_domain::call_limit::{CallClass, CallLimitSettings};

/// `[limits]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallLimitsConfig {
    /// How long most calls may take; 0: nothing is refused for that.
    pub call_time_ms: u64,
    /// The calls in progress below which the limit never falls.
    pub calls_min: usize,
}

impl CallLimitsConfig {
    /// The settings of the limit of calls in progress.
    pub fn of_calls(&self) -> CallLimitSettings {
        CallLimitSettings { target: Duration::from_millis(self.call_time_ms), least: self.calls_min }
    }
}

/// The fault of the section: the setting, and what to write.
pub fn find_invalid(config: &Config) -> Option<(&'static str, String)> {
    // With fewer, the last classes would have no place at all.
    let fewest = 2 * CallClass::COUNT;
    (config.limits.calls_min < fewest).then(|| ("limits.calls_min", format!("must be at least {fewest}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSources, load};

    fn loaded(key: &str, value: &str) -> Result<CallLimitSettings, String> {
        let flags = vec![(key.to_owned(), "--set", value.to_owned())];
        let loaded = load(&ConfigSources { flags, ..ConfigSources::default() });
        loaded.map(|loaded| loaded.config.limits.of_calls()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_limit_of_calls_is_set_by_a_time_and_a_least_number() {
        let default = CallLimitSettings::default();
        assert_eq!(loaded("limits.call_time_ms", "250ms"), Ok(default));
        assert_eq!(loaded("limits.call_time_ms", "0"), Ok(CallLimitSettings { target: Duration::ZERO, ..default }));
        assert_eq!(loaded("limits.calls_min", "10"), Ok(CallLimitSettings { least: 10, ..default }));
        let told = loaded("limits.calls_min", "9").expect_err("too few");
        assert!(told.contains("limits.calls_min must be at least 10"), "{told}");
    }
}
