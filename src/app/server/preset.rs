//! The two kinds of servers that the command line starts.

use tallystone_engine::namespaces::UnlistedClusters;

/// The kind of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// For development: quick rollups, a namespace `default`.
    Dev,
    /// As configured.
    Server,
}

impl Preset {
    /// The meaning of a cluster name that the settings do not list.
    pub(super) fn unlisted_cluster_policy(self) -> UnlistedClusters {
        match self {
            Self::Dev => UnlistedClusters::OwnStore,
            Self::Server => UnlistedClusters::Refused,
        }
    }
}
