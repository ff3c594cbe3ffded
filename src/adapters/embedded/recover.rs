//! What memory needs of a store that opens: slices, and how far it has to ask disk.

use std::path::Path;

use hashbrown::HashMap;

use super::counters::counter_table::CounterTable;
use super::counters::slices::{SliceIndex, SliceKeyspaces};
use super::disk::key::{self, KeyRange};
use super::disk::library::{self, Library};
use super::disk::meta;
use super::disk::read::rows;
use super::error::{OpenError, ReadError, malformed_key};
use crate::adapters::codec::decode_slice;
use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::limits::{STEP, TOUCH_SHARDS};
use crate::domain::rollup::SliceStatus;
use crate::ports::ScanOrder;

/// Checks that tables hold what came before the oldest journal. If they do not, an older journal is lost.
pub fn check_newest_rows(library: &Library, path: &Path, newest_rows: &[(u64, u64)]) -> Result<(), OpenError> {
    let fail = |error: fjall::Error| OpenError::library(library::folder(path))(error);
    let found: HashMap<u64, Option<u64>> = library.newest_rows_in_tables().map_err(fail)?.into_iter().collect();
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
pub fn slices(library: &Library, path: &Path) -> Result<SliceIndex, OpenError> {
    let slices = SliceIndex::default();
    let fail = |error: fjall::Error| OpenError::library(path)(error);
    for row in rows(&library.meta, meta::all(b's'), ScanOrder::OldestFirst) {
        let slice = row.and_then(|(_, value)| Ok(decode_slice(&value)?)).map_err(|error| unreadable(path, error))?;
        let found = SliceKeyspaces::find(library, slice.dataset, slice.start).map_err(fail)?;
        match (slice.status, found) {
            (SliceStatus::Dropped, Some(left)) => {
                let deleted = library.delete(left.into_list(), || {});
                deleted.map_err(|error| OpenError::damaged(path, format!("cannot delete a dropped slice: {error}")))?;
                slices.insert(slice, None);
            }
            (_, spaces) => slices.insert(slice, spaces),
        }
    }
    Ok(slices)
}

/// Sets how far memory has to ask disk: up to the newest event of each dataset. Cost: one row of each touch shard.
///
/// Loading the events above the limits instead would take 30 us for each counter that was written to in the last
/// seconds, before the first call is answered. So they stay on disk, and who asks for them reads them there, until the
/// limit has passed them a few seconds later. Events that come after the start are in memory as always.
pub fn set_floors(
    memory: &CounterTable,
    slices: &SliceIndex,
    limits: &[(DatasetId, Timestamp)],
) -> Result<(), ReadError> {
    let known: HashMap<DatasetId, Timestamp> = limits.iter().copied().collect();
    for dataset in slices.datasets() {
        let limit = known.get(&dataset).copied().unwrap_or(Timestamp::MIN);
        let mut floor = limit;
        for spaces in slices.keyspaces(dataset, limit, Timestamp::MAX) {
            for shard in 0..TOUCH_SHARDS {
                let newest = newest_key(&spaces, key::steps(shard, Timestamp::MIN, Timestamp::MAX))?;
                // Somewhere in this step is the newest event of the shard.
                floor = floor.max(newest.map_or(floor, |step| (step + STEP).just_before()));
            }
            let newest = newest_key(&spaces, key::voids(Timestamp::MIN))?;
            floor = floor.max(newest.unwrap_or(floor));
        }
        memory.set_floor(dataset, floor);
    }
    Ok(())
}

/// The time of the last touch of a range, or note of a void.
fn newest_key(spaces: &SliceKeyspaces, keys: KeyRange) -> Result<Option<Timestamp>, ReadError> {
    let Some(row) = rows(&spaces.touches, keys, ScanOrder::NewestFirst).next() else { return Ok(None) };
    let (key, _) = row?;
    Ok(Some(key::to_touch(&key).ok_or_else(|| malformed_key("touch", &key))?.step))
}

/// A store whose rows cannot be read.
pub fn unreadable(path: &Path, error: ReadError) -> OpenError {
    match error {
        ReadError::Library(source) => OpenError::library(library::folder(path))(source),
        ReadError::Damaged(damaged) => OpenError::damaged(library::folder(path), damaged.to_string()),
    }
}
