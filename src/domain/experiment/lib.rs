//! Experiments: what the totals of arms allow a reader to say, however often the reader looks.
//!
//! `proportion` has rates, their intervals and the interval of a difference at one look. `always_valid` has the
//! interval of a difference that holds at every look, `exact` the comparison of outcomes that are too rare for both.
//! `sample_ratio` tests whether the arms were filled as declared. `planned_size` says how many exposures an experiment
//! needs. `spec` says what an experiment is, `entry` what is kept of it. `verdict` combines the statistics, and
//! withholds an answer that the counters cannot carry. Everything is computed from totals; nothing here knows a user.
//! Invariant: no verdict is HIGHER or LOWER while there is a doubt.

mod always_valid;
mod entry;
mod exact;
#[cfg(test)]
mod laws;
mod level;
mod planned_size;
mod proportion;
mod sample_ratio;
mod spec;
mod verdict;

pub use always_valid::{always_valid_interval, width_against_fixed};
pub use entry::{CatalogExperiment, ExperimentId, ExperimentSettings};
pub use level::SignificanceLevel;
pub use planned_size::{PlannedSize, plan};
pub use proportion::{Interval, Proportion, newcombe_interval};
pub use sample_ratio::{ArmWeights, SampleRatio, p_text};
pub use spec::{EXPOSURES, ExperimentSpec, ExperimentUnit, ExperimentWord};
pub use verdict::{
    ArmContrast, ArmTotals, ExperimentDesign, ExperimentDoubt, ExperimentMode, ExperimentVerdict, FallenCounter,
    Judgement, judge,
};
