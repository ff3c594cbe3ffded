//! Whose a keyspace is: a catalog's own, or a place beside one for datasets.
//!
//! Rows are named by the numbers that one catalog gives, and what a catalog does not have is removed as left over. Two
//! catalogs on one keyspace would remove each other's counters, and so would a keyspace under the name of another cluster.
//! So the first use of a keyspace settles for ever whose it is, and every other is refused.

use uuid::Uuid;

use crate::adapters::cassandra::Cassandra;
use crate::adapters::cassandra::connect::OpenError;
use crate::adapters::cassandra::fault::Fault;
use crate::domain::counter::NamespaceName;
use crate::domain::namespace::Dataset;
use crate::ports::{Catalog as _, StoreError};

const OP: &str = "settle whose the keyspace is";

impl Cassandra {
    /// Makes the keyspace that of a catalog, which gets the given id if it has none yet; answers its id.
    pub async fn own_catalog(&self, new_id: Uuid) -> Result<Uuid, OpenError> {
        let owner = self.settled(&format!("home {new_id}")).await?;
        let id = owner.strip_prefix("home ").and_then(|id| id.parse().ok());
        id.ok_or_else(|| self.owned_by_another("keeps datasets of another catalog".to_owned()))
    }

    /// Makes the keyspace a place for datasets of a catalog, under the name of its cluster.
    pub async fn keep_datasets_of(&self, catalog: Uuid, cluster: &NamespaceName) -> Result<(), OpenError> {
        let state = self.catalog.load().await.map_err(|error| OpenError::of_store(error, self.keyspace()))?;
        if state.next_namespace_id > 1 {
            return Err(self.owned_by_another("has a catalog of its own".to_owned()));
        }
        let wanted = format!("beside {catalog} {cluster}");
        let owner = self.settled(&wanted).await?;
        if owner == wanted {
            return Ok(());
        }
        let what = match owner.strip_prefix(&format!("beside {catalog} ")) {
            Some(other) => format!("keeps the datasets of cluster {other}"),
            None if owner.starts_with("home ") => "has a catalog of its own".to_owned(),
            None => "keeps datasets of another catalog".to_owned(),
        };
        Err(self.owned_by_another(what))
    }

    /// The datasets of the catalog in the keyspace.
    pub async fn datasets(&self) -> Result<Vec<Dataset>, OpenError> {
        let state = self.catalog.load().await.map_err(|error| OpenError::of_store(error, self.keyspace()))?;
        Ok(state.datasets)
    }

    fn owned_by_another(&self, what: String) -> OpenError {
        OpenError::Owned { keyspace: self.keyspace().to_owned(), what }
    }

    /// Its name.
    pub fn keyspace(&self) -> &str {
        &self.link.keyspace
    }

    /// Settles the owner if nobody has; answers who it is.
    async fn settled(&self, wanted: &str) -> Result<String, OpenError> {
        let of = |error: StoreError| OpenError::of_store(error, self.keyspace());
        let claimed = self.link.decide(OP, self.link.statement("claim_keyspace"), (wanted.as_bytes().to_vec(),)).await;
        claimed.map_err(of)?;
        // Whoever came first, and whether or not an answer was lost on the way: this sees what was decided.
        let rows: Vec<(Vec<u8>,)> =
            self.link.rows_serial(OP, self.link.statement("read_owner"), ()).await.map_err(of)?;
        let owner = rows.into_iter().next().and_then(|(owner,)| String::from_utf8(owner).ok());
        owner.ok_or_else(|| of(Fault::corrupt("the owner of the keyspace was settled and is not there").during(OP)))
    }
}
