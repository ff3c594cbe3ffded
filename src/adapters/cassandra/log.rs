//! The event log, composed of appends and scans; and verdicts, the only conditional writes on its rows.
//!
//! A verdict inserts a tombstone if there is no row. It then writes the tombstone again as a plain write, one
//! microsecond above the event's time. A conditional write carries the store's clock, which may be lower, and a copy of
//! the add that arrives later has to lose. Until then the event may hide the tombstone, so the conditional insert also
//! marks the row as void. A row that exists is written again unchanged, because the conditional read may not have
//! brought it to a quorum. Then the verdict is asked again: another one may have left a tombstone before the row was at
//! a quorum. So verdicts on a token agree, whatever the clocks of the store show.

use std::sync::Arc;

use async_trait::async_trait;

use crate::append::{Appender, row_of};
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::{bucket_key_of, stored_counter};
use crate::scan::{LogReader, event_from};
use crate::slices::{CqlSlice, CqlSlices};
use crate::store::{ConditionalResult, PreparedCql};
use crate::touch_writer::TouchWriter;
use crate::value::{Bind, CqlValue};
use tallystone_adapters::codec;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Change, Counter, DatasetId, Event, EventKey, Provenance};
use tallystone_domain::fleet::ProtocolRule;
use tallystone_domain::limits::STEP;
use tallystone_domain::rollup::TailLookup;
use tallystone_ports::{
    AppendGuard, AppendOutcome, EventLog, LogCapabilities, NewEvent, ScanRange, SliceRow, StoreError, VerdictOutcome,
};

const OP: &str = "settle";

/// The event log.
pub struct Log {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    touching: Arc<TouchWriter>,
    appending: Arc<Appender>,
    scanning: Arc<LogReader>,
}

impl Log {
    /// Creates the log from its parts.
    pub fn new(
        requests: Arc<RequestRunner>,
        slices: Arc<CqlSlices>,
        touching: Arc<TouchWriter>,
        appending: Arc<Appender>,
        scanning: Arc<LogReader>,
    ) -> Self {
        Self { requests, slices, touching, appending, scanning }
    }

    async fn settle_in(
        &self,
        dataset: DatasetId,
        slice: &CqlSlice,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        // A tombstone is no entry of the dirty-counter index, but scans have to find it.
        self.touching.store_step(dataset, slice, key.time.floor_to(STEP)).await?;
        let void = Event { key: key.clone(), change: Change::Void, provenance: Provenance::default() };
        let value = codec::encode_event(void.change, &void.provenance);
        let settings = self.slices.settings(slice, counter.namespace()).await?;
        let place = bucket_key_of(key, settings.partition_of(counter));
        let (ns, name) = stored_counter(counter);
        let tables = self.slices.tables(slice, OP).await?;
        let bucket = place.time_bucket.micros();
        let values = (ns, name, bucket, place.event_bucket, key.time.micros(), key.id.to_bytes(), value, true).bind();
        if !self.requests.rules.keeps(ProtocolRule::Void) {
            let found = self.scanning.find(dataset, counter, key).await?;
            return Ok(found.map_or(VerdictOutcome::Voided, VerdictOutcome::Found));
        }
        let again = |event: &Event| {
            let mut row = row_of(&NewEvent { counter: counter.clone(), event: event.clone() });
            if event.change == Change::Void {
                row.timestamp = key.time.just_after().micros();
            }
            (ns, name, bucket, place.event_bucket, row.event_time, row.event_id, row.value, row.timestamp)
        };
        let mut found = self.decide(tables.get("insert_void"), values.clone(), &void).await?;
        if found.change != Change::Void {
            self.requests.write(OP, tables.get("insert_event"), again(&found)).await?;
            found = self.decide(tables.get("insert_void"), values, &void).await?;
        }
        if found.change == Change::Void {
            if self.requests.rules.keeps(ProtocolRule::SecondVoid) {
                self.requests.write(OP, tables.get("insert_event"), again(&found)).await?;
            }
            self.appending.note_tombstone(dataset, counter, key);
            return Ok(VerdictOutcome::Voided);
        }
        // The writer of this row may have stopped before it wrote the index entry or the clear register.
        self.touching.touch(dataset, slice, counter, key.time).await?;
        if found.change == Change::Clear && !self.touching.is_deleted(counter.namespace()) {
            self.appending.raise_clear(dataset, counter, key).await?;
        }
        Ok(VerdictOutcome::Found(found))
    }

    /// Inserts a tombstone if there is no row. Returns the tombstone, also that of an earlier verdict, or the event.
    async fn decide(
        &self,
        insert_void: &PreparedCql,
        values: Vec<CqlValue>,
        void: &Event,
    ) -> Result<Event, StoreError> {
        match self.requests.apply_conditionally(OP, insert_void, values).await? {
            ConditionalResult::Applied => Ok(void.clone()),
            ConditionalResult::NotApplied(row) if row.is_true("is_void") => Ok(void.clone()),
            ConditionalResult::NotApplied(row) => {
                let value =
                    row.bytes("value").ok_or_else(|| RequestFailure::corrupt("an event has no value").during(OP))?;
                event_from(void.key.clone(), &value, OP)
            }
        }
    }
}

#[async_trait]
impl EventLog for Log {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities { reports_existing: false, unknown_outcomes: true, keeps_tail: false, exact_last_write: false }
    }

    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        held: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>> {
        self.appending.append(dataset, events, held).await
    }

    async fn settle(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        let slice = self.slices.writable_slice_at(dataset, key.time, OP).await?;
        let settled = self.settle_in(dataset, &slice, counter, key).await;
        if settled.is_err() && slice.is_dropped() {
            self.slices.writable_slice_at(dataset, key.time, OP).await?;
        }
        settled
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        self.scanning.find(dataset, counter, key).await
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        self.scanning.scan(dataset, counter, range).await
    }

    fn tail(&self, _dataset: DatasetId, _counter: &Counter, _after: Timestamp) -> TailLookup {
        TailLookup::Unknown
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
