//! The id of a message. Most ids are UUIDs, which are kept as numbers.

use std::fmt;
use std::ops::Deref;

use uuid::Uuid;
use uuid::fmt::Hyphenated;

use crate::limits::MESSAGE_ID_BYTES_MAX;
use crate::queue::invalid_command::InvalidCommandPart;

/// The prefix of a message key; no message id begins with it.
pub const KEY_PREFIX: &str = "m.";

/// The name of a message, chosen by the caller or the server, and the token of its enqueue: 1 to 64 bytes, not
/// beginning `m.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MessageId(IdRepr);

/// Most ids are UUIDs, and millions of them are in memory: the number takes less than half the space of the text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum IdRepr {
    /// A UUID whose text is in lower case with hyphens.
    Uuid([u8; 16]),
    /// Any other text.
    Text(Box<str>),
}

/// The text of a message id.
#[derive(Clone, Copy)]
pub struct IdText<'a>(IdTextRepr<'a>);

#[derive(Clone, Copy)]
enum IdTextRepr<'a> {
    Borrowed(&'a str),
    Formatted([u8; Hyphenated::LENGTH]),
}

impl MessageId {
    /// Validates an id.
    pub fn new(id: &str) -> Result<Self, InvalidCommandPart> {
        let fits = (1..=MESSAGE_ID_BYTES_MAX).contains(&id.len()) && !id.starts_with(KEY_PREFIX);
        if !fits {
            return Err(InvalidCommandPart::MessageId);
        }
        let uuid = Uuid::try_parse(id).ok().map(|uuid| Self(IdRepr::Uuid(uuid.into_bytes())));
        // The same UUID in another text form is a different id.
        Ok(uuid.filter(|uuid| *uuid.text() == *id).unwrap_or_else(|| Self(IdRepr::Text(id.into()))))
    }

    /// The id whose text is that of this UUID in lower case with hyphens.
    pub fn of_uuid(bytes: [u8; 16]) -> Self {
        Self(IdRepr::Uuid(bytes))
    }

    /// The number of an id that is a UUID in lower case with hyphens.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        match &self.0 {
            IdRepr::Uuid(bytes) => Some(*bytes),
            IdRepr::Text(_) => None,
        }
    }

    /// Returns the text exactly as given.
    pub fn text(&self) -> IdText<'_> {
        IdText(match &self.0 {
            IdRepr::Text(text) => IdTextRepr::Borrowed(text),
            IdRepr::Uuid(bytes) => {
                let mut text = [0; Hyphenated::LENGTH];
                Uuid::from_bytes_ref(bytes).hyphenated().encode_lower(&mut text);
                IdTextRepr::Formatted(text)
            }
        })
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl Deref for IdText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            IdTextRepr::Borrowed(text) => text,
            IdTextRepr::Formatted(text) => std::str::from_utf8(text).expect("digits and hyphens"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_reads_as_it_was_given(text in "[a-l0-9-][ -~]{0,63}", uuid in any::<u128>()) {
            let uuid = Uuid::from_u128(uuid);
            let upper = uuid.to_string().to_uppercase();
            for text in [text, uuid.to_string(), upper, uuid.simple().to_string(), uuid.urn().to_string()] {
                let id = MessageId::new(&text).expect("a legal id");
                prop_assert_eq!((&*id.text(), id.to_string()), (&*text, text.clone()));
            }
        }
    }

    #[test]
    fn forms_of_one_uuid_are_different_ids_and_only_its_usual_text_takes_no_memory_of_its_own() {
        let uuid = "0189d3f1-0000-7000-8000-00000000000a";
        let forms = [uuid.to_owned(), uuid.to_uppercase(), uuid.replace('-', ""), format!("{{{uuid}}}")];
        let ids: BTreeSet<_> = forms.iter().map(|form| MessageId::new(form).expect("a legal id")).collect();
        assert_eq!(ids.len(), forms.len());
        assert_eq!(ids.iter().filter(|id| matches!(id.0, IdRepr::Uuid(_))).count(), 1);
    }
}
