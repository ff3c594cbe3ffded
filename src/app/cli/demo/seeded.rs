//! Numbers that look random and are the same for the same seed (splitmix64).

/// A source of numbers.
pub struct SeededNumbers(u64);

impl SeededNumbers {
    /// Begins at a seed. `stream` separates the numbers of one scenario from those of the others.
    pub fn new(seed: u64, stream: &str) -> Self {
        let mix = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        Self(stream.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, mix))
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound, which is above 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Whether something happens that has this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        // 53 bits are what a float holds exactly.
        ((self.draw() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }

    /// Puts things into another order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(last);
            things.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_does_not() {
        let drawn = |seed, stream| {
            let mut numbers = SeededNumbers::new(seed, stream);
            (0..100).map(|_| numbers.below(1_000)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(7, "backlog"), drawn(7, "backlog"));
        assert_ne!(drawn(7, "backlog"), drawn(8, "backlog"));
        assert_ne!(drawn(7, "backlog"), drawn(7, "poison"));
    }

    #[test]
    fn a_probability_is_met() {
        let mut numbers = SeededNumbers::new(1, "coin");
        let heads = (0..10_000).filter(|_| numbers.happens(0.3)).count();
        // Six standard deviations of 46 around 3,000.
        assert!((2_725..=3_275).contains(&heads), "{heads}");
        assert!(!(0..100).any(|_| numbers.happens(0.0)) && (0..100).all(|_| numbers.happens(1.0)));
    }

    #[test]
    fn a_shuffle_keeps_every_thing() {
        let mut things: Vec<u32> = (0..100).collect();
        SeededNumbers::new(1, "cards").shuffle(&mut things);
        assert_ne!(things, (0..100).collect::<Vec<_>>());
        things.sort_unstable();
        assert_eq!(things, (0..100).collect::<Vec<_>>());
    }
}
