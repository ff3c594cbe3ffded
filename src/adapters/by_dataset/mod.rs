//! Several stores as one: each call goes to the store that keeps its dataset.
//!
//! One store is home: it has the catalog, the members of the fleet and their frontiers. A dataset belongs to one store
//! for ever, as its row of the catalog says. So what was found out once is remembered. A dataset that is kept in a
//! store which this server was not given is refused: its rows would end in two places.

mod calls;
mod rollups;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use dashmap::DashMap;

use tallystone_domain::counter::{DatasetId, NamespaceId, NamespaceName};
use tallystone_ports::{SharedStores, StoreError, StoreErrorKind, Stores};

/// The stores, and where each dataset is.
pub struct ByDataset {
    primary: Stores,
    attached: BTreeMap<NamespaceName, Stores>,
    /// The clusters of the datasets that were asked for; none is home.
    clusters_by_dataset: DashMap<DatasetId, Option<NamespaceName>>,
    clusters_by_namespace: DashMap<NamespaceId, Option<NamespaceName>>,
}

/// One store of a store at home and the stores attached to it, by the names of their clusters. The catalogs of the
/// attached stores are not asked. Cost: one lookup in memory a call, one read of the catalog for a dataset that was
/// never asked for.
pub fn by_dataset(home: Stores, beside: BTreeMap<NamespaceName, Stores>) -> Stores {
    let outer = home.clone();
    let all = Arc::new(ByDataset {
        primary: home,
        attached: beside,
        clusters_by_dataset: DashMap::new(),
        clusters_by_namespace: DashMap::new(),
    });
    Stores {
        log: Arc::clone(&all) as Arc<_>,
        touches: Arc::clone(&all) as Arc<_>,
        slices: Arc::clone(&all) as Arc<_>,
        rollups: Arc::clone(&all) as Arc<_>,
        progress: Arc::clone(&all) as Arc<_>,
        // A server is one member, whatever stores it writes to: an unreachable attached store keeps no server from
        // joining.
        fleet: outer.fleet.map(|shared| SharedStores { members: shared.members, counters: all }),
        ..outer
    }
}

impl ByDataset {
    /// The store of a dataset. A dataset that the catalog does not have is nowhere: another server may have made it in
    /// a commit that this read has not seen.
    async fn stores_of_dataset(&self, dataset: DatasetId) -> Result<&Stores, StoreError> {
        if let Some(stores) = self.cached_stores_of(dataset) {
            return Ok(stores);
        }
        const OP: &str = "find the cluster of a dataset";
        if !self.clusters_by_dataset.contains_key(&dataset) {
            self.load_clusters().await?;
        }
        let cluster = self.clusters_by_dataset.get(&dataset).map(|cluster| cluster.clone());
        match cluster {
            Some(cluster) => self.stores_of_cluster(cluster.as_ref()).ok_or_else(|| not_listed(OP, cluster.as_ref())),
            None => Err(StoreError::not_applied(StoreErrorKind::Unavailable, OP)
                .with_source(format!("the catalog has no dataset {}", dataset.0))),
        }
    }

    /// The store of a dataset that was asked for before.
    fn cached_stores_of(&self, dataset: DatasetId) -> Option<&Stores> {
        let cluster = self.clusters_by_dataset.get(&dataset)?;
        self.stores_of_cluster(cluster.as_ref())
    }

    /// The store of what is kept by namespace; none if the namespace does not live: it may have left something
    /// anywhere.
    async fn stores_of_namespace(&self, namespace: NamespaceId) -> Result<Option<&Stores>, StoreError> {
        if !self.clusters_by_namespace.contains_key(&namespace) {
            self.load_clusters().await?;
        }
        let Some(cluster) = self.clusters_by_namespace.get(&namespace).map(|cluster| cluster.clone()) else {
            return Ok(None);
        };
        let found = self.stores_of_cluster(cluster.as_ref());
        found.map(Some).ok_or_else(|| not_listed("find the cluster of a namespace", cluster.as_ref()))
    }

    fn stores_of_cluster(&self, cluster: Option<&NamespaceName>) -> Option<&Stores> {
        match cluster {
            None => Some(&self.primary),
            Some(name) => self.attached.get(name),
        }
    }

    async fn load_clusters(&self) -> Result<(), StoreError> {
        let state = self.primary.catalog.load().await?;
        for dataset in state.datasets {
            self.clusters_by_dataset.insert(dataset.id, dataset.cluster);
        }
        for namespace in state.namespaces {
            let cluster = self.clusters_by_dataset.get(&namespace.dataset_id).and_then(|cluster| cluster.clone());
            self.clusters_by_namespace.insert(namespace.id, cluster);
        }
        Ok(())
    }

    /// All stores, home first.
    fn all_stores(&self) -> impl Iterator<Item = &Stores> {
        std::iter::once(&self.primary).chain(self.attached.values())
    }
}

fn not_listed(op: &'static str, cluster: Option<&NamespaceName>) -> StoreError {
    let cluster = cluster.map(NamespaceName::as_str).unwrap_or_default();
    StoreError::not_applied(StoreErrorKind::Unavailable, op).with_source(format!(
        "it is stored in cluster {cluster}, but the settings of this server have no [clusters.{cluster}] of kind \
         \"cassandra\": add it"
    ))
}
