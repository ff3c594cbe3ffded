//! Appends: touch, row, clear register, in this order; retried until the outcome is known.
//!
//! A write runs in a task of its own, independent of its caller. The caller gets an unknown outcome after
//! `CASSANDRA_ANSWER_WITHIN`. The task continues, and with it the hold that keeps closed timestamps below the event,
//! until the row is durable or `HOLD_GIVEN_UP_AFTER` has passed. Then limits may pass a row that still appears later.
//! Such a row was never acknowledged, and a verdict that finds it lets its bucket be compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use quick_cache::sync::Cache;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::limits::{
    CASSANDRA_ANSWER_WITHIN, CASSANDRA_ATTEMPTS_MAX, HOLD_GIVEN_UP_AFTER, PARTITION_WRITES_AT_ONCE_MAX,
    TOKENS_REMEMBERED_MAX,
};
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::{BucketKey, bucket_key_of, stored_counter, stored_dataset, stored_key};
use crate::slices::{CqlSlice, CqlSlices};
use crate::touch_writer::TouchWriter;
use crate::value::Bind;
use crate::write_batcher::{PartitionRows, WriteAttempt};
use tallystone_adapters::codec;
use tallystone_coalesce::DetachedTasks;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, DatasetId, EventKey};
use tallystone_domain::limits::HELD_BYTES_MAX;
use tallystone_ports::{AppendGuard, AppendHold, AppendOutcome, EffectOutcome, NewEvent, StoreError, StoreErrorKind};

const OP: &str = "append";

/// A token that this process has written recently.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecentWrite {
    change: Change,
    durable: bool,
}

type AppendToken = (DatasetId, Counter, EventKey);
type AppendResults = Vec<Result<AppendOutcome, StoreError>>;

/// The appends of this process.
pub struct Appender {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    touch_writer: Arc<TouchWriter>,
    recent: Cache<AppendToken, RecentWrite>,
    pending_bytes: AtomicUsize,
    tasks: DetachedTasks,
    stop: CancellationToken,
}

/// A partition of a slice's events.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Partition {
    dataset: DatasetId,
    /// The beginning of the slice.
    slice_start: Timestamp,
    counter: Counter,
    place: BucketKey,
}

/// The columns of an event that are not those of its partition, and the cell timestamp.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventRow {
    /// Microseconds since 1970.
    pub event_time: i64,
    pub event_id: Vec<u8>,
    /// The value cell.
    pub value: Vec<u8>,
    /// The cell timestamp.
    pub timestamp: i64,
}

struct PartitionedEvent {
    partition: Partition,
    slice: Arc<CqlSlice>,
    /// The index of its result in the call.
    result_index: usize,
    new: NewEvent,
    /// Whether the same change under its token is in flight, in this call or in another one.
    is_pending: bool,
}

/// The state of a token in this process.
enum AppendTokenState {
    New,
    /// The same change, not durable yet.
    Pending,
    /// A durable change, or a different one in flight.
    Recorded(Change),
}

/// Events of one call that share a partition.
struct PartitionBatch {
    slice: Arc<CqlSlice>,
    partition: Partition,
    events: Vec<NewEvent>,
    /// The indexes of their results in the call.
    result_indexes: Vec<usize>,
    /// The same for repeats of these events.
    duplicates: Vec<(usize, Change)>,
    /// Whether the rows were sent, so that they may exist.
    sent: bool,
}

/// The state of the write of a partition batch.
enum BatchWriteStatus {
    Durable,
    Refused(RequestFailure),
    /// It may exist, and is retried.
    Unresolved(RequestFailure),
}

