//! Time slices: their metadata rows, their tables, and the steps that contain events.
//!
//! A slice consists of three tables that are created before the slice becomes visible and dropped together. The slices
//! of a dataset are cached in memory and refreshed whenever a new limit is read, before the limit becomes visible. So
//! every event that any server acknowledged up to a known limit is in a cached slice and step. A status advances in
//! memory before it is stored. So a reader that fails on a dropped table sees that the slice is dropped and skips it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::stored_dataset;
use crate::schema::table_id;
use crate::statements::{DdlKind, Statements, slice_ddl};
use crate::store::ConditionalResult;
use tallystone_adapters::codec;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, NamespaceId};
use tallystone_domain::limits::STEP;
use tallystone_domain::namespace::{HotCounters, NamespaceSpec, SeriesSettings, TimePartition};
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_ports::{StoreError, StoreErrorKind, TimeSlices};

/// The settings of a namespace that determine how its events are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowSettings {
    /// How events are partitioned.
    pub partition: TimePartition,
    /// The counters that have their own number of event buckets.
    pub hot_counters: HotCounters,
    /// The stored series.
    pub series: Vec<SeriesSettings>,
}

impl RowSettings {
    /// How the events of a counter are partitioned.
    pub fn partition_of(&self, counter: &Counter) -> TimePartition {
        self.hot_counters.partition_of(counter.name(), self.partition)
    }
}

impl From<NamespaceSpec> for RowSettings {
    fn from(spec: NamespaceSpec) -> Self {
        Self { partition: spec.partition, hot_counters: spec.hot_counters, series: spec.series }
    }
}

/// Loads the settings of a namespace version.
#[async_trait]
pub trait SettingsSource: Send + Sync + 'static {
    /// Returns the settings of one version of a namespace. A version is immutable.
    async fn settings(&self, namespace: NamespaceId, version: u64) -> Result<RowSettings, StoreError>;
}

/// The cached state of one slice.
pub struct CqlSlice {
    row: TimeSlice,
    status: Mutex<SliceStatus>,
    tables: OnceCell<Statements>,
    /// Held while tables are created or dropped, so that no table is created after the drop.
    ddl_lock: AsyncMutex<()>,
    /// The known steps that contain events.
    steps: RwLock<BTreeSet<Timestamp>>,
    /// Up to this time, `steps` contains every step with acknowledged events.
    steps_complete_to: Mutex<Timestamp>,
    settings: DashMap<NamespaceId, Arc<RowSettings>>,
}

impl CqlSlice {
    fn new(row: TimeSlice) -> Self {
        let status = Mutex::new(row.status);
        Self {
            row,
            status,
            tables: OnceCell::new(),
            ddl_lock: AsyncMutex::new(()),
            steps: RwLock::default(),
            steps_complete_to: Mutex::new(Timestamp::MIN),
            settings: DashMap::new(),
        }
    }

    /// The first microsecond.
    pub fn start(&self) -> Timestamp {
        self.row.start
    }

    /// The last microsecond.
    pub fn last(&self) -> Timestamp {
        self.row.end.just_before()
    }

    /// Whether the tables are dropped or about to be dropped.
    pub fn is_dropped(&self) -> bool {
        *self.status.lock() == SliceStatus::Dropped
    }

    /// Whether a step is known to contain events.
    pub fn has_step(&self, step: Timestamp) -> bool {
        self.steps.read().contains(&step)
    }

    /// Records a step that contains events.
    pub fn add_step(&self, step: Timestamp) {
        self.steps.write().insert(step);
    }

    /// Advances the status; a status never moves back. Returns the resulting status.
    fn advance(&self, status: SliceStatus) -> SliceStatus {
        let mut current = self.status.lock();
        *current = status.max(*current);
        *current
    }

    /// The metadata row with the current status.
    fn current(&self) -> TimeSlice {
        TimeSlice { status: *self.status.lock(), ..self.row.clone() }
    }
}

type SlicesByStart = Arc<RwLock<BTreeMap<Timestamp, Arc<CqlSlice>>>>;

/// The slices of all datasets.
pub struct CqlSlices {
    requests: Arc<RequestRunner>,
    source: Arc<dyn SettingsSource>,
    by_dataset: DashMap<DatasetId, Arc<OnceCell<SlicesByStart>>>,
}

impl CqlSlices {
    /// Creates an empty cache. The slices of a dataset are loaded on first use.
    pub fn new(requests: Arc<RequestRunner>, source: Arc<dyn SettingsSource>) -> Self {
        Self { requests, source, by_dataset: DashMap::new() }
    }

