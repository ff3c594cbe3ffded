//! The event log and the dirty-counter index of an open store.

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::EmbeddedStore;
use crate::counters::counter_table::EventLookup;
use crate::counters::read;
use crate::inbox::command::{AppendCommand, EncodedEvent, SettleCommand, StoreCommand};
use crate::store_core::StoreCore;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, DatasetId, Event, EventKey};
use tallystone_domain::rollup::TailLookup;
use tallystone_ports::{
    AppendGuard, AppendOutcome, EventLog, LogCapabilities, NewEvent, ScanRange, SliceRow, StoreError, StoreErrorKind,
    Touch, Touches, VerdictOutcome,
};

impl EmbeddedStore {
    /// Queues a command that needs keyspaces of new slices, after these keyspaces exist. On a full disk none are
    /// created, and the committer refuses the command.
    fn push_with_keyspaces(&self, dataset: DatasetId, starts: Vec<Timestamp>, command: StoreCommand) {
        let queue = &self.core.inbox;
        if starts.is_empty() || self.core.is_full() {
            return queue.push(command);
        }
        match queue.reserve(&command) {
            Ok(reserved) => self.core.keyspace_jobs.enqueue_after_make(queue, dataset, starts, command, reserved),
            Err(kind) => command.fail(|op| StoreError::not_applied(kind, op)),
        }
    }
}

#[async_trait]
impl EventLog for EmbeddedStore {
    fn capabilities(&self) -> LogCapabilities {
        LogCapabilities { reports_existing: true, unknown_outcomes: false, keeps_tail: true, exact_last_write: true }
    }

    async fn append(
        &self,
        dataset: DatasetId,
        events: Vec<NewEvent>,
        guard: AppendGuard,
    ) -> Vec<Result<AppendOutcome, StoreError>> {
        let count = events.len();
        let mut namespace = None;
        for new in &events {
            if namespace != Some(new.counter.namespace()) {
                namespace = Some(new.counter.namespace());
                self.core.counters.note_namespace(new.counter.namespace(), dataset);
            }
        }
        let starts = self.core.slices.starts_without_keyspaces(dataset, events.iter().map(|new| new.event.key.time));
        let events = events.into_iter().map(EncodedEvent::new).collect();
        let (answer, answered) = oneshot::channel();
        self.push_with_keyspaces(
            dataset,
            starts,
            StoreCommand::Append(AppendCommand { dataset, events, guard, answer }),
        );
        answered.await.unwrap_or_else(|_| {
            (0..count).map(|_| Err(StoreError::unknown(StoreErrorKind::Closed, "append"))).collect()
        })
    }

    async fn settle(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<VerdictOutcome, StoreError> {
        let starts = self.core.slices.starts_without_keyspaces(dataset, std::iter::once(key.time));
        let (counter, key) = (counter.clone(), key.clone());
        let (answer, answered) = oneshot::channel();
        let command = StoreCommand::Settle(SettleCommand { dataset, counter, key, answer });
        self.push_with_keyspaces(dataset, starts, command);
        answered.await.unwrap_or_else(|_| Err(StoreError::unknown(StoreErrorKind::Closed, "settle")))
    }

    async fn find(&self, dataset: DatasetId, counter: &Counter, key: &EventKey) -> Result<Option<Event>, StoreError> {
        match self.core.counters.find(dataset, counter, key) {
            EventLookup::Present(event) => Ok(Some(event)),
            EventLookup::Missing => Ok(None),
            EventLookup::ReadDisk => self.core.read("find", |_| read::find(&self.core.slices, dataset, counter, key)),
        }
    }

    async fn scan(&self, dataset: DatasetId, counter: &Counter, range: ScanRange) -> Result<Vec<Event>, StoreError> {
        if let Some(events) = self.core.counters.scan(dataset, counter, &range) {
            return Ok(events);
        }
        let counter = counter.clone();
        self.core.read_long("scan", move |core, _| read::scan(&core.slices, dataset, &counter, &range)).await
    }

    fn tail(&self, dataset: DatasetId, counter: &Counter, after: Timestamp) -> TailLookup {
        self.core.counters.tail(dataset, counter, after)
    }

    async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        self.core
            .read_long("scan slice", move |core, _| read::scan_slice(&core.slices, dataset, slice_start, beyond, limit))
            .await
    }
}

#[async_trait]
impl Touches for EmbeddedStore {
    async fn touched(
        &self,
        dataset: DatasetId,
        shard: u32,
        from: Timestamp,
        to: Timestamp,
        beyond: Option<&Touch>,
        limit: usize,
    ) -> Result<Vec<Touch>, StoreError> {
        let beyond = beyond.cloned();
        let touched = move |core: &StoreCore, _: &_| {
            read::touched(&core.slices, dataset, shard, (from, to), beyond.as_ref(), limit)
        };
        self.core.read_long("touched", touched).await
    }

    async fn watermarks(&self, dataset: DatasetId) -> Result<Vec<Option<Timestamp>>, StoreError> {
        Ok(self.core.meta_state.watermarks(dataset))
    }

    async fn put_watermarks(&self, dataset: DatasetId, moved: Vec<(u32, Timestamp)>) -> Result<(), StoreError> {
        self.core.inbox.request("put watermarks", |answer| StoreCommand::Watermarks(dataset, moved, answer)).await
    }
}
