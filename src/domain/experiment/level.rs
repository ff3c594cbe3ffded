//! The share of experiments without an effect that may still find one.

use statrs::distribution::{ContinuousCDF, Normal};

use tallystone_domain::{Reason, Reject};

/// The probability alpha of a false decision: above 0, at most 0.5.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct SignificanceLevel(f64);

// A level is a number, so it equals itself.
impl Eq for SignificanceLevel {}

impl SignificanceLevel {
    /// Fails unless the level is above 0 and at most 0.5.
    pub fn new(alpha: f64) -> Result<Self, Reject> {
        if alpha > 0.0 && alpha <= 0.5 {
            return Ok(Self(alpha));
        }
        let what = format!("alpha is {alpha}; it must be above 0 and at most 0.5, as 0.05");
        Err(Reject::new(Reason::InvalidArgument, what.clone()).at("alpha", what))
    }

    /// The probability.
    pub fn value(self) -> f64 {
        self.0
    }

    /// The level of each of some comparisons, so that all together err with at most this level (Bonferroni).
    #[must_use]
    pub fn split(self, comparisons: usize) -> Self {
        Self(self.0 / comparisons.max(1) as f64)
    }

    /// The half width of a two-sided interval in standard errors, for one look.
    pub(super) fn standard_errors(self) -> f64 {
        standard_normal().inverse_cdf(1.0 - self.0 / 2.0)
    }
}

/// The normal distribution with mean 0 and variance 1.
pub(super) fn standard_normal() -> Normal {
    Normal::new(0.0, 1.0).expect("1 is a valid standard deviation")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_above_zero_and_at_most_a_half() {
        for refused in [0.0, -0.05, 0.500_001, 1.0, f64::NAN, f64::INFINITY] {
            assert!(SignificanceLevel::new(refused).is_err(), "{refused}");
        }
        for taken in [1e-9, 0.05, 0.5] {
            assert!(SignificanceLevel::new(taken).is_ok(), "{taken}");
        }
    }

    #[test]
    fn comparisons_share_the_level() {
        let level = SignificanceLevel::new(0.05).unwrap();
        assert!((level.split(4).value() - 0.0125).abs() < 1e-15);
        assert_eq!(level.split(0), level);
    }
}
