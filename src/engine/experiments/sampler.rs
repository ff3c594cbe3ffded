//! Watches the counters of running experiments. Each minute their totals go to the namespace `tallystone.experiments`,
//! and a total below the one before is noted with its experiment. Several servers may watch: the totals of a minute are
//! written once, and a fall is noted once.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Experiments, fallen};
use crate::counting::{CountingError, Report};
use crate::driver::{BackgroundLoop, NextActivation};
use crate::experiments::ExperimentError;
use crate::namespaces::experiment_namespace;
use tallystone_domain::counter::ReportSource;
use tallystone_domain::limits::EXPERIMENT_SAMPLED_EVERY;
use tallystone_experiments::CatalogExperiment;

/// The source of the totals.
const SAMPLER: &str = "sampler";
/// A minute, in microseconds.
const MINUTE: i64 = 60_000_000;

/// The loop of one server. A round is several activations, so that a stop does not wait for all of it.
pub struct ExperimentSampler {
    experiments: Experiments,
    /// The experiments of the round that wait for their turn.
    waiting: VecDeque<Arc<CatalogExperiment>>,
}

impl ExperimentSampler {
    /// Makes the loop; it runs at once.
    pub fn new(experiments: Experiments) -> Self {
        Self { experiments, waiting: VecDeque::new() }
    }
}

#[async_trait]
impl BackgroundLoop for ExperimentSampler {
    fn name(&self) -> &'static str {
        "experiment sampler"
    }

    async fn activate(&mut self) -> NextActivation {
        if self.waiting.is_empty() {
            self.waiting = self.experiments.catalog().running().into();
        }
        if let Some(experiment) = self.waiting.pop_front()
            && let Err(error) = self.experiments.sample(&experiment).await
        {
            let name = &experiment.settings.spec.name;
            tracing::warn!(%error, experiment = %name, "cannot watch the counters of an experiment; the next minute tries again");
        }
        if self.waiting.is_empty() { NextActivation::After(EXPERIMENT_SAMPLED_EVERY) } else { NextActivation::Again }
    }
}

impl Experiments {
    /// Notes what fell since the last total, then writes the totals of this minute. Cost: two reads and a write of each
    /// counter.
    pub(super) async fn sample(&self, kept: &CatalogExperiment) -> Result<(), ExperimentError> {
        let spec = &kept.settings.spec;
        if self.namespaces.find(&experiment_namespace()).is_none() {
            self.namespaces.ensure_experiment_namespace().await?;
        }
        // The totals are read before the counters, so that a total of another server is never above what is read here.
        let before = self.sampled(kept).await?;
        let read = self.read(spec).await?;
        let minute = read.look_time.micros().div_euclid(MINUTE);
        let falls = fallen(spec, &before, &read);
        if !falls.is_empty() {
            tracing::warn!(experiment = %spec.name, counters = falls.len(), "counters of an experiment became smaller");
            self.catalog.note_falls(spec.name.clone(), kept.id, falls).await?;
        }
        let report = Report {
            source: ReportSource::new(SAMPLER).expect("a literal source is valid"),
            // An experiment that is created again begins anew.
            epoch: u64::try_from(kept.created.micros()).unwrap_or_default(),
            serial: u64::try_from(minute).unwrap_or_default(),
        };
        let totals = read.names.into_iter().zip(&read.readings).map(|(name, reading)| Ok((name, reading.count)));
        let written = self.counting.report_own_totals(&experiment_namespace(), report, totals.collect()).await?;
        for outcome in written {
            match outcome {
                // Another server wrote the totals of this minute.
                Ok(_) | Err(CountingError::AlreadyExists { .. } | CountingError::SerialBack { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
