//! The event log: the truth of every durable counter.

use async_trait::async_trait;

use crate::domain::counter::{Change, Counter, DatasetId, Event, EventKey};
use crate::domain::rollup::TailSum;
use crate::domain::time::Timestamp;
use crate::ports::StoreError;

/// An event to append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEvent {
    /// Its counter.
    pub counter: Counter,
    /// The event.
    pub event: Event,
}

/// What a writer keeps alive until the outcome of its events is decided: its hold on closed timestamps and the rollup
/// signals of the write. Dropping it ends the hold, so it belongs to the log, never to the caller who waits.
pub type AppendGuard = Box<dyn Send + Sync>;

/// What an append did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// The row is there; as far as the log knows it was not there before.
    Inserted,
    /// A row of that key was there and stays as it is; this is its change.
    Existing(Change),
}

/// What a verdict did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VerdictOutcome {
    /// A void stands at the key, from now on or already before: the token never counts.
    Voided,
    /// This event stands at the key: the token counts.
    Found(Event),
}

/// The direction of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanOrder {
    /// In the order of keys.
    OldestFirst,
    /// Against it.
    NewestFirst,
}

/// Events of one counter with `after < time <= to`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanRange {
    /// Only events above this time.
    pub after: Timestamp,
    /// Only events at or below this time.
    pub to: Timestamp,
    /// The direction.
    pub order: ScanOrder,
    /// Where to go on: only events beyond this key in the direction.
    pub beyond: Option<EventKey>,
    /// At most this many; fewer only at the end of the range.
    pub limit: usize,
}

/// What a log knows of a counter's newest events without a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TailLookup {
    /// Nothing: scan.
    Unknown,
    /// There is no mutation above the asked time.
    Empty,
    /// All mutations above the asked time, summed.
    Sum(TailSum),
}

/// One row of a whole slice, for export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SliceRow {
    /// The counter.
    pub counter: Counter,
    /// Its event.
    pub event: Event,
}

/// What an engine can promise beyond the laws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogCapabilities {
    /// `append` answers `Existing` whenever the row was there.
    pub reports_existing: bool,
    /// `append` may fail with an unknown outcome.
    pub unknown_outcomes: bool,
    /// `tail` answers for every time at or above the published limit, and above all that was written before the start.
    pub keeps_tail: bool,
    /// The last write time of a counter is that of its newest mutation, not the last microsecond of that one's step.
    pub exact_last_write: bool,
}

/// The event log. A row is ((counter), key) and one frozen cell: change and provenance.
///
/// Laws:
/// 1. When `append` answers an item, its row is durable, its counter stands in the touch index in the step of its event
///    time, its name is listed, and `RollupStore::read` answers a `last_write_time` at or above its time (voids apart)
///    and, for a clear, a clear register at or above its key. In this order or all at once.
/// 2. A key holds one event for ever: an append to a held key changes nothing. With `sees_reuse` it answers the change
///    that is there. Two items of one call are two appends in their order: of those under one key, the later ones answer
///    the change of the first.
/// 3. An item refused with `Outcome::NotApplied` left no trace; the other items of the call are not affected by it.
/// 4. `settle` leaves a row at the key: the event that was there, or a void. What it answers is true for ever: an append
///    of the same key that is acknowledged later answers `Existing`, or loses to the void.
/// 5. `scan` answers exactly the rows of the range whose append or settle was acknowledged before the scan began (and
///    perhaps some in flight), each once, in order, up to the limit.
/// 6. `tail` answers the mutations above `after` that were acknowledged before the call (and perhaps some in flight), or
///    `Unknown`.
/// 7. Rows of a slice that was dropped are gone from every answer.
/// 8. A failed read is an error, never a shorter answer.
/// 9. The log drops `held` once every event of the call is durable and readable, or was refused before execution; not
///    earlier, and whether or not the caller still waits for the answer.
/// 10. An append or settle at a time that no slice row covers, or whose slice was dropped, is refused with `Conflict` and
///    `NotApplied`; reads of such times answer nothing.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// What the engine can promise.
    fn capabilities(&self) -> LogCapabilities;

    /// Appends events, each with its own answer in the order of the call. Durable before it answers. Every event lies
    /// above the published limit of its dataset; at or below it, only `settle` writes.
    ///
    /// A caller that stops waiting after the first poll leaves the write running.
    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>>;

    /// Settles whether a key holds an event: inserts a void if there is none.
    async fn settle(&self, dataset: DatasetId, counter: &Counter, key: &EventKey)
    -> Result<VerdictOutcome, StoreError>;

    /// Reads the event at a key, if there is one; a void is an event.
    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError>;

    /// Reads events of one counter. Cost: O(partitions of the range + events).
    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError>;

    /// Sums the newest events of a counter from memory; never reads storage.
    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup;

    /// Reads rows of a whole slice, beyond the given row. Each counter's rows come together, in the order of their keys;
    /// counters come in an order of the store's own, the same each time.
    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError>;
}
