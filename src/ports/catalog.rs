//! The catalog: entries under names, as namespaces and queues are, and the history of their changes.

use std::fmt::{Debug, Display};

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::time::Timestamp;

/// An entry of a catalog: settings under a name, with a version.
pub trait CatalogEntry: Clone + Eq + Debug + Send + Sync + 'static {
    /// The word for an entry in texts.
    const WORD: &'static str;
    /// The id, never reused.
    type Id: Copy + Ord + Debug + Display + Send + Sync;
    /// The name.
    type Name: Clone + Ord + Debug + Display + Send + Sync;
    /// The settings.
    type Spec: Clone + Eq + Debug + Send + Sync;
    /// All content of a catalog.
    type State: Send;
    /// A row that is committed together with an entry; `()` for none.
    type Companion: Clone + Eq + Debug + Default + Send + Sync;
    /// The facts that the history keeps of a deletion; `()` for none.
    type Deletion: Clone + Eq + Debug + Default + Send + Sync;
    /// The place where a page of the history begins.
    type HistoryStart: Send;

    /// The id.
    fn id(&self) -> Self::Id;
    /// The name.
    fn name(&self) -> &Self::Name;
    /// The version of the settings, counted from 1.
    fn version(&self) -> u64;
    /// The settings.
    fn spec(&self) -> &Self::Spec;
}

/// One change of an entry, as the history keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogChange<E: CatalogEntry> {
    /// The entry.
    pub id: E::Id,
    /// Its name.
    pub name: E::Name,
    /// The version that the change made.
    pub version: u64,
    /// The time of the change.
    pub time: Timestamp,
    /// The author.
    pub actor: String,
    /// The reason that the author gave.
    pub reason: String,
    /// The differences, a line for each setting.
    pub differences: Vec<String>,
    /// The settings after the change; none when it deleted the entry.
    pub spec: Option<E::Spec>,
    /// The facts of a deletion.
    pub deletion: E::Deletion,
}

/// A change to commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CatalogRecord<E: CatalogEntry> {
    /// The version that the entry must have. `None`: no live entry may have the name, and no entry ever had the id.
    pub expected_version: Option<u64>,
    /// The entry after the change; none deletes it.
    pub entry: Option<E>,
    /// The row that is committed with it.
    pub companion: E::Companion,
    /// The entry of the history.
    pub change: CatalogChange<E>,
}

impl<E: CatalogEntry> CatalogRecord<E> {
    /// Fails with the reason if the record conflicts with the live entry of its name, or creates one with a used id.
    pub fn check(&self, live: Option<&E>, was_used: impl FnOnce(E::Id) -> bool) -> Result<(), String> {
        let (word, name, id) = (E::WORD, &self.change.name, self.change.id);
        if live.map(E::version) != self.expected_version {
            let is = live.map_or("absent".to_owned(), |live| format!("at version {}", live.version()));
            return Err(format!("{word} {name} is {is}"));
        }
        match live {
            Some(live) if live.id() != id => Err(format!("{word} {name} has the number {}", live.id())),
            None if was_used(id) => Err(format!("{word} number {id} was used before")),
            Some(_) | None => Ok(()),
        }
    }
}

/// A catalog of one kind of entries.
///
/// Laws:
/// 1. `commit` applies all of a record or nothing, durably, and only if the expectation holds; otherwise `Conflict`.
/// 2. An id names one entry and is never reused, not even after a deletion. A commit that creates with a used id, or
///    changes an entry under another id, is a `Conflict`.
/// 3. `load` returns every live entry as its last commit left it.
/// 4. `history` returns the changes of all entries that ever had the name, newest first, from the start on.
/// 5. If servers share the catalog, every commit changes `revision`. Otherwise it is always none.
#[async_trait]
pub trait Catalog<E: CatalogEntry>: Send + Sync + 'static {
    /// Reads the present content.
    async fn load(&self) -> Result<E::State, StoreError>;

    /// The revision, by which a server notices commits of others. None where one process owns the store.
    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    /// Commits a change.
    async fn commit(&self, record: CatalogRecord<E>) -> Result<(), StoreError>;

    /// Reads the history of a name.
    async fn history(
        &self,
        name: &E::Name,
        start: E::HistoryStart,
        limit: usize,
    ) -> Result<Vec<CatalogChange<E>>, StoreError>;
}
