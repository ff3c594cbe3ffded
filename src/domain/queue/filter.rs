//! Filters: the metadata pairs that a message must have.

use crate::domain::queue::command::Invalid;
use crate::domain::queue::message::Metadata;

/// The pairs a message must have, all of them; the filter without pairs is met by every message.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter(Metadata);

impl Filter {
    /// Validates the pairs: at most 4, each of the lengths that metadata may have, no key twice.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Invalid> {
        Metadata::new(pairs).map(Self).map_err(|_| Invalid::Filter)
    }

    /// Whether a message of this metadata meets it. O(pairs).
    pub fn is_met_by(&self, metadata: &Metadata) -> bool {
        self.0.pairs().all(|(key, value)| metadata.get(key) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_a_filter_must_be_met_exactly() {
        let metadata = Metadata::new([("team", "red"), ("zone", "a")]).expect("legal pairs");
        let meets = |pairs: &[(&str, &str)]| Filter::new(pairs.iter().copied()).expect("legal").is_met_by(&metadata);
        assert!(meets(&[]) && meets(&[("zone", "a")]) && meets(&[("zone", "a"), ("team", "red")]));
        assert!(!meets(&[("zone", "b")]) && !meets(&[("zone", "")]) && !meets(&[("zone", "a"), ("size", "s")]));
    }

    #[test]
    fn a_filter_that_no_message_could_meet_is_refused() {
        assert_eq!(Filter::new([("a", "1"), ("a", "2")]), Err(Invalid::Filter));
        assert_eq!(Filter::new([("", "1")]), Err(Invalid::Filter));
        assert_eq!(Filter::new(["a", "b", "c", "d", "e"].map(|key| (key, "1"))), Err(Invalid::Filter));
    }
}
