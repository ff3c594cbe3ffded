//! The names of the counters of a queue: `<queue>~<counter>`, or `<queue>~<counter>~<key>=<value>`.
//!
//! A queue name has no `~`, so the name of a queue is the part before the first one. Bytes of keys and values outside
//! `[A-Za-z0-9._:-]` are written `%XX`. A pair that is longer than 100 bytes is written as its first bytes, then `~`
//! and 128 bits of a SHA-256 of the pair, so that no caller can make two values collide.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::limits::{COUNTED_PAIR_BYTES_MAX, COUNTED_PAIR_HEAD_BYTES};
use crate::queue::name::QueueName;

/// The value under which messages without the key are counted.
pub const NO_VALUE: &str = "~none";
/// The value under which messages are counted whose own value found no room.
pub const OTHER_VALUE: &str = "~other";
/// The value under which the flows of values that yielded to others are counted.
pub const GONE_VALUE: &str = "~gone";

/// A value under which messages are counted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CountedValue {
    /// A value of the metadata.
    Own(Box<str>),
    /// The message has no such key.
    None,
    /// The value found no room.
    Other,
    /// The value yielded to others.
    Gone,
}

/// The name of a counter of a queue: at most 256 bytes. O(length).
pub fn counter_name(queue: &QueueName, counter: &str) -> String {
    format!("{queue}~{counter}")
}

/// The name of a counter of one value of a key.
pub fn value_counter_name(queue: &QueueName, counter: &str, key: &str, value: &CountedValue) -> String {
    format!("{queue}~{counter}~{}", pair_text(key, value))
}

/// The prefix of all counters of a queue.
pub fn prefix_of(queue: &QueueName) -> String {
    format!("{queue}~")
}

/// The queue and the counter of a name; none for a name of another form.
pub fn queue_of(counter_name: &str) -> Option<(&str, &str)> {
    counter_name.split_once('~').filter(|(queue, counter)| !queue.is_empty() && !counter.is_empty())
}

/// The beginning of all pairs of a key, as names have them. For a key of more than 59 bytes so written, other keys may
/// begin the same.
pub fn key_text(key: &str) -> String {
    uncut_head(&format!("{}=", escaped(key))).to_owned()
}

/// A text as it was before it was escaped for a name. Bytes that are no UTF-8 are shown as U+FFFD.
pub fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.filter(|_| first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A key and a value as names have them, at most 100 bytes.
pub fn pair_text(key: &str, value: &CountedValue) -> String {
    let own = match value {
        CountedValue::Own(own) => own,
        CountedValue::None => return with_mark(key, NO_VALUE),
        CountedValue::Other => return with_mark(key, OTHER_VALUE),
        CountedValue::Gone => return with_mark(key, GONE_VALUE),
    };
    let text = format!("{}={}", escaped(key), escaped(own));
    if text.len() <= COUNTED_PAIR_BYTES_MAX {
        return text;
    }
    let hash = Sha256::new().chain_update(key).chain_update([0]).chain_update(own.as_bytes()).finalize();
    with_hash(&text, &hash[..16])
}

/// A key with one of the marks. A key is at most 64 bytes, so an escaped one may be too long.
fn with_mark(key: &str, mark: &str) -> String {
    let text = format!("{}={mark}", escaped(key));
    if text.len() <= COUNTED_PAIR_BYTES_MAX {
        return text;
    }
    let hash = Sha256::new().chain_update(key).finalize();
    let shortened = with_hash(&escaped(key), &hash[..16]);
    format!("{shortened}={mark}")
}

fn with_hash(text: &str, hash: &[u8]) -> String {
    let mut out = uncut_head(text).to_owned();
    out.push('~');
    for byte in hash {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// The first bytes of an escaped text, without a part of a `%XX`.
fn uncut_head(text: &str) -> &str {
    let head = &text[..COUNTED_PAIR_HEAD_BYTES.min(text.len())];
    match head.rfind('%') {
        Some(at) if head.len() - at < 3 => &head[..at],
        Some(_) | None => head,
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"._:-".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::limits::COUNTER_NAME_BYTES_MAX;

    fn own(text: &str) -> CountedValue {
        CountedValue::Own(text.into())
    }

    #[test]
    fn plain_pairs_are_readable_and_others_are_escaped() {
        assert_eq!(pair_text("tenant", &own("acme")), "tenant=acme");
        assert_eq!(pair_text("a b", &own("x~y%z=\"")), "a%20b=x%7Ey%25z%3D%22");
        assert_eq!(pair_text("tenant", &own("")), "tenant=");
        assert_eq!(pair_text("tenant", &own("~none")), "tenant=%7Enone");
        assert_eq!(pair_text("tenant", &CountedValue::None), "tenant=~none");
        assert_eq!(pair_text("tenant", &CountedValue::Other), "tenant=~other");
        assert_eq!(pair_text("tenant", &CountedValue::Gone), "tenant=~gone");
    }

    #[test]
    fn a_long_pair_keeps_its_head_and_a_hash_of_the_whole() {
        let long = "é".repeat(40);
        let text = pair_text("k", &own(&long));
        let (head, hash) = text.split_once('~').expect("a hash follows");
        assert_eq!(head, format!("k={}", "%C3%A9".repeat(9) + "%C3"), "60 bytes, no escape cut");
        assert_eq!(hash.len(), 32);
        // The SHA-256 of "k", a zero byte and the value.
        let expected = Sha256::digest([b"k\0".as_slice(), long.as_bytes()].concat());
        let hex: String = expected[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, hex);
        assert_eq!(pair_text("k", &own(&"a".repeat(98))).len(), 100, "the longest that is written out");
        assert_eq!(pair_text("k", &own(&"a".repeat(99))).len(), 93);
    }

    #[test]
    fn a_name_tells_its_queue() {
        let queue = QueueName::new("mail/eu").expect("a name");
        let name = value_counter_name(&queue, "depth.pending", "tenant", &own("a~b"));
        assert_eq!(name, "mail/eu~depth.pending~tenant=a%7Eb");
        assert_eq!(queue_of(&name), Some(("mail/eu", "depth.pending~tenant=a%7Eb")));
        assert!(name.starts_with(&prefix_of(&queue)));
        assert_eq!(queue_of("views"), None);
    }

    proptest! {
        #[test]
        fn every_pair_gives_a_name_of_its_own_within_bounds(
            pairs in prop::collection::vec(("\\PC{1,20}|[a-c]{1,64}", "\\PC{0,90}|[a-c]{0,256}"), 2..20),
        ) {
            let queue = QueueName::new(&"q".repeat(128)).expect("a name");
            let mut names = BTreeMap::new();
            for (key, value) in pairs {
                let name = value_counter_name(&queue, "depth.invisible", &key, &own(&value));
                prop_assert!(name.len() <= COUNTER_NAME_BYTES_MAX, "{}", name);
                prop_assert!(name.is_ascii());
                let known = names.entry(name).or_insert((key.clone(), value.clone()));
                prop_assert_eq!(&known.0, &key);
                prop_assert_eq!(&known.1, &value);
                let pair = pair_text(&key, &own(&value));
                prop_assert!(pair.starts_with(&key_text(&key)), "{}", pair);
                if !pair.contains('~') {
                    prop_assert_eq!(unescaped(&pair), format!("{key}={value}"));
                }
            }
        }
    }
}
