//! The stored state of a counter, and the copy of it that caches keep.

use crate::counter::EventKey;
use crate::rollup::checkpoint::Checkpoint;
use crate::time::Timestamp;

/// The stored state of one counter at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RollupRow {
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The key of the newest clear.
    pub clear: Option<EventKey>,
    /// The time of the newest mutation; on engines with steps, the end of its step.
    pub last_write_time: Option<Timestamp>,
    /// Whether the checkpoint was repaired and not rolled since. A watermark then says nothing about events above its
    /// `as_of`: they were rolled into the value before the repair.
    pub just_repaired: bool,
}

impl RollupRow {
    /// The checkpoint to fold on, for a row that was read after a watermark. It contains all events up to the
    /// watermark.
    pub fn base(&self, watermark: Timestamp) -> Checkpoint {
        let mut base = self.checkpoint.clone().unwrap_or_else(|| Checkpoint::empty(watermark));
        base.as_of = base.as_of.max(self.effective_watermark(watermark));
        base
    }

    /// The value for a cache, read from the store at a time.
    pub fn to_cached(&self, checked_at: Timestamp) -> CachedCount {
        match &self.checkpoint {
            Some(checkpoint) => self.to_cached_with(checkpoint, checked_at),
            None => self.to_cached_with(&Checkpoint::empty(Timestamp::MIN), checked_at),
        }
    }

    /// The value for a cache, with the checkpoint that follows that of the row.
    pub fn to_cached_with(&self, checkpoint: &Checkpoint, checked_at: Timestamp) -> CachedCount {
        CachedCount {
            count: checkpoint.count,
            as_of: checkpoint.as_of,
            last_event_time: checkpoint.last_event_time,
            clear: self.clear.clone().max(checkpoint.clear.clone()),
            last_write_time: self.last_write_time.max(checkpoint.last_event_time),
            checked_at: Some(checked_at),
        }
    }

    /// The watermark as far as it holds for this row. The watermark was read before the row.
    pub fn effective_watermark(&self, watermark: Timestamp) -> Timestamp {
        if self.just_repaired { Timestamp::MIN } else { watermark }
    }
}

/// The values of a counter that a read needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedCount {
    /// The exact count of the checkpoint.
    pub count: i128,
    /// The count contains every event up to this time; `Timestamp::MIN` if the counter was never rolled up.
    pub as_of: Timestamp,
    /// The time of the newest mutation folded in.
    pub last_event_time: Option<Timestamp>,
    /// The key of the newest clear, folded in or not.
    pub clear: Option<EventKey>,
    /// The time of the newest mutation.
    pub last_write_time: Option<Timestamp>,
    /// The time at which the last write time was read from the store; none if it is always exact.
    pub checked_at: Option<Timestamp>,
}
