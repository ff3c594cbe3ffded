//! Checkpoints, bucket records, series and names.
//!
//! A checkpoint is one cell whose timestamp is its `as_of`. So of two concurrent rolls the later one stays, whatever
//! the order of arrival. Finished records are written before the checkpoint that no longer contains them. If a roll
//! fails in between, the next roll writes the same records again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::RwLock;
use quick_cache::sync::Cache;

use crate::limits::{HEADS_REMEMBERED_MAX, PARTITION_READS_AT_ONCE_MAX, PARTITION_WRITES_AT_ONCE_MAX};
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::{key_from, stored_counter, stored_dataset, stored_namespace, stored_shard};
use crate::series::Resolutions;
use crate::slices::{CqlSlices, series_ttl};
use crate::touch_writer::TouchWriter;
use crate::wide_rows::{WideRowDetector, oversized_buckets};
use tallystone_adapters::codec;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::limits::TOUCH_SHARDS;
use tallystone_domain::rollup::{BucketRecord, Checkpoint, RollupRow, StepSum, VerifiedBase};
use tallystone_ports::{RollWrite, RollupStore, StoreError};

/// Checkpoints, bucket records, series and names.
pub struct Rollups {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    touch_writer: Arc<TouchWriter>,
    resolutions: RwLock<Resolutions>,
    /// Checkpoints that this process has read or written.
    versions: Cache<(DatasetId, Counter), CheckpointVersion>,
    /// Counters that are too hot for their partitions.
    pub wide_rows: WideRowDetector,
}

/// The number of repairs of a checkpoint, and its as_of: the greater one counts.
type CheckpointVersion = (u64, Timestamp);

/// A row of a rollup: repairs, live, sealed, last_write_time, clear.
type StoredRollupRow = (Option<i64>, Option<Vec<u8>>, Option<Vec<u8>>, Option<i64>, Option<Vec<u8>>);

impl Rollups {
    /// Reads the resolutions of series.
    pub async fn open(
        requests: Arc<RequestRunner>,
        slices: Arc<CqlSlices>,
        touching: Arc<TouchWriter>,
    ) -> Result<Self, StoreError> {
        let statement = requests.statement("list_resolutions");
        let rows = requests.rows("read resolutions", statement, ()).await?;
        let resolutions = RwLock::new(Resolutions::stored(rows));
        let heads = Cache::new(HEADS_REMEMBERED_MAX);
        Ok(Self {
            requests,
            slices,
            touch_writer: touching,
            resolutions,
            versions: heads,
            wide_rows: WideRowDetector::default(),
        })
    }

    fn note_version(&self, dataset: DatasetId, counter: &Counter, head: CheckpointVersion) {
        let key = (dataset, counter.clone());
        if self.versions.get(&key).is_none_or(|known| known < head) {
            self.versions.insert(key, head);
        }
    }

    async fn stored_version(&self, dataset: DatasetId, counter: &Counter) -> Result<CheckpointVersion, StoreError> {
        match self.versions.get(&(dataset, counter.clone())) {
            Some(head) => Ok(head),
            None => Ok(version_of(&self.read(dataset, counter).await?)),
        }
    }

