//! Fields that only the service sets: a request that sets one is refused by name, over JSON and over gRPC alike.

use std::collections::BTreeSet;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, Value as Reflected};
use serde_json::{Value, json};
use tallystone::proto::{DESCRIPTORS, METHOD_ROLES, OUTPUT_ONLY_FIELDS};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use super::queues::violations;
use super::{Wire, reason};

/// A field of a request that only the service sets, and the fields that lead to it.
struct SetField {
    path: String,
    steps: Vec<FieldDescriptor>,
    input: MessageDescriptor,
}

/// All such fields below a message.
fn set_fields(input: &MessageDescriptor, message: &MessageDescriptor, steps: &[FieldDescriptor]) -> Vec<SetField> {
    let mut found = Vec::new();
    for field in message.fields() {
        let steps = [steps, std::slice::from_ref(&field)].concat();
        if OUTPUT_ONLY_FIELDS.contains(&field.full_name()) {
            let step = |field: &FieldDescriptor| match field.is_list() {
                true => format!("{}[0]", field.name()),
                false => field.name().to_owned(),
            };
            let path = steps.iter().map(step).collect::<Vec<_>>().join(".");
            found.push(SetField { path, steps, input: input.clone() });
        } else if let Kind::Message(inner) = field.kind() {
            found.extend(set_fields(input, &inner, &steps));
        }
    }
    found
}

/// A value that is not the default of a field: in JSON, and decoded.
fn value_of(field: &FieldDescriptor) -> (Value, Reflected) {
    match field.kind() {
        Kind::Bool => (json!(true), Reflected::Bool(true)),
        Kind::String => (json!("x"), Reflected::String("x".to_owned())),
        Kind::Int32 => (json!(1), Reflected::I32(1)),
        Kind::Uint32 => (json!(1), Reflected::U32(1)),
        Kind::Int64 => (json!("1"), Reflected::I64(1)),
        Kind::Uint64 => (json!("1"), Reflected::U64(1)),
        Kind::Enum(_) => (json!(1), Reflected::EnumNumber(1)),
        Kind::Message(message) => {
            let shown = match message.full_name() {
                "google.protobuf.Timestamp" => json!("1970-01-01T00:00:00Z"),
                "google.protobuf.Duration" => json!("0s"),
                _ => json!({}), // any other is an object
            };
            (shown, Reflected::Message(DynamicMessage::new(message)))
        }
        other => panic!("{}: add a value of {other:?}", field.full_name()),
    }
}

impl SetField {
    fn as_json(&self) -> Value {
        let last = self.steps.last().expect("the field itself");
        self.steps.iter().rev().fold(value_of(last).0, |value, field| match field.is_list() {
            true => json!({ field.name(): [value] }),
            false => json!({ field.name(): value }),
        })
    }

    fn as_message(&self) -> Vec<u8> {
        let last = self.steps.last().expect("the field itself");
        let whole = self.steps.iter().rev().fold(value_of(last).1, |value, field| {
            let mut message = DynamicMessage::new(field.parent_message().clone());
            let value = if field.is_list() { Reflected::List(vec![value]) } else { value };
            message.set_field(field, value);
            Reflected::Message(message)
        });
        let Reflected::Message(message) = whole else { panic!("a request is a message") };
        assert_eq!(prost_reflect::ReflectMessage::descriptor(&message), self.input);
        message.encode_to_vec()
    }
}

/// Sends and receives messages as their bytes.
#[derive(Clone, Copy, Default)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        bytes::Buf::advance(buffer, bytes::Buf::remaining(buffer));
        Ok(Some(()))
    }
}

/// The paths of the methods of callers with the fields that they refuse.
fn refused_fields() -> Vec<(String, SetField)> {
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("descriptors of this build decode");
    let ours = METHOD_ROLES.iter().filter(|(name, _)| !name.starts_with("tallystone.internal."));
    ours.flat_map(|(name, _)| {
        let (service, method) = name.rsplit_once('.').expect("a service");
        let service = pool.get_service_by_name(service).expect("a service of ours");
        let found = service.methods().find(|found| found.name() == method).expect("a method of it");
        let fields = set_fields(&found.input(), &found.input(), &[]);
        fields.into_iter().map(|field| (format!("/{}/{method}", service.full_name()), field)).collect::<Vec<_>>()
    })
    .collect()
}

