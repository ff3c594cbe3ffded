//! Experiments and their comparison on the wire.

use std::ops::RangeInclusive;

use crate::time;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::limits::EXPERIMENT_ALPHA;
use tallystone_domain::{Reason, Reject};
use tallystone_engine::catalog::Etag;
use tallystone_engine::experiments::{ArmReading, Estimates, ExperimentComparison, ExperimentLook, ExperimentUpdate};
use tallystone_experiments::{
    ArmContrast, ArmTotals, ArmWeights, CatalogExperiment, EXPOSURES, ExperimentDesign, ExperimentDoubt,
    ExperimentMode, ExperimentSettings, ExperimentSpec, ExperimentUnit, ExperimentVerdict, ExperimentWord, Judgement,
    Proportion, SignificanceLevel, p_text,
};
use tallystone_ports::ExperimentChange;
use tallystone_proto::experiment::v1 as wire;

fn refuse(field: &str, what: String) -> Reject {
    Reject::new(Reason::InvalidArgument, what.clone()).at(field, what)
}

/// Decodes and checks an experiment.
pub fn spec(sent: Option<wire::Experiment>) -> Result<ExperimentSpec, Reject> {
    let missing = "experiment is missing; send its name, arms, metric and planned_exposures";
    let sent = sent.ok_or_else(|| refuse("experiment", missing.to_owned()))?;
    parts(&sent).and_then(|spec| spec.check().map(|()| spec)).map_err(within)
}

/// The same refusal of fields within the experiment.
fn within(mut reject: Reject) -> Reject {
    reject.fields.iter_mut().for_each(|(field, _)| field.insert_str(0, "experiment."));
    reject
}

/// Decodes a change of an experiment.
pub fn update(sent: Option<wire::Experiment>, reset: Vec<String>) -> Result<ExperimentUpdate, Reject> {
    let missing = "experiment is missing; send its name and what changes";
    let sent = sent.ok_or_else(|| refuse("experiment", missing.to_owned()))?;
    let update = said_of(sent).map_err(within)?;
    Ok(ExperimentUpdate { reset, ..update })
}

fn said_of(sent: wire::Experiment) -> Result<ExperimentUpdate, Reject> {
    let word = |text: &String, field: &str| ExperimentWord::new(text, field);
    let said = |text: String| (!text.is_empty()).then_some(text);
    let secondary = sent.secondary_metrics.iter().map(|text| word(text, "secondary_metrics"));
    let secondary: Vec<ExperimentWord> = secondary.collect::<Result<_, _>>()?;
    let arms = || Ok::<_, Reject>((arms_of(&sent.arms)?, ArmWeights::new(&weights_of(&sent.arms))?));
    let update = ExperimentUpdate {
        namespace: said(sent.namespace).map(|name| NamespaceName::new(&name)).transpose()?,
        arms: (!sent.arms.is_empty()).then(arms).transpose()?,
        metric: said(sent.metric).map(|metric| word(&metric, "metric")).transpose()?,
        secondary_metrics: (!secondary.is_empty()).then_some(secondary),
        unit: (sent.unit != 0).then(|| unit(sent.unit)).transpose()?,
        level: sent.alpha.map(SignificanceLevel::new).transpose()?,
        planned: sent.planned_exposures,
        mode: (sent.mode != 0).then(|| mode(sent.mode)).transpose()?,
        description: sent.description,
        ..ExperimentUpdate::of(word(&sent.name, "name")?)
    };
    Ok(update)
}

fn arms_of(sent: &[wire::ExperimentArm]) -> Result<Vec<ExperimentWord>, Reject> {
    sent.iter().map(|arm| ExperimentWord::new(&arm.name, "arms")).collect()
}

/// The weights of arms. One of 0 is refused where they are checked.
fn weights_of(sent: &[wire::ExperimentArm]) -> Vec<u32> {
    sent.iter().map(|arm| arm.weight.unwrap_or(1)).collect()
}

