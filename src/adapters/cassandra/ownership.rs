//! Whose a keyspace is: a catalog's own, or a place beside one for datasets.
//!
//! Rows are named by the numbers that one catalog gives, and what a catalog does not have is removed as left over. Two
//! catalogs on one keyspace would remove each other's counters, and so would a keyspace under the name of another cluster.
//! So the first use of a keyspace settles for ever whose it is, and every other is refused.

use uuid::Uuid;

use crate::adapters::cassandra::Cassandra;
use crate::adapters::cassandra::connect::OpenError;
use crate::adapters::cassandra::request_failure::RequestFailure;
use crate::domain::counter::NamespaceName;
use crate::domain::namespace::Dataset;
use crate::ports::{Catalog as _, StoreError};

const OP: &str = "settle whose the keyspace is";
/// Of a keyspace that is nobody's. The catalog that numbered these rows is not known, and another one gives the same numbers.
const UNCLAIMED: &str = "holds counters of a catalog that is not there";

impl Cassandra {
    /// Looks whether the keyspace may be that of a catalog, and settles nothing; answers the id that the catalog has already.
    pub async fn check_primary(&self) -> Result<Option<Uuid>, OpenError> {
        let (has_rows, has_catalog) = (self.has_rows().await?, self.has_catalog().await?);
        // Last: what another server makes in a keyspace that is nobody's comes after it settled whose that is.
        match self.owner().await? {
            Some(owner) => self.primary_catalog_id(&owner).map(Some),
            // A catalog of before keyspaces had owners is one all the same.
            None if has_rows && !has_catalog => Err(self.owned_by_another(UNCLAIMED)),
            None => Ok(None),
        }
    }

    /// Makes the keyspace that of a catalog, which gets the given id if it has none yet; answers its id.
    pub async fn claim_primary(&self, new_id: Uuid) -> Result<Uuid, OpenError> {
        self.primary_catalog_id(&self.claim_owner(&format!("home {new_id}")).await?)
    }

    /// Looks whether the keyspace may be a place for datasets of a catalog, under the name of its cluster, and settles
    /// nothing. A catalog without an id is a new one.
    pub async fn check_attached(&self, catalog: Option<Uuid>, cluster: &NamespaceName) -> Result<(), OpenError> {
        let (has_rows, has_catalog) = (self.has_rows().await?, self.has_catalog().await?);
        match self.owner().await? {
            _ if has_catalog => Err(self.owned_by_another("has a catalog of its own")),
            Some(owner) => self.check_attached_owner(&owner, catalog, cluster),
            None if has_rows => Err(self.owned_by_another(UNCLAIMED)),
            None => Ok(()),
        }
    }

    /// Makes the keyspace a place for datasets of a catalog, under the name of its cluster.
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

    /// Whether anything of a dataset or a namespace is kept.
    async fn has_rows(&self) -> Result<bool, OpenError> {
        if !self.touch_writer.stored_namespaces(None, 1).is_empty() {
            return Ok(true);
        }
        let datasets = self.rollups.datasets().await;
        Ok(!datasets.map_err(|error| OpenError::of_store(error, self.keyspace()))?.is_empty())
    }

    /// The datasets of the catalog in the keyspace.
    pub async fn datasets(&self) -> Result<Vec<Dataset>, OpenError> {
        let state = self.catalog.load().await.map_err(|error| OpenError::of_store(error, self.keyspace()))?;
        Ok(state.datasets)
    }

    fn owned_by_another(&self, what: &str) -> OpenError {
        OpenError::Owned { keyspace: self.keyspace().to_owned(), what: what.to_owned() }
    }

    /// Its name.
    pub fn keyspace(&self) -> &str {
        &self.requests.keyspace
    }

    /// Settles the owner if nobody has; answers who it is.
    async fn claim_owner(&self, wanted: &str) -> Result<String, OpenError> {
        let of = |error: StoreError| OpenError::of_store(error, self.keyspace());
        let claimed = self
            .requests
            .apply_conditionally(OP, self.requests.statement("claim_keyspace"), (wanted.as_bytes().to_vec(),))
            .await;
        claimed.map_err(of)?;
        // Whoever came first, and whether or not an answer was lost on the way: this sees what was decided.
        let owner = self.owner().await?;
        owner.ok_or_else(|| {
            of(RequestFailure::corrupt("the owner of the keyspace was settled and is not there").during(OP))
        })
    }

    /// Who the owner is, if that was settled.
    async fn owner(&self) -> Result<Option<String>, OpenError> {
        let of = |error: StoreError| OpenError::of_store(error, self.keyspace());
        let rows: Vec<(Vec<u8>,)> =
            self.requests.rows_serial(OP, self.requests.statement("read_owner"), ()).await.map_err(of)?;
        let owner = rows.into_iter().next().map(|(owner,)| String::from_utf8(owner));
        owner.transpose().map_err(|error| of(RequestFailure::corrupt(error).during(OP)))
    }
}
