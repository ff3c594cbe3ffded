//! The checkpoint: what a counter has come to, and everything a later fold needs to go on from there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::counter::EventKey;
use crate::domain::time::Timestamp;

/// A counter folded up to `as_of`. One cell in the store; a later `as_of` wins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The exact count; answers clamp it to 64 bits.
    pub count: i128,
    /// Every event up to here is in it; a whole millisecond.
    pub as_of: Timestamp,
    /// The newest clear folded in.
    pub clear: Option<EventKey>,
    /// The time of the newest mutation folded in.
    pub last_event_time: Option<Timestamp>,
    /// The record of the time bucket that is not over yet.
    pub open_bucket: Option<BucketRecord>,
    /// The steps of the series that are not over yet, one for each resolution that has one.
    pub open_steps: Vec<StepSum>,
    /// How many repairs the value has had.
    pub repairs: u64,
    /// The newest totals of a cumulative counter by source.
    pub sources: BTreeMap<Box<str>, SourceTotal>,
    /// Whether the counter was deleted.
    pub deleted: bool,
    /// Who wrote it, and when; none where that was not noted. It is told to people and decides nothing.
    pub rolled: Option<RolledBy>,
}

/// Who wrote a checkpoint, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RolledBy {
    /// When, by the clock of the server that did.
    pub at: Timestamp,
    /// The server, by its name; none where the store belongs to one process, which then was it.
    pub server: Option<Arc<str>>,
}

/// What one time bucket holds; compared with the log by the self-check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketRecord {
    /// The beginning of the bucket.
    pub start: Timestamp,
    /// Rows, apart from voids: those may come at any time and count nothing.
    pub rows: u64,
    /// The sum of all adds.
    pub sum: i128,
    /// The newest clear.
    pub clear: Option<EventKey>,
    /// The xor of the rows' digests.
    pub digest: u64,
}

/// One step of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepSum {
    /// The resolution.
    pub step_seconds: u32,
    /// The beginning of the step.
    pub start: Timestamp,
    /// What was added in the step, whatever was cleared later.
    pub sum: i128,
    /// The count after its last mutation. A silence ends it later, by the rules of whoever looks.
    pub value: i128,
    /// The time of its last mutation.
    pub last_event_time: Timestamp,
    /// The mutation before the step, whether or not a step of this resolution was kept for it; none if there is none.
    pub before: Option<CountAt>,
}

/// What a counter had come to with a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountAt {
    /// The count after it.
    pub value: i128,
    /// Its time.
    pub time: Timestamp,
}

/// The newest total of one source; ordered by (epoch, serial, total), the greatest counts. The time comes last: it tells
/// two rows of one report apart, and changes no value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SourceTotal {
    /// Grows with each start of the source.
    pub epoch: u64,
    /// Grows with each report.
    pub serial: u64,
    /// The total.
    pub total: i64,
    /// The time of its event.
    pub time: Timestamp,
}

impl Checkpoint {
    /// A counter with no event up to `as_of`.
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
            deleted: false,
            rolled: None,
        }
    }

    /// The count as seen at `now`: 0 once the counter has been silent for longer than its TTL.
    pub fn value_at(&self, now: Timestamp, ttl: Option<Duration>) -> i128 {
        if is_silent_beyond_ttl(self.last_event_time, now, ttl) { 0 } else { self.count }
    }
}

impl Checkpoint {
    /// The count after the newest mutation; none if there is none.
    pub fn newest(&self) -> Option<CountAt> {
        self.last_event_time.map(|time| CountAt { value: self.count, time })
    }
}

impl StepSum {
    /// The width of the step.
    pub fn width(&self) -> Duration {
        Duration::from_secs(u64::from(self.step_seconds))
    }

    /// The first microsecond after the step.
    pub fn end(&self) -> Timestamp {
        self.start + self.width()
    }
}

/// Whether more than the TTL lies between two mutations, or between the last one and a reader.
pub fn is_silent_beyond_ttl(last: Option<Timestamp>, next: Timestamp, ttl: Option<Duration>) -> bool {
    match (last, ttl) {
        (Some(last), Some(ttl)) => next.since(last) > ttl,
        (None, _) | (_, None) => false,
    }
}

/// Clamps an exact count to 64 bits; says whether it had to.
pub fn clamp_count(count: i128) -> (i64, bool) {
    match i64::try_from(count) {
        Ok(count) => (count, false),
        Err(_) if count > 0 => (i64::MAX, true),
        Err(_) => (i64::MIN, true),
    }
}
