//! The statements that may be made about an experiment at a look.

use super::always_valid::always_valid_interval;
use super::exact::exact_p;
use super::level::SignificanceLevel;
use super::proportion::{Interval, Proportion, newcombe_interval, real};
use super::sample_ratio::{ArmWeights, SampleRatio};
use tallystone_domain::time::Timestamp;

/// The rarer outcome of an arm, conversion or not, must have happened this often: below it, a normal approximation
/// misleads.
const OUTCOMES_MIN: u64 = 50;

/// How often a reader may look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExperimentMode {
    /// Any number of times, and stop at any of them.
    AlwaysValid,
    /// Once, when the planned size is reached.
    Fixed,
}

/// The design of an experiment, which is fixed at its start. The first arm is the control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExperimentDesign {
    /// The declared shares of the arms.
    pub weights: ArmWeights,
    /// The probability that any arm is wrongly decided.
    pub level: SignificanceLevel,
    /// The planned exposures of all arms together, at least 1.
    pub planned: u64,
    /// How often a reader may look.
    pub mode: ExperimentMode,
}

/// The totals of an arm since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArmTotals {
    /// How often the arm was shown.
    pub exposures: u64,
    /// How often its primary metric happened.
    pub conversions: u64,
}

/// A counter whose total became smaller, which a total never does by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FallenCounter {
    /// The counter, without its experiment: `B/exposures`.
    pub counter: Box<str>,
    /// When the smaller total was read.
    pub time: Timestamp,
    /// By how much it fell.
    pub lost: u64,
}

/// The reason why the numbers carry no answer.
#[derive(Clone, PartialEq, Debug)]
pub enum ExperimentDoubt {
    /// The arms were filled otherwise than declared; the p-value of the sequential test.
    SampleRatioMismatch(f64),
    /// A counter lost adds.
    CounterFell(FallenCounter),
    /// The arm, counted from 0, has more conversions than exposures.
    ConversionsAboveExposures(usize),
    /// The counters may lose adds, and nobody watched whether they did.
    UnwatchedEstimates,
    /// The counter is below 0; its count.
    NegativeCount(Box<str>, i64),
    /// The counter has more new adds than a read may sum.
    PartialCount(Box<str>),
}

/// The statement that may be made about an arm against the control.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExperimentVerdict {
    /// Before the planned size: too few conversions or non-conversions in one of both arms, or FIXED mode.
    TooEarly,
    /// The planned size is reached, and one of both arms has too few conversions or non-conversions for an interval
    /// that holds at every look.
    TooFewOutcomes,
    /// The interval contains 0.
    NoDifferenceYet,
    /// The rate is higher than that of the control.
    Higher,
    /// The rate is lower than that of the control.
    Lower,
    /// There is a doubt.
    NotTrusted,
}

/// An arm against the control.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ArmContrast {
    /// The arm, counted from 0; never the control.
    pub arm: usize,
    /// Its rate less that of the control; none where one of both has no rate.
    pub difference: Option<f64>,
    /// The interval in which the true difference lies; none where it is too early to say, or an outcome is too rare.
    pub interval: Option<Interval>,
    /// The statement that may be made.
    pub verdict: ExperimentVerdict,
}

/// All that may be said at a look.
#[derive(Clone, PartialEq, Debug)]
pub struct Judgement {
    /// Whether the arms were filled as declared.
    pub sample_ratio: SampleRatio,
    /// The reasons why no answer is given; empty if the numbers are trusted.
    pub doubts: Vec<ExperimentDoubt>,
    /// The arms but the control, in their order.
    pub contrasts: Vec<ArmContrast>,
}

/// Judges the totals of a look, one for each arm. `lowest_ratio_p` is the lowest sequential p-value of the sample ratio
/// at all looks before, 1 for none. `known` are the doubts that the totals do not show.
pub fn judge(
    design: &ExperimentDesign,
    totals: &[ArmTotals],
    lowest_ratio_p: f64,
    known: &[ExperimentDoubt],
) -> Judgement {
    debug_assert_eq!(design.weights.arms(), totals.len(), "a total for each arm");
    let exposures: Vec<u64> = totals.iter().map(|arm| arm.exposures).collect();
    let sample_ratio = SampleRatio::test(&design.weights, &exposures, lowest_ratio_p);
    let mut doubts = known.to_vec();
    let above = |arm: &usize| totals[*arm].conversions > totals[*arm].exposures;
    doubts.extend((0..totals.len()).filter(above).map(ExperimentDoubt::ConversionsAboveExposures));
    if sample_ratio.is_mismatch() {
        doubts.push(ExperimentDoubt::SampleRatioMismatch(sample_ratio.sequential_p));
    }
    let planned_size_is_reached =
        exposures.iter().map(|count| u128::from(*count)).sum::<u128>() >= design.planned.into();
    let contrast = |arm: usize| {
        let mut contrast = contrast(design, totals, arm, planned_size_is_reached);
        if !doubts.is_empty() {
            contrast.verdict = ExperimentVerdict::NotTrusted;
        }
        contrast
    };
    let contrasts = (1..totals.len()).map(contrast).collect();
    Judgement { sample_ratio, doubts, contrasts }
}

/// An arm against the control, as if no doubt stood.
fn contrast(design: &ExperimentDesign, totals: &[ArmTotals], arm: usize, planned_size_is_reached: bool) -> ArmContrast {
    let proportion = |arm: usize| Proportion::new(totals[arm].conversions, totals[arm].exposures);
    let too_early = |difference| ArmContrast { arm, difference, interval: None, verdict: ExperimentVerdict::TooEarly };
    let (Some(treated), Some(control)) = (proportion(arm), proportion(0)) else {
        return too_early(None);
    };
    let difference = treated.rate() - control.rate();
    let level = design.level.split(totals.len() - 1);
    if treated.rarer_outcome().min(control.rarer_outcome()) < OUTCOMES_MIN {
        let verdict = match design.mode {
            _ if !planned_size_is_reached => ExperimentVerdict::TooEarly,
            // Valid for one look only.
            ExperimentMode::Fixed if exact_p(treated, control) >= level.value() => ExperimentVerdict::NoDifferenceYet,
            ExperimentMode::Fixed if difference > 0.0 => ExperimentVerdict::Higher,
            ExperimentMode::Fixed => ExperimentVerdict::Lower,
            ExperimentMode::AlwaysValid => ExperimentVerdict::TooFewOutcomes,
        };
        return ArmContrast { arm, difference: Some(difference), interval: None, verdict };
    }
    let interval = match design.mode {
        ExperimentMode::Fixed if !planned_size_is_reached => return too_early(Some(difference)),
        ExperimentMode::Fixed => newcombe_interval(treated, control, level),
        ExperimentMode::AlwaysValid => {
            let planned = real(design.planned) * (design.weights.share(0) + design.weights.share(arm));
            always_valid_interval(treated, control, planned, level)
        }
    };
    let verdict = match interval {
        Interval { lower, .. } if lower > 0.0 => ExperimentVerdict::Higher,
        Interval { upper, .. } if upper < 0.0 => ExperimentVerdict::Lower,
        Interval { .. } => ExperimentVerdict::NoDifferenceYet,
    };
    ArmContrast { arm, difference: Some(difference), interval: Some(interval), verdict }
}
