//! The wire contract: how protos are written, that none breaks a client, that its reasons are ours.
//!
//! Everything is read from the descriptors inside the library, which are what reflection and JSON serve.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};
use tallystone::domain::Reason;
use tallystone::domain::reason::Effect;

use crate::support::golden;

const GOLDEN: &str = "tests/golden/protos.txt";

/// The path of `syntax` in a file, where the comment of the file hangs.
const FILE: &[i32] = &[12];

fn our_files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(tallystone::proto::DESCRIPTORS).expect("the library's descriptors decode");
    let ours: Vec<_> = set.file.into_iter().filter(|file| file.package().starts_with("tallystone")).collect();
    assert!(ours.len() >= 4, "counter, admin, error and internal are there");
    ours
}

fn expect_none(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}\n{}", findings.join("\n"));
}

#[test]
fn the_folder_is_the_package_and_ends_in_a_version() {
    let mut found = Vec::new();
    for file in our_files() {
        let folder = file.name().rsplit_once('/').map_or("", |(folder, _)| folder);
        let version = folder.rsplit('/').next().unwrap_or_default();
        let is_version = version.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
        if folder.replace('/', ".") != file.package() || !is_version || file.syntax() != "proto3" {
            found.push(format!("{}: package {}", file.name(), file.package()));
        }
        if file.service.len() > 1 {
            found.push(format!("{}: {} services", file.name(), file.service.len()));
        }
    }
    expect_none("package = folder = version, proto3, one service a file", &found);
}

#[test]
fn everything_has_a_comment() {
    let mut found = Vec::new();
    for file in our_files() {
        let commented: BTreeSet<Vec<i32>> = file
            .source_code_info
            .iter()
            .flat_map(|info| &info.location)
            .filter(|location| !location.leading_comments().trim().is_empty())
            .map(|location| location.path.clone())
            .collect();
        assert!(commented.len() > 2, "{}: the descriptors carry comments", file.name());
        let missing = places(&file).into_iter().filter(|(path, _)| !commented.contains(path));
        found.extend(missing.map(|(_, name)| format!("{}: {name}", file.name())));
    }
    expect_none("say what it is, in a sentence above it", &found);
}

/// Every element of a file with its descriptor path, as `descriptor.proto` numbers them.
fn places(file: &FileDescriptorProto) -> Vec<(Vec<i32>, String)> {
    let mut found = vec![(FILE.to_vec(), "the file".to_owned())];
    for (at, message) in (0..).zip(&file.message_type) {
        message_places(&[4, at], message, &mut found);
    }
    for (at, declared) in (0..).zip(&file.enum_type) {
        enum_places(&[5, at], declared, &mut found);
    }
    for (at, service) in (0..).zip(&file.service) {
        found.push((vec![6, at], service.name().to_owned()));
        for (method_at, method) in (0..).zip(&service.method) {
            found.push((vec![6, at, 2, method_at], format!("{}.{}", service.name(), method.name())));
        }
    }
    found
}

fn message_places(path: &[i32], message: &DescriptorProto, found: &mut Vec<(Vec<i32>, String)>) {
    found.push((path.to_vec(), message.name().to_owned()));
    for (at, field) in (0..).zip(&message.field) {
        found.push(([path, &[2, at]].concat(), format!("{}.{}", message.name(), field.name())));
    }
    for (at, nested) in (0..).zip(&message.nested_type) {
        if !nested.options.as_ref().is_some_and(prost_types::MessageOptions::map_entry) {
            message_places(&[path, &[3, at]].concat(), nested, found);
        }
    }
    for (at, declared) in (0..).zip(&message.enum_type) {
        enum_places(&[path, &[4, at]].concat(), declared, found);
    }
}

fn enum_places(path: &[i32], declared: &EnumDescriptorProto, found: &mut Vec<(Vec<i32>, String)>) {
    found.push((path.to_vec(), declared.name().to_owned()));
    for (at, value) in (0..).zip(&declared.value) {
        found.push(([path, &[2, at]].concat(), value.name().to_owned()));
    }
}

