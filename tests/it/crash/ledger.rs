//! The ledger of bit-tagged adds and of clears: what is known about every token, and what each counter must read.
//!
//! Tokens are UUIDv7 of one maker, so that their order as text is that of their events.

use std::collections::{BTreeMap, BTreeSet};

/// Bits of one counter; the sum of all stays far from the ends of i64.
pub const BITS: u32 = 60;

/// Tokens that a message shows.
const SHOWN_MAX: usize = 3;

/// What is known about a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It counts.
    Applied,
    /// It does not and never will.
    NotApplied,
    /// Every call with it was refused with nothing done; so it does not count.
    Refused,
    /// It was sent, and no answer settled it.
    Unknown,
}

/// What a token does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Adds a power of two: its place among the adds of its counter.
    Bit(u32),
    /// Sets the counter to 0.
    Clear,
}

/// One change under a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tagged {
    /// The counter.
    pub counter: String,
    /// The change.
    pub what: What,
    /// Its token.
    pub token: String,
}

impl Tagged {
    /// The delta; 0 for a clear.
    pub fn delta(&self) -> i64 {
        match self.what {
            What::Bit(bit) => 1 << bit,
            What::Clear => 0,
        }
    }
}

/// All tokens that were ever sent.
#[derive(Default)]
pub struct Ledger {
    tokens: BTreeMap<String, Vec<(Tagged, Fate)>>,
    unknown: BTreeSet<(String, usize)>,
    unchecked: BTreeSet<String>,
}

impl Ledger {
    /// Notes a token that was sent; the bits of a counter come in their order.
    pub fn note(&mut self, tagged: Tagged, fate: Fate) {
        self.unchecked.insert(tagged.counter.clone());
        let tokens = self.tokens.entry(tagged.counter.clone()).or_default();
        if let What::Bit(bit) = tagged.what {
            let before = tokens.iter().filter(|(tagged, _)| tagged.what != What::Clear).count();
            assert_eq!(before, bit as usize, "bits come in order");
        }
        if fate == Fate::Unknown {
            self.unknown.insert((tagged.counter.clone(), tokens.len()));
        }
        tokens.push((tagged, fate));
    }

    /// The tokens whose fate is unknown.
    pub fn unknown(&self) -> Vec<Tagged> {
        self.unknown.iter().map(|(counter, at)| self.tokens[counter][*at].0.clone()).collect()
    }

    /// Settles a token.
    pub fn settle(&mut self, tagged: &Tagged, fate: Fate) {
        assert!([Fate::Applied, Fate::NotApplied].contains(&fate), "settled for good");
        let tokens = self.tokens.get_mut(&tagged.counter).expect("it was noted");
        let at = tokens.iter().position(|(noted, _)| noted == tagged).expect("it was noted");
        self.unknown.remove(&(tagged.counter.clone(), at));
        tokens[at].1 = fate;
    }

    /// The counters that were written since the last check.
    pub fn unchecked(&self) -> Vec<String> {
        self.unchecked.iter().cloned().collect()
    }

    /// Marks all counters as checked.
    pub fn mark_all_checked(&mut self) {
        self.unchecked.clear();
    }

    /// Marks all counters for the next check.
    pub fn mark_all_unchecked(&mut self) {
        self.unchecked = self.tokens.keys().cloned().collect();
    }

    /// All counters.
    pub fn counters(&self) -> Vec<String> {
        self.tokens.keys().cloned().collect()
    }

    /// The tokens of a counter with what is known of them, in the order in which they were made.
    pub fn of(&self, counter: &str) -> &[(Tagged, Fate)] {
        self.tokens.get(counter).map_or(&[], Vec::as_slice)
    }

    /// How many tokens have a fate.
    pub fn count(&self, fate: Fate) -> usize {
        self.tokens.values().flatten().filter(|(_, known)| *known == fate).count()
    }

