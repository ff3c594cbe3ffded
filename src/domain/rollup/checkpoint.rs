//! The checkpoint: the rolled-up value of a counter, with all state that the next fold needs.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use crate::counter::EventKey;
use crate::limits::SOURCE_EARLIER_EPOCHS_MAX;
use crate::namespace::OnNewEpoch;
use crate::time::Timestamp;

/// The value of a counter folded up to `as_of`. Stored in one cell; of two writes, the one with the later `as_of` wins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The exact count; responses clamp it to 64 bits.
    pub count: i128,
    /// The checkpoint contains every event up to this time. Always a whole millisecond.
    pub as_of: Timestamp,
    /// The key of the newest folded clear event.
    pub clear: Option<EventKey>,
    /// The time of the newest folded mutation.
    pub last_event_time: Option<Timestamp>,
    /// The record of the time bucket that has not ended yet.
    pub open_bucket: Option<BucketRecord>,
    /// The series steps that have not ended yet, at most one per resolution.
    pub open_steps: Vec<StepSum>,
    /// How often the value was repaired.
    pub repairs: u64,
    /// For a cumulative counter: what each source reported.
    pub sources: BTreeMap<Box<str>, SourceTotals>,
    /// The writer of the checkpoint and the time of the write; `None` if they were not recorded. For display only.
    pub writer: Option<CheckpointWriter>,
}

/// The writer of a checkpoint and the time of the write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointWriter {
    /// The time of the write by the clock of that server.
    pub at: Timestamp,
    /// The name of the server; `None` if a single process owns the store and is therefore the writer.
    pub server: Option<Arc<str>>,
}

/// A summary of the rows in one time bucket. The self-check compares it with the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketRecord {
    pub start: Timestamp,
    /// The number of rows, excluding tombstones: they do not affect the count and may be written at any time.
    pub rows: u64,
    /// The sum of all adds.
    pub sum: i128,
    /// The key of the newest clear event in the bucket.
    pub clear: Option<EventKey>,
    /// The xor of the rows' digests.
    pub digest: u64,
}

/// One step of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepSum {
    /// The resolution in seconds.
    pub step_seconds: u32,
    pub start: Timestamp,
    /// The amount added in the step; later clears do not change it.
    pub sum: i128,
    /// The count after the last mutation of the step. Readers apply the TTL to the idle time after it.
    pub value: i128,
    /// The time of the last mutation in the step.
    pub last_event_time: Timestamp,
    /// The last mutation before the step, even if no step of this resolution contains it; `None` if there is none.
    pub before: Option<CountAt>,
}

/// The count of a counter after one mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountAt {
    /// The count after the mutation.
    pub value: i128,
    /// The time of the mutation.
    pub time: Timestamp,
}

/// The newest total of one source. Totals are ordered by (epoch, serial, total), and the greatest one is used. The time
/// only makes the order of two rows of the same report deterministic and does not affect the value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SourceTotal {
    /// The incarnation of the source; increases with each restart of the source.
    pub epoch: u64,
    /// The sequence number of the report within its epoch.
    pub serial: u64,
    /// The reported total.
    pub total: i64,
    /// The time of the report's event.
    pub time: Timestamp,
}

/// The totals that one source reported: the newest one, and with `OnNewEpoch::Add` the last totals of the epochs before
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceTotals {
    /// The newest total of the newest epoch.
    pub newest: SourceTotal,
    /// The newest totals of the epochs before it, newest first; at most `SOURCE_EARLIER_EPOCHS_MAX`. They are kept one
    /// by one, because a report that was in flight at a restart may be folded after the first one of the new epoch.
    pub earlier: Vec<SourceTotal>,
    /// The sum of the last totals of all epochs before these.
    pub settled: i128,
}

impl SourceTotals {
    /// Begins with the first known total of a source.
    pub fn new(first: SourceTotal) -> Self {
        Self { newest: first, earlier: Vec::new(), settled: 0 }
    }

    /// Returns the part of the source in the count.
    pub fn sum(&self) -> i128 {
        let earlier: i128 = self.earlier.iter().map(|epoch| i128::from(epoch.total)).sum();
        i128::from(self.newest.total) + earlier + self.settled
    }

    /// Accepts a total, in any order and any number of times. With `Replace` only the newest is kept. With `Add` a
    /// total of an epoch older than those that are kept is ignored once as many are kept as fit.
    pub fn take(&mut self, reported: SourceTotal, on_new_epoch: OnNewEpoch) {
        match on_new_epoch {
            OnNewEpoch::Replace => self.newest = self.newest.max(reported),
            OnNewEpoch::Add => self.take_in_epoch(reported),
        }
    }

    fn take_in_epoch(&mut self, reported: SourceTotal) {
        let epoch = reported.epoch;
        if let Some(known) = [&mut self.newest].into_iter().chain(&mut self.earlier).find(|known| known.epoch == epoch)
        {
            *known = (*known).max(reported);
            return;
        }
        if epoch > self.newest.epoch {
            self.earlier.insert(0, replace(&mut self.newest, reported));
        } else if self.earlier.len() < SOURCE_EARLIER_EPOCHS_MAX
            || self.earlier.last().is_some_and(|oldest| oldest.epoch < epoch)
        {
            let at = self.earlier.partition_point(|known| known.epoch > epoch);
            self.earlier.insert(at, reported);
        }
        if self.earlier.len() > SOURCE_EARLIER_EPOCHS_MAX {
            self.settled += self.earlier.pop().map_or(0, |oldest| i128::from(oldest.total));
        }
    }
}

impl Checkpoint {
    /// Creates the checkpoint of a counter that has no events up to `as_of`.
    pub fn empty(as_of: Timestamp) -> Self {
        Self {
            count: 0,
            as_of,
            clear: None,
            last_event_time: None,
            open_bucket: None,
            open_steps: Vec::new(),
            repairs: 0,
            sources: BTreeMap::new(),
            writer: None,
        }
    }

    /// Returns the count as of `now`: 0 if the last mutation is older than the TTL.
    pub fn value_at(&self, now: Timestamp, ttl: Option<Duration>) -> i128 {
        if is_ttl_expired(self.last_event_time, now, ttl) { 0 } else { self.count }
    }
}

impl Checkpoint {
    /// Returns the count after the newest mutation; `None` if there was no mutation.
    pub fn newest(&self) -> Option<CountAt> {
        self.last_event_time.map(|time| CountAt { value: self.count, time })
    }
}

impl StepSum {
    pub fn width(&self) -> Duration {
        Duration::from_secs(u64::from(self.step_seconds))
    }

    /// Returns the first microsecond after the step.
    pub fn end(&self) -> Timestamp {
        self.start + self.width()
    }
}

/// Returns whether more time than the TTL passed between the last mutation and `next`, which is another mutation or a
/// read.
pub fn is_ttl_expired(last: Option<Timestamp>, next: Timestamp, ttl: Option<Duration>) -> bool {
    match (last, ttl) {
        (Some(last), Some(ttl)) => next.since(last) > ttl,
        (None, _) | (_, None) => false,
    }
}

/// Clamps an exact count to 64 bits. The flag is true if the count was out of range.
pub fn clamp_count(count: i128) -> (i64, bool) {
    match i64::try_from(count) {
        Ok(count) => (count, false),
        Err(_) if count > 0 => (i64::MAX, true),
        Err(_) => (i64::MIN, true),
    }
}
