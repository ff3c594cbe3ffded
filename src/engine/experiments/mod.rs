//! Experiments: keeps what they declared at their start, reads the counters of all arms and judges them. `domain/experiment`
//! has the statistics, `catalog` the experiments that are kept.

mod catalog;
mod change;
mod error;

use std::sync::Arc;

use crate::domain::Timestamp;
use crate::domain::experiment::{
    ArmTotals, CatalogExperiment, EXPOSURES, ExperimentDoubt, ExperimentSpec, ExperimentWord, Judgement, judge,
};
use crate::domain::rollup::{CountReading, Exactness, Freshness, ReadOptions};
use crate::engine::context::EngineContext;
use crate::engine::counting::{Counting, CountingError};
use crate::engine::namespaces::{NamespaceCatalog, NamespaceError};

pub use catalog::{ExperimentCatalog, ExperimentEtag};
pub use error::ExperimentError;

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
    /// What may be said.
    pub judgement: Judgement,
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

    /// Refuses an experiment whose counters have no namespace.
    pub fn check_namespace(&self, spec: &ExperimentSpec) -> Result<(), NamespaceError> {
        self.namespaces.get(&spec.namespace).map(drop)
    }

    /// Compares the arms of an experiment that is kept. Cost: that of `compare`.
    pub async fn compare_kept(
        &self,
        name: &ExperimentWord,
    ) -> Result<(Arc<CatalogExperiment>, ExperimentComparison), ExperimentError> {
        let kept = self.catalog.get(name)?;
        let found = self.compare(&kept.settings.spec).await?;
        Ok((kept, found))
    }

    /// Reads the counters of an experiment, which was checked, and judges them. Cost: one batch read, of the counters of all
    /// metrics and exposures of all arms.
    pub async fn compare(&self, spec: &ExperimentSpec) -> Result<ExperimentComparison, CountingError> {
        let look_time = self.context.now();
        // Exposures come last: an exposure is added before its conversion, so no conversion is counted without it.
        let metrics: Vec<&str> = spec.metrics.iter().map(ExperimentWord::as_str).chain([EXPOSURES]).collect();
        let of_arm = |arm| metrics.iter().map(move |metric| spec.counter(arm, metric));
        let names: Vec<_> = spec.arms.iter().flat_map(of_arm).collect();
        let options = ReadOptions { freshness: Freshness::UpToDate, ..ReadOptions::default() };
        let asked = names.iter().cloned().map(Ok).collect();
        let readings = self.counting.batch_get(&spec.namespace, asked, options).await?;
        let readings = readings.into_iter().collect::<Result<Vec<CountReading>, _>>()?;
        let mut doubts = Vec::new();
        if readings.iter().any(|reading| reading.exactness == Exactness::Estimate) {
            doubts.push(ExperimentDoubt::UnwatchedEstimates);
        }
        let mut counts = Vec::with_capacity(readings.len());
        for (name, reading) in names.iter().zip(&readings) {
            if reading.exactness == Exactness::Partial {
                doubts.push(ExperimentDoubt::PartialCount(name.as_str().into()));
            }
            counts.push(u64::try_from(reading.count).unwrap_or_else(|_negative| {
                doubts.push(ExperimentDoubt::NegativeCount(name.as_str().into()));
                0
            }));
        }
        let arms: Vec<ArmReading> = counts.chunks(metrics.len()).map(arm_of).collect();
        let totals: Vec<ArmTotals> = arms.iter().map(ArmReading::totals).collect();
        let as_of = readings.iter().map(|reading| reading.as_of).min().unwrap_or(look_time);
        Ok(ExperimentComparison { look_time, as_of, arms, judgement: judge(&spec.design, &totals, 1.0, &doubts) })
    }
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
