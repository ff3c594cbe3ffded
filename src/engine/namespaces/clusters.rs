//! The clusters that a namespace may name, and the meaning of an unlisted name.

use std::collections::BTreeMap;

use tallystone_domain::counter::NamespaceName;
use tallystone_domain::namespace::Storage;
use tallystone_domain::{Reason, Reject};

/// The data that a cluster can store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClusterUse {
    /// All data: it is the store of this server.
    Store,
    /// The events and rollups of datasets: it is a store in addition to that of this server, which holds the catalog.
    Attached,
    /// Cached counts in front of a store, and best-effort counters.
    Cache,
}

/// The meaning of a cluster name that is not listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnlistedClusters {
    /// The store of this server, so that documents written for a fleet load on one machine.
    #[default]
    OwnStore,
    /// No cluster: the name is refused.
    Refused,
}

/// The clusters of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Clusters {
    /// The clusters that the settings list.
    pub listed: BTreeMap<NamespaceName, ClusterUse>,
    /// The meaning of every other name.
    pub unlisted: UnlistedClusters,
}

impl Clusters {
    /// Refuses unknown clusters and clusters that cannot store the data. The message names all faults at once.
    pub fn check(&self, storage: &Storage) -> Result<(), Reject> {
        let faults: Vec<String> = [
            ("cache_cluster", &storage.cache_cluster, [ClusterUse::Store, ClusterUse::Cache].as_slice()),
            ("rollup_cluster", &storage.rollup_cluster, &[ClusterUse::Store, ClusterUse::Attached]),
            ("event_cluster", &storage.event_cluster, &[ClusterUse::Store, ClusterUse::Attached]),
        ]
        .into_iter()
        .filter_map(|(setting, name, allowed)| Some(format!("storage.{setting} {}", self.fault(name, allowed)?)))
        .chain(self.split_store_fault(storage))
        .collect();
        if faults.is_empty() { Ok(()) } else { Err(Reject::new(Reason::InvalidSettings, faults.join("; "))) }
    }

    /// Returns the name if it stands for an attached store, in addition to the store of this server.
    pub fn attached<'a>(&self, name: &'a NamespaceName) -> Option<&'a NamespaceName> {
        Some(name).filter(|name| self.listed.get(*name) == Some(&ClusterUse::Attached))
    }

    /// A roll reads events and writes rollups under one limit, so both must be in one store.
    fn split_store_fault(&self, storage: &Storage) -> Option<String> {
        let Storage { rollup_cluster, event_cluster, .. } = storage;
        (self.attached(rollup_cluster) != self.attached(event_cluster)).then(|| {
            format!(
                "storage.rollup_cluster is {rollup_cluster} and storage.event_cluster is {event_cluster}; both must \
                 name the same store"
            )
        })
    }

    fn fault(&self, name: &NamespaceName, allowed: &[ClusterUse]) -> Option<String> {
        match (self.listed.get(name), self.unlisted) {
            (Some(usage), _) if allowed.contains(usage) => None,
            (Some(usage), _) => Some(format!(
                "is {name}, which {}; use one of {}",
                match usage {
                    ClusterUse::Cache => "is for caches only",
                    ClusterUse::Store | ClusterUse::Attached => "is not for caches",
                },
                self.allowed_names(allowed)
            )),
            (None, UnlistedClusters::OwnStore) => None,
            (None, UnlistedClusters::Refused) => Some(format!(
                "is {name}, but this server's settings have no [clusters.{name}]; add it, or use one of {}",
                self.allowed_names(allowed)
            )),
        }
    }

    fn allowed_names(&self, allowed: &[ClusterUse]) -> String {
        let names = self.listed.iter().filter(|(_, usage)| allowed.contains(usage)).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NamespaceName {
        NamespaceName::new(text).expect("a valid name")
    }

    fn storage(cache: &str, rollup: &str, event: &str) -> Storage {
        Storage {
            cache_cluster: name(cache),
            rollup_cluster: name(rollup),
            event_cluster: name(event),
            dataset: name("default"),
        }
    }

    #[test]
    fn a_cluster_is_refused_that_is_not_there_or_cannot_keep_what_it_should() {
        let listed = BTreeMap::from([(name("embedded"), ClusterUse::Store), (name("near"), ClusterUse::Cache)]);
        let strict = Clusters { listed: listed.clone(), unlisted: UnlistedClusters::Refused };
        strict.check(&storage("near", "embedded", "embedded")).expect("all are listed");
        let refused = strict.check(&storage("far", "near", "embedded")).expect_err("two are wrong");
        assert_eq!(refused.reason, Reason::InvalidSettings);
        for words in [
            "storage.cache_cluster is far, but this server's settings have no [clusters.far]",
            "or use one of embedded, near",
            "storage.rollup_cluster is near, which is for caches only; use one of embedded",
        ] {
            assert!(refused.message.contains(words), "{}", refused.message);
        }
        let lenient = Clusters { listed: listed.clone(), unlisted: UnlistedClusters::OwnStore };
        lenient.check(&storage("far", "CASSANDRA_1", "CASSANDRA_1")).expect("they stand for the own store");
        assert!(lenient.check(&storage("near", "near", "embedded")).is_err(), "a cache keeps no checkpoints");
    }

    #[test]
    fn rollups_and_events_are_in_one_store() {
        let listed = [("main", ClusterUse::Store), ("alias", ClusterUse::Store), ("far", ClusterUse::Attached)];
        let listed = listed.map(|(text, usage)| (name(text), usage)).into();
        let clusters = Clusters { listed, unlisted: UnlistedClusters::OwnStore };
        clusters.check(&storage("main", "far", "far")).expect("both are beside");
        clusters.check(&storage("main", "alias", "main")).expect("two names of one store");
        for (rollup, event) in [("main", "far"), ("far", "main"), ("far", "unlisted")] {
            let refused = clusters.check(&storage("main", rollup, event)).expect_err("they are two");
            assert!(refused.message.contains("both must name the same store"), "{}", refused.message);
        }
        let refused = clusters.check(&storage("far", "far", "far")).expect_err("it is no cache");
        assert!(refused.message.contains("is far, which is not for caches"), "{}", refused.message);
        assert_eq!(clusters.attached(&name("far")), Some(&name("far")));
        assert_eq!(clusters.attached(&name("alias")), None);
    }
}