    /// Writes the rolls of one counter, in their order; each wins over those before it if its as_of is greater.
    async fn put_counter(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError> {
        for write in writes {
            if self.touch_writer.is_deleted(write.counter.namespace()) {
                continue;
            }
            let head = (write.checkpoint.repairs, write.checkpoint.as_of);
            if head > self.stored_version(dataset, &write.counter).await? {
                self.put_one(dataset, &write).await?;
                self.note_version(dataset, &write.counter, head);
            }
        }
        Ok(())
    }

    async fn put_one(&self, dataset: DatasetId, write: &RollWrite) -> Result<(), StoreError> {
        const OP: &str = "put checkpoint";
        let as_of = write.checkpoint.as_of;
        let last = write.checkpoint.last_event_time;
        let slice = match last {
            Some(last) => self.slices.slice_at(dataset, last).await?,
            None => None,
        };
        let slice_start = slice.map_or(Timestamp::MIN, |slice| slice.start());
        self.touch_writer.ensure_name_stored(&write.counter, slice_start, as_of).await?;
        for bucket in &write.finished_buckets {
            self.put_bucket(dataset, &write.counter, bucket, record_time(&write.checkpoint)).await?;
        }
        self.put_steps(dataset, write).await?;
        self.look_for_wide(dataset, write).await;
        let (ns, name) = stored_counter(&write.counter);
        let repairs = write.checkpoint.repairs.cast_signed();
        let value = codec::encode_checkpoint(&write.checkpoint);
        let at = self.requests.register_time(as_of.micros());
        let values = (at, value, stored_dataset(dataset), ns, name, repairs);
        self.requests.write(OP, self.requests.statement("set_live"), values).await
    }

    /// Warns of partitions that grow too large. A roll never fails because of them.
    async fn look_for_wide(&self, dataset: DatasetId, write: &RollWrite) {
        for bucket in oversized_buckets(write) {
            let Ok(Some(slice)) = self.slices.slice_at(dataset, bucket.start).await else { continue };
            let Ok(settings) = self.slices.settings(&slice, write.counter.namespace()).await else { continue };
            let partition = settings.partition_of(&write.counter);
            self.wide_rows.check_bucket(dataset, &write.counter, &slice, partition, bucket, write.checkpoint.as_of);
        }
    }

    async fn put_bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        bucket: &BucketRecord,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        const OP: &str = "put bucket record";
        // The records of a dropped slice are deleted with it; before the first slice there is nothing to record.
        let Some(slice) = self.slices.slice_at(dataset, bucket.start).await? else { return Ok(()) };
        if slice.is_dropped() {
            return Ok(());
        }
        let (ns, name) = stored_counter(counter);
        let tables = self.slices.tables(&slice, OP).await?;
        let values = (ns, name, bucket.start.micros(), codec::encode_bucket(bucket), at.micros());
        let written = self.requests.write(OP, tables.get("insert_bucket"), values).await;
        if slice.is_dropped() { Ok(()) } else { written }
    }

    async fn put_steps(&self, dataset: DatasetId, write: &RollWrite) -> Result<(), StoreError> {
        const OP: &str = "put series step";
        if write.finished_steps.is_empty() {
            return Ok(());
        }
        let as_of = write.checkpoint.as_of;
        let settings = match self.slices.slice_at(dataset, as_of).await? {
            Some(slice) => Some(self.slices.settings(&slice, write.counter.namespace()).await?),
            None => None,
        };
        let (ns, name) = stored_counter(&write.counter);
        for step in &write.finished_steps {
            let resolution = stored_resolution(step.step_seconds);
            let newest = self.resolutions.read().is_newer(resolution, step.start);
            if newest {
                let start = step.start.micros();
                self.requests
                    .write(OP, self.requests.statement("set_newest_start"), (start, start, resolution))
                    .await?;
                self.resolutions.write().note_newest(resolution, step.start);
            }
            let ttl = settings.as_ref().map_or(0, |settings| series_ttl(settings, step.step_seconds));
            let value = codec::encode_step(step);
            let values = (ns, name, resolution, step.start.micros(), value, ttl, as_of.micros());
            self.requests.write(OP, self.requests.statement("insert_series_step"), values).await?;
        }
        Ok(())
    }

    /// Reads the names of one shard.
    async fn names_of_shard(
        &self,
        namespace: NamespaceId,
        shard: u32,
        from: &str,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        const OP: &str = "list names";
        let shard = stored_shard(shard);
        let most = i32::try_from(limit).unwrap_or(i32::MAX);
        let values = (stored_namespace(namespace), shard, from, most);
        let rows: Vec<(String,)> = self.requests.rows(OP, self.requests.statement("list_names"), values).await?;
        let name = |(name,): (String,)| {
            CounterName::new(&name).map_err(|reject| RequestFailure::corrupt(reject.message).during(OP))
        };
        rows.into_iter().map(name).collect()
    }

