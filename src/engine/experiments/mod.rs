//! Experiments: keeps what they declared at their start, reads the counters of all arms and judges them.
//! `domain/experiment` has the statistics, `catalog` the experiments that are kept.

mod catalog;
mod change;
mod error;
mod looks;
mod sampler;
mod update;

use std::sync::Arc;
use std::time::Duration;

use crate::catalog::Author;
use crate::context::EngineContext;
use crate::counting::{Counting, CountingError, refuse_reserved};
use crate::namespaces::{NamespaceCatalog, experiment_namespace};
use tallystone_domain::Timestamp;
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::limits::EXPERIMENT_SAMPLED_EVERY;
use tallystone_domain::rollup::{CountReading, Exactness, Freshness, ReadOptions};
use tallystone_experiments::{
    ArmTotals, CatalogExperiment, EXPOSURES, ExperimentDoubt, ExperimentSettings, ExperimentSpec, ExperimentWord,
    FallenCounter, Judgement, judge,
};

pub use catalog::{ExperimentCatalog, ExperimentEtag, not_found};
pub use error::ExperimentError;
pub use looks::{ExperimentLook, ExperimentLooks, LooksQuery};
pub(super) use sampler::ExperimentSampler;
pub use update::ExperimentUpdate;

/// Estimates whose last total is older than this are not watched: three totals are missing.
const UNWATCHED_AFTER: Duration = Duration::from_secs(3 * EXPERIMENT_SAMPLED_EVERY.as_secs());

/// How long a creation waits for what its counters hold.
const BEFORE_WAIT: Duration = Duration::from_secs(1);

/// The use cases of experiments. Cheap to clone.
#[derive(Clone)]
pub struct Experiments {
    context: Arc<EngineContext>,
    counting: Counting,
    catalog: ExperimentCatalog,
    namespaces: NamespaceCatalog,
}

/// The counts of an arm at a look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArmReading {
    /// How often it was shown.
    pub exposures: u64,
    /// How often each metric happened, the primary one first.
    pub conversions: Vec<u64>,
}

/// An experiment at a look.
#[derive(Clone, PartialEq, Debug)]
pub struct ExperimentComparison {
    /// When the counters were read.
    pub look_time: Timestamp,
    /// Every add up to this time is in all counts.
    pub as_of: Timestamp,
    /// The arms, in their order.
    pub arms: Vec<ArmReading>,
    /// The judgement that may be made.
    pub judgement: Judgement,
    /// Whether the counters may lose adds.
    pub estimates: Estimates,
}

/// Whether the counters of an experiment are best effort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Estimates {
    /// None is.
    None,
    /// Some are, and the sampler watches whether they fall.
    Watched,
    /// Some are, and nobody watched them.
    Unwatched,
}

impl Experiments {
    pub(super) fn new(
        context: Arc<EngineContext>,
        counting: Counting,
        catalog: ExperimentCatalog,
        namespaces: NamespaceCatalog,
    ) -> Self {
        Self { context, counting, catalog, namespaces }
    }

    /// The experiments that are kept.
    pub fn catalog(&self) -> &ExperimentCatalog {
        &self.catalog
    }

    /// Creates an experiment, and notes what its counters hold already. Refuses one whose counters have no namespace,
    /// or one to which only the service writes. Cost: a read of the exposures of all arms, and one change.
    pub async fn create(
        &self,
        settings: ExperimentSettings,
        author: Author,
    ) -> Result<Arc<CatalogExperiment>, ExperimentError> {
        let spec = &settings.spec;
        refuse_reserved(&spec.namespace)?;
        self.namespaces.get(&spec.namespace)?;
        settings.check()?;
        // A repeat keeps what was noted first.
        let is_known = self.catalog.get(&spec.name).is_ok();
        let exposures_before = if is_known { None } else { self.exposures_before(spec).await };
        self.catalog.create(ExperimentSettings { exposures_before, ..settings }, author).await
    }