#[test]
fn every_rpc_has_a_request_and_a_response_of_its_own() {
    let mut found = Vec::new();
    let mut used = BTreeMap::new();
    for file in our_files() {
        for (service, method) in file.service.iter().flat_map(|s| s.method.iter().map(move |method| (s, method))) {
            let rpc = format!("{}.{}", service.name(), method.name());
            for (role, message) in [("Request", method.input_type()), ("Response", method.output_type())] {
                if message != format!(".{}.{}{role}", file.package(), method.name()) {
                    found.push(format!("{rpc}: {message} is not {}{role}", method.name()));
                }
                if let Some(other) = used.insert(message.to_owned(), rpc.clone()) {
                    found.push(format!("{message}: used by {other} and {rpc}"));
                }
            }
        }
        if file.service.iter().any(|service| !service.name().ends_with("Service")) {
            found.push(format!("{}: a service's name ends in Service", file.name()));
        }
    }
    expect_none("RPC Verb takes VerbRequest and answers VerbResponse, and nobody else uses them", &found);
}

#[test]
fn an_enum_begins_unspecified_and_its_values_carry_its_name() {
    let mut found = Vec::new();
    for file in our_files() {
        for declared in file.enum_type.iter().chain(file.message_type.iter().flat_map(|message| &message.enum_type)) {
            let prefix = format!("{}_", screaming(declared.name()));
            let zero = declared.value.iter().find(|value| value.number() == 0);
            if zero.map(|value| value.name().to_owned()) != Some(format!("{prefix}UNSPECIFIED")) {
                found.push(format!("{}: value 0 is {prefix}UNSPECIFIED", declared.name()));
            }
            // An enum inside a message shares no names with others; this one is called as the queue's contract has it.
            if declared.name() == "Completeness" {
                continue;
            }
            let strangers = declared.value.iter().filter(|value| !value.name().starts_with(&prefix));
            found.extend(strangers.map(|value| format!("{}: {} lacks {prefix}", declared.name(), value.name())));
        }
    }
    expect_none("write enums so that a missing value cannot mean anything", &found);
}

fn screaming(pascal: &str) -> String {
    let mut out = String::new();
    for (at, character) in pascal.char_indices() {
        if at > 0 && character.is_uppercase() {
            out.push('_');
        }
        out.extend(character.to_uppercase());
    }
    out
}

