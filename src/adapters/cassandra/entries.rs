//! API keys and experiments: rows in the partition of the catalog, changed by conditional batches under its revision.
//!
//! A change of an entry is found by the revision that its commit made, so the newest change of a name comes first. If
//! the answer is lost, the history is read again: a change in it was committed.

use std::sync::Arc;

use async_trait::async_trait;

use crate::catalog::{read_revision, read_statics};
use crate::limits::CASSANDRA_ATTEMPTS_MAX;
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::store::ConditionalResult;
use crate::value::Bind;
use tallystone_adapters::codec::entries::StoredEntry;
use tallystone_domain::access::AccessKey;
use tallystone_experiments::CatalogExperiment;
use tallystone_ports::{Catalog, CatalogChange, CatalogRecord, StoreError, StoreErrorKind};

/// An entry with the kinds of its rows.
pub trait CqlEntry: StoredEntry {
    /// The kind of the rows of live entries.
    const LIVE: i32;
    /// The kind of the rows of changes.
    const CHANGES: i32;
    /// The kind of the rows of ids in use or used before.
    const USED_IDS: i32;
}

impl CqlEntry for AccessKey {
    const LIVE: i32 = 7;
    const CHANGES: i32 = 8;
    const USED_IDS: i32 = 9;
}

impl CqlEntry for CatalogExperiment {
    const LIVE: i32 = 10;
    const CHANGES: i32 = 11;
    const USED_IDS: i32 = 12;
}

/// The API keys or the experiments of a keyspace.
pub struct CqlEntries {
    requests: Arc<RequestRunner>,
}

/// The statics of the catalog: its revision, and the last ids of namespaces and datasets, which a commit of an entry
/// keeps.
type RevisionRow = (i64, i64, i64);

impl CqlEntries {
    pub fn new(requests: Arc<RequestRunner>) -> Self {
        Self { requests }
    }

    async fn read<E: CqlEntry>(&self, name: &E::Name, op: &'static str) -> Result<Option<E>, StoreError> {
        let statement = self.requests.statement("read_catalog_row");
        let place = (E::LIVE, E::text_of(name), 0_i64);
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(op, statement, place).await?;
        let decoded = rows.first().map(|(value,)| E::decode(value)).transpose();
        decoded.map_err(|damaged| damaged.into_store_error(op))
    }

    async fn was_used<E: CqlEntry>(&self, id: E::Id, op: &'static str) -> Result<bool, StoreError> {
        let statement = self.requests.statement("read_catalog_row");
        let place = (E::USED_IDS, "", E::number_of(id).cast_signed());
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(op, statement, place).await?;
        Ok(!rows.is_empty())
    }

    async fn changes<E: CqlEntry>(&self, name: &E::Name, rows_max: usize) -> Result<Vec<CatalogChange<E>>, StoreError> {
        const OP: &str = "read history";
        let most = i32::try_from(rows_max).unwrap_or(i32::MAX);
        let statement = self.requests.statement("list_entry_changes");
        let place = (E::CHANGES, E::text_of(name), most);
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(OP, statement, place).await?;
        let decoded = rows.into_iter().map(|(value,)| E::decode_change(&value));
        decoded.map(|change| change.map_err(|damaged| damaged.into_store_error(OP))).collect()
    }

    /// Sends a commit once.
    async fn try_commit<E: CqlEntry>(
        &self,
        known: RevisionRow,
        record: &CatalogRecord<E>,
    ) -> Result<ConditionalResult, RequestFailure> {
        let (revision, last_namespace, last_dataset) = known;
        let change = &record.change;
        let (name, next) = (E::text_of(&change.name).to_owned(), revision + 1);
        let moved = (next, last_namespace, last_dataset, revision);
        let mut changes = vec![(self.requests.statement("move_revision"), moved.bind())];
        let mut rows = vec![
            (E::CHANGES, name.clone(), next, 0_i64, E::encode_change(change)),
            (E::USED_IDS, String::new(), E::number_of(change.id).cast_signed(), 0, vec![1]),
        ];
        match &record.entry {
            Some(entry) => rows.push((E::LIVE, name, 0, 0, entry.encode())),
            None => {
                let gone = (E::LIVE, name, 0_i64, 0_i64).bind();
                changes.push((self.requests.statement("delete_catalog_row"), gone));
            }
        }
        changes.extend(rows.into_iter().map(|row| (self.requests.statement("insert_catalog_row"), row.bind())));
        self.requests.store.apply_conditionally(&changes).await
    }
}

#[async_trait]
impl<E: CqlEntry> Catalog<E> for CqlEntries {
    async fn load(&self) -> Result<Vec<E>, StoreError> {
        let statement = self.requests.statement("list_catalog");
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(E::LOAD, statement, (E::LIVE,)).await?;
        let decoded = rows.into_iter().map(|(value,)| E::decode(&value));
        let entries = decoded.map(|entry| entry.map_err(|damaged| damaged.into_store_error(E::LOAD)));
        let mut entries = entries.collect::<Result<Vec<E>, StoreError>>()?;
        entries.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        Ok(entries)
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        read_revision(&self.requests).await.map(Some)
    }

    async fn commit(&self, record: CatalogRecord<E>) -> Result<(), StoreError> {
        let (mut attempt, mut lost_answer) = (1, false);
        loop {
            let known = read_statics(&self.requests, E::COMMIT).await?;
            let live = self.read::<E>(&record.change.name, E::COMMIT).await?;
            let was_used = self.was_used::<E>(record.change.id, E::COMMIT).await?;
            if lost_answer && self.changes::<E>(&record.change.name, 1).await?.first() == Some(&record.change) {
                return Ok(());
            }
            record
                .check(live.as_ref(), |_| was_used)
                .map_err(|why| StoreError::not_applied(StoreErrorKind::Conflict, E::COMMIT).with_source(why))?;
            match self.try_commit(known, &record).await {
                Ok(ConditionalResult::Applied) => return Ok(()),
                // Another commit was first; it may concern another entry.
                Ok(ConditionalResult::NotApplied(_)) => {}
                Err(fault) if attempt >= CASSANDRA_ATTEMPTS_MAX => return Err(fault.during(E::COMMIT)),
                Err(_) => {
                    lost_answer = true;
                    attempt += 1;
                    self.requests.pause(attempt).await;
                }
            }
        }
    }

    async fn history(&self, name: &E::Name, skip: usize, limit: usize) -> Result<Vec<CatalogChange<E>>, StoreError> {
        let newest = self.changes::<E>(name, skip.saturating_add(limit)).await?;
        Ok(newest.into_iter().skip(skip).collect())
    }
}
