//! Reads of the log: over the slices of a range, over their time buckets with rows, over their event buckets.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;

use crate::limits::{PARTITION_READS_AT_ONCE_MAX, SLICE_COUNTERS_LISTED_MAX, TIME_BUCKETS_AT_ONCE_MAX};
use crate::request_failure::RequestFailure;
use crate::request_runner::RequestRunner;
use crate::row_keys::{BucketKey, bucket_key_of, bucket_width, stored_counter};
use crate::slices::{CqlSlice, CqlSlices};
use crate::store::ReadConsistency;
use crate::value::{CqlRow, FromRow};
use tallystone_adapters::codec;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, Event, EventId, EventKey, NamespaceId};
use tallystone_domain::limits::{SCAN_PAGE_EVENTS, STEP};
use tallystone_ports::{ScanOrder, ScanRange, SliceRow, StoreError};

/// The reading side of the log.
pub struct LogReader {
    requests: Arc<RequestRunner>,
    slices: Arc<CqlSlices>,
    listing: Mutex<Option<CounterListing>>,
}

/// Counters of a slice in their order, for an export that goes over it page by page.
#[derive(Clone)]
struct CounterListing {
    dataset: DatasetId,
    start: Timestamp,
    /// The list contains all counters above this one, up to its end.
    above: Option<Counter>,
    counters: Arc<Vec<Counter>>,
    is_last: bool,
}

/// How partitions are read.
#[derive(Clone, Copy)]
struct PartitionReadMode {
    order: ScanOrder,
    level: ReadConsistency,
}

/// Both ends of a range as positions in the order of keys, each excluded: (time, id).
type KeyBounds = ((i64, Vec<u8>), (i64, Vec<u8>));

impl LogReader {
    /// Reads with the known slices.
    pub fn new(requests: Arc<RequestRunner>, slices: Arc<CqlSlices>) -> Self {
        Self { requests, slices, listing: Mutex::new(None) }
    }

    /// Reads the event at a key.
    pub async fn find(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        key: &EventKey,
    ) -> Result<Option<Event>, StoreError> {
        const OP: &str = "find";
        let Some(slice) = self.slices.slice_at(dataset, key.time).await?.filter(|slice| !slice.is_dropped()) else {
            return Ok(None);
        };
        let found = self.find_in(&slice, counter, key, OP).await;
        if slice.is_dropped() { Ok(None) } else { found }
    }

    async fn find_in(
        &self,
        slice: &CqlSlice,
        counter: &Counter,
        key: &EventKey,
        op: &'static str,
    ) -> Result<Option<Event>, StoreError> {
        let settings = self.slices.settings(slice, counter.namespace()).await?;
        let place = bucket_key_of(key, settings.partition_of(counter));
        let (ns, name) = stored_counter(counter);
        let values = (ns, name, place.time_bucket.micros(), place.event_bucket, key.time.micros(), key.id.to_bytes());
        let tables = self.slices.tables(slice, op).await?;
        let found: Option<(Vec<u8>,)> = self.requests.first_row(op, tables.get("find_event"), values).await?;
        found.map(|(value,)| event_from(key.clone(), &value, op)).transpose()
    }

    /// Reads events of a range.
    pub async fn scan(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        range: ScanRange,
    ) -> Result<Vec<Event>, StoreError> {
        let Some((first, last)) = times_of(&range) else { return Ok(Vec::new()) };
        let mut slices = self.slices.live_slices(dataset, first, last).await?;
        if range.order == ScanOrder::NewestFirst {
            slices.reverse();
        }
        let mut found = Vec::new();
        for slice in slices {
            let left = range.limit - found.len();
            if left == 0 {
                break;
            }
            let of_slice = self.scan_one(&slice, counter, &range, (first, last), left).await;
            if !slice.is_dropped() {
                found.extend(of_slice?);
            }
        }
        Ok(found)
    }

    /// Reads the events of a range that lie in one slice, up to a limit.
    async fn scan_one(
        &self,
        slice: &CqlSlice,
        counter: &Counter,
        range: &ScanRange,
        (first, last): (Timestamp, Timestamp),
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let settings = self.slices.settings(slice, counter.namespace()).await?;
        let (from, to) = (first.max(slice.start()), last.min(slice.last()));
        let partition = settings.partition_of(counter);
        let width = bucket_width(partition);
        let steps = self.slices.steps(slice, from.floor_to(STEP), to).await?;
        let buckets: BTreeSet<Timestamp> = steps.into_iter().map(|step| step.floor_to(width)).collect();
        let mut buckets: Vec<Timestamp> = buckets.into_iter().collect();
        if range.order == ScanOrder::NewestFirst {
            buckets.reverse();
        }
        let event_buckets = partition.buckets_per_id;
        let way = PartitionReadMode { order: range.order, level: ReadConsistency::Quorum };
        let ends = key_bounds(range);
        let reading = buckets
            .into_iter()
            .map(|time_bucket| self.read_bucket(slice, counter, time_bucket, event_buckets, way, &ends, limit));
        let mut reading = stream::iter(reading).buffered(TIME_BUCKETS_AT_ONCE_MAX);
        let mut found = Vec::new();
        while let Some(events) = reading.next().await {
            found.extend(events?);
            if found.len() >= limit {
                found.truncate(limit);
                break;
            }
        }
        Ok(found)
    }