/// Decodes and checks an experiment that is to be kept.
pub fn settings(sent: Option<wire::Experiment>) -> Result<ExperimentSettings, Reject> {
    let description = sent.as_ref().and_then(|sent| sent.description.clone()).unwrap_or_default();
    Ok(ExperimentSettings { spec: spec(sent)?, description, stopped: None, falls: Vec::new(), exposures_before: None })
}

/// Encodes an experiment that is kept.
pub fn kept(experiment: &CatalogExperiment) -> wire::Experiment {
    let ExperimentSettings { spec, description, stopped, falls: _, exposures_before: _ } = &experiment.settings;
    let arms = spec.arms.iter().zip(spec.design.weights.weights());
    let (primary, secondary) = spec.metrics.split_first().expect("an experiment has a primary metric");
    let unit = match spec.unit {
        ExperimentUnit::User => wire::ExperimentUnit::User,
        ExperimentUnit::Session => wire::ExperimentUnit::Session,
        ExperimentUnit::Event => wire::ExperimentUnit::Event,
    };
    let mode = match spec.design.mode {
        ExperimentMode::AlwaysValid => wire::ExperimentMode::AlwaysValid,
        ExperimentMode::Fixed => wire::ExperimentMode::Fixed,
    };
    let state = if stopped.is_some() { wire::ExperimentState::Stopped } else { wire::ExperimentState::Running };
    wire::Experiment {
        name: spec.name.to_string(),
        namespace: spec.namespace.to_string(),
        arms: arms
            .map(|(name, &weight)| wire::ExperimentArm { name: name.to_string(), weight: Some(weight) })
            .collect(),
        metric: primary.to_string(),
        secondary_metrics: secondary.iter().map(ToString::to_string).collect(),
        unit: unit.into(),
        alpha: Some(spec.design.level.value()),
        planned_exposures: Some(spec.design.planned),
        mode: mode.into(),
        description: Some(description.clone()),
        state: state.into(),
        create_time: Some(time::write(experiment.created)),
        update_time: Some(time::write(experiment.updated)),
        stop_time: stopped.map(time::write),
        version: experiment.version,
        etag: Etag::of(experiment).to_string(),
    }
}

/// Encodes a change of the history.
pub fn change(change: ExperimentChange) -> wire::ExperimentChange {
    wire::ExperimentChange {
        version: change.version,
        change_time: Some(time::write(change.time)),
        actor: change.actor,
        reason: change.reason,
        differences: change.differences,
    }
}

fn parts(sent: &wire::Experiment) -> Result<ExperimentSpec, Reject> {
    let word = |text: &str, field: &str| ExperimentWord::new(text, field);
    let metrics = [&sent.metric].into_iter().chain(&sent.secondary_metrics).enumerate();
    let metric = |(at, text): (usize, &String)| word(text, if at == 0 { "metric" } else { "secondary_metrics" });
    Ok(ExperimentSpec {
        name: word(&sent.name, "name")?,
        namespace: NamespaceName::new(&sent.namespace)?,
        arms: arms_of(&sent.arms)?,
        metrics: metrics.map(metric).collect::<Result<_, _>>()?,
        unit: unit(sent.unit)?,
        design: ExperimentDesign {
            weights: ArmWeights::new(&weights_of(&sent.arms))?,
            level: SignificanceLevel::new(sent.alpha.unwrap_or(EXPERIMENT_ALPHA))?,
            planned: sent.planned_exposures.unwrap_or(0),
            mode: mode(sent.mode)?,
        },
    })
}

fn unit(sent: i32) -> Result<ExperimentUnit, Reject> {
    use wire::ExperimentUnit as Unit;
    match Unit::try_from(sent) {
        Ok(Unit::Unspecified | Unit::User) => Ok(ExperimentUnit::User),
        Ok(Unit::Session) => Ok(ExperimentUnit::Session),
        Ok(Unit::Event) => Ok(ExperimentUnit::Event),
        Err(_unknown) => Err(refuse("unit", format!("unit {sent} does not exist; send USER, SESSION or EVENT"))),
    }
}