    /// Removes the rows of a counter, in every dataset.
    async fn forget_counter(&self, datasets: &[DatasetId], counter: Counter) -> Result<(), StoreError> {
        const OP: &str = "forget counter";
        let (ns, name) = stored_counter(&counter);
        for dataset in datasets {
            let values = (stored_dataset(*dataset), ns, name);
            self.requests.write(OP, self.requests.statement("delete_rollup"), values).await?;
            self.versions.remove(&(*dataset, counter.clone()));
            for slice in self.slices.live_slices(*dataset, Timestamp::MIN, Timestamp::MAX).await? {
                let tables = self.slices.tables(&slice, OP).await?;
                self.requests.write(OP, tables.get("delete_buckets"), (ns, name)).await?;
            }
        }
        let resolutions = self.resolutions.read().all();
        for resolution in resolutions {
            self.requests.write(OP, self.requests.statement("delete_series"), (ns, name, resolution)).await?;
        }
        self.touch_writer.unname(&counter);
        let shard = stored_shard(counter.touch_shard());
        self.requests.write(OP, self.requests.statement("delete_name"), (ns, shard, name)).await
    }

    /// Removes the rows of a counter up to a time, if no slice has events of it. The time is that of the deletion, so
    /// whatever is written above it stays, whenever it arrives.
    async fn forget_silent(&self, dataset: DatasetId, counter: Counter, up_to: Timestamp) -> Result<(), StoreError> {
        const OP: &str = "forget counters";
        let row = self.read(dataset, &counter).await?;
        if let Some(last) = row.last_write_time
            && self.slices.slice_at(dataset, last).await?.is_some_and(|slice| !slice.is_dropped())
        {
            return Ok(());
        }
        let newest = row.checkpoint.map(|checkpoint| checkpoint.as_of).max(row.last_write_time);
        if newest > Some(up_to) {
            return Ok(());
        }
        let (ns, name) = stored_counter(&counter);
        let at = up_to.micros();
        // The name comes last: as long as it is there, an interrupted removal is found again.
        let values = (at, stored_dataset(dataset), ns, name);
        self.requests.write(OP, self.requests.statement("forget_rollup"), values).await?;
        self.versions.remove(&(dataset, counter.clone()));
        self.touch_writer.unname(&counter);
        let values = (at, ns, stored_shard(counter.touch_shard()), name);
        self.requests.write(OP, self.requests.statement("forget_name"), values).await
    }

    /// Reads the sealed value of a counter.
    pub async fn sealed(&self, dataset: DatasetId, counter: &Counter) -> Result<Option<VerifiedBase>, StoreError> {
        const OP: &str = "read sealed value";
        let (ns, name) = stored_counter(counter);
        let values = (stored_dataset(dataset), ns, name);
        let row: Option<(Option<Vec<u8>>,)> =
            self.requests.first_row(OP, self.requests.statement("read_sealed"), values).await?;
        let Some((Some(bytes),)) = row else { return Ok(None) };
        codec::decode_sealed(&bytes).map(Some).map_err(|damaged| damaged.into_store_error(OP))
    }

    /// The datasets that have slices.
    pub async fn datasets(&self) -> Result<Vec<DatasetId>, StoreError> {
        let rows: Vec<(i64,)> =
            self.requests.rows("list datasets", self.requests.statement("list_datasets"), ()).await?;
        let known = |(id,): (i64,)| u32::try_from(id).ok().map(DatasetId);
        Ok(rows.into_iter().filter_map(known).collect())
    }

    async fn steps(
        &self,
        statement: &str,
        counter: &Counter,
        step_seconds: u32,
        (from, to): (Timestamp, Timestamp),
    ) -> Result<Vec<StepSum>, StoreError> {
        const OP: &str = "read series";
        let resolution = stored_resolution(step_seconds);
        let from = from.max(self.resolutions.read().trimmed_before(resolution));
        if from >= to || self.touch_writer.is_deleted(counter.namespace()) {
            return Ok(Vec::new());
        }
        let (ns, name) = stored_counter(counter);
        let values = (ns, name, resolution, from.micros(), to.micros());
        let rows: Vec<(Vec<u8>,)> = self.requests.rows(OP, self.requests.statement(statement), values).await?;
        let step = |(bytes,): (Vec<u8>,)| codec::decode_step(&bytes).map_err(|damaged| damaged.into_store_error(OP));
        rows.into_iter().map(step).collect()
    }
}

