//! The periods of the history. Each has three keyspaces of its own, which are dropped as a whole.
//!
//! A period is `PERIOD` of row time long. One that outgrows its part of the size ends early: the next one begins after
//! its newest row. So each time belongs to one period for ever, periods do not overlap, and the bound on the size is
//! kept in small steps at any rate.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fjall::{AbstractTree, Keyspace};
use parking_lot::{Mutex, RwLock};

use super::key;
use crate::disk::library::{KeyspaceError, KeyspaceKind, Library};
use crate::disk::manifest::Manifest;
use crate::disk::meta;
use crate::error::{OpenError, ReadError};
use crate::limits::{HISTORY_PERIOD_PARTS, HISTORY_PERIODS_MAX};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::Timestamp;

/// The length of a period that does not end early. A queue of a few rows a second has 28 periods in a week.
const PERIOD: Duration = Duration::from_secs(6 * 3_600);

const ROWS: &str = "history.T.";
const LIVES: &str = "history.N.";
const FOUND: &str = "history.F.";
const STATE: &str = "history.state";

/// The keyspaces of a period.
#[derive(Clone)]
pub struct HistoryPeriod {
    /// Rows by message.
    pub rows: Keyspace,
    /// Lives by id, gaps, the newest time.
    pub lives: Keyspace,
    /// Rows by term.
    pub found: Keyspace,
}

/// The keyspaces of a dropped period, for deletion.
pub struct DroppedPeriod {
    /// The start of the period.
    pub start: Timestamp,
    /// Its keyspaces.
    pub keyspaces: Vec<Keyspace>,
}

/// The reason for which a row has no period.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A keyspace could not be created.
    #[error(transparent)]
    Keyspace(#[from] KeyspaceError),
    /// A period could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Periods leave as fast as they are created.
    #[error("the period of a row has left while it was created")]
    Leaving,
}

/// The period of a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeriodOf {
    /// It exists.
    Known(Timestamp),
    /// It has to be created.
    Missing(Timestamp),
}

/// The keyspaces of the history, and what is known of them in memory.
pub struct HistoryPeriods {
    state: RwLock<PeriodsState>,
    /// Held while keyspaces are created or deleted.
    structure: Mutex<()>,
    bytes_max: u64,
    bytes: AtomicU64,
    rows_written: AtomicU64,
    row_bytes_written: AtomicU64,
}

#[derive(Default)]
struct PeriodsState {
    periods: BTreeMap<Timestamp, PeriodState>,
    /// Cursors, and the start of the history; `None` before the first batch.
    state: Option<Keyspace>,
    starts_at: Option<Timestamp>,
}

struct PeriodState {
    keyspaces: HistoryPeriod,
    /// The newest time that a row or gap was placed at.
    newest: Timestamp,
    /// Its approximate bytes when it was last measured.
    bytes: u64,
    /// Whether it takes no rows after its newest one. It never takes them again, because the next period may be about
    /// to begin there.
    is_full: bool,
}

impl HistoryPeriod {
    fn make(library: &Library, start: Timestamp, between: impl Fn()) -> Result<Self, KeyspaceError> {
        let [rows, lives, found] = names(start).map(|name| (name, KeyspaceKind::Events));
        let [rows, lives, found] = library.make_all([rows, lives, found], between)?;
        Ok(Self { rows, lives, found })
    }

    fn into_list(self) -> Vec<Keyspace> {
        vec![self.rows, self.lives, self.found]
    }

    /// The approximate bytes of the period: files, and rows that are not in files yet.
    fn bytes(&self) -> u64 {
        let bytes = |keyspace: &Keyspace| keyspace.disk_space() + keyspace.tree.active_memtable().size();
        [&self.rows, &self.lives, &self.found].into_iter().map(bytes).sum()
    }
}

impl PeriodState {
    fn open(keyspaces: HistoryPeriod, start: Timestamp) -> Result<Self, ReadError> {
        let newest = read_time(&keyspaces.lives, key::NEWEST)?.unwrap_or_else(|| start.just_before());
        Ok(Self { keyspaces, newest, bytes: 0, is_full: false })
    }
}

