//! JSON in which no object has one name twice. Readers differ in which of the two counts. So such a token could mean
//! one thing to the server that checks it and another to the server that uses it. Source: RFC 7515 (section 4) and RFC
//! 7519 (section 4).

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use tallystone_domain::access::TokenRefusal;

/// The text of the error for a repeated name; the library keeps no more of the error than its text.
const REPEATED: &str = "a name stands twice in one object";

/// An object and all below it.
pub(super) struct UniqueObject(pub Map<String, Value>);

/// The reason for which JSON of a token cannot be read.
pub(super) fn refusal(error: &serde_json::Error) -> TokenRefusal {
    if error.to_string().starts_with(REPEATED) { TokenRefusal::Repeated } else { TokenRefusal::Malformed }
}

impl<'de> Deserialize<'de> for UniqueObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match UniqueValue::deserialize(deserializer)?.0 {
            Value::Object(object) => Ok(Self(object)),
            _ => Err(D::Error::custom("an object is expected")), // text, a number and the like
        }
    }
}

struct UniqueValue(Value);

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueValueVisitor).map(Self)
    }
}

struct UniqueValueVisitor;

impl<'de> Visitor<'de> for UniqueValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, is: bool) -> Result<Value, E> {
        Ok(Value::Bool(is))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        while let Some(UniqueValue(item)) = items.next_element()? {
            read.push(item);
        }
        Ok(read.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some((name, UniqueValue(value))) = pairs.next_entry::<String, UniqueValue>()? {
            if read.insert(name, value).is_some() {
                return Err(A::Error::custom(REPEATED));
            }
        }
        Ok(read.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_says_one_thing_twice_is_told_from_broken_json() {
        let read = |text: &str| serde_json::from_str::<UniqueObject>(text).map(|object| object.0);
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": {"a": 1, "a": 2}}"#, r#"{"b": [{"a": null, "a": 2}]}"#] {
            assert_eq!(read(text).map_err(|error| refusal(&error)), Err(TokenRefusal::Repeated), "{text}");
        }
        for text in ["", "{", "[]", "7", r#"{"a": 1,}"#, r#""a name stands twice in one object""#] {
            assert_eq!(read(text).map_err(|error| refusal(&error)), Err(TokenRefusal::Malformed), "{text}");
        }
        let text = r#"{"a": {"a": [1, -1, 1.5, "a", true, null, {}]}, "b": {"a": "a"}}"#;
        let plain: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(read(text).map(Value::Object).ok(), Some(plain));
    }
}
