//! Checkpoints and what is kept beside them.

use async_trait::async_trait;

use crate::domain::counter::{Counter, CounterName, DatasetId, EventKey, NamespaceId};
use crate::domain::rollup::{BucketRecord, Checkpoint, StepSum};
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// What is kept of one counter, read at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RollupRow {
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The key of the newest clear.
    pub clear: Option<EventKey>,
    /// The time of the newest mutation; on engines with steps, the end of its step.
    pub last_write_time: Option<Timestamp>,
    /// Whether the checkpoint was repaired and no roll has taken it up: a watermark then says nothing of what lies above
    /// its `as_of`, because that was rolled up into the value before the repair.
    pub just_repaired: bool,
}

impl RollupRow {
    /// The checkpoint to fold on, of a row that was read after a watermark: it holds all that was acknowledged up to it.
    pub fn base(&self, watermark: Timestamp) -> Checkpoint {
        let mut base = self.checkpoint.clone().unwrap_or_else(|| Checkpoint::empty(watermark));
        base.as_of = base.as_of.max(self.effective_watermark(watermark));
        base
    }

    /// What a watermark that was read before this row says of it.
    pub fn effective_watermark(&self, watermark: Timestamp) -> Timestamp {
        if self.just_repaired { Timestamp::MIN } else { watermark }
    }
}

/// What one roll writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RollWrite {
    /// The counter.
    pub counter: Counter,
    /// Its new checkpoint.
    pub checkpoint: Checkpoint,
    /// Buckets that the checkpoint no longer carries.
    pub finished_buckets: Vec<BucketRecord>,
    /// Series steps that the checkpoint no longer carries.
    pub finished_steps: Vec<StepSum>,
}

/// Checkpoints, bucket records, series and names.
///
/// Laws:
/// 1. A checkpoint with a greater `as_of` wins, whatever the order of arrival; one with an equal or lower `as_of` changes
///    nothing, nor do its finished records.
/// 2. Finished buckets and steps are readable no later than the checkpoint that no longer carries them.
/// 3. `read` after an acknowledged append answers as law 1 of the event log says.
/// 4. A put may be lost in a crash as long as no watermark was put after it; it is never torn.
/// 5. `names` answers every counter of the namespace that has an acknowledged mutation or a checkpoint, in the order of
///    names, each once, up to the limit. A counter that was only asked about, and so has voids alone, is not listed.
/// 6. After `forget`, nothing of the namespace is answered any more, whatever arrives later. What writes under way at that
///    time leave behind is removed by the next `forget`.
/// 7. `namespaces` answers every namespace that anything is kept of beside events, forgotten or not, in the order of
///    numbers, each once, up to the limit.
/// 8. `series_resolutions` answers every resolution that finished steps are kept of, finest first.
/// 9. What `rolled_to` answers was the `as_of` of a checkpoint that was stored or read by this process.
#[async_trait]
pub trait RollupStore: Send + Sync + 'static {
    /// Reads what is kept of a counter.
    async fn read(&self, dataset: DatasetId, counter: &Counter) -> Result<RollupRow, StoreError>;

    /// How far this process knows a counter to be rolled up, without asking anybody; none if it does not know.
    fn rolled_to(&self, _dataset: DatasetId, _counter: &Counter) -> Option<Timestamp> {
        None
    }

    /// Writes rolls. All or nothing for each counter.
    async fn put(&self, dataset: DatasetId, writes: Vec<RollWrite>) -> Result<(), StoreError>;

    /// Reads the records of finished buckets with `from <= start < to`, oldest first; those that repairs have changed instead
    /// of those that rolls wrote.
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

    /// Lists the resolutions, in seconds, that finished steps are kept of; none where steps expire by themselves.
    async fn series_resolutions(&self) -> Result<Vec<u32>, StoreError>;

    /// Lists names with a prefix, above the given name.
    async fn names(
        &self,
        namespace: NamespaceId,
        prefix: &str,
        above: Option<&CounterName>,
        limit: usize,
    ) -> Result<Vec<CounterName>, StoreError>;

    /// Lists the namespaces that anything is kept of, above the given number. Cost: O(limit).
    async fn namespaces(&self, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, StoreError>;

    /// Removes everything of a namespace; may be repeated. Events go with their slices.
    async fn forget(&self, namespace: NamespaceId) -> Result<(), StoreError>;
}
