//! One table of a document during decoding: fields are taken by name, and fields that were not taken can be listed.
//!
//! Keys are the same in snake_case and camelCase. `null` means the same as an absent field.

use std::time::Duration;

use crate::documents::document_value::DocumentValue;
use crate::documents::reject_at;
use tallystone_domain::Reject;

/// The end of the name of a word that means that nothing is set.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Decodes a table.
type DocumentReader<T> = fn(&mut DocumentTable) -> Result<T, Reject>;

/// A table during decoding.
#[derive(Debug)]
pub(super) struct DocumentTable {
    place: String,
    /// Key in snake_case, key as written, value.
    entries: Vec<(String, String, DocumentValue)>,
    /// Every requested name, for suggestions.
    requested: Vec<&'static str>,
}

impl DocumentTable {
    /// Starts to decode a value that must be a table.
    pub fn of(place: String, node: DocumentValue) -> Result<Self, Reject> {
        let DocumentValue::Table(table) = node else {
            return Err(reject_at(&place, &format!("expected a table, found {}", node.kind())));
        };
        let mut entries: Vec<(String, String, DocumentValue)> = Vec::with_capacity(table.len());
        for (written, node) in table {
            let key = snake_case(&written);
            if let Some((_, other, _)) = entries.iter().find(|(known, _, _)| *known == key) {
                return Err(reject_at(
                    &place,
                    &format!("{other} and {written} are the same field; use only one of them"),
                ));
            }
            if node != DocumentValue::Null {
                entries.push((key, written, node));
            }
        }
        Ok(Self { place, entries, requested: Vec::new() })
    }

    pub fn path(&self) -> &str {
        &self.place
    }

    pub fn path_of(&self, field: &str) -> String {
        match self.place.as_str() {
            "" => field.to_owned(),
            place => format!("{place}.{field}"),
        }
    }

    /// Whether a field is present and not taken yet.
    pub fn has(&self, field: &str) -> bool {
        self.entries.iter().any(|(key, _, _)| key == field)
    }

    /// Whether a field is present, not taken yet, and a table.
    pub fn is_table(&self, field: &str) -> bool {
        self.entries.iter().any(|(key, _, node)| key == field && matches!(node, DocumentValue::Table(_)))
    }

    /// Takes a field with its path.
    pub fn take(&mut self, field: &'static str) -> Option<(String, DocumentValue)> {
        self.requested.push(field);
        let at = self.entries.iter().position(|(key, _, _)| key == field)?;
        let (_, written, node) = self.entries.remove(at);
        Some((self.path_of(&written), node))
    }

    /// Takes a text.
    pub fn text(&mut self, field: &'static str) -> Result<Option<String>, Reject> {
        self.take_as(field, |place, node| match node {
            DocumentValue::Text(text) => Ok(text),
            other => Err(reject_at(place, &format!("expected a string, found {}", other.kind()))),
        })
    }

    /// Takes an integer, which may be written as a text.
    pub fn whole<T: TryFrom<i128>>(&mut self, field: &'static str) -> Result<Option<T>, Reject> {
        self.take_as(field, |place, node| {
            let number =
                if let DocumentValue::Integer(number) = node { Some(number) } else { node.text().parse().ok() };
            let Some(number) = number else {
                return Err(reject_at(place, &format!("expected a whole number, found {}", shown(&node))));
            };
            T::try_from(number).map_err(|_| reject_at(place, &format!("{number} is out of range")))
        })
    }

    /// Takes a duration: a text with a unit, such as `5s`.
    pub fn duration(&mut self, field: &'static str) -> Result<Option<Duration>, Reject> {
        self.take_as(field, |place, node| {
            duration_of(node.text()).ok_or_else(|| {
                reject_at(place, &format!("expected a duration such as \"5s\" or \"500ms\", found {}", shown(&node)))
            })
        })
    }

    /// Takes a boolean.
    pub fn flag(&mut self, field: &'static str) -> Result<Option<bool>, Reject> {
        self.take_as(field, |place, node| match node {
            DocumentValue::Bool(flag) => Ok(flag),
            other => Err(reject_at(place, &format!("expected true or false, found {}", shown(&other)))),
        })
    }

