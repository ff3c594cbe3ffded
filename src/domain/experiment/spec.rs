//! The definition of an experiment: its arms, its metrics, and the counters that keep them.

use std::collections::BTreeSet;
use std::fmt;

use super::verdict::ExperimentDesign;
use tallystone_domain::access::{AccessDenial, Asked, AskedName, CallRights};
use tallystone_domain::counter::{CounterName, NamespaceName};
use tallystone_domain::limits::{
    COUNTER_NAME_BYTES_MAX, EXPERIMENT_ARMS_MAX, EXPERIMENT_METRICS_MAX, EXPERIMENT_WORD_BYTES_MAX,
};
use tallystone_domain::{Reason, Reject};

/// The metric that counts how often an arm was shown.
pub const EXPOSURES: &str = "exposures";

/// The beginning of the names of the counters of all experiments.
const PREFIX: &str = "exp";

// A counter is the prefix and three words.
const _: () = assert!(PREFIX.len() + 3 * (1 + EXPERIMENT_WORD_BYTES_MAX) <= COUNTER_NAME_BYTES_MAX);

/// The name of an experiment, an arm or a metric: `[A-Za-z0-9][A-Za-z0-9._-]*`, at most 64 bytes. Counters consist of
/// them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExperimentWord(Box<str>);

impl ExperimentWord {
    /// Validates a name, which a field of the request holds.
    pub fn new(text: &str, field: &str) -> Result<Self, Reject> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins_well = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if begins_well && text.len() <= EXPERIMENT_WORD_BYTES_MAX && text.bytes().all(allowed) {
            return Ok(Self(text.into()));
        }
        let what = format!(
            "names of experiments, arms and metrics have 1 to {EXPERIMENT_WORD_BYTES_MAX} letters, digits and . _ -, and \
             begin with a letter or digit; letters are A-Z and a-z"
        );
        Err(refuse(field, what))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ExperimentWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The unit that is counted once, which says how far exposures depend on each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExperimentUnit {
    /// Each user once.
    User,
    /// Each session once; a user may have several.
    Session,
    /// Each event; a user may cause many.
    Event,
}

/// An experiment. The first arm is the control.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExperimentSpec {
    /// The name, which is a part of its counters.
    pub name: ExperimentWord,
    /// The namespace of its counters.
    pub namespace: NamespaceName,
    /// The names of the arms, as many as the design has weights.
    pub arms: Vec<ExperimentWord>,
    /// The metrics. The first is the primary one, which the verdict is about.
    pub metrics: Vec<ExperimentWord>,
    /// The unit that is counted once.
    pub unit: ExperimentUnit,
    /// The design, which the statistics need.
    pub design: ExperimentDesign,
}

impl ExperimentSpec {
    /// Refuses an experiment whose counters would mean two things, or with more arms or metrics than it may have.
    pub fn check(&self) -> Result<(), Reject> {
        if !(2..=EXPERIMENT_ARMS_MAX).contains(&self.arms.len()) || self.arms.len() != self.design.weights.arms() {
            return Err(refuse(
                "arms",
                format!("an experiment has 2 to {EXPERIMENT_ARMS_MAX} arms, the control first"),
            ));
        }
        if !(1..=EXPERIMENT_METRICS_MAX).contains(&self.metrics.len()) {
            let what = format!("an experiment has a metric, and at most {} secondary ones", EXPERIMENT_METRICS_MAX - 1);
            return Err(refuse("metric", what));
        }
        if self.metrics.iter().any(|metric| metric.as_str() == EXPOSURES) {
            return Err(refuse("metric", format!("{EXPOSURES} is counted for every arm; it is no metric of its own")));
        }
        for (field, words) in [("arms", &self.arms), ("secondary_metrics", &self.metrics)] {
            if words.iter().collect::<BTreeSet<_>>().len() < words.len() {
                return Err(refuse(field, "a name occurs twice".to_owned()));
            }
        }
        if self.design.planned == 0 {
            return Err(refuse(
                "planned_exposures",
                "planned_exposures must be at least 1; PlanExperiment says how many".to_owned(),
            ));
        }
        Ok(())
    }

