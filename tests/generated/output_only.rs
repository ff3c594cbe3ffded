//! Fields that only the service sets: those whose comment in the proto begins with "Output only".
//!
//! Makes the list of their names, by which JSON is read, and for each message of a request that has such fields a check of
//! the decoded message. A message that keeps them where no check reaches, as in a oneof or a map, fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use protox::prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

/// What the comment of such a field begins with.
const MARK: &str = "Output only";
/// Words of Rust that are names of fields.
const KEYWORDS: [&str; 6] = ["match", "move", "mut", "ref", "try", "type"];

/// The names of the fields, as an array of Rust.
pub fn fields(pool: &DescriptorPool) -> String {
    let names: BTreeSet<String> =
        pool.all_messages().flat_map(|message| marked(&message)).map(|field| field.full_name().to_owned()).collect();
    let rows: String = names.iter().map(|name| format!("    {name:?},\n")).collect();
    format!("&[\n{rows}]\n")
}

/// The checks of requests and of what they contain, as implementations of a trait.
pub fn checks(pool: &DescriptorPool) -> Result<String, String> {
    let mut checked = BTreeMap::new();
    for method in pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()) {
        check(&method.input(), &mut checked, &mut Vec::new())?;
    }
    Ok(checked.into_values().flatten().collect())
}

/// Adds the check of a message and of what it contains; says whether it needs one.
fn check(
    message: &MessageDescriptor,
    checked: &mut BTreeMap<String, Option<String>>,
    above: &mut Vec<String>,
) -> Result<bool, String> {
    let name = message.full_name().to_owned();
    if let Some(known) = checked.get(&name) {
        return Ok(known.is_some());
    }
    if above.contains(&name) {
        return Err(format!("{name} contains itself, which no check of output-only fields can follow"));
    }
    above.push(name.clone());
    let own: Vec<FieldDescriptor> = marked(message).collect();
    let (mut set, mut nested) = (String::new(), Vec::new());
    for field in message.fields() {
        if own.contains(&field) {
            write!(set, "({:?}, {}), ", field.name(), is_set(&field)?).map_err(|error| error.to_string())?;
        } else if let Kind::Message(inner) = field.kind()
            && check(&inner, checked, above)?
        {
            nested.push(within(&field)?);
        }
    }
    above.pop();
    let first = (!set.is_empty()).then(|| format!("first_set(&[{}])", set.trim_end_matches(", ")));
    let parts: Vec<String> = first.into_iter().chain(nested).collect();
    let body = parts
        .split_first()
        .map(|(first, rest)| rest.iter().fold(first.clone(), |body, next| format!("{body}.or_else(|| {next})")));
    let code = body.map(|body| implementation(message, &body)).transpose()?;
    let needs = code.is_some();
    checked.insert(name, code);
    Ok(needs)
}

fn implementation(message: &MessageDescriptor, body: &str) -> Result<String, String> {
    let path = path_of(message)?;
    let function = format!("    fn output_only(&self) -> Option<String> {{\n        {body}\n    }}\n");
    Ok(format!("impl OutputOnly for {path} {{\n{function}}}\n"))
}

/// The fields of a message that only the service sets.
fn marked(message: &MessageDescriptor) -> impl Iterator<Item = FieldDescriptor> + use<> {
    let file = message.parent_file();
    let comments = file.file_descriptor_proto().source_code_info.clone().unwrap_or_default().location;
    let fields: Vec<FieldDescriptor> = message.fields().collect();
    fields.into_iter().filter(move |field| {
        let mut own = comments.iter().filter(|location| location.path == field.path());
        own.any(|location| location.leading_comments().trim_start().starts_with(MARK))
    })
}

/// An expression that is true if the field was set.
fn is_set(field: &FieldDescriptor) -> Result<String, String> {
    let place = place_of(field)?;
    if field.is_list() || field.is_map() {
        return Ok(format!("!{place}.is_empty()"));
    }
    if field.supports_presence() {
        return Ok(format!("{place}.is_some()"));
    }
    Ok(match field.kind() {
        Kind::Bool => place,
        Kind::String | Kind::Bytes => format!("!{place}.is_empty()"),
        Kind::Double | Kind::Float => format!("{place} != 0.0"),
        _ => format!("{place} != 0"), // numbers and enums
    })
}

/// An expression for the first field that is set within the message of a field.
fn within(field: &FieldDescriptor) -> Result<String, String> {
    let (name, place) = (field.name(), place_of(field)?);
    match field.cardinality() {
        Cardinality::Repeated if field.is_map() => Err(format!("{}: no check reaches into a map", field.full_name())),
        Cardinality::Repeated => Ok(format!("within_each({name:?}, &{place})")),
        Cardinality::Optional | Cardinality::Required => Ok(format!("within({name:?}, {place}.as_ref())")),
    }
}

fn place_of(field: &FieldDescriptor) -> Result<String, String> {
    if field.containing_oneof().is_some_and(|group| !group.is_synthetic()) {
        return Err(format!("{}: no check reaches into a oneof", field.full_name()));
    }
    let name = field.name();
    Ok(if KEYWORDS.contains(&name) { format!("self.r#{name}") } else { format!("self.{name}") })
}

/// The path of a message in Rust.
fn path_of(message: &MessageDescriptor) -> Result<String, String> {
    let package = message.package_name();
    let module = package.strip_prefix("tallystone.").unwrap_or(package).replace('.', "::");
    match message.parent_message() {
        None => Ok(format!("crate::{module}::{}", message.name())),
        Some(_) => Err(format!("{}: move it to the top of its file, where its check is made", message.full_name())),
    }
}