    /// Returns the slice that accepts events at `time`. Fails if there is none or if it is dropped.
    pub async fn writable_slice_at(
        &self,
        dataset: DatasetId,
        time: Timestamp,
        op: &'static str,
    ) -> Result<Arc<CqlSlice>, StoreError> {
        match self.slice_at(dataset, time).await?.filter(|slice| !slice.is_dropped()) {
            Some(slice) => Ok(slice),
            None => Err(not_covered(dataset, time, op)),
        }
    }

    /// Returns the slice that covers `time`, even if it is dropped.
    pub async fn slice_at(&self, dataset: DatasetId, time: Timestamp) -> Result<Option<Arc<CqlSlice>>, StoreError> {
        let slices = self.slices_of(dataset).await?;
        let found = slices.read().range(..=time).next_back().map(|(_, slice)| Arc::clone(slice));
        Ok(found.filter(|slice| time <= slice.last()))
    }

    /// Returns the slices that overlap `from..=to` and are not dropped, oldest first.
    pub async fn live_slices(
        &self,
        dataset: DatasetId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Arc<CqlSlice>>, StoreError> {
        let slices = self.slices_of(dataset).await?;
        let slices = slices.read();
        let overlapping = slices.values().filter(|slice| slice.start() <= to && from <= slice.last());
        Ok(overlapping.filter(|slice| !slice.is_dropped()).cloned().collect())
    }

    /// Returns the prepared statements for the tables of a slice. Creates missing tables.
    pub async fn tables<'a>(&self, slice: &'a CqlSlice, op: &'static str) -> Result<&'a Statements, StoreError> {
        let prepared = slice.tables.get_or_try_init(|| async {
            let _ddl = slice.ddl_lock.lock().await;
            if slice.is_dropped() {
                return Err(not_covered(slice.row.dataset, slice.start(), op));
            }
            let substitute = self.template_substitution(&slice.row);
            // The tables exist unless the process that inserted the row stopped before it created them.
            match Statements::of_slice(self.requests.store.as_ref(), &substitute).await {
                Ok(prepared) => Ok(prepared),
                Err(_) => {
                    self.run_ddl(DdlKind::Create, &slice.row, op).await?;
                    Statements::of_slice(self.requests.store.as_ref(), &substitute)
                        .await
                        .map_err(|fault| fault.during(op))
                }
            }
        });
        prepared.await
    }

    /// Returns the settings of a namespace that were current when the slice was created; those of version 1 if the
    /// namespace is newer than the slice.
    pub async fn settings(&self, slice: &CqlSlice, namespace: NamespaceId) -> Result<Arc<RowSettings>, StoreError> {
        if let Some(settings) = slice.settings.get(&namespace) {
            return Ok(Arc::clone(&settings));
        }
        let version = slice.row.versions.get(&namespace).copied().unwrap_or(1);
        let settings = Arc::new(self.source.settings(namespace, version).await?);
        slice.settings.insert(namespace, Arc::clone(&settings));
        Ok(settings)
    }

    /// Returns the steps of a slice in `from..=to` that contain events, in order. Reads the steps above the last
    /// refresh from the store, because other servers may have added some.
    pub async fn steps(&self, slice: &CqlSlice, from: Timestamp, to: Timestamp) -> Result<Vec<Timestamp>, StoreError> {
        let known_to = *slice.steps_complete_to.lock();
        if to > known_to {
            self.read_steps(slice, from.max(known_to.floor_to(STEP)), to).await?;
        }
        let steps = slice.steps.read();
        Ok(if from <= to { steps.range(from..=to).copied().collect() } else { Vec::new() })
    }

    async fn read_steps(&self, slice: &CqlSlice, from: Timestamp, to: Timestamp) -> Result<(), StoreError> {
        let values = (stored_dataset(slice.row.dataset), slice.start().micros(), from.micros(), to.micros());
        let steps: Vec<(i64,)> =
            self.requests.rows("read steps", self.requests.statement("list_steps"), values).await?;
        slice.steps.write().extend(steps.into_iter().map(|(step,)| Timestamp::from_micros(step)));
        Ok(())
    }

    /// Refreshes the slices and steps that other servers created, up to `limit`. The caller must have read the limit
    /// before.
    pub async fn refresh_to(&self, dataset: DatasetId, limit: Timestamp) -> Result<(), StoreError> {
        self.refresh_rows(dataset).await?;
        for slice in self.live_slices(dataset, Timestamp::MIN, limit).await? {
            let to = limit.min(slice.last());
            let known_to = *slice.steps_complete_to.lock();
            if known_to < to {
                self.read_steps(&slice, known_to.floor_to(STEP).max(slice.start().floor_to(STEP)), to).await?;
                let mut steps_to = slice.steps_complete_to.lock();
                *steps_to = to.max(*steps_to);
            }
        }
        Ok(())
    }

    /// Invalidates the cached steps of the live slices, so that the next use reads them from the store.
    pub async fn invalidate_steps(&self, dataset: DatasetId) -> Result<(), StoreError> {
        for slice in self.live_slices(dataset, Timestamp::MIN, Timestamp::MAX).await? {
            *slice.steps_complete_to.lock() = Timestamp::MIN;
        }
        Ok(())
    }

    /// Re-reads the slice rows of a dataset.
    async fn refresh_rows(&self, dataset: DatasetId) -> Result<(), StoreError> {
        let slices = self.slices_of(dataset).await?;
        for row in self.stored_rows(dataset).await? {
            let known = slices.read().get(&row.start).cloned();
            match known {
                Some(slice) => {
                    slice.advance(row.status);
                }
                None => {
                    slices.write().entry(row.start).or_insert_with(|| Arc::new(CqlSlice::new(row)));
                }
            }
        }
        Ok(())
    }

    async fn stored_rows(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        const OP: &str = "read slices";
        let statement = self.requests.statement("list_slices");
        let rows: Vec<(i64, Vec<u8>, Option<i32>)> =
            self.requests.rows(OP, statement, (stored_dataset(dataset),)).await?;
        rows.into_iter().map(|(_, row, status)| row_from(&row, status, OP)).collect()
    }

    async fn slices_of(&self, dataset: DatasetId) -> Result<SlicesByStart, StoreError> {
        // Called for every event, so the common path takes only a read lock.
        let known = self.by_dataset.get(&dataset).map(|cell| Arc::clone(&cell));
        let cell = known.unwrap_or_else(|| Arc::clone(&self.by_dataset.entry(dataset).or_default()));
        let slices = cell.get_or_try_init(|| async {
            let rows = self.stored_rows(dataset).await?;
            let slices: BTreeMap<_, _> =
                rows.into_iter().map(|row| (row.start, Arc::new(CqlSlice::new(row)))).collect();
            Ok::<SlicesByStart, StoreError>(Arc::new(RwLock::new(slices)))
        });
        slices.await.cloned()
    }

    /// Creates or drops the tables of a slice.
    async fn run_ddl(&self, kind: DdlKind, row: &TimeSlice, op: &'static str) -> Result<(), StoreError> {
        for text in slice_ddl(kind, self.template_substitution(row)) {
            self.requests.store.define(&text).await.map_err(|fault| fault.during(op))?;
        }
        Ok(())
    }

    /// Returns a function that substitutes the keyspace and the table names and ids of a slice in a statement template.
    fn template_substitution(&self, row: &TimeSlice) -> impl Fn(&str) -> String + use<> {
        let seconds = row.start.micros().div_euclid(1_000_000);
        let sign = if seconds < 0 { "m" } else { "" };
        let slice = format!("{}_{sign}{}", row.dataset.0, seconds.unsigned_abs());
        let keyspace = self.requests.keyspace.clone();
        move |text: &str| {
            let mut text = text.to_owned();
            for table in ["events", "dirty", "buckets"] {
                let id = table_id(&format!("{keyspace}.{table}_{slice}"));
                text = text.replace(&format!("{{{table}_id}}"), &id);
            }
            text.replace("{keyspace}", &keyspace).replace("{slice}", &slice)
        }
    }
}

fn not_covered(dataset: DatasetId, time: Timestamp, op: &'static str) -> StoreError {
    StoreError::not_applied(StoreErrorKind::Conflict, op)
        .with_source(format!("no live slice of dataset {} covers {time:?}", dataset.0))
}

/// Decodes a slice row. Uses the status column if it is further than the status in the row.
fn row_from(row: &[u8], status: Option<i32>, op: &'static str) -> Result<TimeSlice, StoreError> {
    let mut row = codec::decode_slice(row).map_err(|damaged| damaged.into_store_error(op))?;
    if let Some(status) = status {
        row.status = row.status.max(status_from(status).map_err(|fault| fault.during(op))?);
    }
    Ok(row)
}

fn status_code(status: SliceStatus) -> i32 {
    match status {
        SliceStatus::Future => 1,
        SliceStatus::Open => 2,
        SliceStatus::Closed => 3,
        SliceStatus::Dropped => 4,
    }
}

fn status_from(code: i32) -> Result<SliceStatus, RequestFailure> {
    match code {
        1 => Ok(SliceStatus::Future),
        2 => Ok(SliceStatus::Open),
        3 => Ok(SliceStatus::Closed),
        4 => Ok(SliceStatus::Dropped),
        _ => Err(RequestFailure::corrupt(format!("a slice has the status {code}"))), // no release writes this code
    }
}

#[async_trait]
impl TimeSlices for CqlSlices {
    async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        self.refresh_rows(dataset).await?;
        self.list_cached(dataset).await
    }

