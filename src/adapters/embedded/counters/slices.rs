//! The time slices: their rows, and the keyspaces of those that hold anything.
//!
//! A slice gets its keyspaces with its first row and loses them when it is dropped; its row stays. The committer changes
//! the table, the maker notes keyspaces in it, readers take copies of what they need.

use std::collections::BTreeMap;

use fjall::Keyspace;
use parking_lot::RwLock;

use crate::adapters::embedded::disk::library::{KeyspaceError, KeyspaceKind, Library};
use crate::domain::Timestamp;
use crate::domain::counter::DatasetId;
use crate::domain::rollup::{SliceStatus, TimeSlice};

/// The keyspaces of one slice.
#[derive(Clone)]
pub struct SliceKeyspaces {
    /// Events.
    pub events: Keyspace,
    /// Touches.
    pub touches: Keyspace,
    /// Records of finished buckets.
    pub buckets: Keyspace,
}

/// A slice that takes rows.
#[derive(Clone)]
pub struct WritableSlice {
    /// The dataset.
    pub dataset: DatasetId,
    /// The first microsecond.
    pub start: Timestamp,
    /// The first microsecond after it.
    pub end: Timestamp,
    /// Its keyspaces, if it holds anything.
    pub keyspaces: Option<SliceKeyspaces>,
}

/// All slices.
#[derive(Default)]
pub struct SliceIndex {
    slices: RwLock<BTreeMap<(DatasetId, Timestamp), SliceEntry>>,
}

struct SliceEntry {
    row: TimeSlice,
    keyspaces: Option<SliceKeyspaces>,
}

impl SliceIndex {
    /// Takes in a row, with the keyspaces that the slice has.
    pub fn insert(&self, row: TimeSlice, spaces: Option<SliceKeyspaces>) {
        self.slices.write().insert((row.dataset, row.start), SliceEntry { row, keyspaces: spaces });
    }

    /// The row that begins at a time.
    pub fn row(&self, dataset: DatasetId, start: Timestamp) -> Option<TimeSlice> {
        self.slices.read().get(&(dataset, start)).map(|slice| slice.row.clone())
    }

    /// All rows of a dataset, oldest first.
    pub fn rows(&self, dataset: DatasetId) -> Vec<TimeSlice> {
        let slices = self.slices.read();
        let range = slices.range((dataset, Timestamp::MIN)..=(dataset, Timestamp::MAX));
        range.map(|(_, slice)| slice.row.clone()).collect()
    }

    /// The slice that takes rows of a time, unless it was dropped.
    pub fn writable_slice(&self, dataset: DatasetId, time: Timestamp) -> Option<WritableSlice> {
        let slices = self.slices.read();
        slice_at(&slices, dataset, time).filter(|slice| slice.takes_rows()).map(SliceEntry::to_writable)
    }

    /// Whether a slice is there, takes rows and has no keyspaces yet.
    pub fn needs_keyspaces(&self, dataset: DatasetId, start: Timestamp) -> bool {
        self.slices.read().get(&(dataset, start)).is_some_and(SliceEntry::needs_keyspaces)
    }

    /// The starts of the slices that these times need and that have no keyspaces yet. Cost: one look for nearly all,
    /// because events that come together are of one time.
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

    /// The keyspaces of the slices that hold any of `from <= time <= to`, oldest first.
    pub fn keyspaces(&self, dataset: DatasetId, from: Timestamp, to: Timestamp) -> Vec<SliceKeyspaces> {
        if from > to {
            return Vec::new();
        }
        let slices = self.slices.read();
        let range = slices.range((dataset, Timestamp::MIN)..=(dataset, to));
        range.filter(|(_, slice)| slice.row.end > from).filter_map(|(_, slice)| slice.keyspaces.clone()).collect()
    }

    /// The datasets that have slices.
    pub fn datasets(&self) -> Vec<DatasetId> {
        let mut datasets: Vec<DatasetId> = self.slices.read().keys().map(|(dataset, _)| *dataset).collect();
        datasets.dedup();
        datasets
    }

    /// All keyspaces of all slices.
    pub fn all_keyspaces(&self) -> Vec<SliceKeyspaces> {
        self.slices.read().values().filter_map(|slice| slice.keyspaces.clone()).collect()
    }

    /// Forgets everything, because the store closes.
    pub fn clear(&self) {
        self.slices.write().clear();
    }

    /// Takes in the row of a slice that was made or moved on; its keyspaces stay.
    pub fn upsert_row(&self, row: &TimeSlice) {
        let mut slices = self.slices.write();
        let slice =
            slices.entry((row.dataset, row.start)).or_insert_with(|| SliceEntry { row: row.clone(), keyspaces: None });
        slice.row.status = slice.row.status.max(row.status);
    }

    /// Notes the keyspaces that a slice got; hands them back if the slice was dropped.
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

    /// Moves the status forward; a dropped slice hands out its keyspaces, so that they can be deleted.
    pub fn advance_status(&self, dataset: DatasetId, start: Timestamp, status: SliceStatus) -> Option<SliceKeyspaces> {
        let mut slices = self.slices.write();
        let slice = slices.get_mut(&(dataset, start))?;
        slice.row.status = slice.row.status.max(status);
        if slice.row.status == SliceStatus::Dropped { slice.keyspaces.take() } else { None }
    }
}

/// The slice of a time, dropped or not.
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
    /// Whether rows of a time belong here.
    pub fn covers(&self, dataset: DatasetId, time: Timestamp) -> bool {
        self.dataset == dataset && self.start <= time && time < self.end
    }
}

impl SliceKeyspaces {
    /// The keyspaces of a slice, if it has them.
    pub fn find(library: &Library, dataset: DatasetId, start: Timestamp) -> Result<Option<Self>, fjall::Error> {
        let names = names(dataset, start);
        let (events, touches, buckets) = (library.get(&names[0])?, library.get(&names[1])?, library.get(&names[2])?);
        Ok(match (events, touches, buckets) {
            (Some(events), Some(touches), Some(buckets)) => Some(Self { events, touches, buckets }),
            // They are made one after the other and used when all are there.
            (_, _, _) => None,
        })
    }

    /// Makes the keyspaces of a slice, as far as they are not there, with pauses `between` them.
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

    /// The keyspaces one by one.
    pub fn into_list(self) -> Vec<Keyspace> {
        vec![self.events, self.touches, self.buckets]
    }
}

fn names(dataset: DatasetId, start: Timestamp) -> [String; 3] {
    // Slices begin at whole seconds.
    let second = start.millis().div_euclid(1_000);
    ["events", "touches", "buckets"].map(|kind| format!("{kind}.{}.{second}", dataset.0))
}
