//! The syntax of documents: parses text of any supported language to a tree of values.
//!
//! A duplicate key in one table is an error in every language, because one of the two values would be lost. Depth, the
//! number of keys of a table and the length of a key are bounded, because decoders recurse, compare keys and report
//! paths.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::documents::invalid;
use tallystone_domain::Reject;
use tallystone_domain::limits::{DOCUMENT_DEPTH_MAX, DOCUMENT_FIELDS_MAX, DOCUMENT_KEY_BYTES_MAX};

#[derive(Clone, PartialEq, Debug)]
pub(super) enum DocumentValue {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<DocumentValue>),
    Table(Vec<(String, DocumentValue)>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Language {
    /// JSON5: JSON with comments, trailing commas and bare keys.
    Json,
    /// The inside of a JSON5 object, like the published example.
    JsonFragment,
    Toml,
}

impl DocumentValue {
    /// Parses a text in the language that its beginning indicates.
    pub fn parse(text: &str) -> Result<Self, Reject> {
        match language_of(text) {
            None => Err(invalid("the document is empty; write a namespace, for example name = \"views\"".to_owned())),
            Some(Language::Json) => json(text, 0),
            // Subtract the line of the added brace, so that positions refer to the file.
            Some(Language::JsonFragment) => json(&format!("{{\n{text}\n}}"), 1),
            Some(Language::Toml) => toml(text),
        }
    }

    /// Returns the kind of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "true or false",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a fraction",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }

    /// Returns the text; empty for every other value.
    pub fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }
}

/// Detects the language from the first character and from the character after the first key.
fn language_of(text: &str) -> Option<Language> {
    let start = after_blanks(text.strip_prefix('\u{feff}').unwrap_or(text));
    match start.chars().next()? {
        '#' => Some(Language::Toml),
        '{' => Some(Language::Json),
        '[' => match after_blanks(&start[1..]).chars().next() {
            None | Some('{' | ']') => Some(Language::Json),
            Some(_) => Some(Language::Toml),
        },
        first => match after_blanks(after_key(start, first)).chars().next() {
            Some(':') => Some(Language::JsonFragment),
            Some(_) | None => Some(Language::Toml),
        },
    }
}

/// The text after white space and JSON comments.
fn after_blanks(text: &str) -> &str {
    let mut rest = text.trim_start();
    loop {
        let behind = match rest.as_bytes() {
            [b'/', b'/', ..] => rest.find('\n').map_or("", |end| &rest[end..]),
            [b'/', b'*', ..] => rest.find("*/").map_or("", |end| &rest[end + 2..]),
            _ => return rest, // neither kind of comment begins here
        };
        rest = behind.trim_start();
    }
}

/// The text after the key at its beginning.
fn after_key(text: &str, first: char) -> &str {
    let end = match first {
        '"' | '\'' => text[1..].find(first).map(|end| end + 2),
        _ => text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '-' && c != '$'), // a bare key
    };
    end.map_or("", |end| &text[end..])
}

fn json(text: &str, lines_added: usize) -> Result<DocumentValue, Reject> {
    let JsonDocumentRoot(node) = json5::from_str(text).map_err(|error| {
        let whole = error.to_string();
        match error.position() {
            Some(position) => {
                let what = whole.strip_suffix(&format!(" at {position}")).unwrap_or(&whole);
                let line = (position.line + 1).saturating_sub(lines_added);
                invalid(format!("line {line} column {}: {what}", position.column + 1))
            }
            None => invalid(format!("the document cannot be read as JSON: {whole}")),
        }
    })?;
    Ok(node)
}

fn toml(text: &str) -> Result<DocumentValue, Reject> {
    let table: toml::Table = toml::from_str(text).map_err(|error| {
        let what = error.message().trim().replace('\n', ", ");
        match error.span() {
            Some(span) => {
                let before = text.get(..span.start).unwrap_or_default();
                let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count());
                invalid(format!("line {} column {}: {what}", before.matches('\n').count() + 1, column + 1))
            }
            None => invalid(format!("the document cannot be read as TOML: {what}")),
        }
    })?;
    toml_node(toml::Value::Table(table))
}

/// TOML's own parser bounds the depth and refuses duplicate keys.
fn toml_node(value: toml::Value) -> Result<DocumentValue, Reject> {
    Ok(match value {
        toml::Value::String(text) => DocumentValue::Text(text),
        toml::Value::Integer(number) => DocumentValue::Integer(number.into()),
        toml::Value::Float(number) => DocumentValue::Float(number),
        toml::Value::Boolean(flag) => DocumentValue::Bool(flag),
        toml::Value::Datetime(time) => DocumentValue::Text(time.to_string()),
        toml::Value::Array(items) => DocumentValue::List(items.into_iter().map(toml_node).collect::<Result<_, _>>()?),
        toml::Value::Table(table) => {
            let mut entries = Vec::with_capacity(table.len());
            for (key, value) in table {
                check_key(&key, entries.len()).map_err(invalid)?;
                entries.push((key, toml_node(value)?));
            }
            DocumentValue::Table(entries)
        }
    })
}

/// Whether a table may get another field of this name.
fn check_key(key: &str, fields: usize) -> Result<(), String> {
    if key.len() > DOCUMENT_KEY_BYTES_MAX {
        return Err(format!(
            "the name of a field has {} bytes; at most {DOCUMENT_KEY_BYTES_MAX} are allowed",
            key.len()
        ));
    }
    if fields >= DOCUMENT_FIELDS_MAX {
        return Err(format!("a table has more than {DOCUMENT_FIELDS_MAX} fields"));
    }
    Ok(())
}