    /// All counters, arm by arm. Those of an arm are its metrics in their order, then its exposures.
    pub fn counters(&self) -> Vec<CounterName> {
        let metrics: Vec<&str> = self.metrics.iter().map(ExperimentWord::as_str).chain([EXPOSURES]).collect();
        let of_arm = |arm| metrics.iter().map(move |metric| self.counter(arm, metric));
        self.arms.iter().flat_map(of_arm).collect()
    }

    /// A counter without its experiment: `B/exposures`.
    pub fn short_name<'a>(&self, counter: &'a CounterName) -> &'a str {
        let whole = counter.as_str();
        whole.strip_prefix(&format!("{PREFIX}/{}/", self.name)).unwrap_or(whole)
    }

    /// The counter of a metric in an arm: `exp/<name>/<arm>/<metric>`.
    pub fn counter(&self, arm: &ExperimentWord, metric: &str) -> CounterName {
        let name = format!("{PREFIX}/{}/{arm}/{metric}", self.name);
        CounterName::new(&name)
            .expect("three words fit into the name of a counter, which may contain all their characters")
    }
}

/// An experiment reads all its counters.
impl AskedName for ExperimentSpec {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        let scope = rights.counters(Asked::new(self.namespace.clone()))?;
        let metrics = || self.metrics.iter().map(ExperimentWord::as_str).chain([EXPOSURES]);
        let mut counters = self.arms.iter().flat_map(|arm| metrics().map(move |metric| self.counter(arm, metric)));
        counters.try_for_each(|counter| scope.counter(Asked::new(counter)).map(drop))
    }
}

fn refuse(field: &str, what: String) -> Reject {
    Reject::new(Reason::InvalidArgument, what.clone()).at(field, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArmWeights, ExperimentMode, SignificanceLevel};

    fn word(text: &str) -> ExperimentWord {
        ExperimentWord::new(text, "name").unwrap()
    }

    fn spec(arms: &[&str], metrics: &[&str], planned: u64) -> ExperimentSpec {
        let weights = ArmWeights::new(&vec![1; arms.len().max(2)]).unwrap();
        let level = SignificanceLevel::new(0.05).unwrap();
        ExperimentSpec {
            name: word("checkout"),
            namespace: NamespaceName::new("default").unwrap(),
            arms: arms.iter().copied().map(word).collect(),
            metrics: metrics.iter().copied().map(word).collect(),
            unit: ExperimentUnit::User,
            design: ExperimentDesign { weights, level, planned, mode: ExperimentMode::AlwaysValid },
        }
    }

    #[test]
    fn words_are_parts_of_a_counter() {
        let longest = "a".repeat(EXPERIMENT_WORD_BYTES_MAX);
        for taken in ["A", "new-button", "v1.2_b", longest.as_str()] {
            assert!(ExperimentWord::new(taken, "name").is_ok(), "{taken}");
        }
        let too_long = "a".repeat(EXPERIMENT_WORD_BYTES_MAX + 1);
        for refused in ["", "-a", ".a", "a/b", "a=b", "a b", "ä", too_long.as_str()] {
            assert!(ExperimentWord::new(refused, "name").is_err(), "{refused}");
        }
        assert_eq!(
            spec(&["A", "B"], &["bought"], 1).counter(&word("B"), EXPOSURES).as_str(),
            "exp/checkout/B/exposures"
        );
    }

    #[test]
    fn an_experiment_has_distinct_arms_and_metrics() {
        assert_eq!(spec(&["A", "B"], &["bought", "opened"], 1).check(), Ok(()));
        let nine = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
        let refused = [
            spec(&["A"], &["bought"], 1),
            spec(&nine, &["bought"], 1),
            spec(&["A", "A"], &["bought"], 1),
            spec(&["A", "B"], &[], 1),
            spec(&["A", "B"], &["bought", "bought"], 1),
            spec(&["A", "B"], &["exposures"], 1),
            spec(&["A", "B"], &["bought"], 0),
        ];
        for spec in refused {
            assert!(spec.check().is_err(), "{spec:?}");
        }
    }
}
