//! The slice rows of one dataset, as this server knows them, and the fold rules that they freeze.
//!
//! The known rows have no gap, from the first row ever written to two slices ahead. A roll over a range that they do
//! not cover is refused, never treated as empty. The store may have a gap while rows are made, or after a crash at that
//! time: the gap is filled first, and the rows are known afterwards. A long standstill leaves a gap in which only
//! tombstones are written. It becomes one long slice, which costs one row.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use tallystone_domain::counter::{DatasetId, NamespaceId};
use tallystone_domain::limits::GAP_SLICES_MAX;
use tallystone_domain::rollup::{SliceStatus, TimeSlice};
use tallystone_domain::{Timestamp, rollup::slice_rules::slice_start};
use tallystone_ports::{StoreError, StoreErrorKind, TimeSlices};

/// How many slices are made ahead of their time.
const AHEAD: u32 = 2;

/// The known slice rows of a dataset.
pub struct SliceTable {
    dataset: DatasetId,
    width: Duration,
    rows: ArcSwap<Vec<TimeSlice>>,
    /// One caller at a time makes rows, so that the rows of two callers leave no gap.
    making: Arc<Semaphore>,
}

/// Rows to be made, with the lock to make them.
pub struct MissingSlices {
    requested: Range<Timestamp>,
    _turn: OwnedSemaphorePermit,
}

impl SliceTable {
    /// Reads the rows of a dataset. While they have a gap, no row is known; `make` fills the gap.
    pub async fn open(dataset: DatasetId, width: Duration, store: &dyn TimeSlices) -> Result<Self, StoreError> {
        let rows = store.list(dataset).await?;
        let rows = if have_no_gap(&rows) { rows } else { Vec::new() };
        Ok(Self { dataset, width, rows: ArcSwap::from_pointee(rows), making: Arc::new(Semaphore::new(1)) })
    }

    /// The known rows, oldest first.
    pub fn rows(&self) -> Arc<Vec<TimeSlice>> {
        self.rows.load_full()
    }

    /// Reads the rows again, for new rows and statuses of other servers. A gap between rows in creation is an error,
    /// because it must not look like a time without events.
    pub async fn refresh(&self, store: &dyn TimeSlices) -> Result<(), StoreError> {
        self.take_in(store.list(self.dataset).await?)
    }

    /// The same for the rows up to the newest limit, which the store has already read.
    pub async fn follow(&self, store: &dyn TimeSlices) -> Result<(), StoreError> {
        self.take_in(store.list_cached(self.dataset).await?)
    }

    fn take_in(&self, rows: Vec<TimeSlice>) -> Result<(), StoreError> {
        if !have_no_gap(&rows) {
            return Err(self.slices_in_creation());
        }
        let known = self.rows.load();
        let is_known =
            |row: &TimeSlice| known.iter().any(|known| known.start == row.start && known.status >= row.status);
        if rows.iter().all(is_known) { Ok(()) } else { self.merge(rows) }
    }

    fn slices_in_creation(&self) -> StoreError {
        let why = format!("slices of dataset {} are being created", self.dataset.0);
        StoreError::not_applied(StoreErrorKind::Busy, "read slices").with_source(why)
    }

    /// Whether the slice of a time takes events now.
    pub fn has(&self, time: Timestamp) -> bool {
        let rows = self.rows.load();
        match (rows.first(), rows.last()) {
            (Some(first), Some(last)) => first.start <= time && time < last.end,
            (None, _) | (_, None) => false,
        }
    }

    /// The earliest time for which a token has a verdict. Older slices are dropped, or due to be.
    pub fn oldest_live(&self, now: Timestamp, delete_after: Duration) -> Timestamp {
        let rows = self.rows.load();
        let due = slice_start(now - delete_after, self.width);
        let dropped = rows.iter().filter(|row| row.status == SliceStatus::Dropped).map(|row| row.end).max();
        let live = rows.iter().find(|row| row.status != SliceStatus::Dropped).map(|row| row.start);
        due.min(live.unwrap_or(due)).max(dropped.unwrap_or(Timestamp::MIN))
    }

    /// The missing rows from `from` to two slices beyond `to`. Waits for another caller that makes rows.
    pub async fn missing(&self, from: Timestamp, to: Timestamp) -> Option<MissingSlices> {
        let asked = slice_start(from, self.width)..slice_start(to, self.width) + self.width * (1 + AHEAD);
        let turn = Arc::clone(&self.making).acquire_owned().await.expect("the semaphore is never closed");
        let rows = self.rows.load();
        let is_covered = rows.first().zip(rows.last()).is_some_and(|(first, last)| {
            // The rows of other servers in between are adjacent to these.
            first.start <= asked.start && asked.end <= last.end
        });
        if is_covered { None } else { Some(MissingSlices { requested: asked, _turn: turn }) }
    }