    /// The exposures of all arms by now. None if they cannot be read in time, which must not keep an experiment from
    /// its start.
    async fn exposures_before(&self, spec: &ExperimentSpec) -> Option<u64> {
        let names: Vec<CounterName> = spec.arms.iter().map(|arm| spec.counter(arm, EXPOSURES)).collect();
        let read = tokio::select! {
            biased;
            read = self.totals(&spec.namespace, &names) => read.map_err(|error| error.to_string()),
            () = self.context.clock.sleep(BEFORE_WAIT) => Err("there was no answer in time".to_owned()),
        };
        let log = |why: &String| {
            tracing::warn!(why, experiment = %spec.name, "cannot read what the counters of a new experiment hold");
        };
        let readings = read.inspect_err(log).ok()?;
        let is_whole = readings.iter().all(|reading| reading.exactness != Exactness::Partial);
        let counts = readings.iter().map(|reading| u64::try_from(reading.count).unwrap_or(0));
        is_whole.then(|| counts.fold(0, u64::saturating_add))
    }

    /// Compares the arms of an experiment that is kept. A counter that fell, at this look or before it, withholds the
    /// verdict. Best-effort counters are trusted while the sampler watches them. Cost: that of `compare`, and a read of
    /// the totals before.
    pub async fn compare_kept(
        &self,
        name: &ExperimentWord,
    ) -> Result<(Arc<CatalogExperiment>, ExperimentComparison), ExperimentError> {
        let kept = self.catalog.get(name)?;
        let spec = &kept.settings.spec;
        // The totals are read before the counters, which only grow.
        let before = self.sampled(&kept).await?;
        let read = self.read(spec).await?;
        let mut falls = kept.settings.falls.clone();
        let is_known =
            |falls: &[FallenCounter], fall: &FallenCounter| falls.iter().any(|one| one.counter == fall.counter);
        let fresh: Vec<_> = fallen(spec, &before, &read).into_iter().filter(|fall| !is_known(&falls, fall)).collect();
        falls.extend(fresh);
        let until = kept.settings.stopped.unwrap_or(read.look_time);
        let is_watched = before.newest.is_some_and(|newest| until.since(newest) <= UNWATCHED_AFTER);
        let estimates = match read.has_estimates() {
            true if is_watched => Estimates::Watched,
            true => Estimates::Unwatched,
            false => Estimates::None,
        };
        let doubts = falls.into_iter().map(ExperimentDoubt::CounterFell).collect();
        let found = judged(spec, &read, doubts, estimates);
        Ok((kept, found))
    }

    /// Reads the counters of an experiment, which was checked, and judges them. Cost: one batch read, of the counters
    /// of all metrics and exposures of all arms.
    pub async fn compare(&self, spec: &ExperimentSpec) -> Result<ExperimentComparison, CountingError> {
        let read = self.read(spec).await?;
        let estimates = if read.has_estimates() { Estimates::Unwatched } else { Estimates::None };
        Ok(judged(spec, &read, Vec::new(), estimates))
    }

    /// Reads all counters. Exposures of an arm come last: an exposure is added before its conversion, so no conversion
    /// is counted without it.
    async fn read(&self, spec: &ExperimentSpec) -> Result<ReadCounters, CountingError> {
        let (look_time, names) = (self.context.now(), spec.counters());
        let readings = self.totals(&spec.namespace, &names).await?;
        Ok(ReadCounters { look_time, names, readings })
    }

