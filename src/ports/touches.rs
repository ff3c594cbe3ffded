//! The durable index of touched counters, and the watermarks up to which it was processed.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::{Counter, DatasetId};
use tallystone_domain::time::Timestamp;

/// "This counter has events in this step."
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// The beginning of the step of event time.
    pub step: Timestamp,
    /// The counter.
    pub counter: Counter,
    /// For a recheck mark: the time bucket to compare with its record.
    pub recheck: Option<Timestamp>,
}

/// Touches and watermarks. A dataset has 64 touch shards; a counter's shard is `Counter::touch_shard`.
///
/// Laws:
/// 1. `touched` returns the touch of an acknowledged event for its shard and step until the slice is dropped.
/// 2. `touched` returns each (step, counter, mark) once, steps in order, up to the limit; fewer only at the end of the
///    range.
/// 3. A watermark never goes back: putting a lower one changes nothing.
/// 4. A watermark is durable no earlier than every checkpoint that was put before it.
#[async_trait]
pub trait Touches: Send + Sync + 'static {
    /// Lists touches of a shard with `from <= step <= to`, beyond the given touch.
    async fn touched(
        &self,
        dataset: DatasetId,
        shard: u32,
        from: Timestamp,
        to: Timestamp,
        beyond: Option<&Touch>,
        limit: usize,
    ) -> Result<Vec<Touch>, StoreError>;

    /// The watermarks of all shards, in their order; `None` for a shard that never had one.
    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError>;

    /// Moves watermarks of some shards.
    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError>;
}
