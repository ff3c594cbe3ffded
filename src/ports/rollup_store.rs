//! Checkpoints, bucket records, series steps and counter names.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, NamespaceId};
use tallystone_domain::rollup::{BucketRecord, Checkpoint, RollupRow, StepSum};
use tallystone_domain::time::Timestamp;

/// The writes of one roll.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RollWrite {
    /// The counter.
    pub counter: Counter,
    /// Its new checkpoint.
    pub checkpoint: Checkpoint,
    /// Records of buckets that left the checkpoint.
    pub finished_buckets: Vec<BucketRecord>,
    /// Series steps that left the checkpoint.
    pub finished_steps: Vec<StepSum>,
}

/// Checkpoints, bucket records, series and names.
///
/// Laws:
/// 1. A checkpoint with a greater `as_of` wins, whatever the order of arrival. One with an equal or lower `as_of`
///    changes nothing, and neither do its finished records.
/// 2. Finished buckets and steps are readable no later than the checkpoint that they left.
/// 3. `read` after an acknowledged append answers as law 1 of the event log says.
/// 4. A put may be lost in a crash as long as no watermark was put after it; it is never torn.
/// 5. `names` returns every counter of the namespace with an acknowledged mutation or a checkpoint, in the order of
///    names, each once, up to the limit. A counter that has only tombstones, from questions about tokens, is not
///    listed.
/// 6. After `remove_namespace`, no read returns anything of the namespace, whatever arrives later. The next
///    `remove_namespace` removes the rows of writes that were in flight.
/// 7. `namespaces` returns every namespace with stored rows other than events, forgotten or not, in the order of ids,
///    each once, up to the limit.
/// 8. `series_resolutions` returns every resolution with finished steps, finest first.
/// 9. A result of `rolled_to` was the `as_of` of a checkpoint that this process stored or read.
/// 10. After `forget_counters`, a counter of the call has no checkpoint and is not listed, if its checkpoint and its
///    last write lie at or below its given time, and it has no event outside of dropped slices.
/// 11. Whatever is written above the given time stays, before `forget_counters`, during it or after it: a checkpoint
///    with a greater `as_of`, and the name of a counter with a mutation above it. A counter that law 10 does not cover
///    stays as it is. Finished steps stay for their retention, and bucket records go with their slices.
#[async_trait]
pub trait RollupStore: Send + Sync + 'static {
    /// Reads the stored state of a counter.
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError>;

    /// The time up to which this process knows a counter to be rolled up, without a request; none if it does not know.
    fn rolled_to(&self, _dataset: DatasetId, _counter: &Counter) -> Option<Timestamp> {
        None
    }

    /// Writes rolls, atomically for each counter.
    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError>;

    /// Reads the records of finished buckets with `from <= start < to`, oldest first. The record of a repair replaces
    /// that of a roll.
    async fn buckets(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<BucketRecord>, StoreError>;

    /// Reads finished series steps with `from <= start < to`, oldest first.
    async fn series(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, StoreError>;

    /// Reads the last finished series step that starts before a time.
    async fn series_before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, StoreError>;

    /// Removes finished steps of a resolution that start before a time, at least in whole storage periods.
    async fn trim_series(&self, step_seconds: u32, before: Timestamp) -> Result<(), StoreError>;

    /// Lists the resolutions, in seconds, with finished steps; none where steps expire by themselves.
    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError>;

    /// Lists names with a prefix, above the given name.
    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError>;

    /// Lists the namespaces with stored rows, above the given id. Cost: O(limit).
    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError>;

    /// Removes the checkpoints and names of counters that were silent up to a time, each with the greater of the
    /// `as_of` and the last write that the caller read. For counters without repairs. May be repeated. Cost:
    /// O(counters).
    async fn forget_counters(&self, dataset: DatasetId, silent: Vec<(Counter, Timestamp)>) -> Result<(), StoreError>;

    /// Removes all rows of a namespace except events, which go with their slices. May be repeated.
    async fn remove_namespace(&self, namespace: NamespaceId) -> Result<(), StoreError>;
}
