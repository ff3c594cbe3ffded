//! The catalog: one partition, changed by conditional batches.
//!
//! Every commit raises `revision` by one, on the condition that it still has the value read with the state. The rows of
//! the change are in the same batch, so all of them appear or none. If the answer is lost, the state is read again: a
//! change in the history was committed, even if no caller received the answer.

use std::sync::Arc;

use async_trait::async_trait;

use crate::limits::CASSANDRA_ATTEMPTS_MAX;
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::stored_namespace;
use crate::slices::{RowSettings, SettingsSource};
use crate::store::ConditionalResult;
use crate::value::Bind;
use tallystone_adapters::codec::CorruptValue;
use tallystone_adapters::codec::catalog::{
    decode_change, decode_dataset, decode_namespace, decode_spec, encode_change, encode_dataset, encode_namespace,
    encode_spec,
};
use tallystone_domain::counter::{NamespaceId, NamespaceName};
use tallystone_domain::namespace::{Dataset, Namespace, NamespaceSpec};
use tallystone_ports::{CatalogState, NamespaceChange, NamespaceRecord, StoreError, StoreErrorKind};

const DATASETS: i32 = 1;
const NAMESPACES: i32 = 2;
const CHANGES: i32 = 3;
const SPECS: i32 = 4;

/// The catalog of a keyspace.
pub struct Catalog {
    requests: Arc<RequestRunner>,
}

/// The numbers that a commit is conditional on.
struct CatalogRevision {
    revision: i64,
    last_namespace: u64,
    last_dataset: u32,
    state: CatalogState,
}

/// A row of the catalog: kind, name, id, version, value.
type CatalogRow = (i32, String, i64, i64, Vec<u8>);

impl Catalog {
    /// Creates the catalog in the keyspace of these requests.
    pub fn new(requests: Arc<RequestRunner>) -> Self {
        Self { requests }
    }

    /// Creates the row that every commit is conditional on. A failure that a retry cannot help is final: conditional
    /// writes are impossible or not permitted.
    pub async fn initialize(&self) -> Result<(), RequestFailure> {
        let asked = [(self.requests.statement("begin_catalog"), ().bind())];
        self.requests.retry_requests(|| self.requests.store.apply_conditionally(&asked)).await.map(|_| ())
    }

    async fn read_all<T>(
        &self,
        kind: i32,
        op: &'static str,
        decode: fn(&[u8]) -> Result<T, CorruptValue>,
    ) -> Result<Vec<T>, StoreError> {
        let statement = self.requests.statement("list_catalog");
        let rows: Vec<(Vec<u8>,)> = self.requests.rows_serial(op, statement, (kind,)).await?;
        rows.into_iter().map(|(value,)| decode(&value).map_err(|damaged| damaged.into_store_error(op))).collect()
    }

    async fn read_snapshot(&self, op: &'static str) -> Result<CatalogRevision, StoreError> {
        loop {
            let before = self.numbers(op).await?;
            let mut namespaces: Vec<Namespace> = self.read_all(NAMESPACES, op, decode_namespace).await?;
            let mut datasets: Vec<Dataset> = self.read_all(DATASETS, op, decode_dataset).await?;
            namespaces.sort_by_key(|namespace| namespace.id);
            datasets.sort_by_key(|dataset| dataset.id);
            // The three reads form a snapshot only if nothing was committed in between.
            if self.numbers(op).await? != before {
                continue;
            }
            let (revision, last_namespace, last_dataset) = before;
            let (next_namespace_id, next_dataset_id) = (last_namespace + 1, last_dataset + 1);
            let state = CatalogState { datasets, namespaces, next_namespace_id, next_dataset_id };
            return Ok(CatalogRevision { revision, last_namespace, last_dataset, state });
        }
    }

    async fn numbers(&self, op: &'static str) -> Result<(i64, u64, u32), StoreError> {
        let (revision, namespace, dataset) = read_statics(&self.requests, op).await?;
        let dataset = u32::try_from(dataset).map_err(|error| RequestFailure::corrupt(error).during(op))?;
        Ok((revision, namespace.cast_unsigned(), dataset))
    }

    /// Sends a commit once.
    async fn try_commit(
        &self,
        known: &CatalogRevision,
        record: &NamespaceRecord,
    ) -> Result<ConditionalResult, RequestFailure> {
        let id = record.change.id;
        let last_namespace = known.last_namespace.max(id.0).cast_signed();
        let new_dataset = record.companion.as_ref().map_or(0, |dataset| dataset.id.0);
        let last_dataset = i64::from(known.last_dataset.max(new_dataset));
        let moved = (known.revision + 1, last_namespace, last_dataset, known.revision);
        let mut changes = vec![(self.requests.statement("move_revision"), moved.bind())];
        for row in rows_of(record) {
            changes.push((self.requests.statement("insert_catalog_row"), row.bind()));
        }
        if record.entry.is_none() {
            let row = (NAMESPACES, record.change.name.as_str(), stored_namespace(id), 0_i64);
            changes.push((self.requests.statement("delete_catalog_row"), row.bind()));
        }
        self.requests.store.apply_conditionally(&changes).await
    }

    /// Whether a change is in the history. A serial read also completes conditional writes that are in flight.
    async fn is_committed(&self, record: &NamespaceRecord) -> Result<bool, StoreError> {
        let change = &record.change;
        let beyond = Some((change.id, change.version + 1));
        let found = self.changes(&change.name, beyond, 1).await?;
        Ok(found.first() == Some(change))
    }