fn mode(sent: i32) -> Result<ExperimentMode, Reject> {
    use wire::ExperimentMode as Mode;
    match Mode::try_from(sent) {
        Ok(Mode::Unspecified | Mode::AlwaysValid) => Ok(ExperimentMode::AlwaysValid),
        Ok(Mode::Fixed) => Ok(ExperimentMode::Fixed),
        Err(_unknown) => Err(refuse("mode", format!("mode {sent} does not exist; send ALWAYS_VALID or FIXED"))),
    }
}

/// The banner of an experiment whose counters are older than the experiment; none for any other.
pub fn older_counts_banner(experiment: &CatalogExperiment) -> Option<String> {
    let before = experiment.settings.exposures_before.filter(|before| *before > 0)?;
    let created = time::text(experiment.created);
    Some(format!(
        "OLDER COUNTS: its counters held {before} exposures when it was created at {created}, and these count too; begin \
         anew under another name to leave them out"
    ))
}

/// The banner of an experiment that was sent, while one is kept under its name.
pub fn kept_banner(spec: &ExperimentSpec, kept: &CatalogExperiment) -> String {
    let name = &spec.name;
    match kept.settings.spec == *spec {
        true => format!("KEPT: `exp compare {name}` judges this experiment with what its server noted since it began"),
        false => format!(
            "NOT THE KEPT ONE: an experiment {name} is kept with other settings; `exp compare {name}` judges that one"
        ),
    }
}

/// Names the arms that were never shown: their names, or what adds to their counters, may be wrong.
fn nothing_counted(spec: &ExperimentSpec, found: &ExperimentComparison) -> Option<String> {
    let is_doubted = |name: &str| {
        found.judgement.doubts.iter().any(|doubt| match doubt {
            ExperimentDoubt::NegativeCount(counter, _) | ExperimentDoubt::PartialCount(counter) => **counter == *name,
            ExperimentDoubt::SampleRatioMismatch(_)
            | ExperimentDoubt::CounterFell(_)
            | ExperimentDoubt::ConversionsAboveExposures(_)
            | ExperimentDoubt::UnwatchedEstimates => false,
        })
    };
    let arms = spec.arms.iter().zip(&found.arms).filter(|(_, reading)| reading.exposures == 0);
    let names = arms.map(|(arm, _)| spec.counter(arm, EXPOSURES).as_str().to_owned());
    let names: Vec<String> = names.filter(|name| !is_doubted(name)).collect();
    match names.as_slice() {
        [] => None,
        [name] => Some(format!("NOTHING COUNTED: {name} has no adds; check the name")),
        names => Some(format!("NOTHING COUNTED: {} have no adds; check the names", names.join(", "))),
    }
}

/// Names the secondary metrics that happened more often than their arm was shown, so that they have no rate.
fn without_rate(spec: &ExperimentSpec, found: &ExperimentComparison) -> Option<String> {
    let arms = spec.arms.iter().zip(&found.arms);
    let above = arms.flat_map(|(arm, reading)| {
        let metrics = spec.metrics.iter().zip(&reading.conversions).skip(1);
        metrics.filter(|(_, count)| **count > reading.exposures).map(move |(metric, _)| format!("{arm}/{metric}"))
    });
    let above: Vec<String> = above.collect();
    let text = "happened more often than the arm was shown: that is no share, so it has no rate";
    (!above.is_empty()).then(|| format!("NO RATE: {} {text}", above.join(", ")))
}

/// The banner of a stopped experiment; none while it goes on.
pub fn stopped_banner(experiment: &CatalogExperiment) -> Option<String> {
    let stopped = time::text(experiment.settings.stopped?);
    Some(format!("STOPPED at {stopped}: what was added to its counters since then counts too"))
}

/// Encodes what a look says.
pub fn comparison(spec: &ExperimentSpec, found: &ExperimentComparison) -> wire::CompareExperimentResponse {
    let judgement = &found.judgement;
    wire::CompareExperimentResponse {
        look_time: Some(time::write(found.look_time)),
        as_of: Some(time::write(found.as_of)),
        arms: found.arms.iter().enumerate().map(|(at, arm)| arm_result(spec, at, arm)).collect(),
        contrasts: contrasts(spec, judgement),
        sample_ratio: Some(sample_ratio(judgement)),
        doubts: judgement.doubts.iter().map(|said| doubt(spec, found, said)).collect(),
        banners: banners(spec, found),
    }
}