    /// How many adds and clears were applied.
    pub fn applied(&self) -> usize {
        self.count(Fate::Applied)
    }

    /// Compares a reading; the error names the tokens that were lost, and the bits that are too much.
    pub fn compare(&self, counter: &str, read: i64) -> Result<(), String> {
        let applied = || self.of(counter).iter().filter(|(_, fate)| *fate == Fate::Applied).map(|(tagged, _)| tagged);
        let cleared = applied().filter(|tagged| tagged.what == What::Clear).map(|tagged| &tagged.token).max();
        let counts = || applied().filter(|tagged| cleared.is_none_or(|clear| tagged.token > *clear));
        let wanted: i64 = counts().map(Tagged::delta).sum();
        if read == wanted {
            return Ok(());
        }
        let lost: Vec<&Tagged> = counts().filter(|tagged| read & tagged.delta() != tagged.delta()).collect();
        let difference = read - wanted;
        let bits: Vec<u32> = (0..63).filter(|bit| difference.abs() >> bit & 1 == 1).collect();
        let shown: Vec<&&Tagged> = lost.iter().take(SHOWN_MAX).collect();
        Err(format!(
            "{counter} reads {read}, must read {wanted}: difference {difference} (bits {bits:?}); {} tokens missing, \
             the first: {shown:?}",
            lost.len()
        ))
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    fn tagged(what: What, n: usize) -> Tagged {
        Tagged { counter: "c".to_owned(), what, token: format!("t{n}") }
    }

    fn ledger(fates: &[Fate]) -> Ledger {
        let mut ledger = Ledger::default();
        for (bit, fate) in (0..).zip(fates) {
            ledger.note(tagged(What::Bit(bit), bit as usize), *fate);
        }
        ledger
    }

    #[test]
    fn a_lost_and_a_doubled_token_are_named() {
        let ledger = ledger(&[Fate::Applied, Fate::NotApplied, Fate::Applied]);
        assert_eq!(ledger.compare("c", 5), Ok(()));
        let lost = ledger.compare("c", 1).expect_err("token 2 is missing");
        assert!(lost.contains("1 tokens missing, the first: [Tagged { counter: \"c\", what: Bit(2)"), "{lost}");
        let doubled = ledger.compare("c", 6).expect_err("token 0 counts twice");
        assert!(doubled.contains("difference 1 (bits [0])"), "{doubled}");
        assert!(ledger.compare("c", 7).is_err(), "token 1 must not count");
    }

    #[test]
    fn a_refused_token_must_not_count() {
        let ledger = ledger(&[Fate::Refused, Fate::Applied]);
        assert_eq!(ledger.compare("c", 2), Ok(()));
        assert!(ledger.compare("c", 3).is_err(), "token 0 was refused");
        assert!(ledger.unknown().is_empty(), "there is nothing to ask");
    }

    #[test]
    fn a_clear_takes_what_was_made_before_it() {
        let mut ledger = ledger(&[Fate::Applied, Fate::Applied]);
        ledger.note(tagged(What::Clear, 2), Fate::Unknown);
        ledger.note(tagged(What::Bit(2), 3), Fate::Applied);
        assert_eq!(ledger.compare("c", 7), Ok(()), "the clear may not have been applied");
        let clear = ledger.unknown().pop().expect("the clear is open");
        ledger.settle(&clear, Fate::Applied);
        assert_eq!(ledger.compare("c", 4), Ok(()));
        assert!(ledger.compare("c", 5).is_err(), "what was cleared counts");
    }

    #[test]
    fn unknown_tokens_wait_to_be_settled() {
        let mut ledger = ledger(&[Fate::Unknown, Fate::Applied]);
        let open = ledger.unknown();
        assert_eq!(open.len(), 1);
        ledger.settle(&open[0], Fate::Applied);
        assert!(ledger.unknown().is_empty());
        assert_eq!(ledger.compare("c", 3), Ok(()));
    }
}
