//! The dirty-counter index with its watermarks, and closed timestamps of datasets: small tables of registers, shared by
//! all servers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};

use crate::limits::PARTITION_READS_AT_ONCE_MAX;
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::{stored_counter, stored_dataset, stored_shard};
use crate::slices::{CqlSlice, CqlSlices};
use crate::value::Bind as _;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::limits::{STEP, TOUCH_SHARDS};
use tallystone_ports::{LimitPublisher, StoreError, Touch, Touches};

/// The dirty-counter index.
pub struct TouchIndex {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
}

impl TouchIndex {
    /// Creates the index; `slices` locates the tables of a slice.
    pub fn new(requests: Arc<RequestRunner>, slices: Arc<CqlSlices>) -> Self {
        Self { requests, slices }
    }

    /// Reads the counters of a shard and step, after a given counter.
    async fn read_step(
        &self,
        slice: &CqlSlice,
        shard: i32,
        step: Timestamp,
        above: Option<&Touch>,
        limit: i32,
    ) -> Result<Vec<Touch>, StoreError> {
        const OP: &str = "read touches";
        let tables = self.slices.tables(slice, OP).await?;
        let (ns, name) = above.map_or((i64::MIN, ""), |above| stored_counter(&above.counter));
        let bucket = above.map_or(i64::MIN, |above| stored_bucket(above.recheck));
        let values = (shard, step.micros(), ns, name, bucket, limit);
        let rows: Vec<(i64, String, i64)> = self.requests.rows(OP, tables.get("list_touches"), values).await?;
        let touch = |(ns, name, bucket): (i64, String, i64)| {
            let name = CounterName::new(&name).map_err(|reject| RequestFailure::corrupt(reject.message).during(OP))?;
            let counter = Counter::new(NamespaceId(ns.cast_unsigned()), name);
            Ok(Touch { step, counter, recheck: (bucket != 0).then(|| Timestamp::from_micros(bucket)) })
        };
        rows.into_iter().map(touch).collect()
    }
}

#[async_trait]
impl Touches for TouchIndex {
    async fn touched(
        &self,
        dataset: DatasetId,
        shard: u32,
        from: Timestamp,
        to: Timestamp,
        beyond: Option<&Touch>,
        limit: usize,
    ) -> Result<Vec<Touch>, StoreError> {
        let from = beyond.map_or(from, |beyond| from.max(beyond.step));
        let shard = stored_shard(shard);
        let most = i32::try_from(limit).unwrap_or(i32::MAX);
        let mut found = Vec::new();
        for slice in self.slices.live_slices(dataset, from, to).await? {
            let steps = self.slices.steps(&slice, from.ceil_to(STEP).max(slice.start()), to.min(slice.last())).await?;
            let reading = steps.into_iter().map(|step| {
                let above = beyond.filter(|beyond| beyond.step == step);
                self.read_step(&slice, shard, step, above, most)
            });
            let mut reading = stream::iter(reading).buffered(PARTITION_READS_AT_ONCE_MAX);
            let mut of_slice = Vec::new();
            let mut failed = None;
            while let Some(touches) = reading.next().await {
                match touches {
                    Ok(touches) => of_slice.extend(touches),
                    Err(error) => failed = Some(error),
                }
                if failed.is_some() || found.len() + of_slice.len() >= limit {
                    break;
                }
            }
            if slice.is_dropped() {
                continue;
            }
            if let Some(error) = failed {
                return Err(error);
            }
            found.extend(of_slice);
            if found.len() >= limit {
                found.truncate(limit);
                break;
            }
        }
        Ok(found)
    }

    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let statement = self.requests.statement("list_watermarks");
        let rows: Vec<(i32, Option<i64>)> =
            self.requests.rows("read watermarks", statement, (stored_dataset(dataset),)).await?;
        Ok(by_shard(rows))
    }

    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError> {
        let statement = self.requests.statement("set_watermark");
        let row = |(shard, to): (u32, Timestamp)| {
            let at = self.requests.register_time(to.micros());
            (at, to.micros(), stored_dataset(dataset), stored_shard(shard)).bind()
        };
        self.requests.write_rows("move watermarks", statement, moved.into_iter().map(row).collect()).await
    }
}

/// Collects the time of each touch shard from rows (shard, time).
pub fn by_shard(rows: Vec<(i32, Option<i64>)>) -> Vec<Option<Timestamp>> {
    let mut times = vec![None; TOUCH_SHARDS as usize];
    for (shard, time) in rows {
        if let Some(at) = usize::try_from(shard).ok().and_then(|shard| times.get_mut(shard)) {
            *at = time.map(Timestamp::from_micros);
        }
    }
    times
}

/// Returns the column that marks an index entry as a recheck mark, and names its time bucket.
pub fn stored_bucket(recheck: Option<Timestamp>) -> i64 {
    recheck.map_or(0, Timestamp::micros)
}

/// Published limits of datasets. A server that reads a limit also sees the slices and steps of all events acknowledged
/// up to it.
pub struct PublishedLimits {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
}

impl PublishedLimits {
    /// Creates the reader and writer of these registers.
    pub fn new(requests: Arc<RequestRunner>, slices: Arc<CqlSlices>) -> Self {
        Self { requests, slices }
    }

    async fn stored(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        let statement = self.requests.statement("read_limit");
        let row: Option<(Option<i64>,)> =
            self.requests.first_row("read limit", statement, (stored_dataset(dataset),)).await?;
        Ok(row.and_then(|(limit,)| limit).map_or(Timestamp::MIN, Timestamp::from_micros))
    }
}

#[async_trait]
impl LimitPublisher for PublishedLimits {
    async fn publish(&self, dataset: DatasetId, closed: Timestamp) -> Result<Timestamp, StoreError> {
        let stored = self.stored(dataset).await?;
        let mut limit = closed.floor_to(Duration::from_millis(1));
        if limit > stored {
            let at = self.requests.register_time(limit.micros());
            let values = (at, limit.micros(), stored_dataset(dataset));
            self.requests.write("publish limit", self.requests.statement("set_limit"), values).await?;
        } else {
            limit = stored;
        }
        self.slices.refresh_to(dataset, limit).await?;
        Ok(limit)
    }

    async fn limit(&self, dataset: DatasetId) -> Result<Timestamp, StoreError> {
        let limit = self.stored(dataset).await?;
        self.slices.refresh_to(dataset, limit).await?;
        Ok(limit)
    }
}