/// Encodes an experiment at the end of a step.
pub fn look(spec: &ExperimentSpec, look: &ExperimentLook) -> wire::ExperimentLook {
    let arm = |(arm, totals): (&ExperimentWord, &ArmTotals)| wire::ExperimentArmTotals {
        arm: arm.to_string(),
        exposures: totals.exposures,
        conversions: totals.conversions,
    };
    wire::ExperimentLook {
        look_time: Some(time::write(look.time)),
        open: look.open,
        arms: spec.arms.iter().zip(&look.arms).map(arm).collect(),
        contrasts: contrasts(spec, &look.judgement),
        sample_ratio: Some(sample_ratio(&look.judgement)),
    }
}

fn contrasts(spec: &ExperimentSpec, judgement: &Judgement) -> Vec<wire::ExperimentContrast> {
    let control = &spec.arms[0];
    let contrast = |contrast: &ArmContrast| wire::ExperimentContrast {
        arm: spec.arms[contrast.arm].to_string(),
        control: control.to_string(),
        difference: contrast.difference,
        lower: contrast.interval.map(|interval| interval.lower),
        upper: contrast.interval.map(|interval| interval.upper),
        verdict: verdict(contrast.verdict).into(),
    };
    judgement.contrasts.iter().map(contrast).collect()
}

fn sample_ratio(judgement: &Judgement) -> wire::ExperimentSampleRatio {
    wire::ExperimentSampleRatio {
        sequential_p: judgement.sample_ratio.sequential_p,
        chi_square_p: judgement.sample_ratio.chi_square_p,
    }
}

fn verdict(verdict: ExperimentVerdict) -> wire::ExperimentVerdict {
    match verdict {
        ExperimentVerdict::TooEarly => wire::ExperimentVerdict::TooEarly,
        ExperimentVerdict::TooFewOutcomes => wire::ExperimentVerdict::TooFewOutcomes,
        ExperimentVerdict::NoDifferenceYet => wire::ExperimentVerdict::NoDifferenceYet,
        ExperimentVerdict::Higher => wire::ExperimentVerdict::Higher,
        ExperimentVerdict::Lower => wire::ExperimentVerdict::Lower,
        ExperimentVerdict::NotTrusted => wire::ExperimentVerdict::NotTrusted,
    }
}

fn arm_result(spec: &ExperimentSpec, at: usize, arm: &ArmReading) -> wire::ExperimentArmResult {
    let metric = |(metric, &conversions): (&ExperimentWord, &u64)| {
        let proportion = Proportion::new(conversions, arm.exposures);
        let interval = proportion.map(|proportion| proportion.wilson_interval(spec.design.level));
        wire::ExperimentMetricResult {
            metric: metric.to_string(),
            conversions,
            rate: proportion.map(Proportion::rate),
            lower: interval.map(|interval| interval.lower),
            upper: interval.map(|interval| interval.upper),
        }
    };
    wire::ExperimentArmResult {
        arm: spec.arms[at].to_string(),
        declared_share: spec.design.weights.share(at),
        exposures: arm.exposures,
        metrics: spec.metrics.iter().zip(&arm.conversions).map(metric).collect(),
    }
}

