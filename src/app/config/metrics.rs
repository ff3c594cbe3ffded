//! `[metrics]`: where metrics go besides the metrics page.

use serde::Deserialize;

use crate::config::Config;
use crate::config::traces::{COLLECTOR, is_collector_or_none};
use tallystone_domain::limits::{METRICS_INTERVAL_MS_MAX, METRICS_INTERVAL_MS_MIN};

/// `[metrics]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// The collector; empty: metrics are only shown on the page.
    pub otlp_endpoint: String,
    /// How often they are sent.
    pub otlp_interval_ms: u64,
}

/// The key that cannot be used as it is, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(&'static str, String)> {
    let MetricsConfig { otlp_endpoint, otlp_interval_ms } = &config.metrics;
    if !is_collector_or_none(otlp_endpoint) {
        return Some(("metrics.otlp_endpoint", COLLECTOR.to_owned()));
    }
    let range = METRICS_INTERVAL_MS_MIN..=METRICS_INTERVAL_MS_MAX;
    (!range.contains(otlp_interval_ms)).then(|| {
        let what = format!("must be {METRICS_INTERVAL_MS_MIN} to {METRICS_INTERVAL_MS_MAX} milliseconds");
        ("metrics.otlp_interval_ms", what)
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigSources, load};

    #[test]
    fn an_interval_out_of_range_and_a_collector_without_grpc_are_refused() {
        let refused = |key: &str, value: &str| {
            let flags = vec![(key.to_owned(), "--set", value.to_owned())];
            load(&ConfigSources { flags, ..ConfigSources::default() }).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(refused("metrics.otlp_endpoint", "http://127.0.0.1:4317"), Ok(()));
        assert_eq!(refused("metrics.otlp_interval_ms", "1s"), Ok(()));
        for (key, value, words) in [
            ("metrics.otlp_endpoint", "https://127.0.0.1:4317", "metrics.otlp_endpoint must be http://HOST:PORT"),
            ("metrics.otlp_interval_ms", "999", "metrics.otlp_interval_ms must be 1000 to 3600000"),
            ("metrics.otlp_interval_ms", "2h", "metrics.otlp_interval_ms must be 1000 to 3600000"),
        ] {
            let error = refused(key, value).expect_err(value);
            assert!(error.contains(words), "{error}");
        }
    }
}
