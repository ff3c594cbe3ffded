//! Recovers in-memory state at startup: the slices, and the floors up to which memory has to read disk.

use std::path::Path;

use hashbrown::HashMap;

use super::counters::counter_table::CounterTable;
use super::counters::slices::{SliceIndex, SliceKeyspaces};
use super::disk::key::{self, KeyRange};
use super::disk::library::{self, KeyspaceError, Library};
use super::disk::meta;
use super::disk::read::rows;
use super::error::{OpenError, ReadError, malformed_key};
use tallystone_adapters::codec::decode_slice;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::limits::{STEP, TOUCH_SHARDS};
use tallystone_domain::rollup::SliceStatus;
use tallystone_ports::ScanOrder;

/// Verifies that tables contain the newest rows from before the oldest journal. If they do not, an older journal is
/// lost.
pub fn check_newest_rows(library: &Library, path: &Path, newest_rows: &[(u64, u64)]) -> Result<(), OpenError> {
    let fail = |error: fjall::Error| OpenError::library(library::folder(path))(error);
    let found: HashMap<u64, Option<u64>> = library.newest_rows_in_tables().map_err(fail)?.into_iter().collect();
    for (id, seqno) in newest_rows {
        // A keyspace that no longer exists was deleted.
        if found.get(id).is_some_and(|found| *found < Some(*seqno)) {
            let detail = format!("a journal is missing that holds rows of keyspace {id} up to {seqno}");
            return Err(OpenError::damaged(library::folder(path), detail));
        }
    }
    Ok(())
}

/// Reads the rows of the slices and finds their keyspaces; deletes the remains of dropped slices.
pub fn slices(library: &Library, path: &Path) -> Result<SliceIndex, OpenError> {
    let slices = SliceIndex::default();
    let fail = |error: fjall::Error| OpenError::library(path)(error);
    for row in rows(&library.meta, meta::all(b's'), ScanOrder::OldestFirst) {
        let slice = row.and_then(|(_, value)| Ok(decode_slice(&value)?)).map_err(|error| unreadable(path, error))?;
        let found = SliceKeyspaces::find(library, slice.dataset, slice.start).map_err(fail)?;
        match (slice.status, found) {
            (SliceStatus::Dropped, Some(left)) => {
                let deleted = library.delete(left.into_list(), || {});
                deleted.map_err(|error| match error {
                    KeyspaceError::Library(error) => fail(error),
                    KeyspaceError::Manifest(error) => OpenError::io(path)(error),
                })?;
                slices.insert(slice, None);
            }
            (_, spaces) => slices.insert(slice, spaces),
        }
    }
    Ok(slices)
}

/// Sets the floor of each dataset to its newest event. Cost: one row for each shard of the dirty-counter index.
///
/// Loading the events above the limits instead would take 30 us for each counter written in the last seconds, before
/// the first call is answered. These events stay on disk and are read there until the limit has passed them a few
/// seconds later. Events that arrive after startup are in memory as always.
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
                // The newest event of the shard lies in this step.
                floor = floor.max(newest.map_or(floor, |step| (step + STEP).just_before()));
            }
            let newest = newest_key(&spaces, key::voids(Timestamp::MIN))?;
            floor = floor.max(newest.unwrap_or(floor));
        }
        memory.set_floor(dataset, floor);
    }
    Ok(())
}

/// Time of the last index entry in a range, or of the last tombstone note.
fn newest_key(spaces: &SliceKeyspaces, keys: KeyRange) -> Result<Option<Timestamp>, ReadError> {
    let Some(row) = rows(&spaces.touches, keys, ScanOrder::NewestFirst).next() else { return Ok(None) };
    let (key, _) = row?;
    Ok(Some(key::to_touch(&key).ok_or_else(|| malformed_key("touch", &key))?.step))
}

/// Creates the error of a store whose rows cannot be read.
pub fn unreadable(path: &Path, error: ReadError) -> OpenError {
    match error {
        ReadError::Library(source) => OpenError::library(library::folder(path))(source),
        ReadError::Damaged(damaged) => OpenError::damaged(library::folder(path), damaged.to_string()),
    }
}
