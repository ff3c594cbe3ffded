//! The rules of this repository that need nothing of the library: sources, documents, dependencies and linters. A package of its
//! own, so that they are checked before anything is compiled. What needs the library or the binary is in `tests/it/repository`.

mod docs;
mod licences;
mod linters;
mod pages;
mod tidy;
