//! A change of an experiment as a caller sends it: what is absent stays as it is.

use crate::catalog::set_and_reset;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::{Reason, Reject};
use tallystone_experiments::{
    ArmWeights, ExperimentMode, ExperimentSettings, ExperimentUnit, ExperimentWord, SignificanceLevel,
};

/// A change of an experiment, with `None` for each setting that it leaves out.
#[derive(Clone, Debug)]
pub struct ExperimentUpdate {
    pub name: ExperimentWord,
    pub namespace: Option<NamespaceName>,
    /// The arms with their weights.
    pub arms: Option<(Vec<ExperimentWord>, ArmWeights)>,
    /// The primary metric.
    pub metric: Option<ExperimentWord>,
    pub secondary_metrics: Option<Vec<ExperimentWord>>,
    pub unit: Option<ExperimentUnit>,
    pub level: Option<SignificanceLevel>,
    pub planned: Option<u64>,
    pub mode: Option<ExperimentMode>,
    pub description: Option<String>,
    /// The names of settings that become empty first.
    pub reset: Vec<String>,
}

impl ExperimentUpdate {
    /// A change that says nothing but the name.
    pub fn of(name: ExperimentWord) -> Self {
        Self {
            name,
            namespace: None,
            arms: None,
            metric: None,
            secondary_metrics: None,
            unit: None,
            level: None,
            planned: None,
            mode: None,
            description: None,
            reset: Vec::new(),
        }
    }

    /// The settings after the change of these.
    pub(super) fn over(&self, live: &ExperimentSettings) -> Result<ExperimentSettings, Reject> {
        let mut after = live.clone();
        for name in &self.reset {
            match name.as_str() {
                "description" => after.description.clear(),
                "secondary_metrics" => after.spec.metrics.truncate(1),
                other => return Err(refuse_reset(other)), // a caller's text
            }
        }
        let spec = &mut after.spec;
        set(&mut spec.namespace, self.namespace.as_ref());
        if let Some((arms, weights)) = &self.arms {
            (spec.arms, spec.design.weights) = (arms.clone(), weights.clone());
        }
        if let (Some(metric), Some(primary)) = (&self.metric, spec.metrics.first_mut()) {
            primary.clone_from(metric);
        }
        if let Some(secondary) = &self.secondary_metrics {
            spec.metrics.truncate(1);
            spec.metrics.extend_from_slice(secondary);
        }
        set(&mut spec.unit, self.unit.as_ref());
        set(&mut spec.design.level, self.level.as_ref());
        set(&mut spec.design.planned, self.planned.as_ref());
        set(&mut spec.design.mode, self.mode.as_ref());
        set(&mut after.description, self.description.as_ref());
        for name in &self.reset {
            let is_empty = match name.as_str() {
                "description" => after.description.is_empty(),
                _ => after.spec.metrics.len() <= 1, // the other one that can become empty
            };
            if !is_empty {
                return Err(set_and_reset(Reason::InvalidArgument, name));
            }
        }
        after.check().map_err(|mut reject| {
            reject.fields.iter_mut().for_each(|(field, _)| field.insert_str(0, "experiment."));
            reject
        })?;
        Ok(after)
    }
}

fn set<T: Clone>(place: &mut T, said: Option<&T>) {
    if let Some(said) = said {
        place.clone_from(said);
    }
}

fn refuse_reset(name: &str) -> Reject {
    let shown: String = name.chars().take(64).collect();
    let what = format!("reset names {shown:?}; only description and secondary_metrics can become empty");
    Reject::new(Reason::InvalidArgument, what.as_str()).at("reset", what.as_str())
}
