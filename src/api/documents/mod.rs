//! Namespace documents: text files that describe namespaces.
//!
//! There are three forms: our TOML, our JSON (the fields of `admin.v1.Namespace`, snake_case or camelCase), and the
//! control-plane documents that Netflix published with its Distributed Counter Abstraction. The form is detected from
//! the text. JSON may contain comments and trailing commas and may lack its outer braces, like the published example.
//! No part of a document is dropped silently: in our forms an unknown field is an error, and in the published form a
//! field without a counterpart is listed as unmapped.

mod document_table;
mod document_value;
mod native;
mod published;

use tallystone_domain::counter::NamespaceName;
use tallystone_domain::limits::{BATCH_ITEMS_MAX, DOCUMENT_REFUSAL_BYTES_MAX};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::namespaces::{NamespaceDraft, NamespaceEtag};

use document_table::DocumentTable;
pub use document_table::duration_of;
use document_value::DocumentValue;

/// The settings that a document gives for one namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DocumentNamespace {
    /// The settings.
    pub draft: NamespaceDraft,
    /// The etag of the version that the document was made from, if the document has one.
    pub etag: Option<NamespaceEtag>,
    /// Fields without a counterpart, as `path: why`.
    pub unmapped: Vec<String>,
}

/// Parses a document. `name` is for documents without a name; it must match the name of a document with one.
pub fn parse(text: &str, name: Option<&NamespaceName>) -> Result<Vec<DocumentNamespace>, Reject> {
    let items = match DocumentValue::parse(text)? {
        DocumentValue::List(items) if items.iter().any(is_bare_block) => {
            return Err(invalid(
                "the list has the blocks of one namespace: put it under persistence_configuration, as { \
                 persistence_configuration: [ ... ] }"
                    .to_owned(),
            ));
        }
        DocumentValue::List(items) => {
            items.into_iter().enumerate().map(|(at, node)| (format!("[{at}]"), node)).collect()
        }
        node => items_of(node)?,
    };
    if items.is_empty() || items.len() > BATCH_ITEMS_MAX {
        return Err(invalid(format!(
            "the document has {} namespaces; 1 to {BATCH_ITEMS_MAX} are allowed",
            items.len()
        )));
    }
    let namespaces = items.into_iter().map(|(path, node)| read(path, node, name)).collect::<Result<Vec<_>, _>>()?;
    let mut names: Vec<_> = namespaces.iter().map(|one| &one.draft.name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(format!("namespace {} occurs twice in the document", pair[0]))),
        None => Ok(namespaces),
    }
}

/// Whether an item is the content of `persistence_configuration`: it has an id and no name. A namespace in an API
/// answer has both.
fn is_bare_block(node: &DocumentValue) -> bool {
    match node {
        DocumentValue::Table(table) => {
            let has = |field: &str| table.iter().any(|(key, _)| key == field);
            has("id") && !has("name")
        }
        _ => false, // nothing else has fields
    }
}

/// The namespaces of a document that is one table: a list under `namespaces`, one table under `namespace`, or the table
/// itself.
fn items_of(node: DocumentValue) -> Result<Vec<(String, DocumentValue)>, Reject> {
    let mut fields = DocumentTable::of(String::new(), node)?;
    if fields.has("persistence_configuration") {
        return Ok(vec![(String::new(), fields.into_node())]);
    }
    if let Some(items) = fields.list("namespaces")? {
        fields.refuse_rest()?;
        return Ok(items);
    }
    if fields.is_table("namespace") {
        let item = fields.take("namespace");
        fields.refuse_rest()?;
        return Ok(item.into_iter().collect());
    }
    Ok(vec![(String::new(), fields.into_node())])
}

fn read(path: String, node: DocumentValue, name: Option<&NamespaceName>) -> Result<DocumentNamespace, Reject> {
    let fields = DocumentTable::of(path, node)?;
    match fields.has("persistence_configuration") {
        true => published::read(fields, name),
        false => native::read(fields, name),
    }
}

/// The name, on which a document and its request must agree.
fn agreed_name(place: &str, said: Option<String>, asked: Option<&NamespaceName>) -> Result<NamespaceName, Reject> {
    let said =
        said.map(|said| NamespaceName::new(&said)).transpose().map_err(|reject| reject_at(place, &reject.message))?;
    match (said, asked) {
        (Some(said), Some(asked)) if said != *asked => Err(reject_at(
            place,
            &format!("the document names namespace {said}, the request {asked}; omit one of them"),
        )),
        (Some(said), _) => Ok(said),
        (None, Some(asked)) => Ok(asked.clone()),
        (None, None) => Err(reject_at(
            place,
            "the document names no namespace; send the name with the request (apply -f FILE --namespace NAME)",
        )),
    }
}

/// Refuses a document and names the path, if it is known.
fn reject_at(place: &str, what: &str) -> Reject {
    match place {
        "" => invalid(what.to_owned()),
        place => invalid(format!("{place}: {what}")),
    }
}

/// Refuses a document. The message quotes values of the document and may be long.
fn invalid(mut message: String) -> Reject {
    if message.len() > DOCUMENT_REFUSAL_BYTES_MAX {
        message.truncate(message.floor_char_boundary(DOCUMENT_REFUSAL_BYTES_MAX));
        message.push_str("...");
    }
    Reject::new(Reason::InvalidDocument, message)
}

#[cfg(test)]
mod tests;
