//! What memory needs of a store that opens: slices, and every event above the limits.

use std::path::Path;

use hashbrown::HashMap;

use super::error::{OpenError, ReadError, foreign_key};
use super::key::{self, KeyRange};
use super::library::{self, Library};
use super::memory::Memory;
use super::meta;
use super::read::{self, rows};
use super::slices::{Slices, Spaces};
use crate::adapters::stored::decode_slice;
use crate::domain::Timestamp;
use crate::domain::counter::{Counter, DatasetId};
use crate::domain::limits::{SCAN_PAGE_EVENTS, STEP, TOUCH_SHARDS};
use crate::domain::rollup::SliceStatus;
use crate::ports::{Order, ScanRange};

/// Checks that tables hold what came before the oldest journal. If they do not, an older journal is lost.
pub fn check_newest_rows(library: &Library, path: &Path, newest_rows: &[(u64, u64)]) -> Result<(), OpenError> {
    let fail = |error: fjall::Error| OpenError::library(library::folder(path))(error);
    let found: HashMap<u64, Option<u64>> = library.rows_in_tables().map_err(fail)?.into_iter().collect();
    for (id, seqno) in newest_rows {
        // A keyspace that is not there any more was deleted.
        if found.get(id).is_some_and(|found| *found < Some(*seqno)) {
            let detail = format!("a journal is missing that holds rows of keyspace {id} up to {seqno}");
            return Err(OpenError::damaged(library::folder(path), detail));
        }
    }
    Ok(())
}

/// Reads the rows of the slices and finds their keyspaces; what is left of dropped slices is deleted.
pub fn slices(library: &Library, path: &Path) -> Result<Slices, OpenError> {
    let slices = Slices::default();
    let fail = |error: fjall::Error| OpenError::library(path)(error);
    for row in rows(&library.meta, meta::all(b's'), Order::OldestFirst) {
        let slice = row.and_then(|(_, value)| Ok(decode_slice(&value)?)).map_err(|error| unreadable(path, error))?;
        let found = Spaces::find(library, slice.dataset, slice.start).map_err(fail)?;
        match (slice.status, found) {
            (SliceStatus::Dropped, Some(left)) => {
                let deleted = library.delete(left.into_list());
                deleted.map_err(|error| OpenError::damaged(path, format!("cannot delete a dropped slice: {error}")))?;
                slices.insert(slice, None);
            }
            (_, spaces) => slices.insert(slice, spaces),
        }
    }
    Ok(slices)
}

/// Takes every event above its dataset's limit into memory. Cost: the touches from the limit on, and those events.
pub fn tails(memory: &Memory, slices: &Slices, limits: &[(DatasetId, Timestamp)]) -> Result<u64, ReadError> {
    let mut events = 0;
    let known: HashMap<DatasetId, Timestamp> = limits.iter().copied().collect();
    for dataset in slices.datasets() {
        let limit = known.get(&dataset).copied().unwrap_or(Timestamp::MIN);
        memory.set_floor(dataset, limit);
        let from = if limit == Timestamp::MIN { limit } else { limit.floor_to(STEP) };
        for shard in 0..TOUCH_SHARDS {
            let keys = || key::steps(shard, from, Timestamp::MAX);
            events += tails_of(memory, slices, dataset, limit, &keys)?;
        }
        events += tails_of(memory, slices, dataset, limit, &|| key::voids(limit.just_after()))?;
    }
    Ok(events)
}

/// Takes the events above the limit of all counters that are named by touches, or by notes of voids.
fn tails_of(
    memory: &Memory,
    slices: &Slices,
    dataset: DatasetId,
    limit: Timestamp,
    keys: &dyn Fn() -> KeyRange,
) -> Result<u64, ReadError> {
    let mut events = 0;
    for spaces in slices.spaces(dataset, limit, Timestamp::MAX) {
        let mut counters: Vec<Counter> = Vec::new();
        for row in rows(&spaces.touches, keys(), Order::OldestFirst) {
            let (key, _) = row?;
            counters.push(key::to_touch(&key).ok_or_else(|| foreign_key("touch", &key))?.counter);
        }
        counters.sort();
        counters.dedup();
        for counter in counters {
            events += tail_of(memory, slices, dataset, &counter, limit)?;
        }
    }
    Ok(events)
}

fn tail_of(
    memory: &Memory,
    slices: &Slices,
    dataset: DatasetId,
    counter: &Counter,
    limit: Timestamp,
) -> Result<u64, ReadError> {
    let mut count = 0;
    let mut range = ScanRange {
        after: limit,
        to: Timestamp::MAX,
        order: Order::OldestFirst,
        beyond: None,
        limit: SCAN_PAGE_EVENTS,
    };
    memory.note_namespace(counter.namespace(), dataset);
    loop {
        let events = read::scan(slices, dataset, counter, &range)?;
        for event in &events {
            memory.publish(dataset, counter, event);
        }
        count += events.len() as u64;
        match events.last() {
            Some(last) if events.len() == SCAN_PAGE_EVENTS => range.beyond = Some(last.key.clone()),
            Some(_) | None => return Ok(count),
        }
    }
}

/// A store whose rows cannot be read.
pub fn unreadable(path: &Path, error: ReadError) -> OpenError {
    match error {
        ReadError::Library(source) => OpenError::library(library::folder(path))(source),
        ReadError::Damaged(damaged) => OpenError::damaged(library::folder(path), damaged.to_string()),
    }
}