/// The outermost value of a JSON document.
struct JsonDocumentRoot(DocumentValue);

impl<'de> serde::Deserialize<'de> for JsonDocumentRoot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DocumentValueSeed(0).deserialize(deserializer).map(Self)
    }
}

/// Decodes a value at a depth.
struct DocumentValueSeed(usize);

impl<'de> DeserializeSeed<'de> for DocumentValueSeed {
    type Value = DocumentValue;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DocumentValue, D::Error> {
        if self.0 > DOCUMENT_DEPTH_MAX {
            return Err(D::Error::custom(format!("values are nested more than {DOCUMENT_DEPTH_MAX} deep")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DocumentValueSeed {
    type Value = DocumentValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Integer(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Integer(number.into()))
    }

    fn visit_i128<E>(self, number: i128) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Integer(number))
    }

    fn visit_u128<E: serde::de::Error>(self, number: u128) -> Result<DocumentValue, E> {
        i128::try_from(number).map(DocumentValue::Integer).map_err(|_| E::custom("the number is too large"))
    }

    fn visit_f64<E>(self, number: f64) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<DocumentValue, E> {
        Ok(DocumentValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<DocumentValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(DocumentValueSeed(self.0 + 1))? {
            list.push(item);
        }
        Ok(DocumentValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<DocumentValue, A::Error> {
        let mut table: Vec<(String, DocumentValue)> = Vec::new();
        while let Some(key) = entries.next_key::<String>()? {
            check_key(&key, table.len()).map_err(A::Error::custom)?;
            if table.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!("{key:?} occurs twice in one table")));
            }
            let value = entries.next_value_seed(DocumentValueSeed(self.0 + 1))?;
            table.push((key, value));
        }
        Ok(DocumentValue::Table(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        DocumentValue::parse(text).expect_err(text).message
    }

    #[test]
    fn the_language_is_found_by_looking() {
        for (text, language) in [
            ("{}", Language::Json),
            (" // why\n /* a\n b */ { a: 1 }", Language::Json),
            ("[]", Language::Json),
            ("[ {\"a\": 1} ]", Language::Json),
            ("\"a\": 1", Language::JsonFragment),
            ("// why\n'a' : 1", Language::JsonFragment),
            ("a: 1", Language::JsonFragment),
            ("# why\n", Language::Toml),
            ("a = 1", Language::Toml),
            ("\"a\" = 1", Language::Toml),
            ("a.b = 1", Language::Toml),
            ("[a]", Language::Toml),
            ("[[a]]", Language::Toml),
            ("[\"a\"]", Language::Toml),
        ] {
            assert_eq!(language_of(text), Some(language), "{text}");
        }
        for text in ["", " \n", "// nothing else", "/* open"] {
            assert_eq!(language_of(text), None, "{text}");
            assert!(fault(text).contains("empty"));
        }
    }

    #[test]
    fn all_languages_read_the_same_tree() {
        let json = "{ a: 1, b: { 'c': [true, \"x\",], }, }";
        let fragment = "a: 1, b: { 'c': [true, \"x\",], }, // the end";
        let toml = "a = 1\n[b]\nc = [true, \"x\"]\n";
        let tree = DocumentValue::parse(json).expect("valid");
        assert_eq!(DocumentValue::parse(fragment).expect("valid"), tree);
        assert_eq!(DocumentValue::parse(toml).expect("valid"), tree);
    }

    #[test]
    fn faults_name_their_line_as_the_file_has_it() {
        assert!(fault("{\n  a: 1\n  b: 2\n}").starts_with("line 3 column 3: "), "{}", fault("{\n  a: 1\n  b: 2\n}"));
        assert!(fault("a: 1,\nb = 2").starts_with("line 2 column 3: "), "{}", fault("a: 1,\nb = 2"));
        assert!(fault("a = 1\nb = \n").starts_with("line 2 column 5: "), "{}", fault("a = 1\nb = \n"));
        assert!(
            fault("{\n a: 1,\n b: { c: 1,\n").ends_with("EOF parsing object"),
            "{}",
            fault("{\n a: 1,\n b: { c: 1,\n")
        );
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        assert!(fault("{ a: 1, a: 1 }").contains("twice"));
        assert!(fault("a = 1\na = 1").contains("duplicate"));
    }

    #[test]
    fn tables_and_keys_are_bounded_in_every_language() {
        let wide = |between: &str, end: &str| (0..300).map(|i| format!("k{i}{between}1{end}")).collect::<String>();
        assert!(fault(&wide(":", ",")).contains("more than 256 fields"));
        assert!(fault(&wide("=", "\n")).contains("more than 256 fields"));
        let long = "k".repeat(257);
        assert!(fault(&format!("{long}: 1")).contains("has 257 bytes"));
        assert!(fault(&format!("{long} = 1")).contains("has 257 bytes"));
    }

    #[test]
    fn a_byte_order_mark_is_no_content() {
        for text in ["{ a: 1 }", "a: 1", "a = 1"] {
            assert_eq!(DocumentValue::parse(&format!("\u{feff}{text}")), DocumentValue::parse(text), "{text}");
        }
    }

    #[test]
    fn depth_is_bounded_in_every_language() {
        let deep = 100_000;
        assert!(fault(&("{ a: ".to_owned() + &"[".repeat(deep))).contains("deep"));
        assert!(fault(&("a: ".to_owned() + &"{a:".repeat(deep))).contains("deep"));
        assert!(fault(&("a = ".to_owned() + &"[".repeat(deep))).contains("recurs"));
        assert!(fault(&("a".to_owned() + &".a".repeat(deep) + " = 1")).contains("recurs"));
    }
}