fn stored_resolution(step_seconds: u32) -> i32 {
    i32::try_from(step_seconds).expect("a step divides a day")
}

/// The cell timestamp of the records of a roll: its as_of, a whole millisecond, and in the microseconds below it the
/// number of repairs. So of two rolls up to one limit the one on the repaired value stays.
fn record_time(checkpoint: &Checkpoint) -> Timestamp {
    checkpoint.as_of + Duration::from_micros(checkpoint.repairs.min(999))
}

fn version_of(row: &RollupRow) -> CheckpointVersion {
    let checkpoint = row.checkpoint.as_ref().filter(|_| !row.just_repaired);
    match (checkpoint, &row.checkpoint) {
        (Some(checkpoint), _) => (checkpoint.repairs, checkpoint.as_of),
        // No roll has used it yet: any checkpoint of its number is new.
        (None, Some(sealed)) => (sealed.repairs, Timestamp::MIN),
        (None, None) => (0, Timestamp::MIN),
    }
}

fn row_from(rows: Vec<StoredRollupRow>) -> Result<RollupRow, StoreError> {
    const OP: &str = "read checkpoint";
    let mut row = RollupRow::default();
    let mut greatest = None;
    let mut sealed_value = None;
    for (repairs, live, sealed, last_write_time, clear) in rows {
        sealed_value = sealed;
        row.last_write_time = last_write_time.map(Timestamp::from_micros);
        let key =
            |bytes: Vec<u8>| key_from(&bytes).ok_or_else(|| RequestFailure::corrupt("a clear register").during(OP));
        row.clear = clear.map(key).transpose()?;
        if let Some(live) = live.filter(|_| repairs >= greatest) {
            greatest = repairs;
            row.checkpoint = Some(codec::decode_checkpoint(&live).map_err(|damaged| damaged.into_store_error(OP))?);
        }
    }
    if let Some(sealed) = sealed_value {
        let sealed = codec::decode_sealed(&sealed).map_err(|damaged| damaged.into_store_error(OP))?;
        if row.checkpoint.as_ref().is_none_or(|live| live.repairs < sealed.checkpoint.repairs) {
            row.checkpoint = Some(sealed.checkpoint);
            row.just_repaired = true;
        }
    }
    Ok(row)
}

#[async_trait]
impl RollupStore for Rollups {
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError> {
        if self.touch_writer.is_deleted(counter.namespace()) {
            return Ok(RollupRow::default());
        }
        let (ns, name) = stored_counter(counter);
        let values = (stored_dataset(dataset), ns, name);
        let row =
            row_from(self.requests.rows("read checkpoint", self.requests.statement("read_rollup"), values).await?)?;
        self.note_version(dataset, counter, version_of(&row));
        Ok(row)
    }

    fn rolled_to(&self, dataset: DatasetId, counter: &Counter) -> Option<Timestamp> {
        self.versions.get(&(dataset, counter.clone())).map(|(_, as_of)| as_of)
    }

    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError> {
        let mut by_counter: BTreeMap<Counter, Vec<RollWrite>> = BTreeMap::new();
        for write in writes {
            by_counter.entry(write.counter.clone()).or_default().push(write);
        }
        let putting = by_counter.into_values().map(|writes| self.put_counter(dataset, writes));
        let mut putting = stream::iter(putting).buffer_unordered(PARTITION_WRITES_AT_ONCE_MAX);
        while let Some(put) = putting.next().await {
            put?;
        }
        Ok(())
    }