impl Appender {
    /// No append is in flight yet.
    pub fn new(requests: Arc<RequestRunner>, slices: Arc<CqlSlices>, touching: Arc<TouchWriter>) -> Self {
        Self {
            requests,
            slices,
            touch_writer: touching,
            recent: Cache::new(TOKENS_REMEMBERED_MAX),
            pending_bytes: AtomicUsize::new(0),
            tasks: DetachedTasks::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Appends events in a task of their own, which starts at the first poll.
    pub async fn append(
        self: &Arc<Self>,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> AppendResults {
        let count = events.len();
        let Some(bytes) = self.reserve(&events) else {
            let busy = || StoreError::not_applied(StoreErrorKind::Busy, OP);
            return (0..count).map(|_| Err(busy())).collect();
        };
        let (told, answers) = oneshot::channel();
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            this.run(dataset, events, told, held.as_ref()).await;
            this.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            drop(held);
        });
        let closed = || Err(StoreError::unknown(StoreErrorKind::Closed, OP));
        answers.await.unwrap_or_else(|_| (0..count).map(|_| closed()).collect())
    }

    /// Reserves capacity for events in flight; none if too little is left.
    fn reserve(&self, events: &[NewEvent]) -> Option<usize> {
        let bytes: usize = events.iter().map(event_bytes).sum();
        let held = self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        if held > 0 && held + bytes > HELD_BYTES_MAX {
            self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        Some(bytes)
    }

    /// Stops retries and waits for the tasks. Unresolved outcomes stay unknown.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.join().await;
    }

    /// Notes that a key has a tombstone.
    pub fn note_tombstone(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) {
        let token = (dataset, counter.clone(), key.clone());
        self.recent.insert(token, RecentWrite { change: Change::Void, durable: true });
    }

    async fn run(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        told: oneshot::Sender<AppendResults>,
        held: &dyn AppendHold,
    ) {
        let mut answers: Vec<Option<Result<AppendOutcome, StoreError>>> = events.iter().map(|_| None).collect();
        let groups = self.assign_partitions(dataset, events, &mut answers).await;
        let began = self.requests.elapsed();
        let mut open = Vec::new();
        for (group, standing) in self.write_all(groups, began + CASSANDRA_ANSWER_WITHIN, held).await {
            for at in &group.result_indexes {
                answers[*at] = Some(answer(&standing, AppendOutcome::Inserted));
            }
            for (at, change) in &group.duplicates {
                answers[*at] = Some(answer(&standing, AppendOutcome::Existing(*change)));
            }
            if let BatchWriteStatus::Unresolved(_) = standing {
                open.push(group);
            }
        }
        let closed = || Err(StoreError::unknown(StoreErrorKind::Closed, OP));
        // The caller may have stopped waiting.
        let _ = told.send(answers.into_iter().map(|answer| answer.unwrap_or_else(closed)).collect());
        if !open.is_empty() {
            // Boxed, like every retry: it is rare, and most tasks need no space for it.
            Box::pin(self.write_all(open, began + HOLD_GIVEN_UP_AFTER, held)).await;
        }
    }

    /// Writes groups until the outcome of each is known, or until a time at which it may still be open.
    async fn write_all(
        &self,
        mut groups: Vec<PartitionBatch>,
        until: Duration,
        held: &dyn AppendHold,
    ) -> Vec<(PartitionBatch, BatchWriteStatus)> {
        let one = |group| {
            Box::pin(async move {
                let (group, standing) = self.write(group, until, held).await;
                self.conclude(&group, &standing);
                (group, standing)
            })
        };
        // A single add needs no set of writes.
        if groups.len() > 1 {
            return stream::iter(groups).map(one).buffer_unordered(PARTITION_WRITES_AT_ONCE_MAX).collect().await;
        }
        match groups.pop() {
            Some(only) => vec![one(only).await],
            None => Vec::new(),
        }
    }

    /// Finds the partition of each event. Events without a slice and known tokens are answered at once.
    async fn assign_partitions(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        answers: &mut [Option<Result<AppendOutcome, StoreError>>],
    ) -> Vec<PartitionBatch> {
        let mut placed = Vec::with_capacity(events.len());
        for (at, new) in events.into_iter().enumerate() {
            let (slice, partition) = match self.locate(dataset, &new).await {
                Ok(placed) => placed,
                Err(error) => {
                    answers[at] = Some(Err(error));
                    continue;
                }
            };
            let under_way = match self.token_state(dataset, &new) {
                AppendTokenState::Recorded(change) => {
                    answers[at] = Some(Ok(AppendOutcome::Existing(change)));
                    continue;
                }
                AppendTokenState::Pending => true,
                AppendTokenState::New => false,
            };
            placed.push(PartitionedEvent { partition, slice, result_index: at, new, is_pending: under_way });
        }
        group_by_partition(placed)
    }

    async fn locate(&self, dataset: DatasetId, new: &NewEvent) -> Result<(Arc<CqlSlice>, Partition), StoreError> {
        let slice = self.slices.writable_slice_at(dataset, new.event.key.time, OP).await?;
        let settings = self.slices.settings(&slice, new.counter.namespace()).await?;
        let place = bucket_key_of(&new.event.key, settings.partition_of(&new.counter));
        let partition = Partition { dataset, slice_start: slice.start(), counter: new.counter.clone(), place };
        Ok((slice, partition))
    }

    /// The state of the token of an event. The event counts as in flight from now on.
    fn token_state(&self, dataset: DatasetId, new: &NewEvent) -> AppendTokenState {
        let token = (dataset, new.counter.clone(), new.event.key.clone());
        let own = RecentWrite { change: new.event.change, durable: false };
        let mut is_new = false;
        let recent = self.recent.get_or_insert_with(&token, || {
            is_new = true;
            Ok::<_, std::convert::Infallible>(own)
        });
        let Ok(recent) = recent;
        match (is_new, recent.durable || recent.change != own.change) {
            (true, _) => AppendTokenState::New,
            (false, true) => AppendTokenState::Recorded(recent.change),
            (false, false) => AppendTokenState::Pending,
        }
    }

    /// Writes a group until its outcome is known, or until a time at which it may still be open.
    async fn write(
        &self,
        mut group: PartitionBatch,
        until: Duration,
        held: &dyn AppendHold,
    ) -> (PartitionBatch, BatchWriteStatus) {
        let was_sent = group.sent;
        let rows = rows_of(&group);
        let mut open: Option<RequestFailure> = None;
        let mut attempt = 1;
        loop {
            let fault = match self.attempt(&mut group, &rows, held).await {
                Ok(()) => return (group, BatchWriteStatus::Durable),
                Err(fault) => fault,
            };
            if group.slice.is_dropped() {
                // The rows of a dropped slice are deleted with it.
                let gone = RequestFailure {
                    kind: StoreErrorKind::Conflict,
                    ..RequestFailure::not_sent("the slice was dropped")
                };
                return (group, BatchWriteStatus::Refused(gone));
            }
            let may_be_there = was_sent || open.is_some() || fault.outcome == EffectOutcome::Unknown;
            if may_be_there {
                open = Some(RequestFailure { outcome: EffectOutcome::Unknown, ..fault });
            } else if attempt >= CASSANDRA_ATTEMPTS_MAX || !fault.is_retryable {
                return (group, BatchWriteStatus::Refused(fault));
            }
            let late = self.requests.elapsed() >= until || !held.keeps_limits_back();
            if let Some(fault) = open.clone().filter(|_| late || self.stop.is_cancelled()) {
                return (group, BatchWriteStatus::Unresolved(fault));
            }
            tokio::select! {
                biased;
                () = self.requests.pause(attempt) => {}
                () = self.stop.cancelled() => {}
            }
            attempt += 1;
        }
    }

    /// The touch is first, so that no row exists without one; then the rows. A clear is visible before it is
    /// acknowledged.
    async fn attempt(
        &self,
        group: &mut PartitionBatch,
        rows: &PartitionRows,
        held: &dyn AppendHold,
    ) -> Result<(), RequestFailure> {
        let (dataset, counter) = (group.partition.dataset, &group.partition.counter);
        let unsent = group.sent;
        let beside = |error: StoreError| RequestFailure {
            outcome: if unsent { EffectOutcome::Unknown } else { EffectOutcome::NotApplied },
            ..RequestFailure::not_sent(error.source.map_or_else(|| error.op.to_owned(), |source| source.to_string()))
        };
        for new in &group.events {
            self.touch_writer.touch(dataset, &group.slice, counter, new.event.key.time).await.map_err(beside)?;
        }
        let tables = self.slices.tables(&group.slice, OP).await.map_err(beside)?;
        let attempt = if group.sent { WriteAttempt::Repeat } else { WriteAttempt::First };
        group.sent = true;
        self.requests.write_once(tables.get("insert_event"), Arc::clone(rows), attempt).await?;
        if self.touch_writer.is_deleted(counter.namespace()) {
            return Ok(());
        }
        let clears = group.events.iter().filter(|new| new.event.change == Change::Clear).map(|new| &new.event.key);
        if let Some(newest) = clears.max() {
            let unknown =
                |why: String| RequestFailure { outcome: EffectOutcome::Unknown, ..RequestFailure::not_sent(why) };
            // Folds take a clear of the register unasked, so it never names one that a verdict may have refused.
            if !held.keeps_limits_back() {
                return Err(unknown("limits may have passed the clear before its row was stored".to_owned()));
            }
            self.raise_clear(dataset, counter, newest).await.map_err(|error| unknown(error.to_string()))?;
        }
        Ok(())
    }

    /// Raises the clear register of a counter.
    pub async fn raise_clear(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<(), StoreError> {
        let (ns, name) = stored_counter(counter);
        let at = self.requests.register_time(key.time.micros());
        let values = (at, stored_key(key), stored_dataset(dataset), ns, name);
        self.requests.write("raise clear", self.requests.statement("set_clear"), values).await
    }

    fn conclude(&self, group: &PartitionBatch, standing: &BatchWriteStatus) {
        for new in &group.events {
            let token = (group.partition.dataset, new.counter.clone(), new.event.key.clone());
            match standing {
                BatchWriteStatus::Durable => {
                    self.recent.insert(token, RecentWrite { change: new.event.change, durable: true });
                }
                BatchWriteStatus::Refused(_) => {
                    self.recent.remove(&token);
                }
                BatchWriteStatus::Unresolved(_) => {} // its change stays the one that the token names
            }
        }
    }
}

/// The events of a call by partition. An event that repeats another one of the call is not written twice.
fn group_by_partition(mut placed: Vec<PartitionedEvent>) -> Vec<PartitionBatch> {
    // Stable: the events of a partition keep their order.
    placed.sort_by(|a, b| a.partition.cmp(&b.partition));
    let mut groups: Vec<PartitionBatch> = Vec::with_capacity(placed.len());
    for PartitionedEvent { partition, slice, result_index: at, new, is_pending: under_way } in placed {
        match groups.last_mut().filter(|group| group.partition == partition) {
            Some(group) if under_way && group.events.iter().any(|event| event.event.key == new.event.key) => {
                group.duplicates.push((at, new.event.change));
            }
            Some(group) => {
                group.events.push(new);
                group.result_indexes.push(at);
            }
            None => {
                let (events, at) = (vec![new], vec![at]);
                groups.push(PartitionBatch {
                    slice,
                    partition,
                    events,
                    result_indexes: at,
                    duplicates: Vec::new(),
                    sent: false,
                });
            }
        }
    }
    groups
}

fn answer(standing: &BatchWriteStatus, durable: AppendOutcome) -> Result<AppendOutcome, StoreError> {
    match standing {
        BatchWriteStatus::Durable => Ok(durable),
        BatchWriteStatus::Refused(fault) | BatchWriteStatus::Unresolved(fault) => Err(fault.clone().during(OP)),
    }
}

/// The values of `insert_event` for each event of a group.
fn rows_of(group: &PartitionBatch) -> PartitionRows {
    let Partition { counter, place, .. } = &group.partition;
    let (ns, name) = stored_counter(counter);
    let values = |new: &NewEvent| {
        let row = row_of(new);
        let (bucket, event_bucket) = (place.time_bucket.micros(), place.event_bucket);
        (ns, name, bucket, event_bucket, row.event_time, row.event_id, row.value, row.timestamp).bind()
    };
    Arc::new(group.events.iter().map(values).collect())
}

/// The row of an event; its cell timestamp is the event time, so sending it again changes nothing.
pub fn row_of(new: &NewEvent) -> EventRow {
    let key = &new.event.key;
    EventRow {
        event_time: key.time.micros(),
        event_id: key.id.to_bytes(),
        value: codec::encode_event(new.event.change, &new.event.provenance),
        timestamp: key.time.micros(),
    }
}

/// The bytes that an event in flight counts for.
fn event_bytes(new: &NewEvent) -> usize {
    const OVERHEAD_BYTES: usize = 256;
    OVERHEAD_BYTES
        + new.counter.name().as_str().len()
        + new.event.key.id.stored_len()
        + new.event.provenance.as_str().len()
}

const _: () = assert!(CASSANDRA_ATTEMPTS_MAX >= 2, "a single attempt is no loop");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_runner::pause_after;

    #[test]
    fn pauses_grow_and_stay_below_the_answer() {
        let pauses: Vec<Duration> = (1..=CASSANDRA_ATTEMPTS_MAX).map(pause_after).collect();
        assert!(pauses.is_sorted());
        assert!(pauses.iter().sum::<Duration>() < CASSANDRA_ANSWER_WITHIN);
    }
}