    /// Makes missing rows, and those between them and the known rows: one by one, or as one long slice if there are too
    /// many. They are known only after all are made. Cost: O(known rows), and a bounded number of new rows.
    ///
    /// `versions` are frozen into each new row. The next call finishes an interrupted one.
    pub async fn make(
        &self,
        missing: MissingSlices,
        versions: &BTreeMap<NamespaceId, u64>,
        now: Timestamp,
        store: &dyn TimeSlices,
    ) -> Result<(), StoreError> {
        let asked = &missing.requested;
        // Read again, so that new rows do not overlap those of other servers or of an interrupted call.
        let known = merged_rows(&self.rows.load(), store.list(self.dataset).await?);
        let (mut start, mut end) = (asked.start, asked.end);
        if let (Some(first), Some(last)) = (known.first(), known.last()) {
            start = start.min(first.start);
            end = end.max(last.end);
        }
        let mut rows = Vec::with_capacity(known.len() + 4);
        let mut known = known.iter().peekable();
        while start < end {
            let row = match known.next_if(|row| row.start == start) {
                Some(row) => row.clone(),
                None => {
                    let gap = start..known.peek().map_or(end, |next| next.start);
                    let slice = start..self.end_of_new(gap, asked);
                    store.create(self.new_row(slice, versions, now)).await?
                }
            };
            start = row.end;
            rows.push(row);
        }
        self.merge(rows)
    }

    /// The end of the first new slice of a gap. The requested range and the ranges before and after it are filled
    /// separately, so that the present slices are short, however long the gap before them is.
    fn end_of_new(&self, gap: Range<Timestamp>, asked: &Range<Timestamp>) -> Timestamp {
        let piece_end =
            [asked.start, asked.end].into_iter().find(|edge| gap.start < *edge).unwrap_or(gap.end).min(gap.end);
        if piece_end.since(gap.start) > self.width * GAP_SLICES_MAX { piece_end } else { gap.start + self.width }
    }

    pub fn note_status(&self, start: Timestamp, status: SliceStatus) {
        self.rows.rcu(|rows| {
            let mut rows = Vec::clone(rows);
            for row in rows.iter_mut().filter(|row| row.start == start) {
                row.status = row.status.max(status);
            }
            rows
        });
    }

    fn new_row(&self, slice: Range<Timestamp>, versions: &BTreeMap<NamespaceId, u64>, now: Timestamp) -> TimeSlice {
        let status = if slice.start > now { SliceStatus::Future } else { SliceStatus::Open };
        TimeSlice { dataset: self.dataset, start: slice.start, end: slice.end, status, versions: versions.clone() }
    }

    /// Adds rows; their status may have changed meanwhile. Refuses rows that would leave a gap.
    fn merge(&self, new: Vec<TimeSlice>) -> Result<(), StoreError> {
        let mut leaves_a_gap = false;
        self.rows.rcu(|old| {
            let rows = merged_rows(old, new.clone());
            leaves_a_gap = !have_no_gap(&rows);
            if leaves_a_gap { Arc::clone(old) } else { Arc::new(rows) }
        });
        if leaves_a_gap { Err(self.slices_in_creation()) } else { Ok(()) }
    }
}

/// Whether rows leave no gap between them.
fn have_no_gap(rows: &[TimeSlice]) -> bool {
    rows.windows(2).all(|pair| pair[0].end == pair[1].start)
}

