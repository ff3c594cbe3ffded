//! The exposures that an experiment needs to find an effect.

use statrs::distribution::ContinuousCDF;

use super::always_valid::standard_errors_at_planned_end;
use super::level::{SignificanceLevel, standard_normal};
use tallystone_domain::limits::PLANNED_EXPOSURES_MAX;
use tallystone_domain::{Reason, Reject};

/// The exposures of each of two equal arms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedSize {
    /// For one look, at the end.
    pub fixed: u64,
    /// For an interval that holds at every look.
    pub always_valid: u64,
}

/// The size to find a change from `baseline` to `baseline + effect` with a probability of `power`: two proportions, a
/// normal test with the variance of the baseline (Evan Miller, "Sample size calculator": 20 to 25 % needs 1,030).
///
/// Fails unless both rates are between 0 and 1, they differ, the power is between 0.5 and 1, and an arm that is as
/// large as `PLANNED_EXPOSURES_MAX` is enough.
pub fn plan(baseline: f64, effect: f64, power: f64, level: SignificanceLevel) -> Result<PlannedSize, Reject> {
    let raised = baseline + effect;
    if !(baseline > 0.0 && baseline < 1.0) {
        return Err(refuse("baseline", format!("baseline is {baseline}; it is a rate between 0 and 1, as 0.05")));
    }
    if !(raised > 0.0 && raised < 1.0) || effect == 0.0 {
        let what =
            format!("effect is {effect}; it must change the baseline {baseline} to another rate between 0 and 1");
        return Err(refuse("effect", what));
    }
    if !(0.5..1.0).contains(&power) {
        return Err(refuse("power", format!("power is {power}; it must be at least 0.5 and below 1, as 0.8")));
    }
    let no_effect = (2.0 * baseline * (1.0 - baseline)).sqrt();
    let with_effect = (baseline * (1.0 - baseline) + raised * (1.0 - raised)).sqrt();
    let found = standard_normal().inverse_cdf(power);
    let size = |decides: f64| {
        let root = (decides * no_effect + found * with_effect) / effect;
        let size = (root * root).round().max(1.0);
        if size <= PLANNED_EXPOSURES_MAX as f64 {
            Ok(size as u64)
        } else {
            let what = format!(
                "effect is {effect}; to find it takes more than {PLANNED_EXPOSURES_MAX} exposures for each arm"
            );
            Err(refuse("effect", what))
        }
    };
    let (fixed, always_valid) = (size(level.standard_errors())?, size(standard_errors_at_planned_end(level))?);
    Ok(PlannedSize { fixed, always_valid })
}

fn refuse(field: &str, what: String) -> Reject {
    Reject::new(Reason::InvalidArgument, what.clone()).at(field, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level() -> SignificanceLevel {
        SignificanceLevel::new(0.05).unwrap()
    }

    #[test]
    fn sizes_equal_the_published_ones() {
        let sizes = |baseline, effect| plan(baseline, effect, 0.8, level()).unwrap();
        assert_eq!(sizes(0.2, 0.05), PlannedSize { fixed: 1_030, always_valid: 1_959 });
        assert_eq!(sizes(0.05, 0.005), PlannedSize { fixed: 30_244, always_valid: 57_692 });
        assert_eq!(sizes(0.1, -0.02), PlannedSize { fixed: 3_434, always_valid: 6_627 });
    }

    #[test]
    fn a_plan_needs_two_different_rates_and_a_power() {
        let refused = [
            (0.0, 0.1, 0.8),
            (1.0, -0.1, 0.8),
            (0.2, 0.0, 0.8),
            (0.2, 0.8, 0.8),
            (0.2, -0.2, 0.8),
            (0.2, 0.05, 0.49),
            (0.2, 0.05, 1.0),
            (f64::NAN, 0.05, 0.8),
            (0.2, f64::NAN, 0.8),
            (0.2, 0.05, f64::NAN),
            (0.2, 1e-9, 0.8), // it would take more exposures than a float can tell apart
        ];
        for (baseline, effect, power) in refused {
            assert!(plan(baseline, effect, power, level()).is_err(), "{baseline} {effect} {power}");
        }
    }
}
