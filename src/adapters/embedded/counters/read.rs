//! Reads of counters from disk. They return the complete range or an error.

use std::ops::Bound;

use crate::counters::counter_row::CounterRow;
use crate::counters::counter_table::LoadedRow;
use crate::counters::slices::SliceIndex;
use crate::disk::key::{self, KeyRange};
use crate::disk::library::Library;
use crate::disk::read::{RawRow, rows};
use crate::error::{ReadError, malformed_key};
use tallystone_adapters::codec::{decode_bucket, decode_checkpoint, decode_event, decode_key};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{Counter, CounterName, DatasetId, Event, EventKey, NamespaceId};
use tallystone_domain::rollup::BucketRecord;
use tallystone_ports::{ScanOrder, ScanRange, SliceRow, Touch};

/// Reads the events of a range.
pub fn scan(
    slices: &SliceIndex,
    dataset: DatasetId,
    counter: &Counter,
    range: &ScanRange,
) -> Result<Vec<Event>, ReadError> {
    let mut events = Vec::new();
    if range.after == Timestamp::MAX {
        return Ok(events);
    }
    let from = range.after.just_after();
    let mut spaces = slices.keyspaces(dataset, from, range.to);
    if range.order == ScanOrder::NewestFirst {
        spaces.reverse();
    }
    for spaces in spaces {
        let mut keys = key::events(counter, from, range.to);
        if let Some(beyond) = &range.beyond {
            let beyond = key::of_event(counter, beyond);
            keys = match range.order {
                ScanOrder::OldestFirst => key::above(keys, beyond),
                ScanOrder::NewestFirst => key::below(keys, beyond),
            };
        }
        for row in rows(&spaces.events, keys, range.order).take(range.limit - events.len()) {
            events.push(event_of(counter, row?)?);
        }
        if events.len() == range.limit {
            break;
        }
    }
    Ok(events)
}

fn event_of(counter: &Counter, (key, value): RawRow) -> Result<Event, ReadError> {
    let event_key = key::to_event_of(counter, &key).ok_or_else(|| malformed_key("event", &key))?;
    let (change, provenance) = decode_event(&value)?;
    Ok(Event { key: event_key, change, provenance })
}

/// Reads the event with a key.
pub fn find(
    slices: &SliceIndex,
    dataset: DatasetId,
    counter: &Counter,
    key: &EventKey,
) -> Result<Option<Event>, ReadError> {
    let Some(spaces) = slices.writable_slice(dataset, key.time).and_then(|place| place.keyspaces) else {
        return Ok(None);
    };
    let Some(value) = spaces.events.get(key::of_event(counter, key))? else { return Ok(None) };
    let (change, provenance) = decode_event(&value)?;
    Ok(Some(Event { key: key.clone(), change, provenance }))
}

/// Reads rows of a whole slice.
pub fn scan_slice(
    slices: &SliceIndex,
    dataset: DatasetId,
    start: Timestamp,
    beyond: Option<(Counter, EventKey)>,
    limit: usize,
) -> Result<Vec<SliceRow>, ReadError> {
    let here = slices.writable_slice(dataset, start).filter(|place| place.start == start);
    let Some(spaces) = here.and_then(|place| place.keyspaces) else { return Ok(Vec::new()) };
    let mut keys: KeyRange = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    if let Some((counter, event_key)) = &beyond {
        keys = key::above(keys, key::of_event(counter, event_key));
    }
    let read = |row: Result<RawRow, ReadError>| {
        let (key, value) = row?;
        let (counter, event_key) = key::to_event(&key).ok_or_else(|| malformed_key("event", &key))?;
        let (change, provenance) = decode_event(&value)?;
        Ok(SliceRow { counter, event: Event { key: event_key, change, provenance } })
    };
    rows(&spaces.events, keys, ScanOrder::OldestFirst).take(limit).map(read).collect()
}

/// Reads the row of a counter without the part that memory holds: events above `disk_to` are skipped.
pub fn row(
    library: &Library,
    slices: &SliceIndex,
    dataset: DatasetId,
    counter: &Counter,
    disk_to: Timestamp,
) -> Result<LoadedRow, ReadError> {
    let key = key::of_row(dataset, counter);
    let checkpoint = library.rollups.get(&key)?;
    let clear = library.registers.get(&key)?.map(|bytes| decode_key(&bytes)).transpose()?;
    let as_of = match &checkpoint {
        Some(bytes) => decode_checkpoint(bytes)?.as_of,
        None => Timestamp::MIN,
    };
    let (newest, newest_mutation) = newest_times(slices, dataset, counter, as_of, disk_to)?;
    let row = CounterRow::new(checkpoint.as_deref(), clear, newest_mutation)?;
    Ok(LoadedRow { row, disk_to: newest.unwrap_or(as_of).min(disk_to) })
}

