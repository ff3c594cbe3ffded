//! The laws on which a reader relies: doubts withhold a verdict, and looking often decides no more than it may.

use super::*;
use ExperimentVerdict::{Higher, Lower, NoDifferenceYet, NotTrusted, TooEarly, TooFewOutcomes};
use tallystone_domain::Timestamp;

fn design(weights: &[u32], mode: ExperimentMode, planned: u64) -> ExperimentDesign {
    let weights = ArmWeights::new(weights).expect("two weights above 0 at least");
    let level = SignificanceLevel::new(0.05).expect("a valid level");
    ExperimentDesign { weights, level, planned, mode }
}

fn arms(totals: &[(u64, u64)]) -> Vec<ArmTotals> {
    totals.iter().map(|&(conversions, exposures)| ArmTotals { exposures, conversions }).collect()
}

/// The verdicts at a first look.
fn verdicts(design: &ExperimentDesign, totals: &[(u64, u64)]) -> Vec<ExperimentVerdict> {
    judge(design, &arms(totals), 1.0, &[]).contrasts.iter().map(|contrast| contrast.verdict).collect()
}

#[test]
fn an_arm_is_higher_or_lower_where_the_interval_excludes_zero() {
    let always = design(&[1, 1], ExperimentMode::AlwaysValid, 20_000);
    assert_eq!(verdicts(&always, &[(500, 10_000), (700, 10_000)]), [Higher]);
    assert_eq!(verdicts(&always, &[(700, 10_000), (500, 10_000)]), [Lower]);
    assert_eq!(verdicts(&always, &[(500, 10_000), (520, 10_000)]), [NoDifferenceYet]);
}

#[test]
fn fifty_of_both_outcomes_are_needed_in_both_arms() {
    let always = design(&[1, 1], ExperimentMode::AlwaysValid, 2_001);
    assert_eq!(verdicts(&always, &[(49, 1_000), (300, 1_000)]), [TooEarly]);
    assert_eq!(verdicts(&always, &[(50, 1_000), (300, 1_000)]), [Higher]);
    assert_eq!(verdicts(&always, &[(300, 1_000), (951, 1_000)]), [TooEarly]);
    assert_eq!(verdicts(&always, &[(300, 1_000), (950, 1_000)]), [Higher]);
    assert_eq!(verdicts(&always, &[(0, 0), (0, 0)]), [TooEarly]);
}

#[test]
fn a_control_that_never_converts_is_not_too_early_for_ever() {
    let totals = [(0, 1_000), (300, 1_000)];
    let always = |planned| design(&[1, 1], ExperimentMode::AlwaysValid, planned);
    assert_eq!(verdicts(&always(2_001), &totals), [TooEarly]);
    assert_eq!(verdicts(&always(2_000), &totals), [TooFewOutcomes]);
    let fixed = design(&[1, 1], ExperimentMode::Fixed, 2_000);
    assert_eq!(verdicts(&fixed, &totals), [Higher]);
    assert_eq!(verdicts(&fixed, &[totals[1], totals[0]]), [Lower]);
    assert_eq!(verdicts(&fixed, &[(0, 1_000), (5, 1_000)]), [NoDifferenceYet], "p is 0.06");
    assert_eq!(verdicts(&fixed, &[(1_000, 1_000), (700, 1_000)]), [Lower], "outcomes without conversion are as rare");
    assert_eq!(verdicts(&design(&[1, 1], ExperimentMode::Fixed, 2_001), &totals), [TooEarly]);
}

#[test]
fn a_fixed_experiment_says_nothing_before_its_planned_size() {
    let fixed = |planned| design(&[1, 1], ExperimentMode::Fixed, planned);
    // One look decides what many looks must not: 5.0 against 5.7 %.
    let totals = [(500, 10_000), (570, 10_000)];
    assert_eq!(verdicts(&fixed(20_001), &totals), [TooEarly]);
    assert_eq!(judge(&fixed(20_001), &arms(&totals), 1.0, &[]).contrasts[0].interval, None);
    assert_eq!(verdicts(&fixed(20_000), &totals), [Higher]);
    assert_eq!(verdicts(&design(&[1, 1], ExperimentMode::AlwaysValid, 20_000), &totals), [NoDifferenceYet]);
}

#[test]
fn more_arms_share_the_level() {
    let totals = [(500, 10_000), (565, 10_000)];
    assert_eq!(verdicts(&design(&[1, 1], ExperimentMode::Fixed, 10), &totals), [Higher]);
    let four = [totals[0], totals[1], totals[0], totals[0]];
    let found = verdicts(&design(&[1, 1, 1, 1], ExperimentMode::Fixed, 10), &four);
    assert_eq!(found, [NoDifferenceYet, NoDifferenceYet, NoDifferenceYet]);
}

#[test]
fn every_doubt_withholds_the_verdict_and_is_named() {
    let always = design(&[1, 1], ExperimentMode::AlwaysValid, 20_000);
    let clear = [(500, 10_000), (700, 10_000)];
    let fell = ExperimentDoubt::CounterFell(FallenCounter {
        counter: "B/exposures".into(),
        time: Timestamp::MIN,
        lost: 8_112,
    });
    let cases = [
        (judge(&always, &arms(&clear), 1.0, std::slice::from_ref(&fell)), fell),
        (judge(&always, &arms(&clear), 0.000_9, &[]), ExperimentDoubt::SampleRatioMismatch(0.000_9)),
        (
            judge(&always, &arms(&[(500, 10_000), (10_001, 10_000)]), 1.0, &[]),
            ExperimentDoubt::ConversionsAboveExposures(1),
        ),
    ];
    for (found, doubt) in cases {
        assert_eq!(found.doubts, [doubt]);
        assert_eq!(found.contrasts[0].verdict, NotTrusted);
    }
    let lopsided = judge(&always, &arms(&[(500, 10_000), (700, 10_900)]), 1.0, &[]);
    assert!(matches!(lopsided.doubts[..], [ExperimentDoubt::SampleRatioMismatch(_)]), "{:?}", lopsided.doubts);
}