    /// Reads the totals that the sampler wrote for an experiment.
    async fn sampled(&self, kept: &CatalogExperiment) -> Result<SampledTotals, CountingError> {
        let (namespace, names) = (experiment_namespace(), kept.settings.spec.counters());
        if self.namespaces.find(&namespace).is_none() {
            return Ok(SampledTotals { totals: vec![None; names.len()], newest: None });
        }
        let readings = self.totals(&namespace, &names).await?;
        // Totals from before the creation are those of another experiment of this name.
        let written = |reading: &CountReading| reading.last_write_time.filter(|time| *time >= kept.created);
        let times: Vec<Option<Timestamp>> = readings.iter().map(written).collect();
        let totals = readings.iter().zip(&times).map(|(reading, time)| time.map(|_| reading.count)).collect();
        Ok(SampledTotals { totals, newest: times.into_iter().min().flatten() })
    }

    async fn totals(
        &self,
        namespace: &NamespaceName,
        names: &[CounterName],
    ) -> Result<Vec<CountReading>, CountingError> {
        let options = ReadOptions { freshness: Freshness::UpToDate, ..ReadOptions::default() };
        let asked = names.iter().cloned().map(Ok).collect();
        self.counting.batch_get(namespace, asked, options).await?.into_iter().collect()
    }
}

/// The counters of an experiment as they were read.
struct ReadCounters {
    look_time: Timestamp,
    names: Vec<CounterName>,
    readings: Vec<CountReading>,
}

impl ReadCounters {
    fn has_estimates(&self) -> bool {
        self.readings.iter().any(|reading| reading.exactness == Exactness::Estimate)
    }
}

/// The newest totals that the sampler wrote, in the order of the counters.
struct SampledTotals {
    totals: Vec<Option<i64>>,
    /// When all of them had been written; none if one never was.
    newest: Option<Timestamp>,
}

/// The counters that are below their last total.
fn fallen(spec: &ExperimentSpec, before: &SampledTotals, read: &ReadCounters) -> Vec<FallenCounter> {
    let fall = |((name, reading), before): ((&CounterName, &CountReading), &Option<i64>)| {
        let lost = before.as_ref()?.checked_sub(reading.count).filter(|lost| *lost > 0)?;
        Some(FallenCounter {
            counter: spec.short_name(name).into(),
            time: read.look_time,
            lost: u64::try_from(lost).unwrap_or_default(),
        })
    };
    read.names.iter().zip(&read.readings).zip(&before.totals).filter_map(fall).collect()
}

/// Judges what was read.
fn judged(
    spec: &ExperimentSpec,
    read: &ReadCounters,
    mut doubts: Vec<ExperimentDoubt>,
    estimates: Estimates,
) -> ExperimentComparison {
    let ReadCounters { look_time, names, readings } = read;
    if estimates == Estimates::Unwatched {
        doubts.push(ExperimentDoubt::UnwatchedEstimates);
    }
    let mut counts = Vec::with_capacity(readings.len());
    for (name, reading) in names.iter().zip(readings) {
        if reading.exactness == Exactness::Partial {
            doubts.push(ExperimentDoubt::PartialCount(name.as_str().into()));
        }
        counts.push(u64::try_from(reading.count).unwrap_or_else(|_negative| {
            doubts.push(ExperimentDoubt::NegativeCount(name.as_str().into(), reading.count));
            0
        }));
    }
    let arms: Vec<ArmReading> = counts.chunks(spec.metrics.len() + 1).map(arm_of).collect();
    let totals: Vec<ArmTotals> = arms.iter().map(ArmReading::totals).collect();
    let as_of = readings.iter().map(|reading| reading.as_of).min().unwrap_or(*look_time);
    let judgement = judge(&spec.design, &totals, 1.0, &doubts);
    ExperimentComparison { look_time: *look_time, as_of, arms, judgement, estimates }
}

/// The counts of an arm: those of its metrics, then its exposures.
fn arm_of(counts: &[u64]) -> ArmReading {
    let (exposures, conversions) = counts.split_last().expect("every arm has exposures");
    ArmReading { exposures: *exposures, conversions: conversions.to_vec() }
}

impl ArmReading {
    fn totals(&self) -> ArmTotals {
        ArmTotals { exposures: self.exposures, conversions: self.conversions[0] }
    }
}
