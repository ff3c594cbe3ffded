//! Names, validated once, and the hash of a counter.
//!
//! The hash of a counter is xxh3_64 over its namespace id (8 bytes, big endian) and the bytes of its name. It
//! determines stored touch shards and so never changes.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::limits::{COUNTER_NAME_BYTES_MAX, NAMESPACE_NAME_BYTES_MAX, TOUCH_SHARDS};
use crate::reason::{Reason, Reject};

/// The number of a namespace, assigned at its creation and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NamespaceId(pub u64);

impl fmt::Display for NamespaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for NamespaceId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The number of a dataset, assigned when its first namespace is created and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DatasetId(pub u32);

/// The name of a namespace, dataset or cluster: `[A-Za-z0-9][A-Za-z0-9._:/=~%@+-]*`, 1 to 64 bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceName(Arc<str>);

impl NamespaceName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        match check(name, NAMESPACE_NAME_BYTES_MAX) {
            Ok(()) => Ok(Self(name.into())),
            Err(what) => Err(Reject::new(Reason::InvalidNamespace, format!("namespace {what}"))),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name of a counter: `[A-Za-z0-9][A-Za-z0-9._:/=~%@+-]{0,255}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterName(Arc<str>);

impl CounterName {
    /// Validates a name.
    pub fn new(name: &str) -> Result<Self, Reject> {
        match check(name, COUNTER_NAME_BYTES_MAX) {
            Ok(()) => Ok(Self(name.into())),
            Err(what) => Err(Reject::new(Reason::InvalidCounterName, format!("counter name {what}"))),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One counter of one namespace, with its hash. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    namespace: NamespaceId,
    name: CounterName,
    hash: u64,
}

impl Counter {
    pub fn new(namespace: NamespaceId, name: CounterName) -> Self {
        let mut hasher = Xxh3::new();
        hasher.update(&namespace.0.to_be_bytes());
        hasher.update(name.as_str().as_bytes());
        Self { namespace, hash: hasher.digest(), name }
    }

    /// Returns the number of the namespace.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }

    /// Returns the counter's name.
    pub fn name(&self) -> &CounterName {
        &self.name
    }

    /// Returns the stored hash of (namespace id, name).
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the identification for logs. Logs contain no counter names, because those may be personal data.
    pub fn tag(&self) -> CounterTag {
        CounterTag { namespace: self.namespace, hash: self.hash }
    }

    pub fn touch_shard(&self) -> u32 {
        touch_shard_of(self.hash)
    }
}

/// The number of a namespace and the hash of one of its counters; formatted as `7/00c0ffee00c0ffee`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterTag {
    namespace: NamespaceId,
    hash: u64,
}

impl fmt::Display for CounterTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:016x}", self.namespace.0, self.hash)
    }
}

/// Returns the touch shard for a counter's hash.
pub fn touch_shard_of(hash: u64) -> u32 {
    (hash % u64::from(TOUCH_SHARDS)) as u32
}

impl std::hash::Hash for Counter {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace.0, self.name.as_str())
    }
}

impl fmt::Debug for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Debug for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Describes the first fault of a name, if there is one.
fn check(name: &str, bytes_max: usize) -> Result<(), String> {
    let bytes = name.len();
    let Some(first) = name.chars().next() else {
        return Err(format!("is empty; send 1 to {bytes_max} bytes"));
    };
    if bytes > bytes_max {
        return Err(format!("has {bytes} bytes; at most {bytes_max} are allowed"));
    }
    if !first.is_ascii_alphanumeric() {
        return Err(format!("must begin with a letter or digit, not with {first:?}; letters are A-Z and a-z"));
    }
    match (1..).zip(name.chars()).find(|(_, character)| !is_of_names(*character)) {
        None => Ok(()),
        Some((at, found)) => {
            Err(format!("has {found:?} as character {at}; use only letters, digits and . _ : / = ~ % @ + -"))
        }
    }
}

fn is_of_names(character: char) -> bool {
    character.is_ascii_alphanumeric() || "._:/=~%@+-".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_256_bytes_is_the_longest() {
        assert!(CounterName::new(&"a".repeat(256)).is_ok());
        assert_eq!(CounterName::new(&"a".repeat(257)).unwrap_err().reason, Reason::InvalidCounterName);
    }

    #[test]
    fn names_take_only_the_listed_characters() {
        for good in ["a", "0", "a._:/=~%@+-z"] {
            assert!(CounterName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a b", "a\0", "a\n", "ä", "a{b}", "a\u{301}"] {
            assert!(CounterName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_refused_name_is_told_what_to_change() {
        for (name, words) in [
            ("", "counter name is empty; send 1 to 256 bytes"),
            ("-a", "must begin with a letter or digit, not with '-'; letters are A-Z and a-z"),
            ("a b", "has ' ' as character 2; use only letters"),
            ("aa\n", r"has '\n' as character 3"),
            ("aéb c", "has 'é' as character 2"),
        ] {
            let message = CounterName::new(name).expect_err(name).message;
            assert!(message.contains(words), "{name:?}: {message}");
        }
    }

    #[test]
    fn the_hash_of_a_counter_never_changes() {
        let counter = Counter::new(NamespaceId(1), CounterName::new("views").expect("a valid name"));
        assert_eq!(counter.hash(), xxhash_rust::xxh3::xxh3_64(b"\0\0\0\0\0\0\0\x01views"));
    }
}
