//! The rules of this repository that need the library or the binary: generated pages, protos, the README and the composed stack.
//! The others are in `tests/repository`.

mod compose;
mod docs;
mod documents;
#[allow(dead_code, reason = "each test binary takes what it needs")]
#[path = "../../repository/pages.rs"]
mod pages;
mod protos;
mod readme;
