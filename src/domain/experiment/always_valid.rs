//! The interval of a difference that holds at every look: an asymptotic confidence sequence.
//!
//! Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform central limit theory and asymptotic confidence
//! sequences": equation 9 for a mean of n outcomes with the estimated variance of one outcome, and equation 161 for its
//! parameter rho. The variance of a difference of rates, times the exposures of both arms, takes the place of the
//! variance of one outcome.

use super::level::SignificanceLevel;
use super::proportion::{Interval, Proportion, real};

/// The interval of `first - second`, valid at any number of looks, and narrowest against its growth at the planned
/// exposures of both arms (at least 1).
pub fn always_valid_interval(
    first: Proportion,
    second: Proportion,
    planned: f64,
    level: SignificanceLevel,
) -> Interval {
    let exposures = real(first.exposures()) + real(second.exposures());
    let deviation = (exposures * (first.variance() + second.variance())).sqrt();
    Interval::around(first.rate() - second.rate(), deviation * half_width(exposures, planned, level))
}

/// How many times as wide as an interval for one look an always valid one is at the planned exposures: 1.55 for 0.05.
pub fn width_against_fixed(level: SignificanceLevel) -> f64 {
    standard_errors_at_planned_end(level) / level.standard_errors()
}

/// The half width at the planned exposures, in standard errors.
pub(super) fn standard_errors_at_planned_end(level: SignificanceLevel) -> f64 {
    half_width(1.0, 1.0, level)
}

/// The half width after some outcomes of variance 1 (equation 9).
fn half_width(outcomes: f64, planned: f64, level: SignificanceLevel) -> f64 {
    let rho = rho(planned, level);
    let grown = outcomes * rho * rho;
    (2.0 * (grown + 1.0) / (outcomes * grown) * ((grown + 1.0).sqrt() / level.value()).ln()).sqrt()
}

/// The parameter that makes the interval narrow at the planned outcomes (equation 161).
fn rho(planned: f64, level: SignificanceLevel) -> f64 {
    let surprise = -2.0 * level.value().ln();
    ((surprise + (1.0 + surprise).ln()) / planned.max(1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level() -> SignificanceLevel {
        SignificanceLevel::new(0.05).unwrap()
    }

    #[test]
    fn the_sequence_has_its_published_values() {
        assert!((rho(5_000.0, level()) - 0.039_840).abs() < 5e-7);
        assert!((half_width(5_000.0, 5_000.0, level()) - 0.042_924).abs() < 5e-7);
        assert!((half_width(10_000.0, 10_000.0, level()) - 0.030_352).abs() < 5e-7);
    }

    #[test]
    fn holding_at_every_look_costs_half_as_much_again() {
        assert!((width_against_fixed(level()) - 1.548_60).abs() < 5e-6);
    }

    #[test]
    fn the_plan_makes_the_interval_narrow_where_it_ends() {
        let at = |planned: f64| half_width(5_000.0, planned, level());
        assert!(at(5_000.0) < at(500.0) && at(5_000.0) < at(50_000.0));
    }
}