impl PeriodsState {
    /// The period that a time belongs to.
    fn period_of(&self, at: Timestamp) -> PeriodOf {
        let whole = at.floor_to(PERIOD);
        let Some((start, period)) = self.periods.range(whole..=at).next_back() else {
            return PeriodOf::Missing(whole);
        };
        if period.is_full && at > period.newest {
            return PeriodOf::Missing(period.newest.just_after().max(start.just_after()));
        }
        PeriodOf::Known(*start)
    }

    /// The first time after a period.
    fn end_of(&self, start: Timestamp) -> Timestamp {
        let whole = start.floor_to(PERIOD) + PERIOD;
        let next = self.periods.range(start.just_after()..).next().map(|(next, _)| *next);
        next.map_or(whole, |next| next.min(whole))
    }
}

impl HistoryPeriods {
    /// Finds the periods of a store. A store without history has none.
    pub fn open(library: &Library, dir: &Path, bytes_max: u64) -> Result<Self, OpenError> {
        let unreadable = |error: ReadError| crate::recover::unreadable(dir, error);
        let mut found = PeriodsState::default();
        let get = |name: &str| library.get(name).map_err(|error| unreadable(error.into()));
        for name in library.listed(ROWS) {
            let damaged = || OpenError::damaged(Manifest::path(dir), format!("does not list all of {name}"));
            let start = name.strip_prefix(ROWS).and_then(|micros| micros.parse().ok());
            let start = Timestamp::from_micros(start.ok_or_else(damaged)?);
            let [rows, lives, terms] = names(start);
            let (Some(rows), Some(lives), Some(found_rows)) = (get(&rows)?, get(&lives)?, get(&terms)?) else {
                return Err(damaged());
            };
            let keyspaces = HistoryPeriod { rows, lives, found: found_rows };
            let period = PeriodState::open(keyspaces, start).map_err(unreadable)?;
            found.periods.insert(start, period);
        }
        found.state = get(STATE)?;
        if let Some(state) = &found.state {
            found.starts_at = read_time(state, key::STARTS_AT).map_err(unreadable)?;
        }
        let periods = Self {
            state: RwLock::new(found),
            structure: Mutex::new(()),
            bytes_max,
            bytes: AtomicU64::new(0),
            rows_written: AtomicU64::new(0),
            row_bytes_written: AtomicU64::new(0),
        };
        periods.measure();
        Ok(periods)
    }

    /// Measures all periods. Returns whether the history exceeds its size. Waits for flushes of the store library.
    /// O(periods).
    pub fn measure(&self) -> bool {
        let periods: Vec<(Timestamp, HistoryPeriod)> =
            self.state.read().periods.iter().map(|(start, period)| (*start, period.keyspaces.clone())).collect();
        // Without the lock, because the committer needs it.
        let sizes: Vec<(Timestamp, u64)> = periods.iter().map(|(start, period)| (*start, period.bytes())).collect();
        let mut state = self.state.write();
        for (start, bytes) in sizes {
            if let Some(period) = state.periods.get_mut(&start) {
                period.bytes = bytes;
                period.is_full |= bytes >= self.bytes_max / HISTORY_PERIOD_PARTS;
            }
        }
        let sum = state.periods.values().map(|period| period.bytes).sum();
        self.bytes.store(sum, Ordering::Relaxed);
        state.periods.len() > 1 && (sum > self.bytes_max || state.periods.len() > HISTORY_PERIODS_MAX)
    }

    /// Places a row or gap. A period that ends early does not end before it any more.
    pub fn place(&self, at: Timestamp) -> PeriodOf {
        let mut state = self.state.write();
        let place = state.period_of(at);
        if let PeriodOf::Known(start) = place
            && let Some(period) = state.periods.get_mut(&start)
        {
            period.newest = period.newest.max(at);
        }
        place
    }

    /// Creates a period, and calls `between` between two keyspaces. Blocks for some ten syncs.
    pub fn make(&self, library: &Library, start: Timestamp, between: impl Fn()) -> Result<(), PlaceError> {
        let _held = self.structure.lock();
        if self.state.read().periods.contains_key(&start) {
            return Ok(());
        }
        if self.state.read().state.is_none() {
            let state = library.make(STATE, KeyspaceKind::Small)?;
            self.state.write().state = Some(state);
            between();
        }
        let keyspaces = HistoryPeriod::make(library, start, between)?;
        // They may be those of a dropped period that is not deleted yet.
        let period = PeriodState::open(keyspaces, start)?;
        self.state.write().periods.insert(start, period);
        Ok(())
    }

