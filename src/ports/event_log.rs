//! The event log: the truth of every durable counter.

use async_trait::async_trait;

use crate::StoreError;
use tallystone_domain::counter::{Change, Counter, DatasetId, Event, EventKey};
use tallystone_domain::rollup::TailLookup;
use tallystone_domain::time::Timestamp;

/// An event to append.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEvent {
    /// Its counter.
    pub counter: Counter,
    /// The event.
    pub event: Event,
}

/// A write until the outcome of its events is decided: its hold on closed timestamps and its rollup signals. Dropping
/// it ends the hold, so the log owns it, never the waiting caller.
pub trait AppendHold: Send + Sync {
    /// Whether the hold still keeps limits below its events. Once it does not, a verdict may have refused them.
    fn keeps_limits_back(&self) -> bool;
}

/// The guard of a write that the log owns.
pub type AppendGuard = Box<dyn AppendHold>;

/// Nothing is held: no limit is published meanwhile.
impl AppendHold for () {
    fn keeps_limits_back(&self) -> bool {
        true
    }
}

/// The outcome of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// The row is stored. As far as the log knows, it did not exist before.
    Inserted,
    /// A row of that key existed and is unchanged; this is its change.
    Existing(Change),
}

/// The outcome of a verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VerdictOutcome {
    /// The key has a tombstone: the token never counts.
    Voided,
    /// The key has this event: the token counts.
    Found(Event),
}

/// The direction of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanOrder {
    /// Ascending by key.
    OldestFirst,
    /// Descending by key.
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
    /// The cursor: only events beyond this key in the direction.
    pub beyond: Option<EventKey>,
    /// At most this many; fewer only at the end of the range.
    pub limit: usize,
}

/// One row of a whole slice, for export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SliceRow {
    /// The counter.
    pub counter: Counter,
    /// Its event.
    pub event: Event,
}

/// The promises of an engine beyond the laws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogCapabilities {
    /// `append` returns `Existing` whenever the row existed.
    pub reports_existing: bool,
    /// `append` may fail with an unknown outcome.
    pub unknown_outcomes: bool,
    /// `tail` knows every time at or above the published limit, and above all events from before the start.
    pub keeps_tail: bool,
    /// The last write time of a counter is that of its newest mutation, not the end of the step of that mutation.
    pub exact_last_write: bool,
}

/// The event log. A row is ((counter), key) and one frozen cell: change and provenance.
///
/// Laws:
/// 1. When `append` acknowledges an item, its row is durable. Its counter is in the touch index at the step of its
///    event time, and its name is listed. `RollupStore::read` returns a `last_write_time` at or above its time (except
///    for tombstones) and, for a clear, a clear register at or above its key. In this order or all at once. The
///    register names final clears only: an append raises it while its guard keeps limits back.
/// 2. A key has one event for its lifetime: an append to a used key changes nothing. With `reports_existing` it returns
///    the stored change. Two items of one call are two appends in their order: of items under one key, the later ones
///    return the change of the first.
/// 3. An item refused with `EffectOutcome::NotApplied` left no trace. The other items of the call are unaffected.
/// 4. `settle` leaves a row at the key: the existing event, or a tombstone. Its result is final: an append of the same
///    key that is acknowledged later returns `Existing`, or loses to the tombstone. When it returns a clear, the clear
///    register is at or above its key.
/// 5. `scan` returns exactly the rows of the range whose append or settle was acknowledged before the scan began (and
///    perhaps some in flight), each once, in order, up to the limit.
/// 6. `tail` returns the mutations above `after` that were acknowledged before the call (and perhaps some in flight),
///    or `Unknown`.
/// 7. No read returns rows of a dropped slice.
/// 8. A failed read is an error, never a shorter answer.
/// 9. The log drops the guard once every event of the call is durable and readable, or was refused before execution. It
///    does so not earlier, and also if the caller no longer waits.
/// 10. An append or settle at a time that no slice row covers, or in a dropped slice, is refused with `Conflict` and
///    `NotApplied`. Reads of such times return nothing.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// The promises of the engine beyond the laws.
    fn capabilities(&self) -> LogCapabilities;

    /// Appends events. Each has its own outcome, in the order of the call, and is durable before this returns. Every
    /// event lies above the published limit of its dataset; at or below it, only `settle` writes.
    ///
    /// The write continues if the caller stops waiting after the first poll.
    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>>;

    /// Settles whether a key has an event. Inserts a tombstone if it has none.
    async fn settle(&self, dataset: DatasetId, counter: &Counter, key: &EventKey)
    -> Result<VerdictOutcome, StoreError>;

    /// Reads the event at a key, if it has one. A tombstone is an event.
    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError>;

    /// Reads events of one counter. Cost: O(partitions of the range + events).
    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError>;

    /// Sums the newest events of a counter from memory; never reads storage.
    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup;

    /// Reads rows of a whole slice, beyond the given row. The rows of a counter are contiguous and ordered by key. The
    /// order of counters is up to the store, and the same each time.
    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError>;
}
