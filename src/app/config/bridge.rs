//! `[bridge]`: reports of queues to their counters, and the history of messages.

use std::time::Duration;

use serde::Deserialize;

use crate::config::Config;
use tallystone_engine::bridge::BridgeSettings;

/// The pause between reports where one process owns the counters.
const OWN_STEP: Duration = Duration::from_millis(250);
/// The same where servers share them.
const SHARED_STEP: Duration = Duration::from_secs(1);

/// `[bridge]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeConfig {
    /// Whether queues are reported to their counters, and their messages have a history.
    pub enabled: bool,
    /// The most totals in a second, over all queues.
    pub totals_per_second: u32,
    /// How long rows of the history are kept, in days.
    pub history_retention_days: u32,
    /// The most bytes of the history in the embedded store.
    pub history_max_bytes: u64,
}

impl BridgeConfig {
    /// How long rows of the history are kept.
    pub fn history_retention(&self) -> Duration {
        Duration::from_secs(u64::from(self.history_retention_days) * 86_400)
    }

    /// The settings of the reports; `None` if they are off.
    pub fn reports(&self, is_shared: bool) -> Option<BridgeSettings> {
        let step = if is_shared { SHARED_STEP } else { OWN_STEP };
        let totals_per_second = self.totals_per_second;
        let history_retention = self.history_retention();
        self.enabled.then_some(BridgeSettings { step, totals_per_second, history_retention })
    }
}

/// The key that cannot be used as it is, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(&'static str, String)> {
    let BridgeConfig { totals_per_second, history_retention_days, .. } = config.bridge;
    let keys =
        [("bridge.totals_per_second", totals_per_second), ("bridge.history_retention_days", history_retention_days)];
    let zero = keys.into_iter().find(|(_, value)| *value == 0);
    zero.map(|(key, _)| (key, "must be at least 1; bridge.enabled = false turns reports and history off".to_owned()))
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigSources, load};

    #[test]
    fn a_zero_is_refused_and_taken_for_nothing_else() {
        for key in ["bridge.totals_per_second", "bridge.history_retention_days"] {
            let load_with = |value: &str| {
                let flags = vec![(key.to_owned(), "--set", value.to_owned())];
                load(&ConfigSources { flags, ..ConfigSources::default() })
                    .map(|_| ())
                    .map_err(|error| error.to_string())
            };
            assert_eq!(load_with("1"), Ok(()));
            let error = load_with("0").expect_err(key);
            assert!(error.contains(&format!("{key} must be at least 1")), "{error}");
        }
    }
}
