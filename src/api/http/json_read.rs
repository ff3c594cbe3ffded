//! Decodes JSON bodies into messages, by descriptor.
//!
//! Field names are accepted in camelCase and snake_case. An unknown or duplicate field is refused; null means an absent
//! field. A field that only the service sets is refused. Every error names the field by its path (`items[3].delta`) and
//! its position in the text.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Write as _};

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use crate::errors::{ApiError, SET_BY_SERVICE};
use crate::http::json_values::{ScalarSeed, duration, shortened, timestamp, without_position};
use crate::http::list_limits::{decoded_items_max, items_max, too_many, too_many_in_total};
use tallystone_domain::Reason;
use tallystone_domain::limits::{REQUEST_ITEMS_MAX, SIMILAR_NAME_BYTES_MAX};

/// Decodes a body as a message.
pub fn read(descriptor: &MessageDescriptor, body: &[u8]) -> Result<DynamicMessage, ApiError> {
    let trail = JsonPath { path: RefCell::default(), reason: Cell::new(Reason::InvalidJson), items: Cell::new(0) };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let read = MessageSeed { descriptor, trail: &trail }.deserialize(&mut deserializer);
    read.and_then(|message| deserializer.end().map(|()| message)).map_err(|error| trail.refuse(&error))
}

/// The path of the decoder; after a failure, the path of the failure.
struct JsonPath {
    path: RefCell<Vec<JsonPathStep>>,
    reason: Cell<Reason>,
    /// The number of list items so far, over all lists.
    items: Cell<usize>,
}

enum JsonPathStep {
    Field(String),
    Item(usize),
    Key(String),
}

impl JsonPath {
    /// Decodes a value below this path. A failure leaves its path in place.
    fn at_step<T, E>(&self, step: JsonPathStep, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.path.borrow_mut().push(step);
        let value = read()?;
        self.path.borrow_mut().pop();
        Ok(value)
    }

    /// Refuses a field by its name, whatever its value is.
    fn bad_field<E: Error>(&self, name: &str, what: impl fmt::Display) -> E {
        self.path.borrow_mut().push(JsonPathStep::Field(shortened(name).into_owned()));
        self.reason.set(Reason::InvalidField);
        E::custom(what)
    }

    /// Counts one more item of a list, before it is built.
    fn count<E: Error>(&self, before: usize, most: usize) -> Result<(), E> {
        self.items.set(self.items.get() + 1);
        let what = match () {
            () if before >= decoded_items_max(most) => too_many(most),
            () if self.items.get() > REQUEST_ITEMS_MAX => too_many_in_total(),
            () => return Ok(()),
        };
        self.reason.set(Reason::InvalidBatchSize);
        Err(E::custom(what))
    }

    fn path(&self) -> String {
        let mut path = String::new();
        for step in self.path.borrow().iter() {
            match step {
                JsonPathStep::Field(name) if path.is_empty() => path.push_str(name),
                JsonPathStep::Field(name) => {
                    let _ = write!(path, ".{name}"); // writing to a String does not fail
                }
                JsonPathStep::Item(index) => {
                    let _ = write!(path, "[{index}]"); // writing to a String does not fail
                }
                JsonPathStep::Key(key) => {
                    let _ = write!(path, "[{key:?}]"); // writing to a String does not fail
                }
            }
        }
        path
    }

    fn refuse(&self, error: &serde_json::Error) -> ApiError {
        let path = self.path();
        let what = described(error);
        match error.classify() {
            Category::Syntax | Category::Eof | Category::Io => {
                let what = format!("the body is not JSON: {what}; send one JSON object, for example {{}}");
                ApiError::new(Reason::InvalidJson, what)
            }
            Category::Data if path.is_empty() => ApiError::new(Reason::InvalidJson, format!("the body: {what}")),
            Category::Data => ApiError::new(self.reason.get(), format!("{path}: {what}")).at(path),
        }
    }
}

/// The parser's error, with its position at the end in brackets.
fn described(error: &serde_json::Error) -> String {
    format!("{} (line {} column {})", without_position(error), error.line(), error.column())
}

struct MessageSeed<'a> {
    descriptor: &'a MessageDescriptor,
    trail: &'a JsonPath,
}