    async fn list_cached(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
        Ok(self.slices_of(dataset).await?.read().values().map(|slice| slice.current()).collect())
    }

    async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
        const OP: &str = "create slice";
        let slices = self.slices_of(slice.dataset).await?;
        let key = (stored_dataset(slice.dataset), slice.start.micros());
        let values = (key.0, key.1, codec::encode_slice(&slice));
        let statement = self.requests.statement("insert_slice");
        let row = match self.requests.apply_conditionally(OP, statement, values).await? {
            ConditionalResult::Applied => slice,
            ConditionalResult::NotApplied(existing) => {
                let bytes =
                    existing.bytes("row").ok_or_else(|| RequestFailure::corrupt("a slice has no row").during(OP))?;
                row_from(&bytes, existing.int("status"), OP)?
            }
        };
        let slice = Arc::clone(slices.write().entry(row.start).or_insert_with(|| Arc::new(CqlSlice::new(row))));
        if !slice.is_dropped() {
            self.tables(&slice, OP).await?;
        }
        Ok(slice.current())
    }

    async fn set_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Result<(), StoreError> {
        const OP: &str = "set slice status";
        let slice = self.slices_of(dataset).await?.read().get(&start).cloned();
        let Some(slice) = slice else {
            let why = format!("dataset {} has no slice that starts at {start:?}", dataset.0);
            return Err(StoreError::not_applied(StoreErrorKind::Conflict, OP).with_source(why));
        };
        let status = slice.advance(status);
        let code = status_code(status);
        let key = (stored_dataset(dataset), start.micros());
        let values = (i64::from(code), code, key.0, key.1);
        self.requests.write(OP, self.requests.statement("set_slice_status"), values).await?;
        if status == SliceStatus::Dropped {
            let _ddl = slice.ddl_lock.lock().await;
            self.run_ddl(DdlKind::Drop, &slice.row, OP).await?;
            self.requests.write(OP, self.requests.statement("delete_steps"), key).await?;
        }
        Ok(())
    }
}