fn doubt(spec: &ExperimentSpec, found: &ExperimentComparison, doubt: &ExperimentDoubt) -> wire::ExperimentDoubt {
    use wire::ExperimentDoubtKind as Kind;
    let (kind, counter_name, text) = match doubt {
        ExperimentDoubt::SampleRatioMismatch(p) => {
            (Kind::SampleRatioMismatch, String::new(), format!("split {}; {}", split(spec, found), p_text(*p)))
        }
        ExperimentDoubt::CounterFell(fell) => {
            let text = format!("{} fell by {} at {}", fell.counter, fell.lost, time::text(fell.time));
            (Kind::CounterFell, fell.counter.to_string(), text)
        }
        ExperimentDoubt::ConversionsAboveExposures(arm) => {
            let reading = &found.arms[*arm];
            let text = format!(
                "{} has {} conversions and {} exposures",
                spec.arms[*arm], reading.conversions[0], reading.exposures
            );
            let counter = spec.counter(&spec.arms[*arm], spec.metrics[0].as_str());
            (Kind::ConversionsAboveExposures, counter.as_str().to_owned(), text)
        }
        ExperimentDoubt::UnwatchedEstimates => {
            let text = "the counters are best effort, and nobody watched whether they lost adds".to_owned();
            (Kind::UnwatchedEstimates, String::new(), text)
        }
        ExperimentDoubt::NegativeCount(counter, count) => {
            (Kind::NegativeCount, counter.to_string(), format!("{counter} is {count}, and is shown as 0"))
        }
        ExperimentDoubt::PartialCount(counter) => {
            let text = format!("{counter} has more new adds than a read may sum; look again in some seconds");
            (Kind::PartialCount, counter.to_string(), text)
        }
    };
    wire::ExperimentDoubt { kind: kind.into(), counter_name, text }
}

/// The shares of the arms in percent, found and declared: `50.9 : 49.1, declared 50.0 : 50.0`. They have as many digits
/// as it takes to see that they differ.
fn split(spec: &ExperimentSpec, found: &ExperimentComparison) -> String {
    // Shares of more exposures than a float holds exactly still have their first three digits.
    let exposures: Vec<f64> = found.arms.iter().map(|arm| arm.exposures as f64).collect();
    let total: f64 = exposures.iter().sum();
    let found: Vec<f64> = exposures.iter().map(|count| count / total).collect();
    let declared: Vec<f64> = (0..spec.arms.len()).map(|arm| spec.design.weights.share(arm)).collect();
    split_text(&found, &declared)
}

/// How many digits a share in percent may have behind its point.
const SHARE_DIGITS: RangeInclusive<usize> = 1..=9;

fn split_text(found: &[f64], declared: &[f64]) -> String {
    let text = |shares: &[f64], digits: usize| {
        shares.iter().map(|share| format!("{:.digits$}", share * 100.0)).collect::<Vec<_>>().join(" : ")
    };
    let texts = |digits| (text(found, digits), text(declared, digits));
    let (found, declared) =
        SHARE_DIGITS.map(texts).find(|(found, declared)| found != declared).unwrap_or_else(|| texts(1));
    format!("{found}, declared {declared}")
}

/// The banners of a look: what a reader must know besides the numbers.
fn banners(spec: &ExperimentSpec, found: &ExperimentComparison) -> Vec<String> {
    let namespace = &spec.namespace;
    let estimate = (found.estimates != Estimates::None)
        .then(|| format!("ESTIMATE: namespace {namespace} is BEST_EFFORT, and may lose adds of one arm alone"));
    let repeats = match spec.unit {
        ExperimentUnit::User => None,
        ExperimentUnit::Session => Some("a user may have several sessions"),
        ExperimentUnit::Event => Some("a user may cause many events"),
    };
    let repeats = repeats.map(|why| {
        format!("UNITS REPEAT: {why}, so the intervals are narrower than the truth; {EXPOSURES} are not users")
    });
    [estimate, repeats, nothing_counted(spec, found), without_rate(spec, found)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_as_many_digits_as_it_takes_to_see_that_they_differ() {
        let half = [0.5, 0.5];
        assert_eq!(split_text(&[0.478, 0.522], &half), "47.8 : 52.2, declared 50.0 : 50.0");
        assert_eq!(split_text(&[0.500_1, 0.499_9], &half), "50.01 : 49.99, declared 50.00 : 50.00");
        assert_eq!(split_text(&[0.500_012, 0.499_988], &half), "50.001 : 49.999, declared 50.000 : 50.000");
        assert_eq!(split_text(&half, &half), "50.0 : 50.0, declared 50.0 : 50.0", "they are equal");
    }
}
