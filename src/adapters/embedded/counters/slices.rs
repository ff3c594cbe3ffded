//! The time slices: their rows, and the keyspaces of the slices that hold data.
//!
//! A slice gets its keyspaces with its first row and loses them when it is dropped; its row stays. The committer
//! changes the index, the keyspace worker adds keyspaces to it, and readers copy the entries they need.

use std::collections::BTreeMap;

use fjall::Keyspace;
use parking_lot::RwLock;

use crate::disk::library::{KeyspaceError, KeyspaceKind, Library};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::rollup::{SliceStatus, TimeSlice};

#[derive(Clone)]
pub struct SliceKeyspaces {
    pub events: Keyspace,
    /// Entries of the dirty-counter index.
    pub touches: Keyspace,
    /// Records of finished time buckets.
    pub buckets: Keyspace,
}

/// A slice that accepts rows.
#[derive(Clone)]
pub struct WritableSlice {
    pub dataset: DatasetId,
    /// First microsecond of the slice.
    pub start: Timestamp,
    /// First microsecond after the slice.
    pub end: Timestamp,
    /// Keyspaces of the slice; `None` while it holds no data.
    pub keyspaces: Option<SliceKeyspaces>,
}

/// The slices of all datasets.
#[derive(Default)]
pub struct SliceIndex {
    slices: RwLock<BTreeMap<(DatasetId, Timestamp), SliceEntry>>,
}

struct SliceEntry {
    row: TimeSlice,
    keyspaces: Option<SliceKeyspaces>,
}

impl SliceIndex {
    pub fn insert(&self, row: TimeSlice, spaces: Option<SliceKeyspaces>) {
        self.slices.write().insert((row.dataset, row.start), SliceEntry { row, keyspaces: spaces });
    }

    /// Returns the row of the slice that begins at a time.
    pub fn row(&self, dataset: DatasetId, start: Timestamp) -> Option<TimeSlice> {
        self.slices.read().get(&(dataset, start)).map(|slice| slice.row.clone())
    }

    /// Returns all rows of a dataset, oldest first.
    pub fn rows(&self, dataset: DatasetId) -> Vec<TimeSlice> {
        let slices = self.slices.read();
        let range = slices.range((dataset, Timestamp::MIN)..=(dataset, Timestamp::MAX));
        range.map(|(_, slice)| slice.row.clone()).collect()
    }

    /// Returns the slice that accepts rows of a time, unless it was dropped.
    pub fn writable_slice(&self, dataset: DatasetId, time: Timestamp) -> Option<WritableSlice> {
        let slices = self.slices.read();
        slice_at(&slices, dataset, time).filter(|slice| slice.takes_rows()).map(SliceEntry::to_writable)
    }

    /// Returns whether a slice exists, accepts rows and has no keyspaces yet.
    pub fn needs_keyspaces(&self, dataset: DatasetId, start: Timestamp) -> bool {
        self.slices.read().get(&(dataset, start)).is_some_and(SliceEntry::needs_keyspaces)
    }

    /// Returns the starts of the slices that these times need and that have no keyspaces yet. Usually costs one lookup,
    /// because events of one append have similar times.
    pub fn starts_without_keyspaces(
        &self,
        dataset: DatasetId,
        times: impl Iterator<Item = Timestamp>,
    ) -> Vec<Timestamp> {
        let (mut found, mut last): (Vec<Timestamp>, Option<(Timestamp, Timestamp)>) = (Vec::new(), None);
        let slices = self.slices.read();
        for time in times {
            if last.is_some_and(|(start, end)| start <= time && time < end) {
                continue;
            }
            let Some(slice) = slice_at(&slices, dataset, time) else { continue };
            last = Some((slice.row.start, slice.row.end));
            if slice.needs_keyspaces() && !found.contains(&slice.row.start) {
                found.push(slice.row.start);
            }
        }
        found
    }

    /// Returns the keyspaces of the slices that overlap `from <= time <= to`, oldest first.
    pub fn keyspaces(&self, dataset: DatasetId, from: Timestamp, to: Timestamp) -> Vec<SliceKeyspaces> {
        if from > to {
            return Vec::new();
        }
        let slices = self.slices.read();
        let range = slices.range((dataset, Timestamp::MIN)..=(dataset, to));
        range.filter(|(_, slice)| slice.row.end > from).filter_map(|(_, slice)| slice.keyspaces.clone()).collect()
    }

