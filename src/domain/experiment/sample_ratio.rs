//! Whether exposures fell on the arms as declared.
//!
//! The test that may be looked at any number of times is the Bayes factor of a Dirichlet-multinomial against the
//! declared shares (Lindon and Malek, "Anytime-valid inference for multinomial count data"): under the declared shares,
//! it exceeds 1/p at any look with a probability of at most p. The chi-square test comes with it because readers know
//! it. It is right for one look only, and decides nothing.

use statrs::distribution::{ChiSquared, ContinuousCDF};
use statrs::function::gamma::ln_gamma;

use super::proportion::real;
use tallystone_domain::{Reason, Reject};

/// How far the arms are expected from their declared shares if these are wrong: that of 1,000 exposures drawn before.
const CONCENTRATION: f64 = 1_000.0;

/// A p-value below this is a mismatch.
const MISMATCH_BELOW: f64 = 0.001;

/// The declared share of each arm, as whole numbers: two arms at least, each with a weight of at least 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArmWeights(Box<[u32]>);

impl ArmWeights {
    /// Fails with fewer than two arms, or with a weight of 0.
    pub fn new(weights: &[u32]) -> Result<Self, Reject> {
        if weights.len() >= 2 && weights.iter().all(|weight| *weight > 0) {
            return Ok(Self(weights.into()));
        }
        let what = "an experiment has at least 2 arms, each with a weight of at least 1";
        Err(Reject::new(Reason::InvalidArgument, what).at("arms", what))
    }

    /// The arms.
    pub fn arms(&self) -> usize {
        self.0.len()
    }

    /// The weights, in the order of the arms.
    pub fn weights(&self) -> &[u32] {
        &self.0
    }

    /// The declared share of an arm.
    pub fn share(&self, arm: usize) -> f64 {
        f64::from(self.0[arm]) / self.0.iter().map(|weight| f64::from(*weight)).sum::<f64>()
    }
}

/// The results of the tests of the sample ratio at a look.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SampleRatio {
    /// The lowest p-value of the sequential test at this look and all before it, from 0 to 1.
    pub sequential_p: f64,
    /// The p-value of the chi-square test, as if this were the only look.
    pub chi_square_p: f64,
}

/// A p-value as people read it: four digits, and not 0 where it is smaller.
pub fn p_text(p: f64) -> String {
    if p < 0.0001 { "p < 0.0001".to_owned() } else { format!("p {p:.4}") }
}

impl SampleRatio {
    /// Tests exposures, one number for each arm. `lowest_before` is the lowest sequential p-value of all looks before,
    /// 1 for none. Each look tests the total since the start, so the lowest is one valid p-value.
    pub fn test(weights: &ArmWeights, exposures: &[u64], lowest_before: f64) -> Self {
        debug_assert_eq!(weights.arms(), exposures.len(), "a total for each arm");
        let total: f64 = exposures.iter().map(|count| real(*count)).sum();
        if total == 0.0 {
            return Self { sequential_p: lowest_before, chi_square_p: 1.0 };
        }
        let mut ln_factor = ln_gamma(CONCENTRATION) - ln_gamma(CONCENTRATION + total);
        let mut chi_square = 0.0;
        for (arm, &count) in exposures.iter().enumerate() {
            let (share, count) = (weights.share(arm), real(count));
            let prior = CONCENTRATION * share;
            ln_factor += ln_gamma(prior + count) - ln_gamma(prior) - count * share.ln();
            chi_square += (count - total * share).powi(2) / (total * share);
        }
        let freedom = f64::from(u32::try_from(weights.arms() - 1).unwrap_or(u32::MAX));
        let distribution = ChiSquared::new(freedom).expect("two arms leave one degree of freedom");
        Self { sequential_p: (-ln_factor).exp().min(lowest_before), chi_square_p: distribution.sf(chi_square) }
    }

    /// Whether the arms were filled otherwise than declared.
    pub fn is_mismatch(self) -> bool {
        self.sequential_p < MISMATCH_BELOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() < 5e-5
    }

    #[test]
    fn a_published_mismatch_has_its_published_values() {
        let halves = ArmWeights::new(&[1, 1]).unwrap();
        let found = SampleRatio::test(&halves, &[821_588, 815_482], 1.0);
        // Published: 1.8e-6, and 4.6e-4 for the sequential test. The further digits: 30-digit arithmetic.
        assert!(near(found.chi_square_p, 1.821_793e-6), "{found:?}");
        assert!(near(found.sequential_p, 4.622_617e-4), "{found:?}");
        assert!(found.is_mismatch());
    }

    #[test]
    fn three_unequal_arms_are_tested_by_their_shares() {
        let weights = ArmWeights::new(&[2, 1, 1]).unwrap();
        let found = SampleRatio::test(&weights, &[5_000, 2_600, 2_400], 1.0);
        assert!(near(found.chi_square_p, 0.018_315_64), "{found:?}");
        assert!(near(found.sequential_p, 0.289_601_3), "{found:?}");
        assert!(!found.is_mismatch());
    }

    #[test]
    fn a_mismatch_that_was_seen_stays() {
        let halves = ArmWeights::new(&[1, 1]).unwrap();
        assert!((SampleRatio::test(&halves, &[500, 500], 0.000_5).sequential_p - 0.000_5).abs() < 1e-15);
        let nothing_yet = SampleRatio::test(&halves, &[0, 0], 1.0);
        assert_eq!(nothing_yet, SampleRatio { sequential_p: 1.0, chi_square_p: 1.0 });
    }

    #[test]
    fn a_small_p_value_is_not_shown_as_zero_or_as_a_power_of_ten() {
        assert_eq!([1.56e-166, 0.000_1, 0.25, 1.0].map(p_text), ["p < 0.0001", "p 0.0001", "p 0.2500", "p 1.0000"]);
    }

    #[test]
    fn weights_are_two_at_least_and_above_zero() {
        for refused in [&[][..], &[1], &[1, 0]] {
            assert!(ArmWeights::new(refused).is_err(), "{refused:?}");
        }
    }
}