    /// Reads the event buckets of a time bucket and puts their events in order.
    #[allow(clippy::too_many_arguments, reason = "one range, taken apart once for all buckets")]
    async fn read_bucket(
        &self,
        slice: &CqlSlice,
        counter: &Counter,
        time_bucket: Timestamp,
        event_buckets: u32,
        way: PartitionReadMode,
        ends: &KeyBounds,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        let places = (0..event_buckets.max(1)).map(|bucket| BucketKey {
            time_bucket,
            event_bucket: i32::try_from(bucket).expect("there are at most a few hundred event buckets"),
        });
        let reading = places.map(|place| self.read_partition(slice, counter, place, way, ends.clone(), limit));
        let read: Vec<Vec<Event>> = stream::iter(reading).buffered(PARTITION_READS_AT_ONCE_MAX).try_collect().await?;
        let mut events: Vec<Event> = read.into_iter().flatten().collect();
        match way.order {
            ScanOrder::OldestFirst => events.sort_by(|a, b| a.key.cmp(&b.key)),
            ScanOrder::NewestFirst => events.sort_by(|a, b| b.key.cmp(&a.key)),
        }
        Ok(events)
    }

    /// Reads all events of a time bucket, regardless of the known steps. None if its slice no longer exists.
    pub async fn read_time_bucket(
        &self,
        dataset: DatasetId,
        counter: &Counter,
        start: Timestamp,
        level: ReadConsistency,
    ) -> Result<Option<Vec<Event>>, StoreError> {
        let covering = self.slices.slice_at(dataset, start).await?;
        let Some(slice) = covering.filter(|slice| !slice.is_dropped()) else { return Ok(None) };
        let settings = self.slices.settings(&slice, counter.namespace()).await?;
        let event_buckets = settings.partition_of(counter).buckets_per_id;
        let ends = ((i64::MIN, Vec::new()), (i64::MAX, Vec::new()));
        let way = PartitionReadMode { order: ScanOrder::OldestFirst, level };
        let read = self.read_bucket(&slice, counter, start, event_buckets, way, &ends, usize::MAX).await;
        if slice.is_dropped() { Ok(None) } else { read.map(Some) }
    }

    /// Reads one partition, page by page.
    async fn read_partition(
        &self,
        slice: &CqlSlice,
        counter: &Counter,
        place: BucketKey,
        PartitionReadMode { order, level }: PartitionReadMode,
        (mut low, mut high): KeyBounds,
        limit: usize,
    ) -> Result<Vec<Event>, StoreError> {
        const OP: &str = "scan";
        let tables = self.slices.tables(slice, OP).await?;
        let statement = tables.get(match order {
            ScanOrder::OldestFirst => "scan_oldest_first",
            ScanOrder::NewestFirst => "scan_newest_first",
        });
        let (ns, name) = stored_counter(counter);
        let mut events = Vec::new();
        loop {
            let page = SCAN_PAGE_EVENTS.min(limit - events.len());
            let most = i32::try_from(page).expect("a page is small");
            let of_partition = (ns, name, place.time_bucket.micros(), place.event_bucket);
            let values =
                (of_partition.0, of_partition.1, of_partition.2, of_partition.3, low.0, &low.1, high.0, &high.1, most);
            let rows: Vec<(i64, Vec<u8>, Vec<u8>)> = self.requests.rows_at(level, OP, statement, values).await?;
            let read = rows.len();
            if let Some((time, id, _)) = rows.last() {
                let beyond = (*time, id.clone());
                match order {
                    ScanOrder::OldestFirst => low = beyond,
                    ScanOrder::NewestFirst => high = beyond,
                }
            }
            for (time, id, value) in rows {
                let id = EventId::from_bytes(&id)
                    .ok_or_else(|| RequestFailure::corrupt("an event has an id of an unknown kind").during(OP))?;
                events.push(event_from(EventKey { time: Timestamp::from_micros(time), id }, &value, OP)?);
            }
            if read < page || events.len() >= limit {
                return Ok(events);
            }
        }
    }

    /// Reads rows of a whole slice, counter by counter in the order of namespaces and names.
    pub async fn scan_slice(
        &self,
        dataset: DatasetId,
        slice_start: Timestamp,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        let slice = self.slices.slice_at(dataset, slice_start).await?;
        let Some(slice) = slice.filter(|slice| slice.start() == slice_start && !slice.is_dropped()) else {
            return Ok(Vec::new());
        };
        let rows = self.slice_rows(dataset, &slice, beyond, limit).await;
        if slice.is_dropped() { Ok(Vec::new()) } else { rows }
    }

