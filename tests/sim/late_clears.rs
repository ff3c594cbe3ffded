//! Clears of which one replica gets the row, late, and nobody an answer, as if their coordinators ended. It arrives after a
//! time, or while a verdict on its token is under way. A fold at the same moment sees a row that the verdict did not see.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_adapters::codec;
use tallystone_domain::counter::{Change, Provenance};

use crate::chance::Chance;
use crate::cluster::Name;
use crate::cluster::REPLICAS;
use crate::cql::{Datum, Partition, Table};

/// The places of the values of `insert_event`.
const EVENT_TIME: usize = 4;
const EVENT_ID: usize = 5;
const VALUE: usize = 6;
/// About the time that a verdict takes.
const MEETS_WITHIN: Duration = Duration::from_millis(8);
const SECOND: Duration = Duration::from_secs(1);

/// The fates of the clears of a run. Cheap to clone.
#[derive(Clone)]
pub struct LateClears(Option<Arc<Mutex<Fates>>>);

struct Fates {
    chance: Chance,
    clear: Datum,
    known: HashMap<RowKey, Option<Lone>>,
    /// Rows that have not arrived yet.
    under_way: HashMap<RowKey, LateRow>,
}

/// The event time and the event id.
type RowKey = (Datum, Datum);

/// A row on its way to one replica.
pub struct LateRow {
    pub node: usize,
    pub name: Name,
    pub change: Partition,
}

/// The row of a clear that reaches one replica.
#[derive(Clone, Copy)]
struct Lone {
    /// Until then nobody else's write of the row reaches any replica.
    until: Duration,
}

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Usual,
    /// One replica gets it after a time; nobody gets an answer.
    Late {
        node: usize,
        after: Duration,
    },
    /// It gets lost.
    Lost,
}

impl LateClears {
    /// The fates of a seed: a fourth of all runs have late clears.
    pub fn of(seed: u64) -> Self {
        let mut chance = Chance::new(seed, 20);
        let clear = Datum::Blob(codec::encode_event(Change::Clear, &Provenance::default()).as_slice().into());
        let fates =
            chance.happens(2_500).then(|| Fates { chance, clear, known: HashMap::new(), under_way: HashMap::new() });
        Self(fates.map(|fates| Arc::new(Mutex::new(fates))))
    }

    /// Whether the run has any.
    pub fn happen(&self) -> bool {
        self.0.is_some()
    }

    /// The fate of the write of a row, at a time.
    pub fn fate(&self, table: &Table, values: &[Datum], now: Duration) -> Fate {
        let Some(fates) = &self.0 else { return Fate::Usual };
        let mut fates = fates.lock();
        if !table.name.contains("events_") || values.get(VALUE) != Some(&fates.clear) {
            return Fate::Usual;
        }
        let row = key_of(values);
        match fates.known.get(&row) {
            Some(Some(lone)) if now < lone.until => return Fate::Lost,
            Some(_) => return Fate::Usual,
            None => {}
        }
        let is_late = fates.chance.happens(8_000);
        let (node, after) = (fates.chance.index(REPLICAS), fates.chance.between(SECOND * 29, SECOND * 36));
        // The writer gives it up by then.
        fates.known.insert(row, is_late.then_some(Lone { until: now + SECOND * 32 }));
        if is_late { Fate::Late { node, after } } else { Fate::Usual }
    }

    /// Keeps a row until it arrives.
    pub fn keep(&self, values: &[Datum], row: LateRow) {
        if let Some(fates) = &self.0 {
            fates.lock().under_way.insert(key_of(values), row);
        }
    }

    /// Takes a row that arrives after its time, unless it has arrived already.
    pub fn arrive(&self, values: &[Datum]) -> Option<LateRow> {
        self.0.as_ref()?.lock().under_way.remove(&key_of(values))
    }

    /// Takes a row that arrives while a verdict on its token is under way, and says how long after its beginning.
    pub fn meet(&self, values: &[Datum]) -> Option<(LateRow, Duration)> {
        let mut fates = self.0.as_ref()?.lock();
        if values.len() <= VALUE {
            return None;
        }
        let row = fates.under_way.remove(&key_of(values))?;
        let after = fates.chance.between(Duration::ZERO, MEETS_WITHIN);
        Some((row, after))
    }
}

fn key_of(values: &[Datum]) -> RowKey {
    (values[EVENT_TIME].clone(), values[EVENT_ID].clone())
}