impl<'de> DeserializeSeed<'de> for MessageSeed<'_> {
    type Value = DynamicMessage;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<DynamicMessage, D::Error> {
        match self.descriptor.full_name() {
            "google.protobuf.Timestamp" | "google.protobuf.Duration" => {
                deserializer.deserialize_any(MomentVisitor(self))
            }
            // The other well-known types have JSON forms of their own as well.
            name if name.starts_with("google.protobuf.") => self.descriptor.clone().deserialize(deserializer),
            _ => deserializer.deserialize_any(self), // every other message is an object of its fields
        }
    }
}

impl<'de> Visitor<'de> for MessageSeed<'_> {
    type Value = DynamicMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with the fields of {}", self.descriptor.name())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DynamicMessage, A::Error> {
        let mut message = DynamicMessage::new(self.descriptor.clone());
        let mut seen = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(field) = find(self.descriptor, &name) else {
                return Err(self.trail.bad_field(&name, unknown(self.descriptor, &name)));
            };
            if seen.contains(&field.number()) {
                return Err(self.trail.bad_field(field.name(), "the field occurs twice"));
            }
            seen.push(field.number());
            let step = JsonPathStep::Field(field.name().to_owned());
            let seed = FieldSeed { field: &field, trail: self.trail };
            if let Some(value) = self.trail.at_step(step, || map.next_value_seed(seed))? {
                message.set_field(&field, value);
            }
        }
        Ok(message)
    }
}

fn find(descriptor: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    descriptor.get_field_by_json_name(name).or_else(|| descriptor.get_field_by_name(name))
}

fn unknown(descriptor: &MessageDescriptor, name: &str) -> String {
    let fields = || descriptor.fields().map(|field| field.name().to_owned());
    let similar = fields()
        .filter(|_| name.len() <= SIMILAR_NAME_BYTES_MAX)
        .map(|field| (strsim::jaro_winkler(&field, name), field))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0));
    match similar {
        Some((_, field)) => format!("{} has no such field; did you mean {field}?", descriptor.name()),
        None => format!("{} has no such field; it has {}", descriptor.name(), fields().collect::<Vec<_>>().join(", ")),
    }
}

/// Decodes a field; none for null.
struct FieldSeed<'a> {
    field: &'a FieldDescriptor,
    trail: &'a JsonPath,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for FieldSeed<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        if tallystone_proto::OUTPUT_ONLY_FIELDS.binary_search(&self.field.full_name()).is_ok() {
            self.trail.reason.set(Reason::InvalidField);
            return Err(D::Error::custom(SET_BY_SERVICE));
        }
        let kind = self.field.kind();
        if self.field.is_list() {
            let most = items_max(self.field);
            deserializer.deserialize_any(ListVisitor { kind: &kind, most, trail: self.trail }).map(Some)
        } else if let (true, Kind::Message(entry)) = (self.field.is_map(), &kind) {
            let most = items_max(self.field);
            deserializer.deserialize_any(MapVisitor { entry, most, trail: self.trail }).map(Some)
        } else {
            ValueSeed { kind: &kind, trail: self.trail }.deserialize(deserializer).map(Some)
        }
    }
}

/// Decodes a single value.
struct ValueSeed<'a> {
    kind: &'a Kind,
    trail: &'a JsonPath,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.kind {
            Kind::Message(descriptor) => {
                MessageSeed { descriptor, trail: self.trail }.deserialize(deserializer).map(Value::Message)
            }
            scalar => ScalarSeed(scalar).deserialize(deserializer),
        }
    }
}

struct ListVisitor<'a> {
    kind: &'a Kind,
    most: usize,
    trail: &'a JsonPath,
}

impl<'de> Visitor<'de> for ListVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let seed =
                ItemSeed { value: ValueSeed { kind: self.kind, trail: self.trail }, before: values.len(), list: &self };
            match self.trail.at_step(JsonPathStep::Item(values.len()), || list.next_element_seed(seed))? {
                Some(value) => values.push(value),
                None => return Ok(Value::List(values)),
            }
        }
    }
}

/// Decodes one more item of a list, if the list may have one.
struct ItemSeed<'a> {
    value: ValueSeed<'a>,
    before: usize,
    list: &'a ListVisitor<'a>,
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.list.trail.count(self.before, self.list.most).inspect_err(|_| {
            // The error concerns the list, not its item.
            self.list.trail.path.borrow_mut().pop();
        })?;
        self.value.deserialize(deserializer)
    }
}

