//! The event log, put together from appends and scans; and verdicts, the only conditional writes on its rows.
//!
//! A verdict inserts a void if there is no row. The void is then written once more, plainly, one microsecond above the
//! event's time: a conditional write carries the store's clock, which may lie below, and a copy of the add that arrives
//! later has to lose. A row that was found is written again as it was, because the conditional read need not have brought
//! it to a quorum.

use std::sync::Arc;

use async_trait::async_trait;

use crate::adapters::cassandra::append::{Appending, row_of};
use crate::adapters::cassandra::fault::Fault;
use crate::adapters::cassandra::link::Link;
use crate::adapters::cassandra::place::{place_of, stored_counter};
use crate::adapters::cassandra::scan::{Scanning, event_from};
use crate::adapters::cassandra::slices::{Slice, Slices};
use crate::adapters::cassandra::store::Decision;
use crate::adapters::cassandra::touching::Touching;
use crate::adapters::stored;
use crate::domain::Timestamp;
use crate::domain::counter::{Change, Counter, DatasetId, Event, EventKey, Provenance};
use crate::domain::fleet::Rule;
use crate::domain::limits::STEP;
use crate::ports::{
    Appended, EventLog, Held, LogCapabilities, NewEvent, ScanRange, Settled, SliceRow, StoreError, Tail,
};

const OP: &str = "settle";

/// The event log.
pub struct Log {
    link: Arc<Link>,
    slices: Arc<Slices>,
    touching: Arc<Touching>,
    appending: Arc<Appending>,
    scanning: Arc<Scanning>,
}

impl Log {
    /// Puts the parts together.
    pub fn new(
        link: Arc<Link>,
        slices: Arc<Slices>,
        touching: Arc<Touching>,
        appending: Arc<Appending>,
        scanning: Arc<Scanning>,
    ) -> Self {
        Self { link, slices, touching, appending, scanning }
    }

    async fn settle_in(
        &self,
        dataset: DatasetId,
        slice: &Slice,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<Settled, StoreError> {
        // A void is no touch, but scans have to find it.
        self.touching.store_step(dataset, slice, key.time.floor_to(STEP)).await?;
        let void = Event { key: key.clone(), change: Change::Void, provenance: Provenance::default() };
        let value = stored::encode_event(void.change, &void.provenance);
        let settings = self.slices.settings(slice, counter.namespace()).await?;
        let place = place_of(key, settings.partition_of(counter));
        let (ns, name) = stored_counter(counter);
        let tables = self.slices.tables(slice, OP).await?;
        let bucket = place.time_bucket.micros();
        let values = (ns, name, bucket, place.event_bucket, key.time.micros(), key.id.to_bytes(), value);
        if !self.link.rules.keeps(Rule::Void) {
            let found = self.scanning.find(dataset, counter, key).await?;
            return Ok(found.map_or(Settled::Voided, Settled::Found));
        }
        let found = match self.link.decide(OP, tables.named("insert_void"), values).await? {
            Decision::Applied => void,
            Decision::Held(row) => {
                let value = row.bytes("value").ok_or_else(|| Fault::corrupt("an event has no value").during(OP))?;
                event_from(key.clone(), &value, OP)?
            }
        };
        let is_void = found.change == Change::Void;
        let mut row = row_of(&NewEvent { counter: counter.clone(), event: found.clone() });
        if is_void {
            row.timestamp = key.time.just_after().micros();
        }
        let again = (ns, name, bucket, place.event_bucket, row.event_time, row.event_id, row.value, row.timestamp);
        if !is_void || self.link.rules.keeps(Rule::SecondVoid) {
            self.link.write(OP, tables.named("insert_event"), again).await?;
        }
        if is_void {
            self.appending.note_void(dataset, counter, key);
            return Ok(Settled::Voided);
        }
        // Whoever wrote it may have ended before it was touched, or before a clear was shown.
        self.touching.touch(dataset, slice, counter, key.time).await?;
        if found.change == Change::Clear && !self.touching.is_forgotten(counter.namespace()) {
            self.appending.raise_clear(dataset, counter, key).await?;
        }
        Ok(Settled::Found(found))
    }
}

#[async_trait]
impl EventLog for Log {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities { sees_reuse: false, unknown_outcomes: true, keeps_tail: false, exact_last_write: false }
    }

    async fn append(&self, dataset: DatasetId, events: Vec<NewEvent>, held: Held) -> Vec<Result<Appended, StoreError>> {
        self.appending.append(dataset, events, held).await
    }

    async fn settle(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Settled, StoreError> {
        let slice = self.slices.taking(dataset, key.time, OP).await?;
        let settled = self.settle_in(dataset, &slice, counter, key).await;
        if settled.is_err() && slice.is_dropped() {
            self.slices.taking(dataset, key.time, OP).await?;
        }
        settled
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        self.scanning.find(dataset, counter, key).await
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        self.scanning.scan(dataset, counter, range).await
    }

    fn tail(&self, _dataset: DatasetId, _counter: &Counter, _after: Timestamp) -> Tail {
        Tail::Unknown
    }

    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        self.scanning.scan_slice(dataset, slice_start, beyond, limit).await
    }
}
