//! Queries of pages and bodies of forms: names and values as `application/x-www-form-urlencoded`.

use std::fmt::Write as _;

/// The values of a query, by name. Of a name that occurs twice the first counts.
#[derive(Clone, Default, Debug)]
pub struct PageQuery(Vec<(String, String)>);

impl PageQuery {
    /// Reads a query. Bytes that are no UTF-8 become replacement characters.
    pub fn of(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decoded(name), decoded(value)))
                .collect(),
        )
    }

    /// The value of a name; empty without one.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                rest = &after[2..];
            }
            (b'+', ..) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A link to a page with a query. Pairs with an empty value are left out.
pub fn link(page: &str, pairs: &[(&str, &str)]) -> String {
    let mut text = if page.is_empty() { "./".to_owned() } else { page.to_owned() };
    let mut mark = '?';
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        text.push(mark);
        text.push_str(name);
        text.push('=');
        encode(value, &mut text);
        mark = '&';
    }
    text
}

fn encode(value: &str, text: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