#[test]
fn fields_are_named_and_typed_alike_everywhere() {
    let mut found = Vec::new();
    for file in our_files().iter().filter(|file| !file.package().contains(".internal.")) {
        for (message, field) in file.message_type.iter().flat_map(|m| m.field.iter().map(move |field| (m, field))) {
            let name = field.name();
            let place = format!("{}.{name}", message.name());
            if name
                .chars()
                .any(|character| !(character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_'))
            {
                found.push(format!("{place}: lower_snake_case"));
            }
            let is_moment = name.ends_with("_time") && name != "max_run_time"; // how long a run may take
            if is_moment && field.type_name() != ".google.protobuf.Timestamp" {
                found.push(format!("{place}: a time is a google.protobuf.Timestamp"));
            }
            if name == "page_size" && field.r#type() != Type::Int32 {
                found.push(format!("{place}: int32, so that a negative one can be refused"));
            }
        }
        for message in
            file.message_type.iter().filter(|m| m.name().starts_with("List") && m.name().ends_with("Request"))
        {
            for wanted in ["page_size", "page_token"] {
                if !message.field.iter().any(|field| field.name() == wanted) {
                    found.push(format!("{}: lists are paged by {wanted}", message.name()));
                }
            }
        }
    }
    expect_none("one word, one meaning, one type", &found);
}

#[test]
fn no_change_breaks_a_client() {
    let now = contract();
    let path = format!("{}/{GOLDEN}", env!("CARGO_MANIFEST_DIR"));
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let lines: BTreeSet<&str> = now.lines().collect();
    let gone: Vec<String> = kept.lines().filter(|line| !lines.contains(line)).map(str::to_owned).collect();
    let breaking_is_meant = std::env::var("TALLYSTONE_BLESS").is_ok_and(|value| value == "breaking");
    assert!(
        gone.is_empty() || breaking_is_meant,
        "clients and stored data know these lines; add instead of changing, reserve what is removed, or begin v2. Before a \
         release that nobody depends on: TALLYSTONE_BLESS=breaking cargo test --test it protos\n{}",
        gone.join("\n")
    );
    golden::check(GOLDEN, &now);
}

/// The contract as sorted lines: what a client or a stored value depends on, by wire and by JSON.
fn contract() -> String {
    let mut lines = BTreeSet::new();
    for file in our_files() {
        let package = file.package();
        for message in &file.message_type {
            message_lines(&format!("{package}.{}", message.name()), message, &mut lines);
        }
        for declared in &file.enum_type {
            enum_lines(&format!("{package}.{}", declared.name()), declared, &mut lines);
        }
        for (service, method) in file.service.iter().flat_map(|s| s.method.iter().map(move |method| (s, method))) {
            let stream = |streams: bool| if streams { "stream " } else { "" };
            lines.insert(format!(
                "rpc {package}.{}/{} ({}{}) -> ({}{})",
                service.name(),
                method.name(),
                stream(method.client_streaming()),
                method.input_type(),
                stream(method.server_streaming()),
                method.output_type()
            ));
        }
    }
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}"); // writing to a string does not fail
        text
    })
}

fn message_lines(name: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    for field in &message.field {
        lines.insert(format!("field {name} {}", field_text(field)));
    }
    for range in &message.reserved_range {
        // The end is the first number that is free again.
        lines.insert(format!("reserved {name} {} to {}", range.start(), range.end() - 1));
    }
    for nested in &message.nested_type {
        message_lines(&format!("{name}.{}", nested.name()), nested, lines);
    }
    for declared in &message.enum_type {
        enum_lines(&format!("{name}.{}", declared.name()), declared, lines);
    }
}

fn field_text(field: &FieldDescriptorProto) -> String {
    let label = match field.label() {
        Label::Repeated => "repeated ",
        Label::Optional | Label::Required if field.proto3_optional() => "optional ",
        Label::Optional | Label::Required => "",
    };
    let kind = if field.type_name().is_empty() { field.r#type().as_str_name() } else { field.type_name() };
    format!("{} = {label}{kind} {}", field.number(), field.name())
}

fn enum_lines(name: &str, declared: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &declared.value {
        lines.insert(format!("value {name} {} = {}", value.number(), value.name()));
    }
}

#[test]
fn the_reasons_on_the_wire_are_the_reasons_of_the_domain() {
    let files = our_files();
    let file =
        files.iter().find(|file| file.package() == "tallystone.error.v1" && file.name().ends_with("reason.proto"));
    let file = file.expect("the reasons have a proto");
    let values = &file.enum_type[0].value;
    let on_the_wire: Vec<&str> = values.iter().skip(1).map(prost_types::EnumValueDescriptorProto::name).collect();
    let ours: Vec<String> = Reason::ALL.iter().map(|reason| format!("REASON_{reason}")).collect();
    assert_eq!(on_the_wire, ours, "the same reasons in the same order");

    let comments: BTreeMap<Vec<i32>, String> = file
        .source_code_info
        .iter()
        .flat_map(|info| &info.location)
        .map(|location| (location.path.clone(), location.leading_comments().to_owned()))
        .collect();
    for (at, reason) in (1..).zip(Reason::ALL) {
        let comment = &comments[&vec![5, 0, 2, at]];
        let admits = comment.contains("may");
        assert_eq!(
            admits,
            reason.info().effect == Effect::Unknown,
            "{reason}: the proto's comment says `may` exactly where the table says the effect is unknown: {comment}"
        );
    }
}