struct MapVisitor<'a> {
    entry: &'a MessageDescriptor,
    most: usize,
    trail: &'a JsonPath,
}

impl<'de> Visitor<'de> for MapVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (key_kind, value_kind) =
            (self.entry.map_entry_key_field().kind(), self.entry.map_entry_value_field().kind());
        let mut values = std::collections::HashMap::new();
        while let Some(name) = map.next_key::<String>()? {
            self.trail.count(values.len(), self.most)?;
            let key = map_key(&key_kind, &name);
            let fault = match &key {
                None => Some("does not fit its type"),
                Some(key) if values.contains_key(key) => Some("occurs twice"),
                Some(_) => None,
            };
            let (Some(key), None) = (key, fault) else {
                let _ = map.next_value::<IgnoredAny>(); // the key decides; the value is not looked at
                let fault = fault.unwrap_or_default();
                return Err(A::Error::custom(format!("the key {:?} {fault}", shortened(&name))));
            };
            let seed = ValueSeed { kind: &value_kind, trail: self.trail };
            let value =
                self.trail.at_step(JsonPathStep::Key(shortened(&name).into_owned()), || map.next_value_seed(seed))?;
            values.insert(key, value);
        }
        Ok(Value::Map(values))
    }
}

fn map_key(kind: &Kind, text: &str) -> Option<MapKey> {
    match kind {
        Kind::String => Some(MapKey::String(text.to_owned())),
        Kind::Bool => text.parse().ok().map(MapKey::Bool),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => text.parse().ok().map(MapKey::I32),
        Kind::Uint32 | Kind::Fixed32 => text.parse().ok().map(MapKey::U32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => text.parse().ok().map(MapKey::I64),
        Kind::Uint64 | Kind::Fixed64 => text.parse().ok().map(MapKey::U64),
        Kind::Double | Kind::Float | Kind::Bytes | Kind::Enum(_) | Kind::Message(_) => None,
    }
}

/// Decodes times and durations, which are texts.
struct MomentVisitor<'a>(MessageSeed<'a>);