/// The rows of both, each with the newer status.
fn merged_rows(old: &[TimeSlice], new: Vec<TimeSlice>) -> Vec<TimeSlice> {
    let mut rows: BTreeMap<Timestamp, TimeSlice> = new.into_iter().map(|row| (row.start, row)).collect();
    for row in old {
        let known = rows.entry(row.start).or_insert_with(|| row.clone());
        known.status = known.status.max(row.status);
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;

    /// Rows by their start, of one dataset.
    #[derive(Default)]
    struct Rows(Mutex<BTreeMap<Timestamp, TimeSlice>>);

    #[async_trait]
    impl TimeSlices for Rows {
        async fn list(&self, _: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
            Ok(self.0.lock().values().cloned().collect())
        }

        async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
            Ok(self.0.lock().entry(slice.start).or_insert(slice).clone())
        }

        async fn set_status(&self, _: DatasetId, _: Timestamp, _: SliceStatus) -> Result<(), StoreError> {
            unreachable!("only retention moves slices on")
        }
    }

    const DATASET: DatasetId = DatasetId(1);
    const WIDTH: Duration = Duration::from_secs(10);

    fn at(slice: i64) -> Timestamp {
        Timestamp::from_secs(slice * 10)
    }

    async fn ensure(table: &SliceTable, store: &dyn TimeSlices, from: i64, to: i64) -> usize {
        let before = table.rows().len();
        if let Some(missing) = table.missing(at(from), at(to)).await {
            table.make(missing, &BTreeMap::new(), at(to), store).await.expect("rows do not fail");
        }
        table.rows().len() - before
    }

    #[tokio::test]
    async fn a_gap_is_filled_slice_by_slice_up_to_the_bound_and_by_one_slice_beyond_it() {
        let store = Rows::default();
        let table = SliceTable::open(DATASET, WIDTH, &store).await.expect("rows open");
        assert_eq!(ensure(&table, &store, 0, 0).await, 3);
        let bound = i64::from(GAP_SLICES_MAX);
        // The known rows end with slice 3.
        assert_eq!(ensure(&table, &store, 3 + bound, 3 + bound).await, usize::try_from(bound).expect("small") + 3);
        let last = 6 + bound;
        assert_eq!(ensure(&table, &store, last + bound + 1, last + bound + 1).await, 1 + 3);
        let rows = table.rows();
        let long: Vec<_> = rows.iter().filter(|row| row.end > row.start + WIDTH).collect();
        assert_eq!(long.len(), 1);
        assert_eq!((long[0].start, long[0].end), (at(last), at(last + bound + 1)));
        assert!(have_no_gap(&rows));
    }

    #[tokio::test]
    async fn a_filling_that_was_cut_off_is_finished() {
        let store = Rows::default();
        let table = SliceTable::open(DATASET, WIDTH, &store).await.expect("rows open");
        for start in [0, 1, 3, 500] {
            let row = table.new_row(at(start)..at(start + 1), &BTreeMap::new(), at(0));
            store.create(row).await.expect("rows do not fail");
        }
        let table = SliceTable::open(DATASET, WIDTH, &store).await.expect("rows open");
        assert!(table.rows().is_empty(), "rows with a gap are not known");
        ensure(&table, &store, 500, 500).await;
        let rows = table.rows();
        assert_eq!(rows.len(), 4 + 1 + 1 + 2, "the four, slice 2, the long one, and two ahead");
        assert!(have_no_gap(&rows));
    }

    /// Rows of which no more than some can be made before whoever makes them is cut off.
    struct CutOff {
        rows: Rows,
        left: AtomicUsize,
    }

    #[async_trait]
    impl TimeSlices for CutOff {
        async fn list(&self, dataset: DatasetId) -> Result<Vec<TimeSlice>, StoreError> {
            self.rows.list(dataset).await
        }

        async fn create(&self, slice: TimeSlice) -> Result<TimeSlice, StoreError> {
            let left = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
            if left.is_err() {
                std::future::pending::<()>().await;
            }
            self.rows.create(slice).await
        }

        async fn set_status(&self, _: DatasetId, _: Timestamp, _: SliceStatus) -> Result<(), StoreError> {
            unreachable!("only retention moves slices on")
        }
    }

    #[tokio::test]
    async fn rows_that_were_left_unfinished_are_never_known_with_a_gap() {
        let store = CutOff { rows: Rows::default(), left: AtomicUsize::new(3) };
        let table = SliceTable::open(DATASET, WIDTH, &store).await.expect("rows open");
        assert_eq!(ensure(&table, &store, 100, 100).await, 3);
        for made_before_the_cut in [1, 2, 3] {
            store.left.store(made_before_the_cut, Ordering::Release);
            let mut cut_off = pin!(ensure(&table, &store, 90, 90));
            assert!(futures_util::poll!(cut_off.as_mut()).is_pending(), "it waits for the store");
            assert!(have_no_gap(&table.rows()), "{:?}", table.rows());
            assert!(!table.has(at(95)), "a row is not known before those beside it are");
        }
        store.left.store(usize::MAX, Ordering::Release);
        assert!(table.refresh(&store).await.is_err(), "the store's rows have a gap");
        ensure(&table, &store, 90, 90).await;
        assert!(have_no_gap(&table.rows()) && table.has(at(90)) && table.has(at(100)));
    }

    proptest! {
        #[test]
        fn rows_touch_and_stay_and_few_are_made_however_far_apart_the_times_are(
            asked in vec((-1_000_000_i64..1_000_000, 0_i64..70), 1..8),
            crash_after in 0_usize..12,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let store = Rows::default();
                let mut table = SliceTable::open(DATASET, WIDTH, &store).await.expect("rows open");
                for (n, (from, many)) in asked.into_iter().enumerate() {
                    if n == crash_after {
                        table = SliceTable::open(DATASET, WIDTH, &store).await.expect("rows open");
                    }
                    let before = table.rows();
                    let made = ensure(&table, &store, from, from + many).await;
                    assert!(made <= 2 * GAP_SLICES_MAX as usize + 3 + 70, "{made} rows were made");
                    let rows = table.rows();
                    assert!(have_no_gap(&rows), "{rows:?}");
                    assert!(before.iter().all(|row| rows.contains(row)), "a row that was made stays as it is");
                    assert!(rows[0].start <= at(from) && rows[rows.len() - 1].end >= at(from + many + 3));
                }
            });
        }
    }
}