/// A fixed sequence of random numbers (SplitMix64, Steele, Lea and Flood 2014).
struct Chance(u64);

impl Chance {
    /// The next number, from 0 to below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let share = ((mixed ^ (mixed >> 31)) >> 11) as f64;
        share / (1_u64 << 53) as f64
    }
}

/// Draws from a binomial distribution: the probability of at most k, for each k.
struct Binomial(Vec<f64>);

impl Binomial {
    fn new(trials: u32, rate: f64) -> Self {
        let mut mass = (1.0 - rate).powi(trials.cast_signed());
        let mut sum = 0.0;
        let at_most = (0..=trials).map(|count| {
            sum += mass;
            mass *= f64::from(trials - count) / f64::from(count + 1) * rate / (1.0 - rate);
            sum
        });
        Self(at_most.collect())
    }

    fn draw(&self, chance: &mut Chance) -> u64 {
        let drawn = chance.next();
        self.0.partition_point(|at_most| *at_most <= drawn).min(self.0.len() - 1) as u64
    }
}

const HOURS: u32 = 30 * 24;
const USERS_AN_HOUR: u32 = 200;

/// An experiment of 30 days: visitors fall on A with a probability of `share`, and one in 20 converts on either.
struct SimulatedMonth {
    users_an_hour: u32,
    split: Binomial,
    /// By exposures of an arm in an hour.
    conversions: Vec<Binomial>,
}

impl SimulatedMonth {
    fn new(users_an_hour: u32, share: f64) -> Self {
        let conversions = (0..=users_an_hour).map(|exposures| Binomial::new(exposures, 0.05)).collect();
        Self { users_an_hour, split: Binomial::new(users_an_hour, share), conversions }
    }

    /// Looks each hour until `decided` says that it has seen enough, and says whether it did.
    fn looks(&self, chance: &mut Chance, mut decided: impl FnMut(&[ArmTotals; 2]) -> bool) -> bool {
        let mut totals = [ArmTotals { exposures: 0, conversions: 0 }; 2];
        (0..HOURS).any(|_| {
            let first = self.split.draw(chance);
            for (arm, exposures) in [first, u64::from(self.users_an_hour) - first].into_iter().enumerate() {
                totals[arm].exposures += exposures;
                let of_so_many = usize::try_from(exposures).expect("at most the users of an hour");
                totals[arm].conversions += self.conversions[of_so_many].draw(chance);
            }
            decided(&totals)
        })
    }
}

const RUNS: usize = 2_000;
const SEED: u64 = 25;

#[test]
fn at_most_one_in_twenty_experiments_without_an_effect_is_ever_decided() {
    let month = SimulatedMonth::new(USERS_AN_HOUR, 0.5);
    let always = design(&[1, 1], ExperimentMode::AlwaysValid, u64::from(HOURS * USERS_AN_HOUR));
    let mut chance = Chance(SEED);
    let decided = |totals: &[ArmTotals; 2]| {
        let found = judge(&always, totals, 1.0, &[]).contrasts[0].verdict;
        matches!(found, Higher | Lower)
    };
    let wrong = (0..RUNS).filter(|_| month.looks(&mut chance, decided)).count();
    assert!(wrong * 20 <= RUNS, "{wrong} of {RUNS} runs decided, seed {SEED}");
    // Looked at as often, an interval for one look decides far more than it says: so this test can fail.
    let peeking = |totals: &[ArmTotals; 2]| {
        let [a, b] = totals.map(|arm| Proportion::new(arm.conversions, arm.exposures).unwrap());
        let found = newcombe_interval(b, a, always.level);
        a.rarer_outcome().min(b.rarer_outcome()) >= 50 && (found.lower > 0.0 || found.upper < 0.0)
    };
    let misled = (0..100).filter(|_| month.looks(&mut chance, peeking)).count();
    assert!(misled > 20, "{misled} of 100 runs decided by an interval for one look, seed {SEED}");
}

#[test]
fn at_most_three_in_a_thousand_fair_splits_are_ever_called_a_mismatch() {
    let month = SimulatedMonth::new(USERS_AN_HOUR, 0.5);
    let weights = ArmWeights::new(&[1, 1]).unwrap();
    let mut chance = Chance(SEED);
    let mut run = || {
        let mut lowest = 1.0;
        month.looks(&mut chance, |totals| {
            let found = SampleRatio::test(&weights, &totals.map(|arm| arm.exposures), lowest);
            lowest = found.sequential_p;
            found.is_mismatch()
        })
    };
    let wrong = (0..RUNS).filter(|_| run()).count();
    assert!(wrong * 1_000 <= RUNS * 3, "{wrong} of {RUNS} fair splits called a mismatch, seed {SEED}");
}

#[test]
fn a_planted_mismatch_is_found() {
    let month = SimulatedMonth::new(2 * USERS_AN_HOUR, 0.507);
    let weights = ArmWeights::new(&[1, 1]).unwrap();
    let mut chance = Chance(SEED);
    let mut run = || {
        let test = |totals: &[ArmTotals; 2]| SampleRatio::test(&weights, &totals.map(|arm| arm.exposures), 1.0);
        month.looks(&mut chance, |totals| test(totals).is_mismatch())
    };
    let found = (0..200).filter(|_| run()).count();
    assert!(found >= 190, "{found} of 200 planted splits of 50.7 : 49.3 found, seed {SEED}");
}
