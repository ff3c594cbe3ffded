//! Chance of one seed. Every part of a run draws from a stream of its own, so that a new draw in one of them leaves the
//! others as they were.

use std::time::Duration;

/// A stream of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance {
    state: u64,
}

impl Chance {
    /// The stream of a seed and a part.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut chance =
            Self { state: seed.wrapping_mul(0xa076_1d64_78bd_642f) ^ part.wrapping_mul(0xe703_7ed1_a0b4_28db) };
        chance.next();
        chance
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below a bound above 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A place among so many.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// Whether something of a probability of so many in ten thousand happens.
    pub fn happens(&mut self, in_ten_thousand: u64) -> bool {
        self.below(10_000) < in_ten_thousand
    }

    /// A duration of a range, in whole microseconds.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).expect("a short duration");
        Duration::from_micros(micros(least) + self.below(micros(most - least) + 1))
    }
}