    /// The keyspace of cursors, created if it is missing.
    pub fn make_state(&self, library: &Library) -> Result<Keyspace, KeyspaceError> {
        let _held = self.structure.lock();
        if let Some(state) = &self.state.read().state {
            return Ok(state.clone());
        }
        let made = library.make(STATE, KeyspaceKind::Small)?;
        self.state.write().state = Some(made.clone());
        Ok(made)
    }

    /// The keyspace of cursors; `None` before the first batch.
    pub fn state_keyspace(&self) -> Option<Keyspace> {
        self.state.read().state.clone()
    }

    /// A period with the newest time that was placed in it.
    pub fn get(&self, start: Timestamp) -> Option<(HistoryPeriod, Timestamp)> {
        self.state.read().periods.get(&start).map(|period| (period.keyspaces.clone(), period.newest))
    }

    /// The periods that begin at or before a time, newest first.
    pub fn newest_first(&self, to: Timestamp) -> Vec<HistoryPeriod> {
        self.state.read().periods.range(..=to).rev().map(|(_, period)| period.keyspaces.clone()).collect()
    }

    /// The periods that end at or before a time, and the oldest while the history exceeded its size when it was last
    /// measured. The newest period leaves by its age only. Returns them with the end of the last.
    pub fn outdated(&self, before: Timestamp) -> Option<(Vec<Timestamp>, Timestamp)> {
        let state = self.state.read();
        let (mut left, mut count) =
            (state.periods.values().map(|period| period.bytes).sum::<u64>(), state.periods.len());
        let mut outdated = Vec::new();
        for (start, period) in &state.periods {
            let is_over = count > 1 && (left > self.bytes_max || count > HISTORY_PERIODS_MAX);
            if state.end_of(*start) > before && !is_over {
                break;
            }
            left -= period.bytes;
            count -= 1;
            outdated.push(*start);
        }
        let last = *outdated.last()?;
        Some((outdated, state.end_of(last)))
    }

    /// Forgets periods that have left. Only the committer may call this, between two commits.
    pub fn take(&self, starts: &[Timestamp], starts_at: Timestamp) -> Vec<DroppedPeriod> {
        let mut state = self.state.write();
        state.starts_at = state.starts_at.max(Some(starts_at));
        let taken = starts.iter().filter_map(|start| Some((*start, state.periods.remove(start)?)));
        taken.map(|(start, period)| DroppedPeriod { start, keyspaces: period.keyspaces.into_list() }).collect()
    }

    /// Deletes the keyspaces of dropped periods. A period that was created again in the meantime stays: its keyspaces
    /// are the same. After a crash the rows of periods that are not deleted yet are there again, until the next trim.
    pub fn delete(
        &self,
        library: &Library,
        dropped: Vec<DroppedPeriod>,
        between: impl Fn(),
    ) -> Result<(), KeyspaceError> {
        let _held = self.structure.lock();
        for DroppedPeriod { start, keyspaces } in dropped {
            if !self.state.read().periods.contains_key(&start) {
                library.delete(keyspaces, &between)?;
            }
        }
        self.measure();
        Ok(())
    }

    /// The time from which on no row has left.
    pub fn starts_at(&self) -> Option<Timestamp> {
        self.state.read().starts_at
    }

    /// Counts rows that were written.
    pub fn count_written(&self, rows: u64, bytes: u64) {
        self.rows_written.fetch_add(rows, Ordering::Relaxed);
        self.row_bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes when they were last measured; rows written, and their bytes.
    pub fn usage(&self) -> (u64, u64, u64) {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        (read(&self.bytes), read(&self.rows_written), read(&self.row_bytes_written))
    }

    /// Drops all keyspace handles because the store closes.
    pub fn clear(&self) {
        let mut state = self.state.write();
        state.periods.clear();
        state.state = None;
    }
}

/// Names of the keyspaces of a period.
fn names(start: Timestamp) -> [String; 3] {
    [ROWS, LIVES, FOUND].map(|prefix| format!("{prefix}{}", start.micros()))
}

fn read_time(keyspace: &Keyspace, key: &[u8]) -> Result<Option<Timestamp>, ReadError> {
    let Some(value) = keyspace.get(key)? else { return Ok(None) };
    let time = meta::to_time(&value).ok_or_else(|| CorruptValue::new("time of the history", "another length"))?;
    Ok(Some(time))
}
