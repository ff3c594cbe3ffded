//! `[traces]`: where traces go, and how many calls are traced.

use serde::Deserialize;

use crate::config::Config;
use tallystone_domain::limits::SAMPLE_PER_MILLE_MAX;

/// `[traces]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// The collector; empty: no traces are made.
    pub otlp_endpoint: String,
    /// How many of a thousand calls are traced that no caller traces already.
    pub sample_per_mille: u32,
}

/// The form that the address of a collector must have.
pub(super) const COLLECTOR: &str = "must be http://HOST:PORT of an OTLP collector over gRPC";

/// Whether an address is that of a collector over gRPC, or empty.
pub(super) fn is_collector_or_none(endpoint: &str) -> bool {
    let is_plain = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic());
    endpoint.is_empty() || endpoint.strip_prefix("http://").is_some_and(is_plain)
}

/// The key that cannot be used as it is, and what to write instead.
pub(super) fn find_invalid(config: &Config) -> Option<(&'static str, String)> {
    let TracesConfig { otlp_endpoint, sample_per_mille } = &config.traces;
    if !is_collector_or_none(otlp_endpoint) {
        return Some(("traces.otlp_endpoint", COLLECTOR.to_owned()));
    }
    (*sample_per_mille > SAMPLE_PER_MILLE_MAX)
        .then(|| ("traces.sample_per_mille", format!("must be 0 to {SAMPLE_PER_MILLE_MAX}")))
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigSources, load};

    #[test]
    fn a_collector_that_cannot_be_reached_by_grpc_is_refused() {
        let refused = |key: &str, value: &str| {
            let flags = vec![(key.to_owned(), "--set", value.to_owned())];
            load(&ConfigSources { flags, ..ConfigSources::default() }).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(refused("traces.otlp_endpoint", "http://127.0.0.1:4317"), Ok(()));
        assert_eq!(refused("traces.sample_per_mille", "1000"), Ok(()));
        for (key, value, words) in [
            ("traces.otlp_endpoint", "127.0.0.1:4317", "traces.otlp_endpoint must be http://HOST:PORT"),
            ("traces.otlp_endpoint", "https://127.0.0.1:4317", "traces.otlp_endpoint must be http://HOST:PORT"),
            ("traces.sample_per_mille", "1001", "traces.sample_per_mille must be 0 to 1000"),
        ] {
            let error = refused(key, value).expect_err(value);
            assert!(error.contains(words), "{error}");
        }
    }
}