#[tokio::test]
async fn a_field_that_only_the_service_sets_is_refused_by_its_path_in_every_request() {
    let server = Wire::start().await;
    let mut grpc = tonic::client::Grpc::new(server.patient_channel().await);
    let all = refused_fields();
    let methods: BTreeSet<&str> = all.iter().filter_map(|(path, _)| path.rsplit('/').next()).collect();
    let expected = [
        "BatchEnqueue",
        "CompareExperiment",
        "CreateExperiment",
        "CreateNamespace",
        "CreateQueue",
        "CreateRule",
        "Enqueue",
        "UpdateExperiment",
        "UpdateNamespace",
        "UpdateQueue",
    ];
    assert_eq!(methods, BTreeSet::from(expected));
    for (path, field) in &all {
        let body = field.as_json().to_string();
        let answer = server.http("POST", path, &[("content-type", "application/json")], &body).await;
        let refused = super::json(&answer.body);
        assert_eq!(refused["details"][0]["reason"], "INVALID_FIELD", "{path} {body}: {refused}");
        assert_eq!(violations(&refused), [&*field.path], "{path} {body}: {refused}");
        assert!(refused["message"].as_str().is_some_and(|text| text.contains("only the service sets")), "{refused}");
        grpc.ready().await.expect("the server is there");
        let sent = Request::new(field.as_message());
        let answer = grpc.unary(sent, path.parse().expect("a path"), BytesCodec).await;
        let status = answer.expect_err("the field is refused");
        assert_eq!((status.code(), reason(&status)), (Code::InvalidArgument, "INVALID_FIELD".to_owned()), "{path}");
        let violations = status.get_details_bad_request().expect("a BadRequest").field_violations;
        assert_eq!(violations[0].field, field.path, "{path}");
    }
}

#[test]
fn every_field_that_is_documented_as_output_only_is_in_the_list() {
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("descriptors of this build decode");
    let mut documented = BTreeSet::new();
    for message in pool.all_messages().filter(|message| message.full_name().starts_with("tallystone.")) {
        let file = message.parent_file();
        let locations = &file.file_descriptor_proto().source_code_info.as_ref().expect("comments are kept").location;
        for field in message.fields() {
            let own = locations.iter().filter(|location| location.path == field.path());
            let comment: String = own.map(|location| location.leading_comments().to_lowercase()).collect();
            let words = ["output only", "output-only", "only answered", "ignored in requests", "set by the service"];
            if words.iter().any(|word| comment.contains(word)) && !comment.contains("refused") {
                documented.insert(field.full_name().to_owned());
            }
        }
    }
    let listed: BTreeSet<String> = OUTPUT_ONLY_FIELDS.iter().map(|&name| name.to_owned()).collect();
    assert!(listed.len() > 30, "{listed:?}");
    assert_eq!(documented, listed);
}

#[tokio::test]
async fn a_null_in_such_a_field_is_an_absent_field_and_an_etag_may_come_back() {
    let server = Wire::start().await;
    let path = "/tallystone.queue.v1.QueueService";
    let ask = async |method: &str, body: Value| {
        let headers = [("content-type", "application/json")];
        let answer = server.http("POST", &format!("{path}/{method}"), &headers, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
        super::json(&answer.body)
    };
    let made = ask("CreateQueue", json!({"queue": {"name": "mail", "version": null}})).await;
    let again = json!({"queue": {"name": "mail", "etag": made["queue"]["etag"], "default_max_attempts": 7}});
    assert_eq!(ask("UpdateQueue", again).await["queue"]["defaultMaxAttempts"], 7);
}

#[tokio::test]
async fn an_etag_is_refused_where_something_is_made() {
    let server = Wire::start().await;
    let ask = async |path: &str, body: Value| {
        let headers = [("content-type", "application/json")];
        let answer = server.http("POST", path, &headers, &body.to_string()).await;
        (answer.status, super::json(&answer.body))
    };
    let etag = ask("/tallystone.queue.v1.QueueService/CreateQueue", json!({"queue": {"name": "mail"}})).await.1["queue"]
        ["etag"]
        .clone();
    let queue = json!({"queue": {"name": "other", "etag": etag}});
    let refused = ask("/tallystone.queue.v1.QueueService/CreateQueue", queue).await;
    assert!(refused.0 == 400 && refused.1.to_string().contains("queue.etag"), "{refused:?}");
    let made = json!({"namespace": {"name": "one"}});
    let made = ask("/tallystone.admin.v1.NamespaceService/CreateNamespace", made).await;
    assert_eq!(made.0, 200, "{made:?}");
    let again = json!({"namespace": {"name": "two", "etag": made.1["namespace"]["etag"]}});
    let refused = ask("/tallystone.admin.v1.NamespaceService/CreateNamespace", again).await;
    assert!(refused.0 == 400 && refused.1.to_string().contains("namespace.etag"), "{refused:?}");
}