    async fn changes(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        const OP: &str = "read history";
        let (id, version) =
            beyond.map_or((i64::MAX, i64::MAX), |(id, version)| (stored_namespace(id), version.cast_signed()));
        let most = i32::try_from(limit).unwrap_or(i32::MAX);
        let statement = self.requests.statement("list_changes");
        let rows: Vec<(Vec<u8>,)> =
            self.requests.rows_serial(OP, statement, (name.as_str(), id, version, most)).await?;
        rows.into_iter().map(|(value,)| decode_change(&value).map_err(|damaged| damaged.into_store_error(OP))).collect()
    }
}

/// The statics of the catalog: its revision, and the last ids of namespaces and datasets.
pub(crate) type StoredStatics = (Option<i64>, Option<i64>, Option<i64>);

/// Reads the statics, after all commits that are in flight.
pub async fn read_statics(requests: &RequestRunner, op: &'static str) -> Result<(i64, i64, i64), StoreError> {
    let rows: Vec<StoredStatics> = requests.rows_serial(op, requests.statement("read_revision"), ()).await?;
    match rows.first().copied() {
        Some((Some(revision), Some(namespace), Some(dataset))) => Ok((revision, namespace, dataset)),
        Some(_) | None => Err(RequestFailure::corrupt("the catalog has no revision").during(op)),
    }
}

/// Reads the revision of the catalog, by which servers see that another one has changed it.
pub async fn read_revision(requests: &RequestRunner) -> Result<i64, StoreError> {
    let row: Option<StoredStatics> =
        requests.first_row("read revision", requests.statement("read_revision"), ()).await?;
    Ok(row.and_then(|(revision, _, _)| revision).unwrap_or(0))
}

/// The rows that a record writes.
fn rows_of(record: &NamespaceRecord) -> Vec<CatalogRow> {
    let change = &record.change;
    let (name, id, version) =
        (change.name.as_str().to_owned(), stored_namespace(change.id), change.version.cast_signed());
    let mut rows = vec![(CHANGES, name.clone(), id, version, encode_change(change))];
    if let Some(spec) = &change.spec {
        rows.push((SPECS, String::new(), id, version, encode_spec(spec)));
    }
    if let Some(namespace) = &record.entry {
        rows.push((NAMESPACES, name, id, 0, encode_namespace(namespace)));
    }
    if let Some(dataset) = &record.companion {
        rows.push((DATASETS, String::new(), i64::from(dataset.id.0), 0, encode_dataset(dataset)));
    }
    rows
}

/// Returns the reason if a record cannot be committed.
fn check(known: &CatalogRevision, record: &NamespaceRecord) -> Result<(), String> {
    let live = known.state.namespaces.iter().find(|namespace| namespace.spec.name == record.change.name);
    record.check_all(live, (known.last_namespace, known.last_dataset), &known.state.datasets)
}

#[async_trait]
impl tallystone_ports::Catalog<Namespace> for Catalog {
    async fn load(&self) -> Result<CatalogState, StoreError> {
        Ok(self.read_snapshot("load catalog").await?.state)
    }

    async fn revision(&self) -> Result<Option<i64>, StoreError> {
        read_revision(&self.requests).await.map(Some)
    }

    async fn commit(&self, record: NamespaceRecord) -> Result<(), StoreError> {
        const OP: &str = "commit";
        let mut attempt = 1;
        let mut lost_answer = false;
        loop {
            let known = self.read_snapshot(OP).await?;
            if lost_answer && self.is_committed(&record).await? {
                return Ok(());
            }
            check(&known, &record)
                .map_err(|why| StoreError::not_applied(StoreErrorKind::Conflict, OP).with_source(why))?;
            match self.try_commit(&known, &record).await {
                Ok(ConditionalResult::Applied) => return Ok(()),
                // Another commit was first; it may concern another namespace.
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

    async fn history(
        &self,
        name: &NamespaceName,
        beyond: Option<(NamespaceId, u64)>,
        limit: usize,
    ) -> Result<Vec<NamespaceChange>, StoreError> {
        self.changes(name, beyond, limit).await
    }
}

#[async_trait]
impl tallystone_ports::NamespaceStore for Catalog {
    async fn version_of(&self, namespace: NamespaceId, version: u64) -> Result<Option<NamespaceSpec>, StoreError> {
        const OP: &str = "read version";
        let statement = self.requests.statement("read_version");
        let values = (stored_namespace(namespace), version.cast_signed());
        let found: Vec<(Vec<u8>,)> = self.requests.rows_serial(OP, statement, values).await?;
        found.first().map(|(value,)| decode_spec(value).map_err(|damaged| damaged.into_store_error(OP))).transpose()
    }
}

#[async_trait]
impl SettingsSource for Catalog {
    async fn settings(&self, namespace: NamespaceId, version: u64) -> Result<RowSettings, StoreError> {
        let spec = tallystone_ports::NamespaceStore::version_of(self, namespace, version).await?;
        let why = || format!("the catalog has no version {version} of namespace {}", namespace.0);
        let spec = spec.ok_or_else(|| RequestFailure::corrupt(why()).during("read frozen settings"))?;
        Ok(spec.into())
    }
}