impl<'de> Visitor<'de> for MomentVisitor<'_> {
    type Value = DynamicMessage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.descriptor.name() {
            "Duration" => f.write_str("a duration as a text, for example \"1.5s\""),
            _ => f.write_str("a time as a text with its zone, for example \"2024-10-05T14:48:00Z\""), // a Timestamp
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<DynamicMessage, E> {
        let parts = match self.0.descriptor.name() {
            "Duration" => duration(text).map(|duration| (duration.seconds, duration.nanos)),
            _ => timestamp(text).map(|time| (time.seconds, time.nanos)), // a Timestamp
        };
        let Some((seconds, nanos)) = parts else {
            return Err(E::invalid_value(serde::de::Unexpected::Str(text), &self));
        };
        let mut message = DynamicMessage::new(self.0.descriptor.clone());
        message.set_field_by_name("seconds", Value::I64(seconds));
        message.set_field_by_name("nanos", Value::I32(nanos));
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use prost_reflect::DescriptorPool;
    use tallystone_proto::counter::v1::{AddCountRequest, BatchAddCountsRequest, Freshness, GetCountRequest};

    fn read_as<T: Message + Default>(name: &str, body: &str) -> Result<T, ApiError> {
        let pool = DescriptorPool::decode(tallystone_proto::DESCRIPTORS).expect("descriptors decode");
        let descriptor = pool.get_message_by_name(name).expect("the message exists");
        read(&descriptor, body.as_bytes()).map(|message| message.transcode_to().expect("the same message"))
    }

    fn add(body: &str) -> Result<AddCountRequest, ApiError> {
        read_as("tallystone.counter.v1.AddCountRequest", body)
    }

    fn get(body: &str) -> Result<GetCountRequest, ApiError> {
        read_as("tallystone.counter.v1.GetCountRequest", body)
    }

    #[test]
    fn the_published_body_is_read_as_it_is() {
        let request = add(r#"{"namespace": "my_dataset", "counter_name": "counter123", "delta": 2,
               "idempotency_token": {"token": "some_event_id", "generation_time": "2024-10-05T14:48:00Z"}}"#)
        .expect("the published body");
        let token = request.idempotency_token.expect("a token");
        assert_eq!((request.counter_name.as_str(), request.delta), ("counter123", Some(2)));
        assert_eq!(token.generation_time.expect("a time").seconds, 1_728_139_680);
    }

    #[test]
    fn names_come_in_both_spellings_and_numbers_in_both_forms() {
        let snake = add(r#"{"counter_name": "a", "delta": "-9223372036854775808"}"#).expect("snake_case");
        let camel = add(r#"{"counterName": "a", "delta": -9223372036854775808}"#).expect("camelCase");
        assert_eq!(snake, camel);
        assert_eq!(snake.delta, Some(i64::MIN));
    }

    #[test]
    fn enums_come_with_and_without_prefix_and_as_numbers() {
        for written in ["\"UP_TO_DATE\"", "\"FRESHNESS_UP_TO_DATE\"", "2"] {
            let request = get(&format!("{{\"freshness\": {written}}}")).expect("a freshness");
            assert_eq!(request.freshness, i32::from(Freshness::UpToDate), "{written}");
        }
        let refusal = get(r#"{"freshness": "NEW"}"#).expect_err("no such name");
        assert!(refusal.message.contains("one of ROLLED_UP, UP_TO_DATE"), "{}", refusal.message);
    }

    #[test]
    fn null_leaves_a_field_out() {
        let request = add(r#"{"namespace": "a", "delta": null, "idempotency_token": null}"#).expect("nulls");
        assert_eq!(request, AddCountRequest { namespace: "a".to_owned(), ..AddCountRequest::default() });
    }

    fn refused(body: &str, reason: Reason, words: &[&str]) {
        let refusal = add(body).expect_err(body);
        assert_eq!(refusal.reason, reason, "{body}: {}", refusal.message);
        for word in words {
            assert!(refusal.message.contains(word), "{body}: {}", refusal.message);
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_place() {
        refused("", Reason::InvalidJson, &["line 1 column 0"]);
        refused("{\n\"delta\": 1,,", Reason::InvalidJson, &["line 2"]);
        refused("{} {}", Reason::InvalidJson, &["trailing"]);
        refused("[]", Reason::InvalidJson, &["AddCountRequest"]);
        refused("\"text\"", Reason::InvalidJson, &["an object"]);
        refused(&"[".repeat(100_000), Reason::InvalidJson, &[]);
    }

    #[test]
    fn an_unknown_field_is_named() {
        refused(r#"{"counter": "a"}"#, Reason::InvalidField, &["counter: ", "did you mean counter_name?"]);
        refused(r#"{"idempotency_token": {"tokn": "a"}}"#, Reason::InvalidField, &["idempotency_token.tokn", "token?"]);
        refused(r#"{"xyz": 1}"#, Reason::InvalidField, &["xyz", "it has namespace, counter_name"]);
        refused(r#"{"delta": 1, "delta": 2}"#, Reason::InvalidField, &["delta", "twice"]);
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_with_its_place() {
        refused(r#"{"delta": "x"}"#, Reason::InvalidJson, &["delta: ", "a whole number of 64 bits", "line 1 column"]);
        refused(r#"{"delta": 9223372036854775808}"#, Reason::InvalidJson, &["delta"]);
        refused(r#"{"delta": 1.5}"#, Reason::InvalidJson, &["delta", "number 1.5", "line 1 column 14"]);
        refused(r#"{"delta": 1.00000000000000000001}"#, Reason::InvalidJson, &["delta", "a whole number of 64 bits"]);
        refused(r#"{"delta": [1]}"#, Reason::InvalidJson, &["delta", "sequence", "a whole number of 64 bits"]);
        refused(r#"{"namespace": 7}"#, Reason::InvalidJson, &["namespace", "a text"]);
        refused(r#"{"idempotency_token": {"generation_time": 5}}"#, Reason::InvalidJson, &["generation_time", "zone"]);
        refused(r#"{"idempotency_token": {"generation_time": "today"}}"#, Reason::InvalidJson, &["\"today\""]);
        let refusal = read_as::<BatchAddCountsRequest>(
            "tallystone.counter.v1.BatchAddCountsRequest",
            r#"{"items": [{"delta": 1}, {"delta": true}]}"#,
        )
        .expect_err("a bool is no number");
        assert_eq!(refusal.fields[0].0, "items[1].delta");
    }
}
