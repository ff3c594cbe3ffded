//! The requests and results of the counter use cases, in domain types.

use std::time::Duration;

use tallystone_domain::Timestamp;
use tallystone_domain::counter::{CounterName, EventKey, IdempotencyToken, Provenance, ReportSource};
use tallystone_domain::rollup::BucketRecord;
use tallystone_domain::rollup::series::SeriesRow;
use tallystone_domain::rollup::series_step::SeriesStep;

/// One addition.
#[derive(Clone, Debug)]
pub struct Add {
    pub name: CounterName,
    /// The delta; 0 writes nothing and keeps no token.
    pub delta: i64,
    /// The caller's token; none: the server makes one.
    pub token: Option<IdempotencyToken>,
    /// The person or program that made the change.
    pub provenance: Provenance,
}

#[derive(Clone, Debug)]
pub struct Clear {
    pub name: CounterName,
    /// The caller's token; none: the server makes one.
    pub token: Option<IdempotencyToken>,
    /// The person or program that made the change.
    pub provenance: Provenance,
}

/// One report of a source.
#[derive(Clone, Debug)]
pub struct Report {
    pub source: ReportSource,
    /// Grows with each start of the source.
    pub epoch: u64,
    /// Grows with each report.
    pub serial: u64,
}

/// The effect of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome {
    /// The log holds the change, once.
    Applied,
    /// The log already held the change.
    AlreadyApplied,
}

/// The result of a write.
#[derive(Clone, Debug)]
pub struct Written {
    /// The effect of the write.
    pub outcome: WriteOutcome,
    /// The token, as sent or as made by the server.
    pub token: IdempotencyToken,
    /// The server's clock.
    pub server_time: Timestamp,
    /// For a clear that not all caches confirmed: the time from which every reader sees it.
    pub visible_at: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenVerdict {
    /// The change was applied.
    Applied { change: tallystone_domain::counter::Change, event_time: Timestamp },
    /// The change was not applied and never will be.
    NotApplied,
    /// The verdict is not known yet.
    Pending {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Older than the oldest live slice.
    TooOld,
}

#[derive(Clone, Debug)]
pub struct SeriesQuery {
    /// The beginning.
    pub from: Timestamp,
    /// The end.
    pub to: Timestamp,
    /// The step; none: the finest that reaches back to `from`.
    pub step: Option<SeriesStep>,
}

#[derive(Clone, Debug)]
pub struct SeriesResult {
    /// The rows, oldest first.
    pub rows: Vec<SeriesRow>,
    /// The step of the rows.
    pub step: SeriesStep,
    /// Every event up to here is in the rows.
    pub as_of: Timestamp,
    /// For a counter of queues: all their mutations up to this time are in the log.
    pub reported_to: Option<Timestamp>,
}

/// A counter with its rolled-up count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterSummary {
    pub name: CounterName,
    /// The count, clamped to 64 bits.
    pub count: i64,
    /// Whether it had to be clamped.
    pub saturated: bool,
    /// Every event up to here is in it.
    pub as_of: Timestamp,
}

/// The greatest counters of a namespace.
#[derive(Clone, Debug)]
pub struct TopCountersResult {
    /// The counters, the greatest first.
    pub counters: Vec<CounterSummary>,
    /// Every counter has been ranked by its value up to here.
    pub as_of: Timestamp,
}

/// A question about single events: `from <= time < to`, newest first.
#[derive(Clone, Debug)]
pub struct EventsQuery {
    /// Only events at or after this time.
    pub from: Timestamp,
    /// Only events before this time.
    pub to: Timestamp,
    /// The cursor: only events older than this key.
    pub older_than: Option<EventKey>,
    /// At most this many.
    pub limit: usize,
}

/// A bucket whose record differs from the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketDifference {
    /// The beginning of the bucket.
    pub start: Timestamp,
    /// The stored record; none if there is none.
    pub recorded: Option<BucketRecord>,
    /// The record computed from the log; none if the log has no row.
    pub found: Option<BucketRecord>,
}

#[derive(Clone, Debug)]
pub struct Recount {
    /// The rolled-up count as served, whole.
    pub before: i128,
    /// The count that the log gives for the same `as_of`, whole.
    pub after: i128,
    /// Both hold up to here.
    pub as_of: Timestamp,
    /// Whether the log reaches back to the counter's first event or to a clear.
    pub complete: bool,
    /// Buckets whose record differs from the log.
    pub differences: Vec<BucketDifference>,
    /// How many buckets were compared.
    pub buckets_compared: u64,
    /// How many events were read.
    pub events_read: u64,
    /// Whether the differences were written.
    pub repaired: bool,
}

/// Whether a recount writes what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// It only compares.
    No,
    /// It corrects the count. Only on a shared store: in a store of one process no event comes late.
    Yes,
}
