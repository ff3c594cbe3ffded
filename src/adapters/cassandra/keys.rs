//! API keys: rows in the partition of the catalog, changed by conditional batches under its revision.
//!
//! A change of a key is found by the revision that its commit made, so the newest change of a name comes first. If the answer
//! is lost, the history is read again: a change in it was committed.

use std::sync::Arc;

use async_trait::async_trait;

use crate::adapters::cassandra::catalog::{read_revision, read_statics};
use crate::adapters::cassandra::limits::CASSANDRA_ATTEMPTS_MAX;
use crate::adapters::cassandra::request_failure::RequestFailure;
use crate::adapters::cassandra::request_runner::RequestRunner;
use crate::adapters::cassandra::store::ConditionalResult;
use crate::adapters::cassandra::value::Bind;
use crate::adapters::codec::keys::{decode_key, decode_key_change, encode_key, encode_key_change};
use crate::domain::access::{AccessKey, KeyId, PrincipalName};
use crate::ports::{Catalog, KeyChange, KeyRecord, StoreError, StoreErrorKind};

const KEYS: i32 = 7;
const KEY_CHANGES: i32 = 8;
const USED_IDS: i32 = 9;

/// The API keys of a keyspace.
pub struct CqlKeys {
    requests: Arc<RequestRunner>,
}

/// The statics of the catalog: its revision, and the last ids of namespaces and datasets, which a commit of a key keeps.
type RevisionRow = (i64, i64, i64);

impl CqlKeys {
    pub fn new(requests: Arc<RequestRunner>) -> Self {
        Self { requests }
    }

    async fn read(&self, name: &PrincipalName, op: &'static str) -> Result<Option<AccessKey>, StoreError> {
        let statement = self.requests.statement("read_key");
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(op, statement, (name.as_str(),)).await?;
        let decoded = rows.first().map(|(value,)| decode_key(value)).transpose();
        decoded.map_err(|damaged| damaged.into_store_error(op))
    }

    async fn was_used(&self, id: KeyId, op: &'static str) -> Result<bool, StoreError> {
        let statement = self.requests.statement("read_key_id");
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(op, statement, (id.0.cast_signed(),)).await?;
        Ok(!rows.is_empty())
    }

    async fn changes(&self, name: &PrincipalName, rows_max: usize) -> Result<Vec<KeyChange>, StoreError> {
        const OP: &str = "read history";
        let most = i32::try_from(rows_max).unwrap_or(i32::MAX);
        let statement = self.requests.statement("list_key_changes");
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(OP, statement, (name.as_str(), most)).await?;
        let decoded = rows.into_iter().map(|(value,)| decode_key_change(&value));
        decoded.map(|change| change.map_err(|damaged| damaged.into_store_error(OP))).collect()
    }

    /// Sends a commit once.
    async fn try_commit(&self, known: RevisionRow, record: &KeyRecord) -> Result<ConditionalResult, RequestFailure> {
        let (revision, last_namespace, last_dataset) = known;
        let change = &record.change;
        let (name, next) = (change.name.as_str().to_owned(), revision + 1);
        let moved = (next, last_namespace, last_dataset, revision);
        let mut changes = vec![(self.requests.statement("move_revision"), moved.bind())];
        let mut rows = vec![
            (KEY_CHANGES, name.clone(), next, 0_i64, encode_key_change(change)),
            (USED_IDS, String::new(), change.id.0.cast_signed(), 0, vec![1]),
        ];
        match &record.entry {
            Some(key) => rows.push((KEYS, name, 0, 0, encode_key(key))),
            None => {
                let gone = (KEYS, name, 0_i64, 0_i64).bind();
                changes.push((self.requests.statement("delete_catalog_row"), gone));
            }
        }
        changes.extend(rows.into_iter().map(|row| (self.requests.statement("insert_catalog_row"), row.bind())));
        self.requests.store.apply_conditionally(&changes).await
    }
}

#[async_trait]
impl Catalog<AccessKey> for CqlKeys {
    async fn load(&self) -> Result<Vec<AccessKey>, StoreError> {
        const OP: &str = "load keys";
        let statement = self.requests.statement("list_catalog");
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(OP, statement, (KEYS,)).await?;
        let decoded = rows.into_iter().map(|(value,)| decode_key(&value));
        let keys: Result<Vec<_>, _> = decoded.map(|key| key.map_err(|damaged| damaged.into_store_error(OP))).collect();
        let mut keys = keys?;
        keys.sort_unstable_by(|one, other| one.spec.name.cmp(&other.spec.name));
        Ok(keys)
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        read_revision(&self.requests).await.map(Some)
    }

    async fn commit(&self, record: KeyRecord) -> Result<(), StoreError> {
        const OP: &str = "commit key";
        let (mut attempt, mut lost_answer) = (1, false);
        loop {
            let known = read_statics(&self.requests, OP).await?;
            let live = self.read(&record.change.name, OP).await?;
            let was_used = self.was_used(record.change.id, OP).await?;
            if lost_answer && self.changes(&record.change.name, 1).await?.first() == Some(&record.change) {
                return Ok(());
            }
            record
                .check(live.as_ref(), |_| was_used)
                .map_err(|why| StoreError::not_applied(StoreErrorKind::Conflict, OP).with_source(why))?;
            match self.try_commit(known, &record).await {
                Ok(ConditionalResult::Applied) => return Ok(()),
                // Another commit was first; it may concern another entry.
                Ok(ConditionalResult::NotApplied(_)) => {}
                Err(fault) if attempt >= CASSANDRA_ATTEMPTS_MAX => return Err(fault.during(OP)),
                Err(_) => {
                    lost_answer = true;
                    attempt += 1;
                    self.requests.pause(attempt).await;
                }
            }
        }
    }

    async fn history(&self, name: &PrincipalName, skip: usize, limit: usize) -> Result<Vec<KeyChange>, StoreError> {
        let newest = self.changes(name, skip.saturating_add(limit)).await?;
        Ok(newest.into_iter().skip(skip).collect())
    }
}
