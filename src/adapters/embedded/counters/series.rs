//! Finished series steps. Each resolution and period has its own keyspace, so old periods are dropped as a whole. A
//! period is 720 steps long, but at least a day.

use std::collections::BTreeMap;

use fjall::Keyspace;
use parking_lot::RwLock;

use crate::disk::key;
use crate::disk::library::{KeyspaceError, KeyspaceKind, Library};
use crate::disk::read::rows;
use crate::error::ReadError;
use tallystone_adapters::codec::decode_step;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::Counter;
use tallystone_domain::rollup::StepSum;
use tallystone_ports::ScanOrder;

const PERIOD_STEPS: i64 = 720;
const PERIOD_MICROS_MIN: i64 = 86_400_000_000;

/// Prefix of the keyspace names.
const PREFIX: &str = "series.";

/// Resolution in seconds, and number of the period.
type SeriesPeriod = (u32, i64);

/// The keyspaces of the periods that hold steps.
#[derive(Default)]
pub struct SeriesKeyspaces {
    periods: RwLock<BTreeMap<SeriesPeriod, Keyspace>>,
}

impl SeriesKeyspaces {
    /// Finds the existing periods of a store.
    pub fn open(library: &Library) -> Result<Self, fjall::Error> {
        let mut periods = BTreeMap::new();
        for name in library.listed(PREFIX) {
            if let (Some(period), Some(keyspace)) = (period_from(&name), library.get(&name)?) {
                periods.insert(period, keyspace);
            }
        }
        Ok(Self { periods: RwLock::new(periods) })
    }

    /// Returns the keyspace of a step and creates it if it is missing.
    pub fn make(&self, library: &Library, step: &StepSum) -> Result<Keyspace, KeyspaceError> {
        let period = period_of(step.step_seconds, step.start);
        if let Some(keyspace) = self.periods.read().get(&period) {
            return Ok(keyspace.clone());
        }
        let keyspace = library.make(&name_of(period), KeyspaceKind::Ranges)?;
        self.periods.write().insert(period, keyspace.clone());
        Ok(keyspace)
    }

    /// Removes and returns the periods of a resolution that end at or before a time.
    pub fn take_before(&self, step_seconds: u32, before: Timestamp) -> Vec<Keyspace> {
        let first = period_of(step_seconds, before).1;
        let mut periods = self.periods.write();
        let old: Vec<SeriesPeriod> =
            periods.range((step_seconds, i64::MIN)..(step_seconds, first)).map(|(p, _)| *p).collect();
        old.iter().filter_map(|period| periods.remove(period)).collect()
    }

    /// Resolutions that have a period, finest first.
    pub fn resolutions(&self) -> Vec<u32> {
        let mut resolutions: Vec<u32> = self.periods.read().keys().map(|(step_seconds, _)| *step_seconds).collect();
        resolutions.dedup();
        resolutions
    }

    /// All keyspaces of all periods.
    pub fn all(&self) -> Vec<Keyspace> {
        self.periods.read().values().cloned().collect()
    }

    /// Drops all keyspace handles because the store closes.
    pub fn clear(&self) {
        self.periods.write().clear();
    }

    /// Reads the steps of a counter with `from <= start < to`, oldest first.
    pub fn steps(
        &self,
        counter: &Counter,
        step_seconds: u32,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<StepSum>, ReadError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let to = to.just_before();
        let mut steps = Vec::new();
        for keyspace in self.between(step_seconds, from, to) {
            for row in rows(&keyspace, key::times(counter, from, to), ScanOrder::OldestFirst) {
                steps.push(decode_step(&row?.1)?);
            }
        }
        Ok(steps)
    }

    /// Reads the last step of a counter that starts before a time.
    pub fn before(
        &self,
        counter: &Counter,
        step_seconds: u32,
        before: Timestamp,
    ) -> Result<Option<StepSum>, ReadError> {
        if before == Timestamp::MIN {
            return Ok(None);
        }
        let to = before.just_before();
        for keyspace in self.between(step_seconds, Timestamp::MIN, to).into_iter().rev() {
            if let Some(row) = rows(&keyspace, key::times(counter, Timestamp::MIN, to), ScanOrder::NewestFirst).next() {
                return Ok(Some(decode_step(&row?.1)?));
            }
        }
        Ok(None)
    }

    fn between(&self, step_seconds: u32, from: Timestamp, to: Timestamp) -> Vec<Keyspace> {
        let (first, last) = (period_of(step_seconds, from), period_of(step_seconds, to));
        self.periods.read().range(first..=last).map(|(_, keyspace)| keyspace.clone()).collect()
    }
}

fn period_of(step_seconds: u32, start: Timestamp) -> SeriesPeriod {
    let period_micros = i64::from(step_seconds).saturating_mul(PERIOD_STEPS * 1_000_000).max(PERIOD_MICROS_MIN);
    (step_seconds, start.micros().div_euclid(period_micros))
}

fn name_of((step_seconds, period): SeriesPeriod) -> String {
    format!("{PREFIX}{step_seconds}.{period}")
}

fn period_from(name: &str) -> Option<SeriesPeriod> {
    let (step_seconds, period) = name.strip_prefix(PREFIX)?.split_once('.')?;
    Some((step_seconds.parse().ok()?, period.parse().ok()?))
}
