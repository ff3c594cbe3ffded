//! The rate of an arm, and the difference of two rates at one look.

use super::level::SignificanceLevel;

/// Conversions among exposures: at least one exposure, and no more conversions than that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proportion {
    conversions: u64,
    exposures: u64,
}

/// A range of rates, or of differences between rates, with both ends in it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Interval {
    /// From -1 to `upper`.
    pub lower: f64,
    /// From `lower` to 1.
    pub upper: f64,
}

impl Interval {
    /// A difference and what lies around it; no difference is beyond -1 or 1.
    pub(super) fn around(difference: f64, half: f64) -> Self {
        Self { lower: (difference - half).max(-1.0), upper: (difference + half).min(1.0) }
    }
}

impl Proportion {
    /// None without exposures, or with more conversions than exposures.
    pub fn new(conversions: u64, exposures: u64) -> Option<Self> {
        (exposures > 0 && conversions <= exposures).then_some(Self { conversions, exposures })
    }

    /// The share of exposures that converted, from 0 to 1.
    pub fn rate(self) -> f64 {
        real(self.conversions) / real(self.exposures)
    }

    /// The rarer of both outcomes.
    pub fn rarer_outcome(self) -> u64 {
        self.conversions.min(self.exposures - self.conversions)
    }

    /// The exposures that converted.
    pub fn conversions(self) -> u64 {
        self.conversions
    }

    /// The exposures.
    pub fn exposures(self) -> u64 {
        self.exposures
    }

    /// The variance of the rate, by the binomial distribution.
    pub(super) fn variance(self) -> f64 {
        self.rate() * (1.0 - self.rate()) / real(self.exposures)
    }

    /// The score interval of the rate, for one look (E. B. Wilson, 1927; method 3 of Newcombe, Statistics in Medicine
    /// 17, 1998, p. 857).
    pub fn wilson_interval(self, level: SignificanceLevel) -> Interval {
        let (rate, exposures, z) = (self.rate(), real(self.exposures), level.standard_errors());
        let scale = 1.0 + z * z / exposures;
        let middle = (rate + z * z / (2.0 * exposures)) / scale;
        let half = z / scale * (rate * (1.0 - rate) / exposures + z * z / (4.0 * exposures * exposures)).sqrt();
        // The ends are exact where every outcome is the same; rounding must not say otherwise.
        let lower = if self.conversions == 0 { 0.0 } else { (middle - half).max(0.0) };
        let upper = if self.conversions == self.exposures { 1.0 } else { (middle + half).min(1.0) };
        Interval { lower, upper }
    }
}

/// The interval of `first - second`, for one look (method 10 of Newcombe, Statistics in Medicine 17, 1998, p. 873).
pub fn newcombe_interval(first: Proportion, second: Proportion, level: SignificanceLevel) -> Interval {
    let (one, two) = (first.wilson_interval(level), second.wilson_interval(level));
    let difference = first.rate() - second.rate();
    let below = (first.rate() - one.lower).hypot(two.upper - second.rate());
    let above = (one.upper - first.rate()).hypot(second.rate() - two.lower);
    Interval { lower: (difference - below).max(-1.0), upper: (difference + above).min(1.0) }
}

/// A count as a real number. Counts above 2^53 lose their last digits, which no rate shows.
pub(super) fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn level() -> SignificanceLevel {
        SignificanceLevel::new(0.05).unwrap()
    }

    fn proportion(conversions: u64, exposures: u64) -> Proportion {
        Proportion::new(conversions, exposures).unwrap()
    }

    #[test]
    fn rates_have_the_intervals_that_newcombe_published() {
        let published =
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)];
        for (conversions, exposures, lower, upper) in published {
            let found = proportion(conversions, exposures).wilson_interval(level());
            assert!((found.lower - lower).abs() <= 0.000_05, "{conversions}/{exposures}: {found:?}");
            assert!((found.upper - upper).abs() <= 0.000_05, "{conversions}/{exposures}: {found:?}");
        }
    }

    #[test]
    fn differences_have_the_intervals_that_newcombe_published() {
        let published = [
            ((56, 70), (48, 80), 0.0524, 0.3339),
            ((9, 10), (3, 10), 0.1705, 0.8090),
            ((6, 7), (2, 7), 0.0582, 0.8062),
            ((5, 56), (0, 29), -0.0381, 0.1926),
            ((10, 10), (0, 20), 0.6791, 1.0),
        ];
        for ((x1, n1), (x2, n2), lower, upper) in published {
            let found = newcombe_interval(proportion(x1, n1), proportion(x2, n2), level());
            assert!((found.lower - lower).abs() <= 0.000_05, "{x1}/{n1} - {x2}/{n2}: {found:?}");
            assert!((found.upper - upper).abs() <= 0.000_05, "{x1}/{n1} - {x2}/{n2}: {found:?}");
        }
    }

    #[test]
    fn a_proportion_has_exposures_and_no_more_conversions() {
        assert_eq!(Proportion::new(0, 0), None);
        assert_eq!(Proportion::new(3, 2), None);
        assert_eq!(proportion(2, 2).rarer_outcome(), 0);
        assert_eq!(proportion(2, 5).rarer_outcome(), 2);
    }

    proptest! {
        /// The score interval is where the rate differs from the true one by at most z of the true one's standard
        /// errors.
        #[test]
        fn the_ends_of_a_wilson_interval_solve_the_score_equation(exposures in 1_u64..10_000, share in 0.0..=1.0_f64) {
            let conversions = (real(exposures) * share) as u64;
            let arm = proportion(conversions, exposures);
            let found = arm.wilson_interval(level());
            prop_assert!(found.lower <= arm.rate() && arm.rate() <= found.upper);
            for end in [found.lower, found.upper].into_iter().filter(|end| *end > 0.0 && *end < 1.0) {
                let score = (arm.rate() - end).abs() / (end * (1.0 - end) / real(exposures)).sqrt();
                prop_assert!((score - 1.959_963_985).abs() < 1e-6, "{score}");
            }
        }

        #[test]
        fn the_opposite_difference_has_the_opposite_interval(
            n1 in 1_u64..500, n2 in 1_u64..500, x1 in 0_u64..500, x2 in 0_u64..500,
        ) {
            let (first, second) = (proportion(x1 % (n1 + 1), n1), proportion(x2 % (n2 + 1), n2));
            let (forth, back) = (newcombe_interval(first, second, level()), newcombe_interval(second, first, level()));
            prop_assert!((forth.lower + back.upper).abs() < 1e-12 && (forth.upper + back.lower).abs() < 1e-12);
        }
    }
}
