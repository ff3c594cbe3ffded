//! The owner of a keyspace: a catalog with its own tables, or another keyspace's catalog that stores datasets here.
//!
//! Rows are keyed by numbers from one catalog, and rows unknown to the catalog are removed as left over. Two catalogs
//! on one keyspace would remove each other's counters; so would one keyspace under two cluster names. So the first use
//! of a keyspace fixes its owner permanently, and every other owner is refused.

use uuid::Uuid;

use crate::Cassandra;
use crate::connect::OpenError;
use crate::request_failure::RequestFailure;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::namespace::Dataset;
use tallystone_ports::{Catalog as _, StoreError};

const OP: &str = "settle whose the keyspace is";
/// For a keyspace with rows but without an owner. Its catalog is unknown, and another catalog would assign the same
/// numbers.
const UNCLAIMED: &str = "has counters of a missing catalog";

impl Cassandra {
    /// Checks whether a catalog may own the keyspace, without recording it; returns the id that the catalog already
    /// has.
    pub async fn check_primary(&self) -> Result<Option<Uuid>, OpenError> {
        let (has_rows, has_catalog) = (self.has_rows().await?, self.has_catalog().await?);
        // Read the owner last: another server records the owner of a free keyspace before it creates anything there.
        match self.owner().await? {
            Some(owner) => self.primary_catalog_id(&owner).map(Some),
            // A catalog that is older than the owner row is still valid.
            None if has_rows && !has_catalog => Err(self.owned_by_another(UNCLAIMED)),
            None => Ok(None),
        }
    }

    /// Records a catalog as the owner and gives it `new_id` if it has no id yet; returns the catalog's id.
    pub async fn claim_primary(&self, new_id: Uuid) -> Result<Uuid, OpenError> {
        self.primary_catalog_id(&self.claim_owner(&format!("home {new_id}")).await?)
    }

    /// Checks whether the keyspace may store datasets of a catalog under the name of its cluster, without recording it.
    /// A catalog without an id is a new one.
    pub async fn check_attached(&self, catalog: Option<Uuid>, cluster: &NamespaceName) -> Result<(), OpenError> {
        let (has_rows, has_catalog) = (self.has_rows().await?, self.has_catalog().await?);
        match self.owner().await? {
            _ if has_catalog => Err(self.owned_by_another("has a catalog of its own")),
            Some(owner) => self.check_attached_owner(&owner, catalog, cluster),
            None if has_rows => Err(self.owned_by_another(UNCLAIMED)),
            None => Ok(()),
        }
    }

    /// Records that the keyspace stores datasets of a catalog under the name of its cluster.
    pub async fn claim_attached(&self, catalog: Uuid, cluster: &NamespaceName) -> Result<(), OpenError> {
        let owner = self.claim_owner(&format!("beside {catalog} {cluster}")).await?;
        self.check_attached_owner(&owner, Some(catalog), cluster)
    }

    fn primary_catalog_id(&self, owner: &str) -> Result<Uuid, OpenError> {
        let id = owner.strip_prefix("home ").and_then(|id| id.parse().ok());
        id.ok_or_else(|| self.owned_by_another("keeps datasets of another catalog"))
    }

    fn check_attached_owner(
        &self,
        owner: &str,
        catalog: Option<Uuid>,
        cluster: &NamespaceName,
    ) -> Result<(), OpenError> {
        let of_catalog = catalog.and_then(|catalog| owner.strip_prefix(&format!("beside {catalog} ")));
        match of_catalog {
            Some(name) if name == cluster.as_str() => Ok(()),
            Some(other) => Err(self.owned_by_another(&format!("keeps the datasets of cluster {other}"))),
            None if owner.starts_with("home ") => Err(self.owned_by_another("has a catalog of its own")),
            None => Err(self.owned_by_another("keeps datasets of another catalog")),
        }
    }

    async fn has_catalog(&self) -> Result<bool, OpenError> {
        let state = self.catalog.load().await.map_err(|error| OpenError::of_store(error, self.keyspace()))?;
        Ok(state.next_namespace_id > 1)
    }

    /// Whether rows of any dataset or namespace exist.
    async fn has_rows(&self) -> Result<bool, OpenError> {
        if !self.touch_writer.stored_namespaces(None, 1).is_empty() {
            return Ok(true);
        }
        let datasets = self.rollups.datasets().await;
        Ok(!datasets.map_err(|error| OpenError::of_store(error, self.keyspace()))?.is_empty())
    }

    /// Returns the datasets of the catalog in the keyspace.
    pub async fn datasets(&self) -> Result<Vec<Dataset>, OpenError> {
        let state = self.catalog.load().await.map_err(|error| OpenError::of_store(error, self.keyspace()))?;
        Ok(state.datasets)
    }

    fn owned_by_another(&self, what: &str) -> OpenError {
        OpenError::Owned { keyspace: self.keyspace().to_owned(), what: what.to_owned() }
    }

    /// Returns the name of the keyspace.
    pub fn keyspace(&self) -> &str {
        &self.requests.keyspace
    }

    /// Records the owner if none is recorded; returns the recorded one.
    async fn claim_owner(&self, wanted: &str) -> Result<String, OpenError> {
        let of = |error: StoreError| OpenError::of_store(error, self.keyspace());
        let claimed = self
            .requests
            .apply_conditionally(OP, self.requests.statement("claim_keyspace"), (wanted.as_bytes().to_vec(),))
            .await;
        claimed.map_err(of)?;
        // A serial read sees the decision, whichever server was first and even if its answer was lost.
        let owner = self.owner().await?;
        owner.ok_or_else(|| {
            of(RequestFailure::corrupt("the owner of the keyspace was settled and is not there").during(OP))
        })
    }

    /// The recorded owner, if there is one.
    async fn owner(&self) -> Result<Option<String>, OpenError> {
        let of = |error: StoreError| OpenError::of_store(error, self.keyspace());
        let rows: Vec<(Vec<u8>,)> =
            self.requests.rows_serial(OP, self.requests.statement("read_owner"), ()).await.map_err(of)?;
        let owner = rows.into_iter().next().map(|(owner,)| String::from_utf8(owner));
        owner.transpose().map_err(|error| of(RequestFailure::corrupt(error).during(OP)))
    }
}
