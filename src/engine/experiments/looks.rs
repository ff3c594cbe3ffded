//! An experiment minute by minute, from the totals that the sampler wrote.

use std::sync::Arc;
use std::time::Duration;

use super::{ExperimentError, Experiments};
use crate::counting::{CountingError, SeriesQuery, SeriesResult};
use crate::namespaces::{experiment_namespace, experiment_step};
use tallystone_domain::limits::SERIES_ROWS_MAX;
use tallystone_domain::rollup::series_step::SeriesStep;
use tallystone_domain::{Reason, Reject, Timestamp};
use tallystone_experiments::{
    ArmTotals, CatalogExperiment, EXPOSURES, ExperimentDoubt, ExperimentWord, Judgement, judge,
};

/// The shortest and the longest step between two looks.
const STEPS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(31 * 86_400));

/// Which looks are asked for.
#[derive(Clone, Copy, Debug)]
pub struct LooksQuery {
    /// The beginning; none: when the experiment was created.
    pub from: Option<Timestamp>,
    /// The end; none: when it was stopped, or now.
    pub to: Option<Timestamp>,
    /// The time between two looks, a number of minutes; none: the shortest that is kept so long.
    pub step: Option<Duration>,
    /// The most looks, at least 1.
    pub limit: usize,
}

/// The looks of an experiment, oldest first.
#[derive(Clone, PartialEq, Debug)]
pub struct ExperimentLooks {
    /// The experiment.
    pub kept: Arc<CatalogExperiment>,
    /// The looks.
    pub looks: Vec<ExperimentLook>,
    /// The time between two of them.
    pub step: Duration,
    /// The start of the next page; none if there is none.
    pub next: Option<Timestamp>,
}

/// The arms at the end of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct ExperimentLook {
    /// The end of the step.
    pub time: Timestamp,
    /// Whether the step has not ended yet.
    pub open: bool,
    /// The totals of the arms, in their order.
    pub arms: Vec<ArmTotals>,
    /// The judgement that could be made then.
    pub judgement: Judgement,
}

impl Experiments {
    /// Reads what looks of the past would have said. Cost: one series of the primary metric and of the exposures of
    /// each arm.
    pub async fn looks(&self, name: &ExperimentWord, asked: LooksQuery) -> Result<ExperimentLooks, ExperimentError> {
        let kept = self.catalog.get(name)?;
        let now = self.context.now();
        let from = asked.from.unwrap_or(kept.created);
        let until = asked.to.or(kept.settings.stopped).unwrap_or(now);
        let step = asked.step.unwrap_or_else(|| experiment_step(now.since(from)));
        if !(STEPS.0..=STEPS.1).contains(&step) {
            let what = "step must be a number of minutes, 1 min to 31 days";
            return Err(Reject::new(Reason::InvalidArgument, what).at("step", what).into());
        }
        if self.namespaces.find(&experiment_namespace()).is_none() {
            return Ok(ExperimentLooks { kept, looks: Vec::new(), step, next: None });
        }
        let spec = &kept.settings.spec;
        let of_arm = |arm| [spec.metrics[0].as_str(), EXPOSURES].map(|metric| Ok(spec.counter(arm, metric)));
        let names: Vec<_> = spec.arms.iter().flat_map(of_arm).collect();
        let limit = u32::try_from(asked.limit.min(SERIES_ROWS_MAX / names.len())).unwrap_or(u32::MAX).max(1);
        let end = until.min(from.floor_to(step) + step.saturating_mul(limit));
        let query = SeriesQuery { from, to: end, step: Some(SeriesStep::Fixed(step)) };
        let series = self.counting.batch_series(&experiment_namespace(), names, query).await?;
        let series = series.into_iter().collect::<Result<Vec<SeriesResult>, CountingError>>()?;
        let looks = looks_of(&kept, &series, step);
        Ok(ExperimentLooks { looks, step, next: (end < until).then_some(end), kept })
    }
}

/// The looks in series, two for each arm: conversions, then exposures.
fn looks_of(kept: &CatalogExperiment, series: &[SeriesResult], step: Duration) -> Vec<ExperimentLook> {
    let total = |series: &SeriesResult, at: usize| {
        let value = series.rows.get(at).map_or(0, |row| row.value);
        u64::try_from(value).unwrap_or_default()
    };
    let look = |at: usize| {
        let row = series.first()?.rows.get(at)?;
        let time = row.start + step;
        let arm =
            |pair: &[SeriesResult]| ArmTotals { conversions: total(&pair[0], at), exposures: total(&pair[1], at) };
        let arms: Vec<ArmTotals> = series.chunks_exact(2).map(arm).collect();
        let falls = kept.settings.falls.iter().filter(|fall| fall.time < time);
        let doubts: Vec<_> = falls.cloned().map(ExperimentDoubt::CounterFell).collect();
        let judgement = judge(&kept.settings.spec.design, &arms, 1.0, &doubts);
        Some(ExperimentLook { time, open: row.open, arms, judgement })
    };
    (0..).map_while(look).collect()
}
