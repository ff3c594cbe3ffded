//! The event log and the dirty-counter index in ordered maps.

use async_trait::async_trait;

use crate::memory::{MemoryStore, MemoryStoreState};
use tallystone_domain::counter::{Change, Counter, DatasetId, Event, EventKey, Provenance};
use tallystone_domain::limits::{STEP, TOUCH_SHARDS};
use tallystone_domain::rollup::{TailLookup, TailSum};
use tallystone_domain::time::Timestamp;
use tallystone_ports::{
    AppendGuard, AppendOutcome, EventLog, LogCapabilities, NewEvent, ScanOrder, ScanRange, SliceRow, StoreError,
    StoreErrorKind, Touch, Touches, VerdictOutcome,
};

#[async_trait]
impl EventLog for MemoryStore {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities { reports_existing: true, unknown_outcomes: false, keeps_tail: true, exact_last_write: true }
    }

    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>> {
        let mut state = self.state.lock();
        let answers = events.into_iter().map(|new| state.append(dataset, new)).collect();
        drop(state);
        // Dropping the guard may call back into this store, so the lock is released first.
        drop(held);
        answers
    }

    async fn settle(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        let mut state = self.state.lock();
        state.check_slice(dataset, key.time, "settle")?;
        let events = state.events.entry((dataset, counter.clone())).or_default();
        let event = events.entry(key.clone()).or_insert_with(|| Event {
            key: key.clone(),
            change: Change::Void,
            provenance: Provenance::default(),
        });
        Ok(match event.change {
            Change::Void => VerdictOutcome::Voided,
            Change::Add(_) | Change::Clear | Change::Total(_) => VerdictOutcome::Found(event.clone()),
        })
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        let state = self.state.lock();
        Ok(state.events.get(&(dataset, counter.clone())).and_then(|events| events.get(key)).cloned())
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        let state = self.state.lock();
        let Some(events) = state.events.get(&(dataset, counter.clone())) else { return Ok(Vec::new()) };
        let inside = events.values().filter(|event| range.after < event.key.time && event.key.time <= range.to);
        let beyond = range.beyond.as_ref();
        Ok(match range.order {
            ScanOrder::OldestFirst => {
                let rest = inside.filter(|event| beyond.is_none_or(|beyond| event.key > *beyond));
                rest.take(range.limit).cloned().collect()
            }
            ScanOrder::NewestFirst => {
                let rest = inside.rev().filter(|event| beyond.is_none_or(|beyond| event.key < *beyond));
                rest.take(range.limit).cloned().collect()
            }
        })
    }

    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup {
        let state = self.state.lock();
        let Some(events) = state.events.get(&(dataset, counter.clone())) else { return TailLookup::Empty };
        let mut tail = TailLookup::Empty;
        for event in events.values().filter(|event| event.key.time > after) {
            tail = match extend(tail, event) {
                TailLookup::Unknown => return TailLookup::Unknown,
                longer @ (TailLookup::Empty | TailLookup::Sum(_)) => longer,
            };
        }
        tail
    }

    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        let state = self.state.lock();
        let Some(slice) = state.slices.get(&(dataset, slice_start)) else { return Ok(Vec::new()) };
        let counters = state.events.iter().filter(|((of, _), _)| *of == dataset);
        let rows = counters.flat_map(|((_, counter), events)| events.values().map(move |event| (counter, event)));
        let inside = rows.filter(|(_, event)| slice.start <= event.key.time && event.key.time < slice.end);
        let rest = inside
            .filter(|(counter, event)| beyond.as_ref().is_none_or(|(last, key)| (*counter, &event.key) > (last, key)));
        Ok(rest
            .take(limit)
            .map(|(counter, event)| SliceRow { counter: counter.clone(), event: event.clone() })
            .collect())
    }
}

#[async_trait]
impl Touches for MemoryStore {
    async fn touched(
        &self,
        dataset: DatasetId,
        shard: u32,
        from: Timestamp,
        to: Timestamp,
        beyond: Option<&Touch>,
        limit: usize,
    ) -> Result<Vec<Touch>, StoreError> {
        let state = self.state.lock();
        let touches = state
            .touches
            .iter()
            .filter(|(of, at, step, _)| (*of, *at) == (dataset, shard) && from <= *step && *step <= to);
        let touches =
            touches.map(|(_, _, step, counter)| Touch { step: *step, counter: counter.clone(), recheck: None });
        let rest = touches
            .filter(|touch| beyond.is_none_or(|beyond| (touch.step, &touch.counter) > (beyond.step, &beyond.counter)));
        Ok(rest.take(limit).collect())
    }

    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let state = self.state.lock();
        Ok((0..TOUCH_SHARDS).map(|shard| state.watermarks.get(&(dataset, shard)).copied()).collect())
    }

    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        for (shard, to) in moved {
            let watermark = state.watermarks.entry((dataset, shard)).or_insert(to);
            *watermark = to.max(*watermark);
        }
        Ok(())
    }
}

impl MemoryStoreState {
    fn append(&mut self, dataset: DatasetId, new: NewEvent) -> Result<AppendOutcome, StoreError> {
        let NewEvent { counter, event } = new;
        let key = event.key.clone();
        self.check_slice(dataset, key.time, "append")?;
        let events = self.events.entry((dataset, counter.clone())).or_default();
        if let Some(held) = events.get(&key) {
            return Ok(AppendOutcome::Existing(held.change));
        }
        let change = event.change;
        events.insert(key.clone(), event);
        self.touches.insert((dataset, counter.touch_shard(), key.time.floor_to(STEP), counter.clone()));
        if self.forgotten.contains(&counter.namespace()) {
            return Ok(AppendOutcome::Inserted);
        }
        if change.is_mutation() {
            self.names.insert((counter.namespace(), counter.name().clone()));
        }
        let row = self.rows.entry((dataset, counter)).or_default();
        if change.is_mutation() {
            row.last_write_time = row.last_write_time.max(Some(key.time));
        }
        if change == Change::Clear {
            row.clear = row.clear.take().max(Some(key));
        }
        Ok(AppendOutcome::Inserted)
    }

    fn check_slice(&self, dataset: DatasetId, time: Timestamp, op: &'static str) -> Result<(), StoreError> {
        if self.takes_events_at(dataset, time) {
            return Ok(());
        }
        Err(StoreError::not_applied(StoreErrorKind::Conflict, op)
            .with_source(format!("no live slice of dataset {} covers {time:?}", dataset.0)))
    }
}

/// Adds the next event of a counter to the sum of its tail. A tail with totals has no sum: the newest total of each
/// source counts, whatever its position.
fn extend(tail: TailLookup, event: &Event) -> TailLookup {
    let time = event.key.time;
    let mut sum = match tail {
        TailLookup::Unknown => return TailLookup::Unknown,
        TailLookup::Empty => TailSum { mutations: 0, sum: 0, clear: None, first: time, last: time },
        TailLookup::Sum(ref sum) => sum.clone(),
    };
    match event.change {
        Change::Void => return tail,
        Change::Total(_) => return TailLookup::Unknown,
        Change::Add(delta) => sum.sum += i128::from(delta),
        Change::Clear => {
            sum.sum = 0;
            sum.clear = Some(event.key.clone());
        }
    }
    sum.mutations += 1;
    sum.last = time;
    TailLookup::Sum(sum)
}