    async fn slice_rows(
        &self,
        dataset: DatasetId,
        slice: &CqlSlice,
        beyond: Option<(Counter, EventKey)>,
        limit: usize,
    ) -> Result<Vec<SliceRow>, StoreError> {
        let mut rows = Vec::new();
        let (mut from, mut key) = beyond.map_or((None, None), |(counter, key)| (Some(counter), Some(key)));
        while rows.len() < limit {
            // The counter at the end of the last page may have more rows; after it come the counters above.
            let counter = match (from.clone(), key.is_some()) {
                (Some(counter), true) => counter,
                (above, _) => match self.next_counter(dataset, slice, above).await? {
                    Some(counter) => counter,
                    None => break,
                },
            };
            let range = ScanRange {
                after: slice.start().just_before(),
                to: slice.last(),
                order: ScanOrder::OldestFirst,
                beyond: key.take(),
                limit: limit - rows.len(),
            };
            let events = self.scan(dataset, &counter, range).await?;
            rows.extend(events.into_iter().map(|event| SliceRow { counter: counter.clone(), event }));
            from = Some(counter);
        }
        Ok(rows)
    }

    /// The next counter of a slice above another one.
    async fn next_counter(
        &self,
        dataset: DatasetId,
        slice: &CqlSlice,
        above: Option<Counter>,
    ) -> Result<Option<Counter>, StoreError> {
        let listing = self.listing.lock().clone();
        let fits = |listing: &CounterListing| {
            (listing.dataset, listing.start) == (dataset, slice.start())
                && listing.above <= above
                && (listing.is_last || listing.counters.last() > above.as_ref())
        };
        let listing = match listing.filter(fits).filter(|_| above.is_some()) {
            Some(listing) => listing,
            None => {
                let listing = self.list_counters(dataset, slice, above.clone()).await?;
                *self.listing.lock() = Some(listing.clone());
                listing
            }
        };
        let at = listing.counters.partition_point(|counter| Some(counter) <= above.as_ref());
        Ok(listing.counters.get(at).cloned())
    }

    /// Lists the first counters of a slice above another one. Cost: O(partitions of the slice), in bounded memory.
    async fn list_counters(
        &self,
        dataset: DatasetId,
        slice: &CqlSlice,
        above: Option<Counter>,
    ) -> Result<CounterListing, StoreError> {
        const OP: &str = "list counters of a slice";
        let statement = self.slices.tables(slice, OP).await?.get("list_partitions");
        let mut counters: BTreeSet<Counter> = BTreeSet::new();
        let mut is_last = true;
        let mut after = None;
        loop {
            let (rows, next) =
                self.requests.store.read_page(statement, after.as_ref()).await.map_err(|fault| fault.during(OP))?;
            for row in rows {
                let counter =
                    counter_of_partition(row).ok_or_else(|| RequestFailure::corrupt("a partition's key").during(OP))?;
                if Some(&counter) > above.as_ref() {
                    counters.insert(counter);
                }
                if counters.len() > SLICE_COUNTERS_LISTED_MAX {
                    counters.pop_last();
                    is_last = false;
                }
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        let counters = Arc::new(counters.into_iter().collect());
        Ok(CounterListing { dataset, start: slice.start(), above, counters, is_last })
    }
}

/// The counter of a row (namespace, name, time bucket, event bucket).
fn counter_of_partition(row: CqlRow) -> Option<Counter> {
    let (ns, name, _, _) = <(i64, String, i64, i32)>::from_row(row)?;
    Some(Counter::new(NamespaceId(ns.cast_unsigned()), CounterName::new(&name).ok()?))
}

/// The first and the last time of a range; none if it is empty.
fn times_of(range: &ScanRange) -> Option<(Timestamp, Timestamp)> {
    let (mut first, mut last) = (range.after.just_after(), range.to);
    if let Some(beyond) = &range.beyond {
        match range.order {
            ScanOrder::OldestFirst => first = first.max(beyond.time),
            ScanOrder::NewestFirst => last = last.min(beyond.time),
        }
    }
    (first <= last && range.limit > 0).then_some((first, last))
}

/// The ends of a range in the order of keys. No id is empty, so (time, empty) stands before all events of the time.
fn key_bounds(range: &ScanRange) -> KeyBounds {
    let mut low = (range.after.just_after().micros(), Vec::new());
    let mut high = (range.to.just_after().micros(), Vec::new());
    if let Some(beyond) = &range.beyond {
        let place = (beyond.time.micros(), beyond.id.to_bytes());
        match range.order {
            ScanOrder::OldestFirst => low = low.max(place),
            ScanOrder::NewestFirst => high = high.min(place),
        }
    }
    (low, high)
}

/// Puts an event together.
pub fn event_from(key: EventKey, value: &[u8], op: &'static str) -> Result<Event, StoreError> {
    let (change, provenance) = codec::decode_event(value).map_err(|damaged| damaged.into_store_error(op))?;
    Ok(Event { key, change, provenance })
}
