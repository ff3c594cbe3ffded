//! The rules of this repository: sources, documents, protos, dependencies and linters.

mod compose;
mod docs;
mod documents;
mod licences;
mod linters;
mod protos;
mod readme;
mod tidy;
