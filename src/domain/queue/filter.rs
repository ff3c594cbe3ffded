//! Filters, which are metadata pairs that a message must have, and the shapes of filters, which are sets of keys.

use crate::limits::{METADATA_KEY_BYTES_MAX, METADATA_PAIRS_MAX};
use crate::queue::invalid_command::InvalidCommandPart;
use crate::queue::messages::message::Metadata;

/// The pairs that a message must have, all of them; every message matches the filter without pairs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter(Metadata);

impl Filter {
    /// Validates the pairs: at most 4, no duplicate key, and each within the length limits of metadata.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, InvalidCommandPart> {
        Metadata::new(pairs).map(Self).map_err(|_| InvalidCommandPart::Filter)
    }

    /// Returns whether a message with this metadata matches. O(pairs).
    pub fn matches(&self, metadata: &Metadata) -> bool {
        self.0.pairs().all(|(key, value)| metadata.get(key) == Some(value))
    }
}

impl Filter {
    /// Returns whether the filter has no pairs, so that every message matches.
    pub fn is_empty(&self) -> bool {
        self.0.pairs().next().is_none()
    }

    /// Returns the keys of a filter that has pairs.
    pub fn keys(&self) -> ShapeKeys {
        let keys = ShapeKeys::new(self.0.pairs().map(|(key, _)| key));
        keys.expect("the keys of a filter with pairs were checked as those of a shape are")
    }

    /// Returns the pairs as metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.0
    }
}

/// A sorted set of metadata keys: filters by these keys share an index once the shape is declared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShapeKeys(Box<[Box<str>]>);

impl ShapeKeys {
    /// Validates the keys: 1 to 4 distinct keys of 1 to 64 bytes, in any order.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidCommandPart> {
        let mut sorted: Vec<Box<str>> = keys.into_iter().take(METADATA_PAIRS_MAX + 1).map(Box::from).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let fits = (1..=METADATA_PAIRS_MAX).contains(&sorted.len())
            && sorted.iter().all(|key| (1..=METADATA_KEY_BYTES_MAX).contains(&key.len()));
        if fits { Ok(Self(sorted.into())) } else { Err(InvalidCommandPart::Shape) }
    }

    /// Iterates over the keys in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| &**key)
    }

    /// Returns whether a filter has all these keys, and possibly more.
    pub fn is_inside(&self, filter: &Filter) -> bool {
        self.iter().all(|key| filter.0.get(key).is_some())
    }

    /// Returns whether a filter has exactly these keys.
    pub fn has_keys_of(&self, filter: &Filter) -> bool {
        self.is_inside(filter) && filter.0.pairs().count() == self.0.len()
    }

    /// Returns the number of keys that only one of the two has.
    pub fn distance(&self, filter: &Filter) -> usize {
        let shared = self.iter().filter(|key| filter.0.get(key).is_some()).count();
        self.0.len() + filter.0.pairs().count() - 2 * shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_a_set_of_one_to_four_keys() {
        let shape = ShapeKeys::new(["zone", "team", "zone"]).expect("legal keys");
        assert_eq!(shape.iter().collect::<Vec<_>>(), ["team", "zone"]);
        assert_eq!(ShapeKeys::new([]), Err(InvalidCommandPart::Shape));
        assert_eq!(ShapeKeys::new([""]), Err(InvalidCommandPart::Shape));
        assert_eq!(ShapeKeys::new(["a", "b", "c", "d", "e"]), Err(InvalidCommandPart::Shape));
        assert_eq!(ShapeKeys::new(["k".repeat(65).as_str()]), Err(InvalidCommandPart::Shape));
    }

    #[test]
    fn a_shape_is_that_of_filters_with_its_keys_and_inside_of_those_with_more() {
        let filter = |keys: &[&str]| Filter::new(keys.iter().map(|key| (*key, "1"))).expect("a legal filter");
        let shape = ShapeKeys::new(["a", "b"]).expect("legal keys");
        assert!(shape.has_keys_of(&filter(&["b", "a"])) && !shape.has_keys_of(&filter(&["a", "b", "c"])));
        assert!(shape.is_inside(&filter(&["c", "a", "b"])) && !shape.is_inside(&filter(&["a", "c"])));
        assert_eq!([&["a", "b"][..], &["a"], &["a", "c"]].map(|keys| shape.distance(&filter(keys))), [0, 1, 2]);
    }

    #[test]
    fn every_pair_of_a_filter_must_be_met_exactly() {
        let metadata = Metadata::new([("team", "red"), ("zone", "a")]).expect("legal pairs");
        let meets = |pairs: &[(&str, &str)]| Filter::new(pairs.iter().copied()).expect("legal").matches(&metadata);
        assert!(meets(&[]) && meets(&[("zone", "a")]) && meets(&[("zone", "a"), ("team", "red")]));
        assert!(!meets(&[("zone", "b")]) && !meets(&[("zone", "")]) && !meets(&[("zone", "a"), ("size", "s")]));
    }

    #[test]
    fn a_filter_that_no_message_could_meet_is_refused() {
        assert_eq!(Filter::new([("a", "1"), ("a", "2")]), Err(InvalidCommandPart::Filter));
        assert_eq!(Filter::new([("", "1")]), Err(InvalidCommandPart::Filter));
        assert_eq!(Filter::new(["a", "b", "c", "d", "e"].map(|key| (key, "1"))), Err(InvalidCommandPart::Filter));
    }
}
