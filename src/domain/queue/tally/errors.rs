//! Failed attempts and errored messages by error signature.

use std::collections::BTreeMap;

use crate::limits::TALLIED_SIGNATURES_MAX;
use crate::queue::counter_names::CountedValue;

/// The counts of one signature.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SignatureCounts {
    /// Attempts that failed with it.
    pub failed: u64,
    /// Messages that ran out of attempts with it.
    pub errored: u64,
    /// The position of the last change.
    pub changed_at: u64,
}

/// The kind of row that is counted by signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorFlow {
    /// An attempt failed.
    Failed,
    /// A message ran out of attempts.
    Errored,
}

/// The counts of each signature. Signatures are never forgotten; those beyond the bound are counted together.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SignatureTally {
    own: BTreeMap<Box<str>, SignatureCounts>,
    none: SignatureCounts,
    other: SignatureCounts,
}

impl SignatureTally {
    /// Counts a row, and returns where it was counted. O(log n).
    pub fn count(&mut self, signature: Option<&str>, flow: ErrorFlow, position: u64) -> CountedValue {
        let is_full = self.own.len() >= TALLIED_SIGNATURES_MAX;
        let (counts, under) = match signature {
            None => (&mut self.none, CountedValue::None),
            Some(own) if is_full && !self.own.contains_key(own) => (&mut self.other, CountedValue::Other),
            Some(own) => (self.own.entry(own.into()).or_default(), CountedValue::Own(own.into())),
        };
        match flow {
            ErrorFlow::Failed => counts.failed += 1,
            ErrorFlow::Errored => counts.errored += 1,
        }
        counts.changed_at = position;
        under
    }

    /// The counts that changed after a position, or all. O(signatures).
    pub fn changed_after(&self, position: Option<u64>) -> impl Iterator<Item = (CountedValue, SignatureCounts)> {
        let own = self.own.iter().map(|(signature, counts)| (CountedValue::Own(signature.clone()), *counts));
        let marks = [(CountedValue::None, self.none), (CountedValue::Other, self.other)];
        own.chain(marks).filter(move |(_, counts)| counts.changed_at > position.unwrap_or(0))
    }

    /// The counts of a signature. O(log n).
    pub fn of(&self, under: &CountedValue) -> SignatureCounts {
        match under {
            CountedValue::Own(own) => self.own.get(own).copied().unwrap_or_default(),
            CountedValue::None => self.none,
            CountedValue::Other => self.other,
            CountedValue::Gone => SignatureCounts::default(), // no signature gives way
        }
    }

    /// Takes back stored counts. O(log n).
    pub fn restore(&mut self, under: CountedValue, counts: SignatureCounts) {
        match under {
            CountedValue::Own(own) => drop(self.own.insert(own, counts)),
            CountedValue::None => self.none = counts,
            CountedValue::Other | CountedValue::Gone => self.other = counts,
        }
    }
}
