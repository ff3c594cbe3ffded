//! `[quotas]`: how much each key may use of this server.

use serde::Deserialize;

use tallystone_domain::access::{KeyQuota, QuotaLimits};

/// `[quotas]`: the limits of keys that have none of their own. 0: no limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotasConfig {
    /// Calls a second.
    pub calls_per_second: u64,
    /// Bytes of requests and answers a second.
    pub bytes_per_second: u64,
    /// Open streams and waiting dequeues.
    pub streams: u64,
    /// Open connections.
    pub connections: u64,
    /// Sessions of workers.
    pub sessions: u64,
    /// Purges, redrives, discards and checks.
    pub operations: u64,
    /// Queues and templates that a key made.
    pub queues: u64,
    /// Namespaces that a key made.
    pub namespaces: u64,
}

impl QuotasConfig {
    /// The limits on a server with this many connections in all. Of them no key has more than half, unless it has a
    /// limit of its own or there is none.
    pub fn limits(&self, connections: usize) -> QuotaLimits {
        let half = connections.div_ceil(2) as u64;
        KeyQuota::ALL.into_iter().fold(QuotaLimits::UNLIMITED, |all, quota| {
            let limit = match quota {
                KeyQuota::CallsPerSecond => self.calls_per_second,
                KeyQuota::BytesPerSecond => self.bytes_per_second,
                KeyQuota::Streams => self.streams,
                KeyQuota::Connections => self.connections.min(half),
                KeyQuota::Sessions => self.sessions,
                KeyQuota::Operations => self.operations,
                KeyQuota::Queues => self.queues,
                KeyQuota::Namespaces => self.namespaces,
            };
            all.with(quota, limit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSources, load};
    use tallystone_domain::limits::{CONNECTIONS_MAX, NAMESPACES_MAX, OPERATIONS_MAX, QUEUES_MAX, SERVER_SESSIONS_MAX};

    #[test]
    fn one_key_leaves_half_of_everything_to_others() {
        let config = load(&ConfigSources::default()).expect("the defaults are valid").config;
        let limits = config.quotas.limits(CONNECTIONS_MAX);
        for (quota, most) in [
            (KeyQuota::Connections, CONNECTIONS_MAX),
            (KeyQuota::Sessions, SERVER_SESSIONS_MAX),
            (KeyQuota::Operations, OPERATIONS_MAX),
            (KeyQuota::Queues, QUEUES_MAX),
            (KeyQuota::Namespaces, NAMESPACES_MAX),
        ] {
            assert_eq!(limits.get(quota), Some(most as u64 / 2), "{quota}");
        }
        assert_eq!([KeyQuota::CallsPerSecond, KeyQuota::BytesPerSecond].map(|rate| limits.get(rate)), [None, None]);
        assert_eq!(config.quotas.limits(747).get(KeyQuota::Connections), Some(374));
    }
}