    /// Takes one of a fixed set of words; letter case and the enum's prefix do not matter.
    pub fn word<T: Copy>(
        &mut self,
        field: &'static str,
        prefix: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Reject> {
        self.take_as(field, |place, node| {
            let DocumentValue::Text(text) = &node else {
                return Err(reject_at(place, &format!("expected a string, found {}", node.kind())));
            };
            let upper = text.to_ascii_uppercase();
            let word = upper.strip_prefix(prefix).unwrap_or(&upper);
            // What the protocol answers where nothing is set; a document that was read from an answer has it.
            if word == UNSPECIFIED && word != upper {
                return Ok(None);
            }
            let found = words.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
            found.map(Some).ok_or_else(|| {
                let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
                reject_at(place, &format!("{text:?} is not one of {}", names.join(", ")))
            })
        })
        .map(Option::flatten)
    }

    /// Takes a table.
    pub fn table(&mut self, field: &'static str) -> Result<Option<DocumentTable>, Reject> {
        self.take(field).map(|(place, node)| Self::of(place, node)).transpose()
    }

    /// Takes a table and decodes it; a field that `read` does not take is refused.
    pub fn part<T>(&mut self, field: &'static str, read: DocumentReader<T>) -> Result<Option<T>, Reject> {
        self.take(field).map(|(place, node)| Self::read_all(place, node, read)).transpose()
    }

    /// Takes a list of tables and decodes each in the same way; an absent list is empty.
    pub fn parts<T>(&mut self, field: &'static str, read: DocumentReader<T>) -> Result<Vec<T>, Reject> {
        let items = self.list(field)?.unwrap_or_default();
        items.into_iter().map(|(place, node)| Self::read_all(place, node, read)).collect()
    }

    fn read_all<T>(place: String, node: DocumentValue, read: DocumentReader<T>) -> Result<T, Reject> {
        let mut fields = Self::of(place, node)?;
        let part = read(&mut fields)?;
        fields.refuse_rest().map(|()| part)
    }

    /// Takes a list, each item with its path.
    pub fn list(&mut self, field: &'static str) -> Result<Option<Vec<(String, DocumentValue)>>, Reject> {
        self.take_as(field, |place, node| match node {
            DocumentValue::List(items) => {
                Ok(items.into_iter().enumerate().map(|(index, item)| (format!("{place}[{index}]"), item)).collect())
            }
            other => Err(reject_at(place, &format!("expected a list, found {}", other.kind()))),
        })
    }

    /// Refuses the remaining fields, with a suggestion if a known field has a similar name.
    pub fn refuse_rest(self) -> Result<(), Reject> {
        let Some((key, written, _)) = self.entries.first() else { return Ok(()) };
        let alike = self.requested.iter().map(|known| (strsim::damerau_levenshtein(known, key), known)).min();
        // One wrong letter in four is a typing error; more make a different word.
        let hint = match alike {
            Some((distance, known)) if distance <= 1.max(key.len() / 4) => format!("; did you mean {known}?"),
            Some(_) | None => format!("; known are {}", self.requested.join(", ")),
        };
        Err(reject_at(&self.path_of(written), &format!("there is no such field{hint}")))
    }

    /// Returns the paths of the remaining fields.
    pub fn rest(self) -> Vec<String> {
        self.entries.iter().map(|(_, written, _)| self.path_of(written)).collect()
    }

    /// Converts the remaining fields back to a value.
    pub fn into_node(self) -> DocumentValue {
        DocumentValue::Table(self.entries.into_iter().map(|(_, written, node)| (written, node)).collect())
    }

    fn take_as<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&str, DocumentValue) -> Result<T, Reject>,
    ) -> Result<Option<T>, Reject> {
        self.take(field).map(|(place, node)| read(&place, node)).transpose()
    }
}

/// Formats a value for a message.
fn shown(node: &DocumentValue) -> String {
    match node {
        DocumentValue::Text(text) => format!("{text:?}"),
        DocumentValue::Integer(number) => number.to_string(),
        DocumentValue::Float(number) => number.to_string(),
        DocumentValue::Bool(flag) => flag.to_string(),
        DocumentValue::Null | DocumentValue::List(_) | DocumentValue::Table(_) => node.kind().to_owned(),
    }
}

fn snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 4);
    for c in key.chars() {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Parses a duration with a unit: `5s`, `0.5s`, `500ms`, `10m`, `24h`, `7d`.
pub fn duration_of(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let nanos_per_unit: u128 = match unit {
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        "d" => 86_400 * 1_000_000_000,
        _ => return None, // any other word is no unit
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let are_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let parts = whole.parse::<u64>().ok()?.into();
    let nanos = nanos_per_unit.checked_mul(parts)? + nanos_per_unit * fraction.parse::<u128>().ok()? / scale;
    Some(Duration::from_nanos(u64::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in
            [("5s", 5_000), ("0.5s", 500), ("500ms", 500), ("10m", 600_000), ("1h", 3_600_000), ("7d", 604_800_000)]
        {
            assert_eq!(duration_of(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "-5s", "+5s", "5 s", "5.s", ".5s", "1e3s", "5w", "99999999999999999999s", "5s5"] {
            assert_eq!(duration_of(text), None, "{text}");
        }
    }

    #[test]
    fn both_spellings_of_a_field_are_one_field() {
        let table = |keys: &[&str]| {
            let entries = keys.iter().map(|key| ((*key).to_owned(), DocumentValue::Integer(1))).collect();
            DocumentTable::of("x".to_owned(), DocumentValue::Table(entries))
        };
        assert_eq!(table(&["numQueues"]).expect("a table").whole::<u32>("num_queues"), Ok(Some(1)));
        let reject = table(&["numQueues", "num_queues"]).expect_err("said twice");
        assert_eq!(reject.message, "x: numQueues and num_queues are the same field; use only one of them");
    }

    #[test]
    fn numbers_may_be_texts_and_must_fit() {
        let fields = |node| {
            let table = DocumentValue::Table(vec![("n".to_owned(), node)]);
            DocumentTable::of(String::new(), table).expect("a table").whole::<u32>("n").map_err(|reject| reject.message)
        };
        assert_eq!(fields(DocumentValue::Text("600".to_owned())), Ok(Some(600)));
        assert_eq!(fields(DocumentValue::Null), Ok(None));
        assert_eq!(fields(DocumentValue::Integer(-1)), Err("n: -1 is out of range".to_owned()));
        assert_eq!(fields(DocumentValue::Float(1.5)), Err("n: expected a whole number, found 1.5".to_owned()));
        assert_eq!(
            fields(DocumentValue::Text("x".to_owned())),
            Err("n: expected a whole number, found \"x\"".to_owned())
        );
    }
}