    async fn buckets(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError> {
        const OP: &str = "read bucket records";
        let mut found = Vec::new();
        if from >= to || self.touch_writer.is_deleted(counter.namespace()) {
            return Ok(found);
        }
        let (ns, name) = stored_counter(counter);
        for slice in self.slices.live_slices(dataset, from, to.just_before()).await? {
            let tables = self.slices.tables(&slice, OP).await?;
            let values = (ns, name, from.micros(), to.micros());
            let rows: Result<Vec<(Vec<u8>,)>, StoreError> =
                self.requests.rows(OP, tables.get("list_buckets"), values).await;
            if slice.is_dropped() {
                continue;
            }
            for (bytes,) in rows? {
                found.push(codec::decode_bucket(&bytes).map_err(|damaged| damaged.into_store_error(OP))?);
            }
        }
        // A record changed by a repair replaces that of the roll.
        let repaired = self.sealed(dataset, counter).await?.map(|sealed| sealed.repaired).unwrap_or_default();
        for record in repaired.into_iter().filter(|record| record.start >= from && record.start < to) {
            match found.binary_search_by_key(&record.start, |found| found.start) {
                Ok(at) => found[at] = record,
                Err(at) => found.insert(at, record),
            }
        }
        Ok(found)
    }

    async fn series(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, StoreError> {
        self.steps("list_series", counter, step_seconds, (from, to)).await
    }

    async fn series_before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, StoreError> {
        Ok(self.steps("last_series_step", counter, step_seconds, (Timestamp::MIN, before)).await?.pop())
    }

    async fn trim_series(&self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError> {
        let resolution = stored_resolution(step_seconds);
        let Some(before) = self.resolutions.read().trim_target(resolution, before) else { return Ok(()) };
        let values = (before.micros(), before.micros(), resolution);
        self.requests.write("trim series", self.requests.statement("set_trimmed_before"), values).await?;
        self.resolutions.write().note_trimmed(resolution, before);
        Ok(())
    }

    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError> {
        let rows = self.requests.rows("read resolutions", self.requests.statement("list_resolutions"), ()).await?;
        *self.resolutions.write() = Resolutions::stored(rows);
        Ok(self.resolutions.read().with_steps())
    }

    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        if self.touch_writer.is_deleted(namespace) {
            return Ok(Vec::new());
        }
        let from = above.map_or(prefix, |above| above.as_str().max(prefix));
        // One more, because the first name may be the excluded one.
        let most = limit.saturating_add(1);
        let reading = (0..TOUCH_SHARDS).map(|shard| self.names_of_shard(namespace, shard, from, most));
        let read: Vec<Vec<CounterName>> =
            stream::iter(reading).buffer_unordered(PARTITION_READS_AT_ONCE_MAX).try_collect().await?;
        let mut names: Vec<CounterName> = read.into_iter().flatten().collect();
        names.retain(|name| name.as_str().starts_with(prefix) && above.is_none_or(|above| name > above));
        names.sort();
        names.truncate(limit);
        Ok(names)
    }

    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError> {
        self.touch_writer.refresh_namespaces().await?;
        Ok(self.touch_writer.stored_namespaces(above, limit))
    }

    async fn forget_counters(&self, dataset: DatasetId, silent: Vec<(Counter, Timestamp)>) -> Result<(), StoreError> {
        let forgetting = silent.into_iter().map(|(counter, up_to)| self.forget_silent(dataset, counter, up_to));
        let mut forgetting = stream::iter(forgetting).buffer_unordered(PARTITION_WRITES_AT_ONCE_MAX);
        while let Some(forgotten) = forgetting.next().await {
            forgotten?;
        }
        Ok(())
    }

    async fn remove_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        const OP: &str = "forget namespace";
        let id = (stored_namespace(namespace),);
        self.requests.write(OP, self.requests.statement("forget_namespace"), id).await?;
        self.touch_writer.update_namespace(namespace, |kept| kept.is_deleted = true);
        let datasets = self.datasets().await?;
        for shard in 0..TOUCH_SHARDS {
            loop {
                let names = self.names_of_shard(namespace, shard, "", PARTITION_WRITES_AT_ONCE_MAX).await?;
                let is_last = names.len() < PARTITION_WRITES_AT_ONCE_MAX;
                let counters: Vec<Counter> = names.into_iter().map(|name| Counter::new(namespace, name)).collect();
                let forgetting = counters.into_iter().map(|counter| self.forget_counter(&datasets, counter));
                let mut forgetting = stream::iter(forgetting).buffer_unordered(PARTITION_WRITES_AT_ONCE_MAX);
                while let Some(forgotten) = forgetting.next().await {
                    forgotten?;
                }
                if is_last {
                    break;
                }
            }
        }
        self.requests.write(OP, self.requests.statement("empty_namespace"), id).await?;
        self.touch_writer.update_namespace(namespace, |kept| kept.has_rows = false);
        Ok(())
    }
}
