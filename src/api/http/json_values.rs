//! Decodes single JSON values into protobuf values, by the rules of canonical protobuf JSON.
//!
//! 64-bit numbers may be numbers or texts. Enums may be names (with or without the prefix of their type) or numbers.
//! Times are RFC 3339 with a zone, durations are like "1.5s".

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use prost_reflect::{EnumDescriptor, Kind, Value};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, Visitor};
use serde_json::value::RawValue;

use tallystone_domain::limits::SIMILAR_NAME_BYTES_MAX;

/// Decodes a value of a kind that is not a message.
pub struct ScalarSeed<'a>(pub &'a Kind);

impl<'de> DeserializeSeed<'de> for ScalarSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if matches!(self.0, Kind::Double | Kind::Float | Kind::Bool | Kind::String | Kind::Bytes) {
            return deserializer.deserialize_any(self);
        }
        // A float has too few digits to tell 1.00000000000000000001 from 1, so a number is first looked at as it is
        // written.
        let written = <&RawValue>::deserialize(deserializer)?.get();
        if has_fraction(written) {
            let number = format!("number {}", shortened(written));
            return Err(D::Error::invalid_value(serde::de::Unexpected::Other(&number), &self));
        }
        let read = serde_json::Deserializer::from_str(written).deserialize_any(self);
        read.map_err(|error| D::Error::custom(without_position(&error)))
    }
}

/// A caller's text, shortened for an error message.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= SIMILAR_NAME_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(SIMILAR_NAME_BYTES_MAX)]))
}

/// The text of the parser's error before its position.
pub(super) fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).map(str::to_owned).unwrap_or(text)
}

/// Whether a number that JSON allows is not whole. Other values have no fraction.
fn has_fraction(written: &str) -> bool {
    let (mantissa, exponent) = written.split_once(['e', 'E']).unwrap_or((written, "0"));
    let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if !whole.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let digits = [whole.trim_start_matches('-'), decimals].concat();
    let significant = digits.trim_end_matches('0');
    // An exponent that is no i64 is far beyond every number of digits.
    let is_small = exponent.starts_with('-');
    let exponent = exponent.parse().unwrap_or(if is_small { i64::MIN } else { i64::MAX });
    let zeros = (digits.len() - significant.len()) as i64 - decimals.len() as i64;
    !significant.is_empty() && exponent.saturating_add(zeros) < 0
}

impl<'de> Visitor<'de> for ScalarSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Double | Kind::Float => f.write_str("a number"),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => f.write_str("a whole number of 32 bits"),
            Kind::Uint32 | Kind::Fixed32 => f.write_str("a whole number of 32 bits, not negative"),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => f.write_str("a whole number of 64 bits"),
            Kind::Uint64 | Kind::Fixed64 => f.write_str("a whole number of 64 bits, not negative"),
            Kind::Bool => f.write_str("true or false"),
            Kind::String => f.write_str("a text"),
            Kind::Bytes => f.write_str("a text in base64"),
            Kind::Enum(kind) => write!(f, "one of {}", names(kind)),
            Kind::Message(message) => write!(f, "an object ({})", message.name()),
        }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        match self.0 {
            Kind::Bool => Ok(Value::Bool(value)),
            _ => Err(E::invalid_type(serde::de::Unexpected::Bool(value), &self)), // no other kind is written so
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        integer(self.0, i128::from(value)).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        integer(self.0, i128::from(value))
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Unsigned(value), &self))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        float(self.0, value).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Float(value), &self))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        text(self.0, value).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(value), &self))
    }
}

/// Converts an integer to a value of a kind, if it fits.
fn integer(kind: &Kind, value: i128) -> Option<Value> {
    match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => i32::try_from(value).ok().map(Value::I32),
        Kind::Uint32 | Kind::Fixed32 => u32::try_from(value).ok().map(Value::U32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => i64::try_from(value).ok().map(Value::I64),
        Kind::Uint64 | Kind::Fixed64 => u64::try_from(value).ok().map(Value::U64),
        Kind::Enum(_) => i32::try_from(value).ok().map(Value::EnumNumber),
        Kind::Double => Some(Value::F64(value as f64)),
        Kind::Float => Some(Value::F32(value as f32)),
        Kind::Bool | Kind::String | Kind::Bytes | Kind::Message(_) => None,
    }
}

/// Converts a number with a fraction or an exponent; to an integer only if the float is exact.
fn float(kind: &Kind, value: f64) -> Option<Value> {
    // From 2^53 on, several numbers that were written with a point or an exponent are the same float.
    const EXACT_MAX: f64 = 9_007_199_254_740_991.0;
    let exact = value.fract() == 0.0 && value.abs() <= EXACT_MAX;
    match kind {
        Kind::Double => Some(Value::F64(value)),
        Kind::Float => Some(Value::F32(value as f32)),
        _ if exact => integer(kind, value as i128), // which refuses kinds without numbers
        _ => None,                                  // an integer is never rounded
    }
}

