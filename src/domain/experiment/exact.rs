//! The comparison of two rates by counting tables, for outcomes that are too rare for an interval.

use statrs::distribution::{Discrete, Hypergeometric};

use super::proportion::Proportion;

/// The p-value of Fisher's exact test that two arms have one rate: twice the smaller tail, at most 1 (R. A. Fisher,
/// "The Design of Experiments", 1935). For one look. Cost: O(the rarest outcome of both arms).
pub fn exact_p(first: Proportion, second: Proportion) -> f64 {
    let cells = |arm: Proportion, other: Proportion| {
        let failed = |of: Proportion| of.exposures() - of.conversions();
        [
            (arm.conversions(), arm.conversions() + other.conversions(), arm.exposures()),
            (failed(arm), failed(arm) + failed(other), arm.exposures()),
        ]
    };
    let rarest = cells(first, second).into_iter().chain(cells(second, first)).min_by_key(|(count, ..)| *count);
    let Some((count, outcomes, draws)) = rarest else { return 1.0 };
    let Ok(tables) = Hypergeometric::new(first.exposures() + second.exposures(), outcomes, draws) else { return 1.0 };
    let below: f64 = (0..count).map(|count| tables.ln_pmf(count).exp()).sum();
    let lower = below + tables.ln_pmf(count).exp();
    let upper = 1.0 - below;
    (2.0 * lower.min(upper)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn arm(conversions: u64, exposures: u64) -> Proportion {
        Proportion::new(conversions, exposures).expect("a proportion")
    }

    /// All tables with the same sums, counted one by one.
    fn counted(first: Proportion, second: Proportion) -> f64 {
        let choose = |n: u64, k: u64| (0..k).fold(1.0, |product, at| product * (n - at) as f64 / (at + 1) as f64);
        let (n, m) = (first.exposures(), second.exposures());
        let all = first.conversions() + second.conversions();
        let weight =
            |count: u64| if count > n || all - count > m { 0.0 } else { choose(n, count) * choose(m, all - count) };
        let sum = |counts: std::ops::RangeInclusive<u64>| counts.map(weight).sum::<f64>();
        let (whole, x) = (sum(0..=all), first.conversions());
        (2.0 * (sum(0..=x) / whole).min(sum(x..=all) / whole)).min(1.0)
    }

    #[test]
    fn an_arm_that_never_converts_is_told_from_one_that_does() {
        // 0 of 10 against 5 of 10: 2 * C(10, 5) / C(20, 5).
        assert!((exact_p(arm(0, 10), arm(5, 10)) - 2.0 * 252.0 / 15_504.0).abs() < 1e-9);
        assert!(exact_p(arm(0, 1_000), arm(30, 1_000)) < 1e-8);
        assert!((exact_p(arm(0, 1_000), arm(0, 1_000)) - 1.0).abs() < 1e-9, "nothing happened anywhere");
        assert!((exact_p(arm(3, 1_000), arm(3, 1_000)) - 1.0).abs() < 1e-9);
        assert!(exact_p(arm(2, 1_000_000_000), arm(40, 1_000_000_000)) < 1e-8);
    }

    proptest! {
        #[test]
        fn it_is_the_share_of_the_tables_that_are_as_far_apart(
            (n, m) in (1_u64..60, 1_u64..60),
            (x, y) in (0_u64..60, 0_u64..60),
        ) {
            let (first, second) = (arm(x.min(n), n), arm(y.min(m), m));
            prop_assert!((exact_p(first, second) - counted(first, second)).abs() < 1e-9);
            prop_assert!((exact_p(first, second) - exact_p(second, first)).abs() < 1e-9, "the arms take turns");
        }
    }
}