/// Times of the newest event and of the newest mutation with `after < time <= to`.
fn newest_times(
    slices: &SliceIndex,
    dataset: DatasetId,
    counter: &Counter,
    after: Timestamp,
    to: Timestamp,
) -> Result<(Option<Timestamp>, Option<Timestamp>), ReadError> {
    let mut newest = None;
    if after >= to {
        return Ok((None, None));
    }
    let from = after.just_after();
    for spaces in slices.keyspaces(dataset, from, to).into_iter().rev() {
        for row in rows(&spaces.events, key::events(counter, from, to), ScanOrder::NewestFirst) {
            let event = event_of(counter, row?)?;
            newest.get_or_insert(event.key.time);
            if event.change.is_mutation() {
                return Ok((newest, Some(event.key.time)));
            }
        }
    }
    Ok((newest, None))
}

/// Reads the dirty-counter index entries of a shard with `from <= step <= to`.
pub fn touched(
    slices: &SliceIndex,
    dataset: DatasetId,
    shard: u32,
    (from, to): (Timestamp, Timestamp),
    beyond: Option<&Touch>,
    limit: usize,
) -> Result<Vec<Touch>, ReadError> {
    let mut touches = Vec::new();
    for spaces in slices.keyspaces(dataset, from, to) {
        let mut keys = key::steps(shard, from, to);
        if let Some(beyond) = beyond {
            keys = key::above(keys, key::of_touch_in(shard, beyond));
        }
        for row in rows(&spaces.touches, keys, ScanOrder::OldestFirst).take(limit - touches.len()) {
            let (key, _) = row?;
            touches.push(key::to_touch(&key).ok_or_else(|| malformed_key("touch", &key))?);
        }
        if touches.len() == limit {
            break;
        }
    }
    Ok(touches)
}

/// Reads the records of finished time buckets with `from <= start < to`.
pub fn buckets(
    slices: &SliceIndex,
    dataset: DatasetId,
    counter: &Counter,
    from: Timestamp,
    to: Timestamp,
) -> Result<Vec<BucketRecord>, ReadError> {
    if from >= to {
        return Ok(Vec::new());
    }
    let to = to.just_before();
    let mut records = Vec::new();
    for spaces in slices.keyspaces(dataset, from, to) {
        for row in rows(&spaces.buckets, key::times(counter, from, to), ScanOrder::OldestFirst) {
            records.push(decode_bucket(&row?.1)?);
        }
    }
    Ok(records)
}

/// Value of a listed name; a counter with any other value has only tombstones.
pub const LISTED: &[u8] = b"";
/// Value of a name that has only tombstones.
pub const VOIDS_ONLY: &[u8] = b"v";

/// Reads names with a prefix, above a name.
pub fn names(
    library: &Library,
    namespace: NamespaceId,
    prefix: &str,
    above: Option<&CounterName>,
    limit: usize,
) -> Result<Vec<CounterName>, ReadError> {
    let mut keys = key::of_names(namespace, prefix);
    if let Some(above) = above {
        keys = key::above(keys, key::of_counter(&Counter::new(namespace, above.clone())));
    }
    let listed = rows(&library.names, keys, ScanOrder::OldestFirst).filter(|row| match row {
        Ok((_, value)) => value.as_ref() == LISTED,
        Err(_) => true,
    });
    let read = |row: Result<RawRow, ReadError>| {
        let (key, _) = row?;
        let counter = key::to_counter(&key).ok_or_else(|| malformed_key("name", &key))?;
        Ok(counter.name().clone())
    };
    listed.take(limit).map(read).collect()
}

/// Reads the namespaces that have names, above one. Every row of a namespace has its counter's name next to it, and
/// names are removed last.
pub fn namespaces(library: &Library, above: Option<NamespaceId>, limit: usize) -> Result<Vec<NamespaceId>, ReadError> {
    let mut namespaces = Vec::new();
    let mut next = above.map_or(Some(0), |above| above.0.checked_add(1));
    while let Some(from) = next.filter(|_| namespaces.len() < limit) {
        let keys = (Bound::Included(key::of_namespace(NamespaceId(from))), Bound::Unbounded);
        let Some(row) = rows(&library.names, keys, ScanOrder::OldestFirst).next() else { break };
        let (key, _) = row?;
        let namespace = key::to_counter(&key).ok_or_else(|| malformed_key("name", &key))?.namespace();
        namespaces.push(namespace);
        next = namespace.0.checked_add(1);
    }
    Ok(namespaces)
}