fn text(kind: &Kind, value: &str) -> Option<Value> {
    match kind {
        Kind::String => Some(Value::String(value.to_owned())),
        Kind::Bytes => decode_base64(value).map(|bytes| Value::Bytes(bytes.into())),
        Kind::Enum(kind) => enum_number(kind, value).map(Value::EnumNumber),
        Kind::Double | Kind::Float => match value {
            "NaN" => float(kind, f64::NAN),
            "Infinity" => float(kind, f64::INFINITY),
            "-Infinity" => float(kind, f64::NEG_INFINITY),
            number => number.parse().ok().and_then(|value| float(kind, value)),
        },
        _ => value.parse().ok().and_then(|value| integer(kind, value)), // which refuses kinds without numbers
    }
}

fn decode_base64(value: &str) -> Option<Vec<u8>> {
    [STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD].iter().find_map(|engine| engine.decode(value).ok())
}

/// The number of an enum value, by its name with or without the prefix of its enum.
fn enum_number(kind: &EnumDescriptor, name: &str) -> Option<i32> {
    let full = kind.get_value_by_name(name);
    full.or_else(|| kind.get_value_by_name(&format!("{}{name}", prefix(kind)))).map(|value| value.number())
}

/// The names of an enum's values as a caller may write them, without the unspecified one.
fn names(kind: &EnumDescriptor) -> String {
    let prefix = prefix(kind);
    let short = |name: &str| name.strip_prefix(&prefix).unwrap_or(name).to_owned();
    let names: Vec<String> =
        kind.values().filter(|value| value.number() != 0).map(|value| short(value.name())).collect();
    names.join(", ")
}

/// The prefix of an enum's values: `FRESHNESS_` for `Freshness`.
fn prefix(kind: &EnumDescriptor) -> String {
    let mut prefix = String::new();
    for (at, letter) in kind.name().char_indices() {
        if letter.is_ascii_uppercase() && at > 0 {
            prefix.push('_');
        }
        prefix.push(letter.to_ascii_uppercase());
    }
    prefix.push('_');
    prefix
}

/// Parses a time in RFC 3339. The zone is required, so that a text means the same time everywhere.
pub fn timestamp(text: &str) -> Option<prost_types::Timestamp> {
    let bytes = text.as_bytes();
    let has_zone = text.ends_with(['Z', 'z']) || bytes.len() > 6 && matches!(bytes[bytes.len() - 6], b'+' | b'-');
    let is_date_time = matches!(bytes.get(10), Some(b'T' | b't'));
    if has_zone && is_date_time { text.parse().ok() } else { None }
}

/// Parses a duration: seconds with up to nine decimals and an `s`.
pub fn duration(text: &str) -> Option<prost_types::Duration> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_its_zone() {
        assert_eq!(timestamp("1970-01-01T00:00:01Z").map(|time| time.seconds), Some(1));
        assert_eq!(
            timestamp("1970-01-01T02:00:01.5+02:00").map(|time| (time.seconds, time.nanos)),
            Some((1, 500_000_000))
        );
        for text in
            ["", "Z", "1970-01-01", "1970-01-01T00:00:01", "1970-01-01 00:00:01Z", "1970-13-01T00:00:01Z", "1728139680"]
        {
            assert_eq!(timestamp(text), None, "{text}");
        }
    }

    #[test]
    fn a_duration_is_seconds_with_an_s() {
        let read = |text| duration(text).map(|duration| (duration.seconds, duration.nanos));
        assert_eq!(read("5s"), Some((5, 0)));
        assert_eq!(read("1.25s"), Some((1, 250_000_000)));
        assert_eq!(read("-0.5s"), Some((0, -500_000_000)));
        for text in ["", "s", "5", "5m", "five s", "5 s"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_keep_all_their_bits() {
        assert_eq!(text(&Kind::Int64, "-9223372036854775808"), Some(Value::I64(i64::MIN)));
        assert_eq!(text(&Kind::Uint64, "18446744073709551615"), Some(Value::U64(u64::MAX)));
        assert_eq!(text(&Kind::Int64, "9223372036854775808"), None);
        assert_eq!(float(&Kind::Int64, 1e3), Some(Value::I64(1_000)));
        assert_eq!(float(&Kind::Int64, 1.5), None);
        assert_eq!(float(&Kind::Int64, 9_007_199_254_740_991.0), Some(Value::I64((1 << 53) - 1)));
        assert_eq!(float(&Kind::Int64, 9_007_199_254_740_993.0), None, "it is the float of 2^53");
        assert_eq!(float(&Kind::Int64, 1e18), None, "a float of this size may have been another number");
        assert_eq!(integer(&Kind::Int32, 1 << 31), None);
        assert_eq!(integer(&Kind::Uint32, -1), None);
    }

    #[test]
    fn a_fraction_is_seen_however_small_it_is() {
        for whole in [
            "0", "-0", "7", "-7", "7.0", "7.000", "1e3", "1.5e1", "1.50E+1", "10e-1", "0.0", "0e-9", "-0.0e5", "100e-2",
        ] {
            assert!(!has_fraction(whole), "{whole}");
        }
        for fraction in ["0.5", "-1.5", "1.00000000000000000001", "1e-1", "15e-1", "1.55e1", "1e-99999999999999999999"]
        {
            assert!(has_fraction(fraction), "{fraction}");
        }
        for other in ["\"1.5\"", "null", "true", "[1.5]", "{\"a\":1.5}", "1e99999999999999999999"] {
            assert!(!has_fraction(other), "{other}");
        }
    }
}
