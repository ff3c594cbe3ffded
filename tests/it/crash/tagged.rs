//! The ledger of bit-tagged adds: what is known about every token, and what each counter must read.

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
    /// It was sent, and no answer settled it.
    Unknown,
}

/// One add: `2^bit` under a token.
#[derive(Clone, Debug)]
pub struct Tagged {
    /// The counter.
    pub counter: String,
    /// Its place, and its delta as a power of two.
    pub bit: u32,
    /// Its token.
    pub token: String,
}

impl Tagged {
    /// The delta.
    pub fn delta(&self) -> i64 {
        1 << self.bit
    }
}

/// All tokens that were ever sent.
#[derive(Default)]
pub struct Ledger {
    tokens: BTreeMap<String, Vec<(Tagged, Fate)>>,
    unknown: BTreeSet<(String, u32)>,
    to_look_at: BTreeSet<String>,
}

impl Ledger {
    /// Notes a token that was sent; the bits of a counter come in their order.
    pub fn note(&mut self, tagged: Tagged, fate: Fate) {
        if fate == Fate::Unknown {
            self.unknown.insert((tagged.counter.clone(), tagged.bit));
        }
        self.to_look_at.insert(tagged.counter.clone());
        let tokens = self.tokens.entry(tagged.counter.clone()).or_default();
        assert_eq!(tokens.len(), tagged.bit as usize, "bits come in order");
        tokens.push((tagged, fate));
    }

    /// The tokens whose fate is unknown.
    pub fn unknown(&self) -> Vec<Tagged> {
        self.unknown.iter().map(|(counter, bit)| self.tokens[counter][*bit as usize].0.clone()).collect()
    }

    /// Settles a token.
    pub fn settle(&mut self, tagged: &Tagged, fate: Fate) {
        assert_ne!(fate, Fate::Unknown, "settled for good");
        self.unknown.remove(&(tagged.counter.clone(), tagged.bit));
        let tokens = self.tokens.get_mut(&tagged.counter).expect("it was noted");
        tokens[tagged.bit as usize].1 = fate;
    }

    /// The counters that were written since the last look.
    pub fn to_look_at(&self) -> Vec<String> {
        self.to_look_at.iter().cloned().collect()
    }

    /// Notes that all of them have been looked at.
    pub fn looked_at_all(&mut self) {
        self.to_look_at.clear();
    }

    /// Has every counter looked at next time.
    pub fn look_at_all(&mut self) {
        self.to_look_at = self.tokens.keys().cloned().collect();
    }

    /// All counters.
    pub fn counters(&self) -> Vec<String> {
        self.tokens.keys().cloned().collect()
    }

    /// How many adds count.
    pub fn applied(&self) -> usize {
        self.tokens.values().flatten().filter(|(_, fate)| *fate == Fate::Applied).count()
    }

    /// Compares a reading; the error names the tokens that were lost, and the bits that are too much.
    pub fn compare(&self, counter: &str, read: i64) -> Result<(), String> {
        let tokens = &self.tokens[counter];
        let wanted: i64 = tokens.iter().filter(|(_, fate)| *fate == Fate::Applied).map(|(t, _)| t.delta()).sum();
        if read == wanted {
            return Ok(());
        }
        let lost: Vec<&Tagged> = tokens
            .iter()
            .filter(|(tagged, fate)| *fate == Fate::Applied && read & tagged.delta() == 0)
            .map(|(tagged, _)| tagged)
            .collect();
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

    fn ledger(fates: &[Fate]) -> Ledger {
        let mut ledger = Ledger::default();
        for (bit, fate) in (0..).zip(fates) {
            ledger.note(Tagged { counter: "c".to_owned(), bit, token: format!("t{bit}") }, *fate);
        }
        ledger
    }

    #[test]
    fn a_lost_and_a_doubled_token_are_named() {
        let ledger = ledger(&[Fate::Applied, Fate::NotApplied, Fate::Applied]);
        assert_eq!(ledger.compare("c", 5), Ok(()));
        let lost = ledger.compare("c", 1).expect_err("token 2 is missing");
        assert!(lost.contains("1 tokens missing, the first: [Tagged { counter: \"c\", bit: 2"), "{lost}");
        let doubled = ledger.compare("c", 6).expect_err("token 0 counts twice");
        assert!(doubled.contains("difference 1 (bits [0])"), "{doubled}");
        assert!(ledger.compare("c", 7).is_err(), "token 1 must not count");
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