/// The TTL of a series row in seconds: its retention plus a margin of one day; 0 (no expiry) if no retention is set.
pub fn series_ttl(settings: &RowSettings, step_seconds: u32) -> i32 {
    const SPARE: Duration = Duration::from_secs(86_400);
    let keep = settings.series.iter().find(|series| series.step_seconds == step_seconds).map(|series| series.keep);
    let ttl = keep.map_or(0, |keep| (keep + SPARE).as_secs());
    i32::try_from(ttl).ok().filter(|ttl| *ttl <= crate::limits::SERIES_TTL_SECONDS_MAX).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_table_depends_only_on_its_name() {
        assert_eq!(table_id("a.events_1_0"), table_id("a.events_1_0"));
        assert_ne!(table_id("a.events_1_0"), table_id("b.events_1_0"));
    }

    #[test]
    fn a_series_row_lives_a_day_longer_than_it_is_kept() {
        let series = vec![SeriesSettings { step_seconds: 10, keep: Duration::from_secs(3_600) }];
        let settings =
            RowSettings { partition: TimePartition::default(), hot_counters: HotCounters::default(), series };
        assert_eq!(series_ttl(&settings, 10), 90_000);
        assert_eq!(series_ttl(&settings, 60), 0, "no retention is set for this resolution");
    }

    #[test]
    fn every_status_has_its_number() {
        for status in [SliceStatus::Future, SliceStatus::Open, SliceStatus::Closed, SliceStatus::Dropped] {
            assert_eq!(status_from(status_code(status)).ok(), Some(status));
        }
        assert!(status_from(0).is_err() && status_from(5).is_err());
    }
}
