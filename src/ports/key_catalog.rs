//! The catalog of API keys: the hashes of their secrets, and the history of their changes.

use crate::{CatalogChange, CatalogEntry, CatalogRecord};
use tallystone_domain::access::{AccessKey, AccessKeySpec, KeyId, PrincipalName};

/// One change of a key. It shows hashes of secrets only.
pub type KeyChange = CatalogChange<AccessKey>;

/// A change of a key to commit.
pub type KeyRecord = CatalogRecord<AccessKey>;

impl CatalogEntry for AccessKey {
    const WORD: &'static str = "key";
    type Id = KeyId;
    type Name = PrincipalName;
    type Spec = AccessKeySpec;
    /// In the order of names.
    type State = Vec<Self>;
    type Companion = ();
    type Deletion = ();
    /// The number of newer changes that are skipped.
    type HistoryStart = usize;

    fn id(&self) -> KeyId {
        self.id
    }

    fn name(&self) -> &PrincipalName {
        &self.spec.name
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn spec(&self) -> &AccessKeySpec {
        &self.spec
    }
}