    /// Returns the datasets that have slices.
    pub fn datasets(&self) -> Vec<DatasetId> {
        let mut datasets: Vec<DatasetId> = self.slices.read().keys().map(|(dataset, _)| *dataset).collect();
        datasets.dedup();
        datasets
    }

    pub fn all_keyspaces(&self) -> Vec<SliceKeyspaces> {
        self.slices.read().values().filter_map(|slice| slice.keyspaces.clone()).collect()
    }

    /// Drops all entries because the store closes.
    pub fn clear(&self) {
        self.slices.write().clear();
    }

    /// Inserts or replaces the row of a slice; its keyspaces stay.
    pub fn upsert_row(&self, row: &TimeSlice) {
        let mut slices = self.slices.write();
        let slice =
            slices.entry((row.dataset, row.start)).or_insert_with(|| SliceEntry { row: row.clone(), keyspaces: None });
        slice.row.status = slice.row.status.max(row.status);
    }

    /// Attaches new keyspaces to a slice; returns them if the slice was dropped in the meantime.
    #[must_use = "what is handed back is to be deleted"]
    pub fn attach_keyspaces(
        &self,
        dataset: DatasetId,
        start: Timestamp,
        spaces: SliceKeyspaces,
    ) -> Option<SliceKeyspaces> {
        let mut slices = self.slices.write();
        match slices.get_mut(&(dataset, start)) {
            Some(slice) if slice.takes_rows() => {
                slice.keyspaces = Some(spaces);
                None
            }
            Some(_) | None => Some(spaces),
        }
    }

    /// Advances the status. Dropping a slice returns its keyspaces for deletion.
    pub fn advance_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Option<SliceKeyspaces> {
        let mut slices = self.slices.write();
        let slice = slices.get_mut(&(dataset, start))?;
        slice.row.status = slice.row.status.max(status);
        if slice.row.status == SliceStatus::Dropped { slice.keyspaces.take() } else { None }
    }
}

/// Finds the slice of a time, dropped or not.
fn slice_at(
    slices: &BTreeMap<(DatasetId, Timestamp), SliceEntry>,
    dataset: DatasetId,
    time: Timestamp,
) -> Option<&SliceEntry> {
    let (_, slice) = slices.range((dataset, Timestamp::MIN)..=(dataset, time)).next_back()?;
    (time < slice.row.end).then_some(slice)
}

impl SliceEntry {
    fn takes_rows(&self) -> bool {
        self.row.status != SliceStatus::Dropped
    }

    fn needs_keyspaces(&self) -> bool {
        self.keyspaces.is_none() && self.takes_rows()
    }

    fn to_writable(&self) -> WritableSlice {
        let TimeSlice { dataset, start, end, .. } = self.row;
        WritableSlice { dataset, start, end, keyspaces: self.keyspaces.clone() }
    }
}

impl WritableSlice {
    /// Returns whether rows of a time belong to this slice.
    pub fn covers(&self, dataset: DatasetId, time: Timestamp) -> bool {
        self.dataset == dataset && self.start <= time && time < self.end
    }
}

impl SliceKeyspaces {
    /// Finds the keyspaces of a slice, if they exist.
    pub fn find(library: &Library, dataset: DatasetId, start: Timestamp) -> Result<Option<Self>, fjall::Error> {
        let names = names(dataset, start);
        let (events, touches, buckets) = (library.get(&names[0])?, library.get(&names[1])?, library.get(&names[2])?);
        Ok(match (events, touches, buckets) {
            (Some(events), Some(touches), Some(buckets)) => Some(Self { events, touches, buckets }),
            // The keyspaces are created one by one and used once all exist.
            (_, _, _) => None,
        })
    }

    /// Creates the missing keyspaces of a slice; calls `between` after each one.
    pub fn make(
        library: &Library,
        dataset: DatasetId,
        start: Timestamp,
        between: impl Fn(),
    ) -> Result<Self, KeyspaceError> {
        let [events, touches, buckets] = names(dataset, start);
        let wanted = [(events, KeyspaceKind::Events), (touches, KeyspaceKind::Ranges), (buckets, KeyspaceKind::Ranges)];
        let [events, touches, buckets] = library.make_all(wanted, between)?;
        Ok(Self { events, touches, buckets })
    }

    pub fn into_list(self) -> Vec<Keyspace> {
        vec![self.events, self.touches, self.buckets]
    }
}

fn names(dataset: DatasetId, start: Timestamp) -> [String; 3] {
    // Slices begin at whole seconds.
    let second = start.millis().div_euclid(1_000);
    ["events", "touches", "buckets"].map(|kind| format!("{kind}.{}.{second}", dataset.0))
}
