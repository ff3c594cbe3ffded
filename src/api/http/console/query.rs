//! Queries of pages and bodies of forms: names and values as `application/x-www-form-urlencoded`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tonic::Status;
use xxhash_rust::xxh3::Xxh3;

/// The characters that are escaped in the values of links.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The letters of an unknown value that a page shows.
const SHOWN_LETTERS: usize = 100;

/// The values of a query, by name. Of a name that occurs twice the first counts.
#[derive(Clone, Default, Debug)]
pub struct PageQuery(Vec<(String, String)>);

impl PageQuery {
    /// Reads a query. Bytes that are no UTF-8 become replacement characters.
    pub fn of(query: Option<&str>) -> Self {
        Self(form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect())
    }

    /// A hash of all names and values, in their order.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            hash.update(&(text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        hash.digest()
    }

    /// The value of a name; empty without one.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// All values of a name, in their order.
    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A link to a page with a query. Pairs with an empty value are left out.
pub fn link(page: &str, pairs: &[(&str, &str)]) -> String {
    let mut text = if page.is_empty() { "./".to_owned() } else { page.to_owned() };
    let mut mark = '?';
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        text.push(mark);
        text.push_str(name);
        text.push('=');
        text.extend(utf8_percent_encode(value, &ESCAPED));
        mark = '&';
    }
    text
}

/// The value of a query that may have some values; the first of them if it is empty.
///
/// # Errors
///
/// The value is another one. The text says which there are.
pub fn one_of(name: &str, value: &str, allowed: &[&'static str]) -> Result<&'static str, Status> {
    let found = if value.is_empty() { allowed.first() } else { allowed.iter().find(|known| **known == value) };
    let unknown = || {
        let shown: String = value.chars().take(SHOWN_LETTERS).collect();
        Status::invalid_argument(format!("There is no {name} {shown:?}. It is one of: {}.", allowed.join(", ")))
    };
    found.copied().ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_value_that_is_not_allowed_is_refused_with_those_that_are() {
        let states = ["pending", "running"];
        assert_eq!(one_of("state", "", &states).expect("the first"), "pending");
        assert_eq!(one_of("state", "running", &states).expect("it is known"), "running");
        let refused = one_of("state", "ready", &states).expect_err("there is none");
        assert_eq!(refused.message(), "There is no state \"ready\". It is one of: pending, running.");
    }

    proptest! {
        #[test]
        fn a_value_comes_back_from_its_link(value in ".{1,40}", other in "[a-z&=%+]{1,9}") {
            let link = link("queue", &[("by", &other), ("name", &value), ("empty", "")]);
            let (page, query) = link.split_once('?').expect("there is a query");
            prop_assert!(query.is_ascii() && page == "queue" && !query.contains("empty"));
            let read = PageQuery::of(Some(query));
            prop_assert_eq!((read.text("name"), read.text("by"), read.text("none")), (&*value, &*other, ""));
        }

        #[test]
        fn any_bytes_are_a_query(query in ".{0,60}") {
            PageQuery::of(Some(&query));
        }
    }
}
