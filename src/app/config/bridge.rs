//! `[bridge]`: reports of queues to their counters, and the history of messages.

use std::time::Duration;

use serde::Deserialize;

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
        Duration::from_secs(u64::from(self.history_retention_days.max(1)) * 86_400)
    }

    /// The settings of the reports; `None` if they are off.
    pub fn reports(&self, is_shared: bool) -> Option<BridgeSettings> {
        let step = if is_shared { SHARED_STEP } else { OWN_STEP };
        let totals_per_second = self.totals_per_second.max(1);
        let history_retention = self.history_retention();
        self.enabled.then_some(BridgeSettings { step, totals_per_second, history_retention })
    }
}
