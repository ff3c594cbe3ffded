//! A token bucket: so much a second, and so much at once; without another word as much as one second has.
//!
//! A cost that is known in advance is taken, or refused with the time after which it fits. A cost that is known only
//! afterwards, such as the bytes of a body, is charged, and may leave a debt. Until a debt is paid, nothing is
//! admitted. The arithmetic is exact for whole nanoseconds. Source: the leaky bucket as a meter, ITU-T I.371, with
//! debts.

use std::time::Duration;

const NANOS: i128 = 1_000_000_000;

/// Tokens of one caller for one thing. It is full at first.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    /// Tokens a second. At least 1.
    rate: u64,
    /// The most tokens that there are at a time.
    burst: u64,
    /// The tokens at `read_at`, in billionths; below 0 after a charge of more than there were.
    level: i128,
    read_at: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub fn full(rate: u64) -> Self {
        Self::with_burst(rate, rate)
    }

    /// A full bucket, with other tokens at a time than in a second.
    pub fn with_burst(rate: u64, burst: u64) -> Self {
        let (rate, burst) = (rate.max(1), burst.max(1));
        Self { rate, burst, level: i128::from(burst) * NANOS, read_at: Duration::ZERO }
    }

    /// Takes a token at a time since the start, if there is one. Else it says how long that takes.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        self.check(now)?;
        self.level -= NANOS;
        Ok(())
    }

    /// Whether there is a token. Else it says how long that takes.
    pub fn check(&mut self, now: Duration) -> Result<(), Duration> {
        self.refill(now);
        let missing = NANOS - self.level;
        if missing <= 0 {
            return Ok(());
        }
        let nanos = missing.unsigned_abs().div_ceil(u128::from(self.rate));
        Err(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Takes tokens for what was done already.
    pub fn charge(&mut self, tokens: u64, now: Duration) {
        self.refill(now);
        self.level -= i128::from(tokens) * NANOS;
    }

    /// Adds what came since. A clock that is behind adds nothing.
    fn refill(&mut self, now: Duration) {
        let nanos = now.saturating_sub(self.read_at).as_nanos();
        self.read_at = self.read_at.max(now);
        let most = i128::from(self.burst) * NANOS;
        let came = i128::try_from(nanos).unwrap_or(i128::MAX).saturating_mul(i128::from(self.rate));
        self.level = self.level.saturating_add(came).min(most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A step of a test with a bucket.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Take,
        Charge(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![3 => Just(Step::Take), 1 => (0..40_u64).prop_map(Step::Charge)]
    }

    /// The oracle keeps every token that was ever used. There is one to take if, counted from every moment of the past,
    /// no more were used than the burst and the rate allow.
    fn fits(used: &[(Duration, u64)], rate: u64, now: Duration) -> bool {
        let starts = std::iter::once(Duration::ZERO).chain(used.iter().map(|(at, _)| *at)).chain([now]);
        starts.into_iter().all(|start| {
            let since: u64 = used.iter().filter(|(at, _)| *at >= start).map(|(_, tokens)| tokens).sum();
            let allowed = i128::from(rate) * NANOS + i128::from(rate) * (now - start).as_nanos() as i128;
            i128::from(since + 1) * NANOS <= allowed
        })
    }

    proptest! {
        #[test]
        fn a_token_is_there_if_no_span_of_the_past_used_more_than_it_may(
            rate in 1..20_u64,
            steps in prop::collection::vec((0..300_000_000_u64, step()), 1..60),
        ) {
            let mut bucket = TokenBucket::full(rate);
            let (mut used, mut now) = (Vec::new(), Duration::ZERO);
            for (pause, step) in steps {
                now += Duration::from_nanos(pause);
                match step {
                    Step::Charge(tokens) => {
                        bucket.charge(tokens, now);
                        used.push((now, tokens));
                    }
                    Step::Take => match bucket.take(now) {
                        Ok(()) => {
                            prop_assert!(fits(&used, rate, now));
                            used.push((now, 1));
                        }
                        Err(wait) => {
                            prop_assert!(!fits(&used, rate, now));
                            prop_assert!(fits(&used, rate, now + wait), "it fits after the delay");
                            prop_assert!(!fits(&used, rate, now + wait - Duration::from_nanos(1)), "and not before");
                        }
                    },
                }
            }
        }
    }

    #[test]
    fn a_bucket_holds_a_second_and_a_clock_that_goes_back_adds_nothing() {
        let mut bucket = TokenBucket::full(2);
        let at = |millis| Duration::from_millis(millis);
        assert!([9_000, 9_000].map(|now| bucket.take(at(now))).iter().all(Result::is_ok));
        assert_eq!(bucket.take(at(9_000)), Err(at(500)));
        assert_eq!(bucket.take(at(1_000)), Err(at(500)));
        assert_eq!(bucket.take(at(9_500)), Ok(()));
        bucket.charge(u64::MAX, at(9_500));
        assert!(bucket.check(at(u64::MAX)).is_err(), "the largest debts and times do not overflow");
    }

    #[test]
    fn a_debt_is_paid_before_anything_is_admitted() {
        let mut bucket = TokenBucket::full(10);
        bucket.charge(25, Duration::ZERO);
        assert_eq!(bucket.check(Duration::ZERO), Err(Duration::from_millis(1_600)));
        assert_eq!(bucket.check(Duration::from_millis(1_600)), Ok(()));
    }
}
